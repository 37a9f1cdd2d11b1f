"""Joins all sources into the one `Snapshot` that everything on screen is drawn from.

Owns which figures are shown in which state: what is measured on a running engine is shown only
while that very engine is ready, and is unknown otherwise. It holds no state and no thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from agentserve.domain.gpu import GpuReport, ProcessSample
from agentserve.domain.lifecycle import EngineState, EngineStatus
from agentserve.domain.pending import DrainView, PendingView
from agentserve.domain.request import InFlightRequest, RequestRecord
from agentserve.domain.sample import SchedulerFacts
from agentserve.domain.session import CacheMonitorView, SessionView
from agentserve.domain.snapshot import (
    EngineView,
    HistoryView,
    KvView,
    LatencyView,
    PrefixCacheView,
    SettingsView,
    Snapshot,
    SpecDecodeView,
    ThroughputView,
)
from agentserve.telemetry.engine_stats import EngineStats, EngineStatsView
from agentserve.telemetry.sessions.exchange import NO_SESSIONS, SessionsView

_STARTING_STATES = frozenset({EngineState.STARTING, EngineState.WARMING})
_Request = TypeVar("_Request", InFlightRequest, RequestRecord)


class SnapshotCollector:
    """Makes snapshots; may be asked from any thread.

    Args:
        endpoint: Base URL of the API.
        status: The supervisor's published view of the engine.
        stats: What the engine reported.
        gpu_report: The newest GPU readings, or why there are none.
        processes: Memory of the app and of the engine's processes.
        in_flight: Requests that are running or waiting now.
        log_dropped_lines: Log lines that are no longer kept.
        scheduler_facts: The scheduler's answers, or None where it cannot be asked.
        pending: Changes that were asked for and are not applied yet.
        sessions: Agent sessions and their use of the prefix cache.
        clock: Monotonic clock, seconds; the one that `status` uses.
        unix_clock: Unix time, seconds.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        status: Callable[[], EngineStatus],
        stats: EngineStats,
        gpu_report: Callable[[], GpuReport],
        processes: Callable[[], tuple[ProcessSample, ...]],
        in_flight: Callable[[], tuple[InFlightRequest, ...]],
        log_dropped_lines: Callable[[], int],
        scheduler_facts: Callable[[], SchedulerFacts | None] = lambda: None,
        pending: Callable[[], PendingView | None] = lambda: None,
        sessions: Callable[[], SessionsView] = lambda: NO_SESSIONS,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._endpoint = endpoint
        self._status = status
        self._stats = stats
        self._gpu_report = gpu_report
        self._processes = processes
        self._in_flight = in_flight
        self._log_dropped_lines = log_dropped_lines
        self._scheduler_facts = scheduler_facts
        self._pending = pending
        self._sessions = sessions
        self._clock = clock
        self._unix_clock = unix_clock

    def snapshot(self) -> Snapshot:
        """Return everything that is known now."""
        status = self._status()
        gpu_report = self._gpu_report()
        ready = status.state is EngineState.READY
        stats = self._stats.view() if ready else None
        if stats is not None and stats.generation != status.generation:
            stats = None
        scheduler = self._scheduler_facts() if ready else None
        in_flight = self._in_flight() if ready else ()
        sessions = self._sessions()
        now_s = self._clock()
        return Snapshot(
            time=self._unix_clock(),
            engine=msgspec.structs.replace(
                _engine_view(status, scheduler, self._endpoint, now_s),
                pending=self._pending(),
                drain=_drain_view(status, len(in_flight), now_s),
            ),
            kv=_kv_view(status, stats, scheduler) if ready else KvView(),
            prefix_cache=PrefixCacheView() if stats is None else stats.prefix_cache,
            latency=LatencyView() if stats is None else stats.latency,
            throughput=ThroughputView() if stats is None else stats.throughput,
            spec_decode=_spec_decode_view(status, stats),
            history=HistoryView() if stats is None else stats.history,
            gpus=gpu_report.gpus,
            gpus_unavailable=gpu_report.unavailable_reason,
            processes=self._processes(),
            in_flight=_with_sessions(in_flight, sessions.session_of_request),
            sessions=sessions.sessions if ready else _without_cache(sessions.sessions),
            cache_monitor=sessions.monitor if ready else CacheMonitorView(),
            recent_requests=_with_sessions(
                self._stats.recent_requests(), sessions.session_of_request
            ),
            log_dropped_lines=self._log_dropped_lines(),
        )


