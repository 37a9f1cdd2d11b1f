"""Hands what an engine reports to everyone who keeps it."""

from __future__ import annotations

from collections.abc import Callable

from agentserve.domain.lifecycle import EngineStatus
from agentserve.domain.request import RequestRecord
from agentserve.domain.sample import StepSample
from agentserve.telemetry.engine_stats import EngineStats
from agentserve.telemetry.request_history import RequestHistory


class EngineReports:
    """The observer of all engines (`EngineObserver`); called on the serving thread.

    Args:
        stats: Gets everything, for the screen.
        history: Gets finished requests, for months; None keeps none.
        status: The supervisor's published view, for the preset's name.
    """

    def __init__(
        self,
        stats: EngineStats,
        history: RequestHistory | None,
        status: Callable[[], EngineStatus],
    ) -> None:
        self._stats = stats
        self._history = history
        self._status = status
        # Not wrapped: this is called for every step of the engine.
        self.step: Callable[[StepSample], None] = stats.step

    def generation_ready(self, generation: int) -> None:
        """A new engine is ready."""
        self._stats.generation_ready(generation)

    def first_token(self, ttft_s: float, cached_tokens: int | None, prompt_tokens: int) -> None:
        """A request got its first output."""
        self._stats.first_token(ttft_s, cached_tokens, prompt_tokens)

    def request_finished(self, record: RequestRecord) -> None:
        """A request ended."""
        self._stats.request_finished(record)
        if self._history is not None:
            status = self._status()
            version = status.facts.vllm_version if status.facts else None
            self._history.record(record, status.preset or "", vllm_version=version)
