"""Styled lines as data, and how to lay text out in cells. Pure; no Textual.

A panel is drawn as a tuple of `Line`; a widget compares it with what it shows and writes the
difference. Colours are named by `Role`; themes and style sheets decide what they look like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from agentserve.domain.text import ELLIPSIS, printable


class Role(StrEnum):
    """What a piece of text means; also the suffix of its component class in style sheets."""

    TEXT = "text"
    STRONG = "strong"
    LABEL = "label"
    MUTED = "muted"
    TRACK = "track"
    KEY = "key"
    DIMMED = "dimmed"
    ACCENT = "accent"
    SELECTED = "selected"
    """The row under a cursor."""
    MARKED = "marked"
    """What a search found or the explain key points at."""
    READY = "ready"
    STARTING = "starting"
    STOPPED = "stopped"
    FAILED = "failed"
    WARNING = "warning"
    KV = "kv"
    CACHED = "cached"
    COMPUTED = "computed"
    DECODE = "decode"
    LATENCY = "latency"
    MEMORY = "memory"
    KV_GRAPH = "kv-graph"
    CACHED_GRAPH = "cached-graph"
    COMPUTED_GRAPH = "computed-graph"
    DECODE_GRAPH = "decode-graph"
    LATENCY_GRAPH = "latency-graph"
    BADGE_READY = "badge-ready"
    BADGE_STARTING = "badge-starting"
    BADGE_STOPPED = "badge-stopped"
    BADGE_FAILED = "badge-failed"
    BADGE_SIMULATED = "badge-simulated"


class Span(NamedTuple):
    """A piece of a line in one style."""

    text: str
    role: Role = Role.TEXT


Line = tuple[Span, ...]
"""Spans from left to right."""

Lines = tuple[Line, ...]

BLANK: Line = ()


def cells(line: Iterable[Span]) -> int:
    """Count the terminal cells of a line."""
    return sum(cell_len(span.text) for span in line)


def plain(line: Iterable[Span]) -> str:
    """Return the text of a line without styles."""
    return "".join(span.text for span in line)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Make text from outside exactly `width` cells wide, with an ellipsis where it is cut."""
    text = printable(text)
    length = cell_len(text)
    if length > width:
        return "" if width <= 0 else set_cell_size(text, width - 1) + ELLIPSIS
    padding = " " * (width - length)
    return padding + text if right else text + padding


def spread(left: Line, right: Line, width: int) -> Line:
    """Put one line at the left and one at the right edge; what does not fit on the left is cut."""
    room = width - cells(right)
    if room < 0:
        return clip(right, width)
    left = clip(left, max(0, room - 1))
    return (*left, Span(" " * (room - cells(left))), *right)


def clip(line: Line, width: int) -> Line:
    """Cut a line to at most `width` cells, with an ellipsis where text is lost."""
    if cells(line) <= width:
        return line
    kept: list[Span] = []
    room = width
    for span in line:
        length = cell_len(span.text)
        if length < room:
            kept.append(span)
            room -= length
            continue
        if room > 0:
            kept.append(Span(set_cell_size(span.text, room - 1) + ELLIPSIS, span.role))
        break
    return tuple(kept)


def marked_first(line: Line, accepts: Callable[[Span], bool]) -> Line:
    """Mark the words of the first span that `accepts` takes, and not the blanks around them."""
    for index, span in enumerate(line):
        if accepts(span):
            words = span.text.strip()
            left, _, right = span.text.partition(words)
            parts = (Span(left, span.role), Span(words, Role.MARKED), Span(right, span.role))
            return (*line[:index], *parts, *line[index + 1 :])
    return line


def joined(parts: Sequence[Line], separator: str = " · ") -> Line:
    """Join lines that are not empty with a muted separator."""
    line: list[Span] = []
    for part in parts:
        if not part:
            continue
        if line:
            line.append(Span(separator, Role.MUTED))
        line.extend(part)
    return tuple(line)


def fact(label: str, value: str, width: int, role: Role = Role.TEXT) -> Line:
    """Write a label at the left and its value at the right of a cell `width` wide."""
    room = width - cell_len(value)
    return (Span(fit(label, max(0, room)), Role.LABEL), Span(value, role))


def pair(left: tuple[str, str], right: tuple[str, str], width: int) -> Line:
    """Write two facts, (label, value) each, in two equal columns with a gutter of three cells."""
    column = (width - 3) // 2
    return (
        *fact(*left, column),
        Span(" " * (width - 2 * column)),
        *fact(*right, column),
    )


def wrap(text: str, width: int, most: int = 20) -> list[str]:
    """Break text from outside into lines of at most `width` cells, at spaces where possible.

    Args:
        text: Anything.
        width: Cells per line; below 2 it counts as 2.
        most: Most lines to return; the last one ends in an ellipsis when text is lost.
    """
    width = max(2, width)
    text = printable(text, limit=width * most + 1)
    rows: list[str] = []
    while text:
        if cell_len(text) <= width:
            rows.append(text)
            break
        cut = len(set_cell_size(text, width).rstrip())
        cut = max(1, cut)
        while cell_len(text[:cut]) > width:
            cut -= 1
        space = text.rfind(" ", 0, cut + 1)
        cut = space if space > width // 2 else cut
        rows.append(text[:cut])
        text = text[cut:].lstrip(" ")
        if len(rows) == most and text:
            rows[-1] = fit(rows[-1] + ELLIPSIS + " ", width).rstrip()
            break
    return rows or [""]
