"""The one most useful hint about a running engine, and silence when all is well.

Owns the rules that turn measurements into advice. Pure: what must be remembered between two
snapshots travels in an `AdviserState`. It knows neither keys nor screens; it names the option to
change and in which direction.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from agentserve.domain.lifecycle import EngineState
from agentserve.domain.pending import ToggleOption
from agentserve.domain.snapshot import Snapshot
from agentserve.domain.statistics import nearest_rank

HOLD_S = 5.0
"""A momentary condition must last this long before it is spoken about."""
LINGER_S = 10.0
"""A hint stays this long after its condition ended, so that it can be read."""
PREEMPTION_WINDOW_S = 60.0
RECENT_PROMPT_S = 300.0
"""How long a finished prompt near the ceiling matters."""

_KV_NEARLY_FULL = 0.95
_KV_HAS_ROOM = 0.70
_STALLED = 0.25
_LEAST_DECODE_SAMPLES = 20
_NEAR_CEILING = 0.90
_LEAST_DRAFTS = 200
_POOR_ACCEPTANCE = 0.35
_LEAST_RECENT_REQUESTS = 10
_LEAST_GENERATION_REQUESTS = 20
_USUAL_HIT_RATE = 0.30
_MEMORY_SKEW = 0.10


class AdviceKind(StrEnum):
    """What a hint is about; in the order of importance."""

    GPU_LOST = "gpu lost"
    PREEMPTIONS = "preemptions"
    KV_FULL = "kv full"
    DECODE_STALLED = "decode stalled"
    CEILING = "context ceiling"
    SEATS_FULL = "seats full"
    HIT_RATE = "hit rate"
    ACCEPTANCE = "acceptance"
    GPU_SKEW = "gpu skew"


class Direction(StrEnum):
    """Which way an option should go."""

    UP = "up"
    DOWN = "down"


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One hint: what was seen, what it means, and what to change."""

    kind: AdviceKind
    text: str
    """One sentence: what was seen with its numbers and, after a colon, what it means."""
    remedy: str
    """What to do, in a few words; after ";", "," or "(" what can be left out."""
    option: ToggleOption | None = None
    """The option to change, where one would help."""
    direction: Direction | None = None


class AdviserState(msgspec.Struct, frozen=True, kw_only=True):
    """What the adviser remembers from one snapshot to the next."""

    generation: int = 0
    preemptions: tuple[tuple[float, int], ...] = ()
    """Times at which the count changed, with the count; bounded by the window."""
    since: tuple[tuple[AdviceKind, float], ...] = ()
    """Since when each condition holds without a break."""
    shown: Advice | None = None
    seen_at_s: float = 0.0
    """When the condition of `shown` held last."""


_MOMENTARY = frozenset({AdviceKind.KV_FULL, AdviceKind.DECODE_STALLED, AdviceKind.SEATS_FULL})
_ORDER = tuple(AdviceKind)


def advise(snapshot: Snapshot, state: AdviserState) -> tuple[Advice | None, AdviserState]:
    """Choose the most useful hint.

    Args:
        snapshot: Everything known now.
        state: What this function returned last time; `AdviserState()` at first.

    Returns:
        The hint, or None when there is nothing to say, and the state for the next call.
    """
    now = snapshot.time
    if snapshot.engine.generation != state.generation or now < state.seen_at_s:
        state = AdviserState(generation=snapshot.engine.generation)
    preemptions = _preemptions(snapshot, state.preemptions)
    found = {advice.kind: advice for advice in _conditions(snapshot, preemptions)}
    known = dict(state.since)
    since = tuple((kind, min(known.get(kind, now), now)) for kind in _ORDER if kind in found)
    spoken = [
        found[kind]
        for kind, began in since
        if kind not in _MOMENTARY or now - began >= HOLD_S or _is_shown(state, kind)
    ]
    shown = spoken[0] if spoken else None
    seen_at_s = now
    if shown is None and state.shown is not None and now - state.seen_at_s < LINGER_S:
        shown, seen_at_s = state.shown, state.seen_at_s
    return shown, AdviserState(
        generation=state.generation,
        preemptions=preemptions,
        since=since,
        shown=shown,
        seen_at_s=seen_at_s if shown is not None else 0.0,
    )


