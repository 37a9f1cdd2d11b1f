"""The one value that everything on screen is drawn from, and its public JSON form.

`Snapshot` is frozen and made about twice a second. The same value is printed by `status --json` and
served at `/agentserve/v1/snapshot`: fields may be added, `SCHEMA` counts incompatible changes, and
None (JSON null) always means "not reported", never 0.
"""

from __future__ import annotations

import msgspec

from agentserve.domain.failure import Failure
from agentserve.domain.gpu import GpuSample, ProcessSample
from agentserve.domain.lifecycle import EngineState, PhaseTime, StartPhase
from agentserve.domain.pending import DrainView, PendingView
from agentserve.domain.request import InFlightRequest, RequestRecord
from agentserve.domain.session import CacheMonitorView, SessionView

SCHEMA = 1


class SettingsView(msgspec.Struct, frozen=True, kw_only=True):
    """The engine settings that decide about waiting and memory."""

    max_num_batched_tokens: int | None = None
    live_token_budget: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    speculative_tokens: int | None = None
    kv_cache_dtype: str | None = None
    prefix_caching: bool | None = None


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """State of the engine at the time of the snapshot."""

    state: EngineState = EngineState.STOPPED
    phase: StartPhase | None = None
    phase_elapsed_s: float | None = None
    start_elapsed_s: float | None = None
    expected_start_s: float | None = None
    remaining_start_s: float | None = None
    finished_phases: tuple[PhaseTime, ...] = ()
    generation: int = 0
    preset: str | None = None
    model: str | None = None
    endpoint: str = ""
    """Base URL of the API, for example `http://127.0.0.1:8000`."""
    uptime_s: float | None = None
    vllm_version: str | None = None
    device: str | None = None
    tensor_parallel_size: int | None = None
    simulated: bool = False
    settings: SettingsView = SettingsView()
    pending: PendingView | None = None
    drain: DrainView | None = None
    previous_preset: str | None = None
    """The last other preset that reached READY in this run: offered when a switch fails."""
    failure: Failure | None = None


class KvView(msgspec.Struct, frozen=True, kw_only=True):
    """The KV pool."""

    usage_fraction: float | None = None
    """Share of blocks held by running requests."""
    block_tokens: int | None = None
    blocks_total: int | None = None
    blocks_in_use: int | None = None
    blocks_warm: int | None = None
    """Cached and evictable; asked of the scheduler by our plugin."""
    blocks_free: int | None = None
    capacity_tokens: int | None = None
    max_concurrency: float | None = None
    preemptions: int | None = None


class PrefixCacheView(msgspec.Struct, frozen=True, kw_only=True):
    """Reuse of prompt tokens. Rates are fractions of queried prompt tokens."""

    hit_rate_recent: float | None = None
    recent_requests: int = 0
    """n of `hit_rate_recent`."""
    hit_rate_generation: float | None = None
    generation_requests: int = 0
    cached_tokens: int = 0
    """Prompt tokens taken from the cache in this generation."""
    computed_tokens: int = 0
    """Prompt tokens prefilled in this generation."""
    eligible_hit_rate: float | None = None


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles over a window; all None when n is 0."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    n: int = 0


class LatencyView(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies over the last `window_s` seconds of this generation."""

    ttft_s: Percentiles = Percentiles()
    itl_s: Percentiles = Percentiles()
    """Per output event; with speculative decoding one event can carry several tokens."""
    window_s: float = 0.0


class ThroughputView(msgspec.Struct, frozen=True, kw_only=True):
    """Rates over the last `window_s` seconds, and the queue now."""

    computed_prefill_tokens_per_s: float | None = None
    cached_prefill_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    running_requests: int | None = None
    waiting_requests: int | None = None
    window_s: float = 0.0


class SpecDecodeView(msgspec.Struct, frozen=True, kw_only=True):
    """Speculative decoding over the last `window_s` seconds."""

    acceptance_rate: float | None = None
    """Accepted draft tokens / draft tokens."""
    mean_accepted_tokens: float | None = None
    """Accepted draft tokens per step, without the token that the model itself adds."""
    per_position: tuple[float, ...] = ()
    drafts: int = 0
    """n: drafting steps in the window."""
    window_s: float = 0.0


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """Equally spaced series for sparklines, oldest first; None where nothing was measured."""

    interval_s: float = 1.0
    decode_tokens_per_s: tuple[float | None, ...] = ()
    computed_prefill_tokens_per_s: tuple[float | None, ...] = ()
    cached_prefill_tokens_per_s: tuple[float | None, ...] = ()
    kv_usage_fraction: tuple[float | None, ...] = ()
    ttft_s: tuple[float | None, ...] = ()
    """Mean of the requests that got their first token in the interval."""
    itl_s: tuple[float | None, ...] = ()
    """Mean over the interval."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known at one moment."""

    schema: int = SCHEMA
    time: float = 0.0
    """Unix time, seconds."""
    engine: EngineView = EngineView()
    kv: KvView = KvView()
    prefix_cache: PrefixCacheView = PrefixCacheView()
    latency: LatencyView = LatencyView()
    throughput: ThroughputView = ThroughputView()
    spec_decode: SpecDecodeView | None = None
    history: HistoryView = HistoryView()
    gpus: tuple[GpuSample, ...] = ()
    gpus_unavailable: str | None = None
    processes: tuple[ProcessSample, ...] = ()
    in_flight: tuple[InFlightRequest, ...] = ()
    recent_requests: tuple[RequestRecord, ...] = ()
    """Newest first."""
    sessions: tuple[SessionView, ...] = ()
    """Newest first."""
    cache_monitor: CacheMonitorView = CacheMonitorView()
    log_dropped_lines: int = 0


EMPTY_SNAPSHOT = Snapshot()


DETAILED_SESSIONS = 50
"""So many of the newest sessions have `history` and `layout` in the public JSON form."""


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Encode a snapshot as its public JSON form, UTF-8.

    Sessions after the newest `DETAILED_SESSIONS` have an empty `history` and `layout`: with all of
    1,000 sessions the document would have tens of megabytes.
    """
    older = snapshot.sessions[DETAILED_SESSIONS:]
    if older:
        brief = [msgspec.structs.replace(each, history=(), layout=()) for each in older]
        sessions = (*snapshot.sessions[:DETAILED_SESSIONS], *brief)
        snapshot = msgspec.structs.replace(snapshot, sessions=sessions)
    return msgspec.json.encode(snapshot)


def decode_snapshot(data: bytes) -> Snapshot:
    """Decode the public JSON form.

    Raises:
        msgspec.ValidationError: The document is not a snapshot.
    """
    return msgspec.json.decode(data, type=Snapshot)
