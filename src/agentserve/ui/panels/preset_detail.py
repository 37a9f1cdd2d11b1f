"""One preset as its page shows it: purpose, cost against the running one, options."""

from __future__ import annotations

from collections.abc import Mapping

from rich.cells import cell_len

from agentserve.domain.control import OptionDifference, PresetDetail, PresetSummary
from agentserve.domain.pending import ToggleOption
from agentserve.domain.snapshot import EngineView
from agentserve.domain.text import ELLIPSIS, printable
from agentserve.ui.action import key_for
from agentserve.ui.formatting import DASH, about_seconds
from agentserve.ui.frame import RUNNING_STATES
from agentserve.ui.lines import BLANK, Line, Lines, Role, Span, clip, fit, joined, wrap
from agentserve.ui.toggles import written

_LABEL_WIDTH = 14
_KEY_WIDTH = 36
_MOST_WIDTH = 110


def draw(
    detail: PresetDetail | None,
    problems: tuple[str, ...],
    base: PresetSummary | None,
    engine: EngineView,
    width: int,
    height: int,
    *,
    keys_of: Mapping[str, tuple[str, ...]],
) -> Lines:
    """Draw the preset, or what is wrong with its file.

    Args:
        detail: The preset; None when its file cannot be used.
        problems: Why it cannot be used, one sentence each.
        base: The preset that runs, or ran last; costs and gains are told against it.
        engine: Its KV capacity and state now.
        width: Cells per line.
        height: Rows to use at most.
        keys_of: The keys that the user gave, by action id.
    """
    width = min(width, _MOST_WIDTH)
    lines: list[Line] = []
    for problem in problems:
        lines += [(Span(row, Role.WARNING),) for row in wrap(problem, width, most=6)]
    if detail is None:
        if problems:
            edits = (key_for("presets.edit", keys_of), "edit the file")
            deletes = (key_for("presets.delete", keys_of), "delete it")
            lines += [BLANK, _keys((edits, deletes))]
        return tuple(clip(line, width) for line in lines[: max(0, height)])
    lines += _what(detail, width)
    lines += _cost(detail, base, engine)
    hint = f"{key_for('presets.reset', keys_of)} forgets it"
    lines += _differences("kept on top of the file", detail.overlay, width, hint=hint)
    if base is not None and base.name != detail.summary.name:
        against = f"different from {fit(base.name, min(len(base.name), 40))}"
        lines += _differences(against, detail.differences, width)
    lines += _options(detail.options, width)
    return tuple(clip(line, width) for line in lines[: max(0, height)])


def _what(detail: PresetDetail, width: int) -> list[Line]:
    summary = detail.summary
    lines: list[Line] = [(Span(row, Role.STRONG),) for row in wrap(summary.title, width, most=2)]
    if description := " ".join(detail.description.split()):
        lines += [(Span(row),) for row in wrap(description, width, most=6)]
    level = summary.evidence_level
    evidence = summary.evidence or "nobody has measured it"
    rows = wrap(evidence, width - _LABEL_WIDTH, most=4)
    lines.append(
        (
            Span(fit("evidence", _LABEL_WIDTH), Role.LABEL),
            Span(f"{rows[0]}", Role.TEXT if level else Role.MUTED),
        )
    )
    lines += [(Span(" " * _LABEL_WIDTH), Span(row)) for row in rows[1:]]
    lines.append(
        (
            Span(fit(f"{summary.source} file", _LABEL_WIDTH), Role.LABEL),
            Span(_end_of(detail.path, width - _LABEL_WIDTH), Role.MUTED),
        )
    )
    return lines


