"""The two lines that always say what runs, where, and since when."""

from __future__ import annotations

from agentserve.domain.lifecycle import EngineState
from agentserve.domain.pending import DrainView
from agentserve.domain.snapshot import EngineView
from agentserve.ui.formatting import about_seconds, integer, short_seconds, uptime
from agentserve.ui.lines import Line, Lines, Role, Span, cells, clip, fit, joined, spread

_BADGE_WIDTH = 10
BADGES = {
    EngineState.STOPPED: Role.BADGE_STOPPED,
    EngineState.STARTING: Role.BADGE_STARTING,
    EngineState.WARMING: Role.BADGE_STARTING,
    EngineState.READY: Role.BADGE_READY,
    EngineState.STOPPING: Role.BADGE_STARTING,
    EngineState.FAILED: Role.BADGE_FAILED,
}


def draw(engine: EngineView, width: int, height: int, *, back_key: str) -> Lines:
    """Draw state, preset, model and address, and below them times and versions.

    Args:
        engine: The engine at the time of the snapshot.
        width: Cells per line.
        height: Rows to use at most.
        back_key: The key that gives up a switch.
    """
    times = _times(engine, back_key)
    return (
        spread(_identity(engine, width), (Span(fit_address(engine.endpoint), Role.ACCENT),), width),
        spread(_versions(engine, width - cells(times) - 1), times, width),
    )[:height]


def badge(engine: EngineView) -> Line:
    """Write the state as a badge of fixed width, with a mark when nothing here is real."""
    state = "draining" if engine.drain is not None else engine.state
    role = Role.BADGE_STARTING if engine.drain is not None else BADGES[engine.state]
    line: list[Span] = [Span(state.upper().center(_BADGE_WIDTH), role)]
    if engine.simulated:
        line += [Span(" "), Span(" SIMULATED ", Role.BADGE_SIMULATED)]
    return tuple(line)


def remaining(engine: EngineView) -> str:
    """Say how much of a start is left, or that nobody knows; varying width."""
    if engine.remaining_start_s is None:
        return ""
    if engine.remaining_start_s <= 0:
        return "longer than usual"
    return f"about {about_seconds(engine.remaining_start_s)} left"


def fit_address(endpoint: str) -> str:
    """Make the address safe to show without padding it."""
    return fit(endpoint, min(len(endpoint), 48))


def _identity(engine: EngineView, width: int) -> Line:
    parts: list[Line] = []
    if engine.preset:
        parts.append((Span(fit(engine.preset, min(len(engine.preset), 32)), Role.STRONG),))
    if engine.model:
        room = max(12, width // 3)
        parts.append((Span(fit(engine.model, min(len(engine.model), room)), Role.LABEL),))
    return (*badge(engine), Span("  "), *joined(parts))


def _versions(engine: EngineView, width: int) -> Line:
    """Write what fits; a part that does not is left out as a whole, for half a number misleads."""
    parts: list[Line] = []
    if engine.generation:
        parts.append((Span(f"gen {engine.generation}", Role.MUTED),))
    if engine.tensor_parallel_size:
        parts.append((Span(f"TP {engine.tensor_parallel_size}", Role.MUTED),))
    if engine.vllm_version:
        is_said = engine.device is None or engine.device == engine.vllm_version
        device = "" if is_said else f" {engine.device}"
        parts.append((Span(fit_short(f"vLLM {engine.vllm_version}{device}"), Role.MUTED),))
    if engine.settings.max_model_len:
        parts.append((Span(f"context {engine.settings.max_model_len} tok", Role.MUTED),))
    room = width - _BADGE_WIDTH - 2
    while parts and cells(joined(parts)) > room:
        # The version is the widest, and the one that changes least.
        versions = [part for part in parts if part[0].text.startswith("vLLM")]
        parts.remove(versions[0] if versions else parts[-1])
    return (Span(" " * (_BADGE_WIDTH + 2)), *joined(parts))


def fit_short(text: str) -> str:
    """Make a short text safe to show without padding it."""
    return fit(text, min(len(text), 24))


def waiting(drain: DrainView, back_key: str) -> Line:
    """Say what a switch waits for, how long at most, and how to give it up; fixed width."""
    seconds = max(0.0, drain.remaining_s)
    minutes = min(int(seconds // 60), 999)
    target = drain.target_preset
    return (
        Span("then ", Role.LABEL),
        Span(fit(target, min(len(target), 24)) if target else "stop", Role.STRONG),
        Span(" · ", Role.MUTED),
        Span(integer(drain.requests_left, 3)),
        Span(" req left", Role.LABEL),
        Span(" · ", Role.MUTED),
        Span(f"{minutes:3d}:{int(seconds) % 60:02d}", Role.STARTING),
        Span(f"  {back_key}", Role.KEY),
        Span(" cancels", Role.LABEL),
    )


def _pending(engine: EngineView) -> Line:
    changes = len(engine.pending.changes) if engine.pending else 0
    return (Span(f"{changes} pending", Role.WARNING),) if changes else ()


def _times(engine: EngineView, back_key: str) -> Line:
    if engine.drain is not None:
        return waiting(engine.drain, back_key)
    return joined([_pending(engine), _clock(engine)])


def _clock(engine: EngineView) -> Line:
    if engine.state in (EngineState.STARTING, EngineState.WARMING):
        left = remaining(engine)
        parts: list[Line] = [
            (
                Span(f"{engine.phase or 'starting'}", Role.STARTING),
                Span(short_seconds(engine.phase_elapsed_s)),
            ),
            (Span("total", Role.LABEL), Span(short_seconds(engine.start_elapsed_s))),
            (Span(left.rjust(17), Role.STRONG),) if left else (),
        ]
        return clip(joined(parts), 60)
    if engine.state is EngineState.READY:
        return (Span("up ", Role.LABEL), Span(uptime(engine.uptime_s)))
    return ()
