"""Rows that several panels share: a labelled bar and a labelled graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentserve.ui.formatting import DASH
from agentserve.ui.glyphs import bar, series_rows
from agentserve.ui.lines import Line, Lines, Role, Span, cells, fit

LABEL_WIDTH = 9


def meter(label: str, fraction: float | None, value: str, width: int, role: Role) -> Line:
    """Write `label`, a bar of what room is left, and `value`.

    Args:
        label: Name of the value; cut or padded to the common label width.
        fraction: Share of the bar to fill; None leaves it empty.
        value: Text of fixed width.
        width: Cells of the whole line.
        role: Colour of the filled part.
    """
    room = max(0, width - LABEL_WIDTH - len(value) - 1)
    filled, empty = bar(fraction, room)
    return (
        Span(fit(label, LABEL_WIDTH), Role.LABEL),
        Span(filled, role),
        Span(empty, Role.TRACK),
        Span(" " + value),
    )


def graph(
    label: str,
    values: Sequence[float | None],
    right: Line,
    width: int,
    role: Role,
    height: int = 1,
    top: float | None = None,
    peak: str = "",
) -> Lines:
    """Write `label`, a graph of `height` rows, and on the last row the text `right`.

    The graph ends where `right` begins on every row, so that the newest column is easy to find.

    Args:
        label: Name of the series; cut or padded to the common label width.
        values: Oldest first.
        right: Text of fixed width after the graph.
        width: Cells of the whole line.
        role: Colour of the graph.
        height: Rows.
        top: The value that reaches the top; by default the largest value drawn.
        peak: What the top stands for, written at the right of the first of several rows.
    """
    room = max(0, width - LABEL_WIDTH - cells(right) - 1)
    rows = series_rows(values, room, height, top)
    name = Span(fit(label, LABEL_WIDTH), Role.LABEL)
    side = width - LABEL_WIDTH - room
    return (
        *(
            (
                Span(" " * LABEL_WIDTH),
                Span(row, role),
                Span(fit(peak if index == 0 else "", side, right=True), Role.MUTED),
            )
            for index, row in enumerate(rows[:-1])
        ),
        (name, Span(rows[-1], role), Span(" "), *right),
    )


def peak_of(values: Sequence[float | None], written: Callable[[float | None], str]) -> str:
    """Say what the largest known value of a series is, as `max 1.2k`."""
    known = [value for value in values if value is not None]
    return f"max {written(max(known)).strip() if known else DASH}"