def _is_shown(state: AdviserState, kind: AdviceKind) -> bool:
    return state.shown is not None and state.shown.kind is kind


def _preemptions(
    snapshot: Snapshot, before: tuple[tuple[float, int], ...]
) -> tuple[tuple[float, int], ...]:
    count = snapshot.kv.preemptions
    if count is None:
        return before
    if before and count < before[-1][1]:
        before = ()
    if not before or count != before[-1][1]:
        before = (*before, (snapshot.time, count))
    # The newest entry outside the window is what the ones inside are compared with.
    old = [entry for entry in before if snapshot.time - entry[0] > PREEMPTION_WINDOW_S]
    return (*old[-1:], *before[len(old) :])[-64:]


def _conditions(snapshot: Snapshot, preemptions: tuple[tuple[float, int], ...]) -> list[Advice]:
    lost = _gpu_lost(snapshot)
    if snapshot.engine.state is not EngineState.READY:
        return [lost] if lost is not None else []
    every = (
        lost,
        _preempted(preemptions),
        _kv_full(snapshot),
        _decode_stalled(snapshot),
        _near_ceiling(snapshot),
        _seats_full(snapshot),
        _hit_rate(snapshot),
        _acceptance(snapshot),
        _gpu_skew(snapshot),
    )
    return [advice for advice in every if advice is not None]


def _gpu_lost(snapshot: Snapshot) -> Advice | None:
    lost = [str(gpu.index) for gpu in snapshot.gpus if gpu.lost]
    if not lost:
        return None
    return Advice(
        kind=AdviceKind.GPU_LOST,
        text=f"GPU {' and '.join(lost)} has fallen off the bus.",
        remedy="reset the driver or reboot; starting again cannot help",
    )


def _preempted(preemptions: tuple[tuple[float, int], ...]) -> Advice | None:
    if len(preemptions) < 2:
        return None
    rise = preemptions[-1][1] - preemptions[0][1]
    return Advice(
        kind=AdviceKind.PREEMPTIONS,
        text=f"{_counted(rise, 'preemption')} in the last minute: the KV pool is too small"
        " for what runs, and their work is done again.",
        remedy="fewer seats (max_num_seqs)",
        option=ToggleOption.SEATS,
        direction=Direction.DOWN,
    )


def _kv_full(snapshot: Snapshot) -> Advice | None:
    usage = _known(snapshot.kv.usage_fraction)
    if usage is None or usage <= _KV_NEARLY_FULL:
        return None
    return Advice(
        kind=AdviceKind.KV_FULL,
        text=f"The KV pool is {_percent(usage)} in use: the next long prompt must wait.",
        remedy="fewer seats (max_num_seqs)",
        option=ToggleOption.SEATS,
        direction=Direction.DOWN,
    )


def _decode_stalled(snapshot: Snapshot) -> Advice | None:
    rate = _known(snapshot.throughput.decode_tokens_per_s)
    phases = {request.phase for request in snapshot.in_flight}
    if rate is None or not {"prefill", "decode"} <= phases:
        return None
    known = sorted(value for value in map(_known, snapshot.history.decode_tokens_per_s) if value)
    usual = nearest_rank(known, 0.5)
    if usual is None or len(known) < _LEAST_DECODE_SAMPLES or rate >= usual * _STALLED:
        return None
    return Advice(
        kind=AdviceKind.DECODE_STALLED,
        text=f"Decode {rate:.1f} tok/s, median {usual:.1f}: a prompt is prefilled at the same"
        " time.",
        remedy="a smaller budget (max_num_batched_tokens)",
        option=ToggleOption.TOKEN_BUDGET,
        direction=Direction.DOWN,
    )


