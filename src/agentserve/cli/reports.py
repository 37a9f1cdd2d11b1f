"""Hands what an engine reports to everyone who keeps it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentserve.domain.cache_event import CacheEvents, CacheEventsLost
from agentserve.domain.lifecycle import EngineStatus
from agentserve.domain.request import FirstToken, RequestRecord, RequestStart
from agentserve.domain.sample import CacheFacts, StepSample
from agentserve.engine.app_log import log_place_of
from agentserve.telemetry.engine_stats import EngineStats
from agentserve.telemetry.request_history import RequestHistory
from agentserve.telemetry.sessions.exchange import Monitor
from agentserve.telemetry.sessions.tracker import SessionTracker


class EngineReports:
    """The observer of all engines (`EngineObserver`); called on the engine's threads.

    Args:
        stats: Gets everything, for the screen.
        sessions: Gets requests and cache events.
        history: Gets finished requests with their session, for months; None keeps none.
        status: The supervisor's published view, for the preset's name.
    """

    def __init__(
        self,
        stats: EngineStats,
        sessions: SessionTracker,
        history: RequestHistory | None,
        status: Callable[[], EngineStatus],
    ) -> None:
        self._stats = stats
        self._sessions = sessions
        self._history = history
        self._status = status
        # Not wrapped: this is called for every step of the engine.
        self.step: Callable[[StepSample], None] = stats.step
        self.cache_events: Callable[[CacheEvents | CacheEventsLost], None] = sessions.cache_events

    def generation_ready(self, generation: int) -> None:
        """A new engine is ready."""
        self._stats.generation_ready(generation)

    def cache_facts(self, facts: CacheFacts) -> None:
        """A new engine's cache is empty."""
        self._sessions.cache_facts(facts)

    def request_started(self, start: RequestStart) -> None:
        """A request was handed to the engine."""
        self._sessions.request_started(start)

    def first_token(self, first: FirstToken) -> None:
        """A request got its first output."""
        self._stats.first_token(first.ttft_s, first.cached_tokens, first.prompt_tokens)
        self._sessions.first_token(first)

    def request_finished(self, record: RequestRecord, answer_token_ids: Sequence[int]) -> None:
        """A request ended."""
        self._stats.request_finished(record)
        self._sessions.request_finished(record, answer_token_ids, self._keep(record))

    def _keep(self, record: RequestRecord) -> Callable[[str | None], None]:
        """Make what stores a request once its session is known.

        Preset and version are taken now: a moment later another engine may run.
        """
        history, status = self._history, self._status()
        if history is None:
            return _keep_nothing
        preset = status.preset or ""
        version = status.facts.vllm_version if status.facts else None
        return lambda session: history.record(record, preset, session, version)


def _keep_nothing(session: str | None) -> None:
    """Do nothing: no history is kept."""


def session_tracker() -> SessionTracker:
    """Make the tracker of agent sessions; its monitor is loaded with the first engine."""
    return SessionTracker(_session_monitor, log_place_of)


def _session_monitor() -> Monitor:
    # Late: an app without an engine must stay small.
    from agentserve.telemetry.sessions.monitor import SessionMonitor

    return SessionMonitor()
