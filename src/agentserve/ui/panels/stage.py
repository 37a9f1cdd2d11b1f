"""What the screen shows while nothing is served: presets, the way of a start, or why it failed."""

from __future__ import annotations

from collections.abc import Mapping

from agentserve.domain.control import PresetSummary
from agentserve.domain.failure import Failure
from agentserve.domain.lifecycle import PHASE_ORDER, EngineState, StartPhase
from agentserve.domain.snapshot import EngineView
from agentserve.ui.action import key_for
from agentserve.ui.actions import SLOTS
from agentserve.ui.formatting import about_seconds, short_seconds
from agentserve.ui.glyphs import bar
from agentserve.ui.lines import BLANK, Line, Lines, Role, Span, clip, fit, wrap
from agentserve.ui.panels.header import remaining

_NAME_WIDTH = 22


def title(engine: EngineView, engine_missing: str | None) -> str:
    """Name what the panel shows."""
    if engine.state is EngineState.FAILED:
        return "Failed"
    if engine.state in (EngineState.STARTING, EngineState.WARMING):
        return "Starting"
    if engine.state is EngineState.STOPPING:
        return "Stopping"
    return "No engine installed" if engine_missing else "Stopped"


def draw(
    engine: EngineView,
    engine_missing: str | None,
    presets: tuple[PresetSummary, ...],
    problems: tuple[str, ...],
    width: int,
    height: int,
    *,
    keys_of: Mapping[str, tuple[str, ...]],
) -> Lines:
    """Draw what fits the engine's state.

    Args:
        engine: The engine at the time of the snapshot.
        engine_missing: What to install when there is no vLLM here.
        presets: All presets that can be started.
        problems: Preset files that cannot be used, one sentence each.
        width: Cells per line.
        height: Rows to use at most.
        keys_of: The keys that the user gave, by action id.
    """
    if engine.state is EngineState.FAILED and engine.failure is not None:
        return _failed(engine.failure, engine.previous_preset, width, height, keys_of)
    if engine.state in (EngineState.STARTING, EngineState.WARMING):
        return _starting(engine, width)[: max(0, height)]
    if engine.state is EngineState.STOPPING:
        return _stopping(width)[: max(0, height)]
    rows = _stopped(engine, engine_missing, presets, problems, width, keys_of)
    return rows[: max(0, height)]


def _failed(
    failure: Failure,
    previous: str | None,
    width: int,
    height: int,
    keys_of: Mapping[str, tuple[str, ...]],
) -> Lines:
    offers = [
        (key_for("engine.toggle", keys_of), "start again"),
        (_slot_keys(keys_of), "another preset"),
        (key_for("view.log", keys_of), "read the log"),
    ]
    if previous is not None:
        name = fit(previous, min(len(previous), 28))
        offers.insert(0, (key_for("engine.previous", keys_of), f"start {name} again"))
        del offers[2]
    where = f"  while in phase {fit(failure.phase, len(failure.phase))}" if failure.phase else ""
    head: list[Line] = [
        clip(
            (
                Span(f" ✗ {fit(failure.title, len(failure.title))} ", Role.BADGE_FAILED),
                Span(where, Role.MUTED),
            ),
            width,
        ),
        *((Span(row, Role.STRONG),) for row in wrap(failure.cause, width, most=4)),
        *(((Span(row),) for row in wrap(failure.hint, width, most=4)) if failure.hint else ()),
        BLANK,
        _keys(tuple(offers), width),
    ]
    rows = height - len(head) - 2
    if failure.raw and rows > 0:
        head += [BLANK, (Span("what the engine wrote", Role.LABEL),)]
        head += [(Span(fit(text, width), Role.MUTED),) for text in failure.raw[-rows:]]
    return tuple(head[: max(0, height)])


