"""States and start-up phases of an engine, and which state may follow which.

Owns the state machine as data. It knows neither threads nor clocks: the supervisor is the only
writer of engine state and asks `require_transition` before each change.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from agentserve.domain.failure import Failure


class EngineState(StrEnum):
    """What the engine is doing, as far as a person needs to know."""

    STOPPED = "stopped"
    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"


class StartPhase(StrEnum):
    """The part of a start that is running now, in the order of a start."""

    IMPORT = "import"
    CONFIG = "config"
    SPAWN = "spawn"
    LOAD = "load"
    PROFILE = "profile"
    KV_CACHE = "kv cache"
    GRAPHS = "graphs"
    WARM_UP = "warm-up"


PHASE_ORDER: tuple[StartPhase, ...] = tuple(StartPhase)

_ALLOWED: dict[EngineState, frozenset[EngineState]] = {
    EngineState.STOPPED: frozenset({EngineState.STARTING}),
    EngineState.STARTING: frozenset(
        {EngineState.WARMING, EngineState.STOPPING, EngineState.FAILED}
    ),
    EngineState.WARMING: frozenset({EngineState.READY, EngineState.STOPPING, EngineState.FAILED}),
    EngineState.READY: frozenset({EngineState.STOPPING, EngineState.FAILED}),
    EngineState.STOPPING: frozenset({EngineState.STOPPED, EngineState.FAILED}),
    EngineState.FAILED: frozenset({EngineState.STARTING, EngineState.STOPPED}),
}


def may_follow(before: EngineState, after: EngineState) -> bool:
    """Tell whether `after` is an allowed successor of `before`."""
    return after in _ALLOWED[before]


class PhaseTime(msgspec.Struct, frozen=True):
    """How long one finished phase of a start took."""

    phase: StartPhase
    duration_s: float


class CacheGroup(msgspec.Struct, frozen=True):
    """One KV cache group of the engine (a hybrid model has several)."""

    kind: str
    """vLLM's name of the group's kind, for example `full_attention` or `mamba`."""
    block_tokens: int


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the started engine says about itself; None where it does not say."""

    vllm_version: str
    device: str
    """vLLM's platform name: `cpu` or `cuda`."""
    model: str
    served_model_name: str
    tensor_parallel_size: int
    max_model_len: int
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    speculative_tokens: int = 0
    kv_cache_dtype: str | None = None
    prefix_caching: bool | None = None
    block_tokens: int | None = None
    blocks_total: int | None = None
    capacity_tokens: int | None = None
    """Maximum concurrency x maximum length: on hybrids blocks x block size would be wrong."""
    max_concurrency: float | None = None
    """vLLM's own figure: how many full-length sequences fit at once."""
    cache_groups: tuple[CacheGroup, ...] = ()


class DrainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A switch that waits for requests in flight."""

    target_preset: str | None
    """What is started afterwards; None when the engine is only stopped."""
    deadline_s: float
    """When waiting ends, in seconds of the monotonic clock."""


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor's published view of the engine; replaced as a whole at each change.

    Times are of the monotonic clock, in seconds.
    """

    state: EngineState = EngineState.STOPPED
    generation: int = 0
    """Counts starts; rates, windows and expectations begin anew with it."""
    preset: str | None = None
    phase: StartPhase | None = None
    started_at_s: float | None = None
    phase_started_at_s: float | None = None
    finished_phases: tuple[PhaseTime, ...] = ()
    expected_start_s: float | None = None
    """Median length of earlier starts of this preset; None when there were none."""
    ready_at_s: float | None = None
    facts: EngineFacts | None = None
    failure: Failure | None = None
    drain: DrainStatus | None = None
    previous_preset: str | None = None
    """The last preset that was READY in this run, other than the present one."""
    simulated: bool = False

    def finished_phases_at(self, now_s: float) -> tuple[PhaseTime, ...]:
        """The finished phases if the present one ended at `now_s`."""
        if self.phase is None or self.phase_started_at_s is None:
            return self.finished_phases
        return (*self.finished_phases, PhaseTime(self.phase, now_s - self.phase_started_at_s))


class StateChanged(msgspec.Struct, frozen=True):
    """The engine entered another state or another start phase."""

    status: EngineStatus
    previous: EngineState
