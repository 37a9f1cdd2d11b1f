"""The list of presets, one row each, and below them the files that cannot be used."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentserve.domain.control import PresetSummary
from agentserve.domain.lifecycle import EngineState
from agentserve.domain.snapshot import EngineView
from agentserve.ui.formatting import DASH
from agentserve.ui.frame import RUNNING_STATES, Highlighted
from agentserve.ui.glyphs import CURSOR
from agentserve.ui.lines import Line, Lines, Role, Span, cells, clip, fit, plain

HEADING_ROWS = 1
_NAME_WIDTH = 22
_TITLE_LEAST = 16
_EVIDENCE_WIDTH = 12
_FILE_OF = re.compile(r"^(?P<path>.{0,300}?(?P<name>[^/\\]{1,100})\.toml)(?::\d{1,9})?: ")
_MARKS = {
    EngineState.READY: ("▸", Role.READY),
    EngineState.STARTING: ("▸", Role.STARTING),
    EngineState.WARMING: ("▸", Role.STARTING),
    EngineState.STOPPING: ("▸", Role.STARTING),
    EngineState.FAILED: ("✗", Role.FAILED),
    EngineState.STOPPED: ("·", Role.MUTED),
}


def rows_of(
    presets: Sequence[PresetSummary], problems: Sequence[str]
) -> tuple[tuple[PresetSummary | None, Highlighted], ...]:
    """List what can be chosen: all presets, then each file that a problem names.

    Args:
        presets: Usable presets in display order.
        problems: Sentences that begin with the path of a file.
    """
    rows: list[tuple[PresetSummary | None, Highlighted]] = [
        (
            preset,
            Highlighted(name=preset.name, source=preset.source, has_overlay=preset.has_overlay),
        )
        for preset in presets
    ]
    seen: set[str] = set()
    for problem in problems:
        path = path_in(problem)
        if path is not None and path[0] not in seen:
            seen.add(path[0])
            rows.append((None, Highlighted(name=path[0], problem=problem)))
    return tuple(rows)


def path_in(problem: str) -> tuple[str, str] | None:
    """Find name and path of the file that a problem's sentence begins with."""
    found = _FILE_OF.match(problem)
    return (found["name"], found["path"]) if found else None


def first_shown(chosen: int, total: int, height: int) -> int:
    """Return the index of the first row in view, so that the chosen one is near the middle."""
    room = max(1, height - HEADING_ROWS)
    return max(0, min(chosen - room // 2, total - room))


def draw(
    presets: tuple[PresetSummary, ...],
    problems: tuple[str, ...],
    engine: EngineView,
    chosen: int,
    width: int,
    height: int,
) -> Lines:
    """Draw the list with its heading.

    Args:
        presets: Usable presets in display order.
        problems: One sentence for each file that cannot be used.
        engine: Marks the preset that runs, or ran last.
        chosen: Index of the highlighted row.
        width: Cells per line.
        height: Rows to use at most, the heading included.
    """
    rows = rows_of(presets, problems)
    title_width = width - _fixed_width()
    if title_width < _TITLE_LEAST:
        title_width = 0
    lines: list[Line] = [_heading(title_width)]
    if not rows:
        lines.append((Span("no preset can be used", Role.WARNING),))
    start = first_shown(chosen, len(rows), height)
    for index, (preset, row) in enumerate(rows[start:], start):
        line = _broken(row, width) if preset is None else _preset(preset, engine, title_width)
        if index == chosen:
            line = _marked(line, width)
        lines.append(line)
    return tuple(clip(line, width) for line in lines[: max(0, height)])


def _fixed_width() -> int:
    return cells(_heading(0)) + 1


def _heading(title_width: int) -> Line:
    title = fit("title", title_width) + " " if title_width else ""
    text = (
        f"    {'name':<{_NAME_WIDTH}}  {title}{'on':<5}{'context':>9}{'seats':>6}{'budget':>8}"
        f"{'MTP':>4}  {'evidence':<{_EVIDENCE_WIDTH}}"
    )
    return (Span(text, Role.MUTED),)


def _preset(preset: PresetSummary, engine: EngineView, title_width: int) -> Line:
    is_current = preset.name == engine.preset
    mark, role = _MARKS[engine.state] if is_current else (" ", Role.MUTED)
    slot = " " if preset.slot is None else str(preset.slot)
    name_role = Role.STRONG if is_current and engine.state in RUNNING_STATES else Role.TEXT
    overlay = "*" if preset.has_overlay else " "
    drafts = f"{preset.speculative_tokens}" if preset.speculative_tokens else "off"
    return (
        Span(f"{mark} ", role),
        Span(f"{slot} ", Role.KEY),
        Span(fit(preset.name, _NAME_WIDTH), name_role),
        Span(f"{overlay} ", Role.ACCENT),
        Span(fit(preset.title, title_width) + " " if title_width else "", Role.LABEL),
        Span(f"{fit(preset.device, 4)} ", Role.LABEL),
        Span(f"{_number(preset.max_model_len, 9)}{_number(preset.max_num_seqs, 6)}"),
        Span(f"{_number(preset.max_num_batched_tokens, 8)}{fit(drafts, 4, right=True)}  "),
        Span(
            fit(preset.evidence_level or "none", _EVIDENCE_WIDTH),
            Role.LABEL if preset.evidence_level else Role.MUTED,
        ),
    )


def _broken(row: Highlighted, width: int) -> Line:
    found = path_in(row.problem or "")
    text = (row.problem or "")[len(found[1]) :] if found else (row.problem or "")
    room = max(0, width - 4 - _NAME_WIDTH - 2)
    return (
        Span("! ", Role.WARNING),
        Span("  "),
        Span(fit(row.name, _NAME_WIDTH) + "  ", Role.WARNING),
        Span(fit(f"line {text[1:]}" if text.startswith(":") else text, room), Role.WARNING),
    )


def _marked(line: Line, width: int) -> Line:
    text = plain(line)
    mark = line[0]._replace(text=text[0])
    return (mark, Span(CURSOR, Role.ACCENT), Span(fit(text[2:], width - 2), Role.SELECTED))


def _number(value: int | None, width: int) -> str:
    return (DASH if value is None else f"{value:,}").rjust(width)