def _starting(engine: EngineView, width: int) -> Lines:
    finished = {time.phase: time.duration_s for time in engine.finished_phases}
    lines = [_phase(phase, engine, finished) for phase in PHASE_ORDER]
    elapsed, expected = engine.start_elapsed_s, engine.expected_start_s
    lines.append(BLANK)
    if expected is None or elapsed is None:
        lines.append(
            (
                Span(short_seconds(elapsed), Role.STRONG),
                Span(
                    "  first start of this preset: how long it takes is not known yet", Role.MUTED
                ),
            )
        )
    else:
        figures = f" {short_seconds(elapsed)} of about {about_seconds(expected)}"
        left = remaining(engine).rjust(18)
        room = max(6, min(60, width - len(figures) - len(left) - 1))
        filled, empty = bar(elapsed / expected if expected > 0 else None, room)
        lines.append(
            (
                Span(filled, Role.STARTING),
                Span(empty, Role.TRACK),
                Span(figures),
                Span(left, Role.STRONG),
            )
        )
    return tuple(clip(line, width) for line in lines)


def _phase(phase: StartPhase, engine: EngineView, finished: dict[StartPhase, float]) -> Line:
    name = phase.ljust(10)
    if phase is engine.phase:
        return (
            Span("▸ ", Role.STARTING),
            Span(name, Role.STRONG),
            Span(short_seconds(engine.phase_elapsed_s), Role.STRONG),
        )
    if phase in finished:
        return (Span("✓ ", Role.READY), Span(name), Span(short_seconds(finished[phase])))
    return (Span("· ", Role.MUTED), Span(name, Role.MUTED))


def _stopping(width: int) -> Lines:
    text = "stopped is said when every process of the engine is gone"
    return ((Span(fit(text, width), Role.LABEL),),)


def _stopped(
    engine: EngineView,
    engine_missing: str | None,
    presets: tuple[PresetSummary, ...],
    problems: tuple[str, ...],
    width: int,
    keys_of: Mapping[str, tuple[str, ...]],
) -> Lines:
    lines: list[Line] = []
    slots = (_slot_keys(keys_of), "start the preset in that slot")
    if engine_missing:
        lines += [(Span(row, Role.WARNING),) for row in wrap(engine_missing, width, most=4)]
    elif engine.preset:
        chosen = fit(engine.preset, min(len(engine.preset), 40))
        starts = (key_for("engine.toggle", keys_of), f"start {chosen}")
        lines.append(_keys((starts, slots), width))
    else:
        lines.append(_keys((slots, (key_for("view.help", keys_of), "help")), width))
    lines.append(BLANK)
    lines += [_preset(preset, engine.preset, width) for preset in presets]
    if not presets:
        lines.append((Span("no preset can be used", Role.WARNING),))
    if problems:
        lines.append(BLANK)
        for problem in problems:
            rows = wrap(problem, max(2, width - 2), most=3)
            lines += [
                (Span("! " if index == 0 else "  ", Role.WARNING), Span(row, Role.WARNING))
                for index, row in enumerate(rows)
            ]
    return tuple(clip(line, width) for line in lines)


def _slot_keys(keys_of: Mapping[str, tuple[str, ...]]) -> str:
    """Name the keys of all slots: a range, or each where the user chose some of them."""
    if not any(f"preset.{slot}" in keys_of for slot in SLOTS):
        return f"{SLOTS[0]}-{SLOTS[-1]}"
    return " ".join(key_for(f"preset.{slot}", keys_of) for slot in SLOTS)


def _preset(preset: PresetSummary, chosen: str | None, width: int) -> Line:
    slot = "  " if preset.slot is None else f"{preset.slot} "
    mark = "▸ " if preset.name == chosen else "  "
    name_role = Role.STRONG if preset.name == chosen else Role.TEXT
    source = fit(preset.source, 8)
    room = max(0, width - 4 - _NAME_WIDTH - 1 - len(source) - 1)
    return (
        Span(mark, Role.ACCENT),
        Span(slot, Role.KEY),
        Span(fit(preset.name, _NAME_WIDTH) + " ", name_role),
        Span(fit(preset.title, room) + " ", Role.LABEL),
        Span(source, Role.MUTED),
    )


def _keys(pairs: tuple[tuple[str, str], ...], width: int) -> Line:
    line: list[Span] = [Span("press ", Role.LABEL)]
    for index, (key, does) in enumerate(pairs):
        if index:
            line.append(Span("   ", Role.MUTED))
        line += [Span(key, Role.KEY), Span(f" {does}", Role.LABEL)]
    return clip(tuple(line), width)
