"""The two lines that always say what runs, where, and since when."""

from __future__ import annotations

from agentserve.domain.lifecycle import EngineState
from agentserve.domain.snapshot import EngineView
from agentserve.ui.formatting import about_seconds, short_seconds, uptime
from agentserve.ui.lines import Line, Lines, Role, Span, clip, fit, joined, spread

_BADGE_WIDTH = 10
BADGES = {
    EngineState.STOPPED: Role.BADGE_STOPPED,
    EngineState.STARTING: Role.BADGE_STARTING,
    EngineState.WARMING: Role.BADGE_STARTING,
    EngineState.READY: Role.BADGE_READY,
    EngineState.STOPPING: Role.BADGE_STARTING,
    EngineState.FAILED: Role.BADGE_FAILED,
}


def draw(engine: EngineView, width: int, height: int) -> Lines:
    """Draw state, preset, model and address, and below them times and versions.

    Args:
        engine: The engine at the time of the snapshot.
        width: Cells per line.
        height: Rows to use at most.
    """
    return (
        spread(_identity(engine, width), (Span(fit_address(engine.endpoint), Role.ACCENT),), width),
        spread(_versions(engine), _times(engine), width),
    )[:height]


def badge(engine: EngineView) -> Line:
    """Write the state as a badge of fixed width, with a mark when nothing here is real."""
    line: list[Span] = [Span(engine.state.upper().center(_BADGE_WIDTH), BADGES[engine.state])]
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


def _versions(engine: EngineView) -> Line:
    parts: list[Line] = []
    if engine.generation:
        parts.append((Span(f"gen {engine.generation}", Role.MUTED),))
    if engine.tensor_parallel_size:
        parts.append((Span(f"TP {engine.tensor_parallel_size}", Role.MUTED),))
    if engine.vllm_version:
        device = f" {engine.device}" if engine.device else ""
        parts.append((Span(fit_short(f"vLLM {engine.vllm_version}{device}"), Role.MUTED),))
    if engine.settings.max_model_len:
        parts.append((Span(f"context {engine.settings.max_model_len} tok", Role.MUTED),))
    return (Span(" " * (_BADGE_WIDTH + 2)), *joined(parts))


def fit_short(text: str) -> str:
    """Make a short text safe to show without padding it."""
    return fit(text, min(len(text), 24))


def _times(engine: EngineView) -> Line:
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