def _near_ceiling(snapshot: Snapshot) -> Advice | None:
    ceiling = snapshot.engine.settings.max_model_len
    if not ceiling:
        return None
    prompts = [request.prompt_tokens for request in snapshot.in_flight]
    prompts += [
        record.prompt_tokens
        for record in snapshot.recent_requests
        if record.generation == snapshot.engine.generation
        and snapshot.time - record.finished_at_unix_s <= RECENT_PROMPT_S
    ]
    longest = max(prompts, default=0)
    if longest <= ceiling * _NEAR_CEILING:
        return None
    return Advice(
        kind=AdviceKind.CEILING,
        text=f"A prompt fills {_percent(longest / ceiling)} of the context: {longest:,} of"
        f" {ceiling:,} tokens.",
        remedy="raise max_model_len, or tell the agent this limit",
        option=ToggleOption.CONTEXT,
        direction=Direction.UP,
    )


def _seats_full(snapshot: Snapshot) -> Advice | None:
    throughput, seats = snapshot.throughput, snapshot.engine.settings.max_num_seqs
    running, waiting = throughput.running_requests, throughput.waiting_requests
    if not seats or running is None or not waiting or running < seats:
        return None
    usage = _known(snapshot.kv.usage_fraction)
    if usage is None or usage > _KV_HAS_ROOM:
        # More seats would only move the wait into preemptions.
        return None
    return Advice(
        kind=AdviceKind.SEATS_FULL,
        text=f"{_counted(waiting, 'request')} waiting, all {seats} seats taken:"
        f" {_percent(1 - usage)} of the KV pool is not in use.",
        remedy="more seats (max_num_seqs)",
        option=ToggleOption.SEATS,
        direction=Direction.UP,
    )


def _hit_rate(snapshot: Snapshot) -> Advice | None:
    cache = snapshot.prefix_cache
    recent, usual = _known(cache.hit_rate_recent), _known(cache.hit_rate_generation)
    if recent is None or usual is None or usual < _USUAL_HIT_RATE or recent >= usual / 2:
        return None
    if cache.recent_requests < _LEAST_RECENT_REQUESTS:
        return None
    if cache.generation_requests < _LEAST_GENERATION_REQUESTS:
        return None
    return Advice(
        kind=AdviceKind.HIT_RATE,
        text=f"Hit rate {_percent(recent)} (n {cache.recent_requests}), {_percent(usual)} since"
        " ready.",
        remedy="find prompts that begin anew; an agent may put something new first each time",
    )


def _acceptance(snapshot: Snapshot) -> Advice | None:
    spec = snapshot.spec_decode
    rate = None if spec is None else _known(spec.acceptance_rate)
    if spec is None or rate is None or spec.drafts < _LEAST_DRAFTS or rate >= _POOR_ACCEPTANCE:
        return None
    return Advice(
        kind=AdviceKind.ACCEPTANCE,
        text=f"MTP acceptance is {_percent(rate)} (n {spec.drafts} drafts): drafting hardly pays.",
        remedy="fewer draft tokens, or none",
        option=ToggleOption.DRAFT_TOKENS,
        direction=Direction.DOWN,
    )


def _gpu_skew(snapshot: Snapshot) -> Advice | None:
    if len(snapshot.gpus) != 2:
        return None
    first, second = snapshot.gpus
    left, right, total = first.memory_used_bytes, second.memory_used_bytes, first.memory_total_bytes
    if left is None or right is None or not total or total != second.memory_total_bytes:
        return None
    if abs(left - right) < total * _MEMORY_SKEW:
        return None
    fuller = first if left > right else second
    return Advice(
        kind=AdviceKind.GPU_SKEW,
        text=f"GPU {fuller.index} holds {abs(left - right) / 2**30:.1f} GiB more than the other:"
        " the fuller card decides how large the KV pool of both is.",
        remedy="end what else uses it, for example a desktop",
    )


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.0f} %"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