def _engine_view(
    status: EngineStatus, scheduler: SchedulerFacts | None, endpoint: str, now_s: float
) -> EngineView:
    starting = status.state in _STARTING_STATES
    ready = status.state is EngineState.READY
    # A stopped engine has no properties; a failed one keeps them, they help to explain it.
    facts = None if status.state is EngineState.STOPPED else status.facts
    start_elapsed_s = None
    if starting:
        start_elapsed_s = _elapsed_s(status.started_at_s, now_s)
    elif ready and status.ready_at_s is not None:
        start_elapsed_s = _elapsed_s(status.started_at_s, status.ready_at_s)
    remaining_start_s = None
    if starting and status.expected_start_s is not None and start_elapsed_s is not None:
        remaining_start_s = max(0.0, status.expected_start_s - start_elapsed_s)
    settings = SettingsView()
    if facts is not None:
        settings = SettingsView(
            max_num_batched_tokens=facts.max_num_batched_tokens,
            live_token_budget=None if scheduler is None else scheduler.live_token_budget,
            max_model_len=facts.max_model_len,
            max_num_seqs=facts.max_num_seqs,
            speculative_tokens=facts.speculative_tokens,
            kv_cache_dtype=facts.kv_cache_dtype,
            prefix_caching=facts.prefix_caching,
        )
    return EngineView(
        state=status.state,
        phase=status.phase if starting else None,
        phase_elapsed_s=_elapsed_s(status.phase_started_at_s, now_s) if starting else None,
        start_elapsed_s=start_elapsed_s,
        expected_start_s=status.expected_start_s,
        remaining_start_s=remaining_start_s,
        finished_phases=status.finished_phases,
        generation=status.generation,
        preset=status.preset,
        model=None if facts is None else facts.served_model_name,
        endpoint=endpoint,
        uptime_s=_elapsed_s(status.ready_at_s, now_s) if ready else None,
        vllm_version=None if facts is None else facts.vllm_version,
        device=None if facts is None else facts.device,
        tensor_parallel_size=None if facts is None else facts.tensor_parallel_size,
        simulated=status.simulated,
        settings=settings,
        previous_preset=status.previous_preset,
        failure=status.failure,
    )


def _with_sessions(
    requests: tuple[_Request, ...], session_of_request: Mapping[int, str]
) -> tuple[_Request, ...]:
    return tuple(
        msgspec.structs.replace(request, session=session_of_request[request.number])
        if request.number in session_of_request
        else request
        for request in requests
    )


def _without_cache(sessions: tuple[SessionView, ...]) -> tuple[SessionView, ...]:
    """Sessions outlive an engine; what they hold in its cache does not."""
    return tuple(
        msgspec.structs.replace(session, resident_tokens=None)
        if session.resident_tokens is not None
        else session
        for session in sessions
    )


def _drain_view(status: EngineStatus, requests_left: int, now_s: float) -> DrainView | None:
    if status.drain is None:
        return None
    return DrainView(
        target_preset=status.drain.target_preset,
        remaining_s=max(0.0, status.drain.deadline_s - now_s),
        requests_left=requests_left,
    )


def _kv_view(
    status: EngineStatus, stats: EngineStatsView | None, scheduler: SchedulerFacts | None
) -> KvView:
    facts = status.facts
    return KvView(
        usage_fraction=None if stats is None else stats.kv_usage_fraction,
        block_tokens=None if facts is None else facts.block_tokens,
        blocks_total=None if facts is None else facts.blocks_total,
        blocks_in_use=None if scheduler is None else scheduler.blocks_in_use,
        blocks_warm=None if scheduler is None else scheduler.blocks_warm,
        blocks_free=None if scheduler is None else scheduler.blocks_free,
        capacity_tokens=None if facts is None else facts.capacity_tokens,
        max_concurrency=None if facts is None else facts.max_concurrency,
        preemptions=None if stats is None else stats.preemptions,
    )


def _spec_decode_view(status: EngineStatus, stats: EngineStatsView | None) -> SpecDecodeView | None:
    if stats is None:
        return None
    if stats.spec_decode is None and status.facts is not None and status.facts.speculative_tokens:
        # The engine can speculate and has not yet: a view without rates, not "no such feature".
        return SpecDecodeView()
    return stats.spec_decode


def _elapsed_s(since_s: float | None, now_s: float) -> float | None:
    return None if since_s is None else max(0.0, now_s - since_s)