def _cost(detail: PresetDetail, base: PresetSummary | None, engine: EngineView) -> list[Line]:
    """Figures of this preset, each with the one of the running preset before it."""
    summary = detail.summary
    is_base = base is None or base.name == summary.name
    heading = "figures" if is_base or base is None else "against the running one"
    if not is_base and engine.state not in RUNNING_STATES:
        heading = "against the last one"
    lines: list[Line] = [BLANK, (Span(heading, Role.STRONG),)]
    for option, label, unit in (
        (ToggleOption.CONTEXT, "context", "tok"),
        (ToggleOption.SEATS, "seats", "sequences at once"),
        (ToggleOption.TOKEN_BUDGET, "budget", "tok per step"),
        (ToggleOption.DRAFT_TOKENS, "MTP", "draft tok"),
    ):
        before = None if base is None else base.value_of(option)
        after = summary.value_of(option)
        lines.append(_figure(label, option, before, after, unit, is_base=is_base))
    capacity = detail.capacity_tokens
    known = f"{capacity:,}" if capacity is not None else DASH
    note = "in its last start" if capacity is not None else "not started with these settings yet"
    lines.append(
        (
            Span(fit("KV capacity", _LABEL_WIDTH), Role.LABEL),
            Span(known.rjust(9)),
            Span(f" tok, {note}" if capacity is not None else f" {note}", Role.MUTED),
        )
    )
    expected = detail.expected_start_s
    text = about_seconds(expected)
    lines.append(
        (
            Span(fit("start", _LABEL_WIDTH), Role.LABEL),
            Span(text.rjust(9)),
            Span(
                " expected, from earlier starts" if expected is not None else " not known yet",
                Role.MUTED,
            ),
        )
    )
    return lines


def _figure(
    label: str,
    option: ToggleOption,
    before: int | None,
    after: int | None,
    unit: str,
    *,
    is_base: bool,
) -> Line:
    name = Span(fit(label, _LABEL_WIDTH), Role.LABEL)
    value = written(option, after).rjust(9)
    if is_base or before == after:
        return (name, Span(value), Span(_unit_of(after, unit), Role.LABEL))
    # MTP and budget are neither more nor less of something good, so they have no colour.
    role = Role.ACCENT
    if option in (ToggleOption.CONTEXT, ToggleOption.SEATS) and before and after:
        role = Role.READY if after > before else Role.WARNING
    return (
        name,
        Span(value, role),
        Span(_unit_of(after, unit), Role.LABEL),
        Span(f", was {written(option, before)}", Role.MUTED),
    )


def _unit_of(value: int | None, unit: str) -> str:
    """Write the unit after a number or a dash; "off" has none."""
    return "" if value == 0 else f" {unit}"


def _differences(
    heading: str, differences: tuple[OptionDifference, ...], width: int, hint: str = ""
) -> list[Line]:
    if not differences:
        return []
    lines: list[Line] = [BLANK, (Span(heading, Role.STRONG), Span(f"   {hint}", Role.MUTED))]
    for each in differences:
        key = fit(each.key, min(_KEY_WIDTH, width // 2))
        lines.append(
            (
                Span(key + " ", Role.LABEL),
                Span(_short(each.left) if each.left else DASH, Role.MUTED),
                Span(" → ", Role.MUTED),
                Span(_short(each.right) if each.right else DASH, Role.ACCENT),
            )
        )
    return lines


def _options(options: tuple[tuple[str, str], ...], width: int) -> list[Line]:
    if not options:
        return []
    lines: list[Line] = [BLANK, (Span("everything that is set", Role.STRONG),)]
    key_width = min(_KEY_WIDTH, width // 2)
    for key, value in options:
        rows = wrap(value, width - key_width - 1, most=3)
        lines.append((Span(fit(key, key_width) + " ", Role.LABEL), Span(rows[0])))
        lines += [(Span(" " * (key_width + 1)), Span(row)) for row in rows[1:]]
    return lines


def _end_of(path: str, width: int) -> str:
    """Cut a path at its left: the name of the file says the most."""
    path = printable(path, 1_000)
    if cell_len(path) <= width:
        return path
    while path and cell_len(path) > max(0, width - 1):
        path = path[1:]
    return ELLIPSIS + path


def _short(text: str) -> str:
    return fit(text, min(len(text), 48))


def _keys(pairs: tuple[tuple[str, str], ...]) -> Line:
    parts: list[Line] = [(Span(key, Role.KEY), Span(f" {does}", Role.LABEL)) for key, does in pairs]
    return joined(parts, "   ")
