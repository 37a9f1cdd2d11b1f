"""Bars and graphs as text, and the same in ASCII. Pure.

A graph column is one value of the series; the newest is at the right. A missing value leaves its
column empty, which is different from the lowest mark that a measured 0 gets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_LEVELS = " ▁▂▃▄▅▆▇█"
FILL = "━"
HALF = "╸"
WARM = "╍"
TRACK = "─"
UNCACHED = "═"
"""Blocks in use that nobody else could reuse."""
UNKNOWN = "·"
"""Part of a bar of which nothing is known."""
COMPUTED_FILL = "▓"
GENERATED_FILL = "░"
EXPECTED = "┆"
"""Where reuse was expected to end."""
SIDE = "↳"
"""Before a side session."""
CURSOR = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
"""Marks the chosen row where there are no colours."""

_ASCII = str.maketrans(
    {
        "▁": "_",
        "▂": ".",
        "▃": "-",
        "▄": "=",
        "▅": "+",
        "▆": "*",
        "▇": "%",
        "█": "#",
        FILL: "#",
        HALF: "#",
        WARM: "+",
        TRACK: "-",
        "\N{EN DASH}": "-",
        "·": ".",
        UNCACHED: "=",
        COMPUTED_FILL: "%",
        GENERATED_FILL: ":",
        EXPECTED: "|",
        SIDE: "\\",
        "…": "~",
        "✓": "+",
        "▸": ">",
        "✗": "x",
        "↓": "v",
        "→": ">",
        CURSOR: ">",
        "↑": "^",
        "←": "<",
        "°": " ",
        "Δ": "d",
        "│": "|",
    }
)


def to_ascii(text: str) -> str:
    """Replace our own signs by ASCII ones of the same width; other text stays as it is."""
    return text.translate(_ASCII)


def series_rows(
    values: Sequence[float | None], width: int, height: int = 1, top: float | None = None
) -> tuple[str, ...]:
    """Draw a series as columns of block characters.

    Args:
        values: The series, oldest first; the last `width` values are drawn.
        width: Cells per row.
        height: Rows; each has eight levels.
        top: The value that reaches the top; by default the largest value drawn.

    Returns:
        `height` rows of exactly `width` cells, the upper row first.
    """
    shown = [
        value if value is not None and math.isfinite(value) else None
        for value in values[-width:]
        if width > 0
    ]
    scale = top if top is not None else max((v for v in shown if v is not None), default=0.0)
    columns = [_level(value, scale, height * 8) for value in shown]
    columns = [0] * (width - len(columns)) + columns
    return tuple(
        "".join(_LEVELS[min(8, max(0, column - 8 * row))] for column in columns)
        for row in reversed(range(height))
    )


def bar(fraction: float | None, width: int) -> tuple[str, str]:
    """Draw a horizontal meter in half cells.

    Args:
        fraction: Share of the bar to fill, clipped to 0..1; None leaves it empty.
        width: Cells.

    Returns:
        The filled and the empty part, together `width` cells. A share above 0 always shows.
    """
    if fraction is None or not math.isfinite(fraction) or fraction <= 0 or width <= 0:
        return "", TRACK * max(0, width)
    halves = max(1, min(2 * width, round(min(1.0, fraction) * width * 2)))
    filled = FILL * (halves // 2) + HALF * (halves % 2)
    return filled, TRACK * (width - len(filled))


def _level(value: float | None, scale: float, levels: int) -> int:
    if value is None:
        return 0
    if scale <= 0 or value <= 0:
        return 1
    # One level stays free, so that graphs above each other do not touch.
    return max(1, min(levels - 1, math.ceil(min(1.0, value / scale) * (levels - 1))))
