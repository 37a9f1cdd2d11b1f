"""The KV pool divided by session: a bar, and a legend with blocks and percent.

Each session keeps its letter and its colour while it has blocks here, so that nothing changes its
look when another one grows. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_uppercase
from typing import NamedTuple

from rich.cells import cell_len

from agentserve.domain.session import CacheMonitorView, PoolShare
from agentserve.domain.snapshot import KvView
from agentserve.domain.text import printable
from agentserve.ui.formatting import DASH, integer, percent
from agentserve.ui.glyphs import FILL, TRACK, UNCACHED, UNKNOWN, WARM
from agentserve.ui.lines import Line, Lines, Role, Span, cells, clip, fit

LETTERS = ascii_uppercase[:12]
"""Sessions that are drawn on their own: the largest ones."""
COLOURS = (Role.KV, Role.LATENCY, Role.DECODE, Role.COMPUTED, Role.CACHED)
"""Colours of the letters, in turn; each is another one in every theme."""
FORMER_SESSION = "a former session"
"""Name of one that is not in the list any more."""
_OTHERS = "*"
_LEAST_CUT_NAME = 8
"""Cells from which on a name is cut in its middle rather than at its end."""
_ITEM_WIDTH = 38
_ITEM_GAP = 2


class Segment(NamedTuple):
    """One part of the pool."""

    sign: str
    """First cell of the part, or all its cells where it is a pattern."""
    name: str
    blocks: int
    role: Role
    fill: str = FILL

    def cells(self, width: int) -> str:
        """Draw it `width` cells wide."""
        return (self.sign + self.fill * width)[:width]


class Letters(NamedTuple):
    """Which session has which letter."""

    session_ids: tuple[str | None, ...] = (None,) * len(LETTERS)

    def following(self, shares: tuple[PoolShare, ...]) -> Letters:
        """Give letters to the largest sessions, and leave them to those that have one."""
        largest = [share.session for share in shares if share.session and share.blocks]
        wanted = largest[: len(LETTERS)]
        kept = [each if each in wanted else None for each in self.session_ids]
        newcomers = [each for each in wanted if each not in kept]
        for index, owner in enumerate(kept):
            if owner is None and newcomers:
                kept[index] = newcomers.pop(0)
        return Letters(tuple(kept))

    def span(self, session_id: str) -> Span:
        """Write the letter of a session in its colour; a blank without one."""
        if session_id not in self.session_ids:
            return Span(" ")
        index = self.session_ids.index(session_id)
        return Span(LETTERS[index], COLOURS[index % len(COLOURS)])


def fit_name(name: str, width: int) -> str:
    """Make a session's name exactly `width` cells wide, cut in its middle.

    Names of the sessions of one agent differ in their last characters only.
    """
    name = printable(name)
    if cell_len(name) <= width or width < _LEAST_CUT_NAME:
        return fit(name, width)
    start = len(name)
    while cell_len(name[start - 1 :]) <= 2 * width // 3:
        start -= 1
    # Whole words, unless the name ends in one long word.
    tail = name[start:].partition(" ")[2] or name[start:]
    return fit(name[: -len(tail)], width - cell_len(tail)) + tail


def title(kv: KvView) -> str:
    """Name the panel with the size of the pool."""
    if kv.blocks_total is None:
        return "KV pool by session"
    tokens = "" if kv.block_tokens is None else f" of {kv.block_tokens:,} tok"
    return f"KV pool by session · {kv.blocks_total:,} blocks{tokens}"


def segments(
    kv: KvView, monitor: CacheMonitorView, labels: Mapping[str, str], letters: Letters
) -> list[Segment]:
    """Divide the pool; the blocks of all parts add up to `blocks_total`.

    Cached blocks belong to the session that computed them. What the scheduler neither calls free
    nor the cache's events call cached is in use and not cached. Both are read at slightly different
    moments, so that the free part gives way where they contradict each other.

    Args:
        kv: The scheduler's own count; its blocks are None where it cannot be asked.
        monitor: Who computed the cached blocks.
        labels: Names of the sessions by id.
        letters: Letters of the sessions.
    """
    total = kv.blocks_total
    if not total:
        return []
    if monitor.cached_blocks is None:
        return _without_owners(kv, total)
    parts = _cached(monitor, labels, letters)
    left = max(0, total - sum(part.blocks for part in parts))
    if kv.blocks_free is None:
        parts.append(Segment(UNKNOWN, "not known", left, Role.MUTED, UNKNOWN))
        return parts
    free = min(left, kv.blocks_free)
    parts.append(Segment(UNCACHED, "used, not cached", left - free, Role.LABEL, UNCACHED))
    parts.append(Segment(TRACK, "free", free, Role.TRACK, TRACK))
    return parts


def draw(
    kv: KvView,
    monitor: CacheMonitorView,
    labels: Mapping[str, str],
    letters: Letters,
    width: int,
    height: int,
) -> Lines:
    """Draw the bar, the legend below it, and last what the scheduler says.

    Args:
        kv: The scheduler's own count.
        monitor: Who computed the cached blocks.
        labels: Names of the sessions by id.
        letters: Letters of the sessions.
        width: Cells per line.
        height: Rows to use at most.
    """
    parts = segments(kv, monitor, labels, letters)
    total = sum(part.blocks for part in parts)
    if not total:
        text = "The size of the KV pool is not known yet."
        return ((Span(fit(text, width).rstrip(), Role.MUTED),),)[:height]
    counts = _counts(kv, width, are_owned=monitor.cached_blocks is not None)
    bar = tuple(
        Span(part.cells(room), part.role)
        for part, room in zip(parts, divided([p.blocks for p in parts], width), strict=True)
    )
    legend = _legend(parts, total, width, max(1, height - 2))
    return tuple(clip(line, width) for line in (bar, *legend, counts)[: max(0, height)])


def divided(blocks: list[int], width: int) -> list[int]:
    """Divide `width` cells in proportion, by the largest remainders.

    A part above 0 gets a cell at least, as long as there are as many cells as such parts.
    """
    total = sum(blocks)
    if total <= 0 or width <= 0:
        return [0] * len(blocks)
    exact = [each * width / total for each in blocks]
    rooms = [int(each) for each in exact]
    order = sorted(range(len(blocks)), key=lambda index: rooms[index] - exact[index])
    for index in order[: width - sum(rooms)]:
        rooms[index] += 1
    for index, each in enumerate(blocks):
        largest = max(range(len(rooms)), key=rooms.__getitem__)
        if each > 0 and rooms[index] == 0 and rooms[largest] > 1:
            rooms[largest] -= 1
            rooms[index] = 1
    return rooms


def _cached(
    monitor: CacheMonitorView, labels: Mapping[str, str], letters: Letters
) -> list[Segment]:
    blocks_of = {share.session: share.blocks for share in monitor.shares}
    parts = []
    for owner in letters.session_ids:
        if owner is None or not blocks_of.get(owner):
            continue
        letter = letters.span(owner)
        name = labels.get(owner, FORMER_SESSION)
        parts.append(Segment(letter.text, name, blocks_of.pop(owner), letter.role))
    nobody = blocks_of.pop(None, 0)
    rest = sum(blocks_of.values())
    if rest:
        parts.append(Segment(_OTHERS, f"{len(blocks_of)} more sessions", rest, Role.LABEL))
    if nobody:
        parts.append(Segment(WARM, "no known session", nobody, Role.LABEL, WARM))
    return parts


def _without_owners(kv: KvView, total: int) -> list[Segment]:
    """Divide as far as the scheduler alone can tell."""
    if kv.blocks_in_use is None or kv.blocks_warm is None or kv.blocks_free is None:
        return [Segment(UNKNOWN, "not known", total, Role.MUTED, UNKNOWN)]
    free = min(total, kv.blocks_free)
    warm = min(total - free, kv.blocks_warm)
    return [
        Segment(UNCACHED, "in use", total - free - warm, Role.LABEL, UNCACHED),
        Segment(WARM, "warm", warm, Role.LABEL, WARM),
        Segment(TRACK, "free", free, Role.TRACK, TRACK),
    ]


def _legend(parts: list[Segment], total: int, width: int, rows: int) -> list[Line]:
    """Write the parts in columns of fixed width; the last place says what found no room."""
    columns = max(1, width // _ITEM_WIDTH)
    room = columns * rows
    items = [_item(part, total, width) for part in parts]
    if len(items) > room:
        # Free and not cached are the last two: they stay.
        hidden = parts[max(0, room - 3) : -2] if room >= 3 else parts[room:]
        more = Segment(" ", f"{len(hidden)} more", sum(p.blocks for p in hidden), Role.MUTED)
        items = (
            [*items[: room - 3], _item(more, total, width), *items[-2:]]
            if room >= 3
            else items[:room]
        )
    lines: list[Line] = []
    for start in range(0, len(items), columns):
        row = items[start : start + columns]
        lines.append(tuple(span for item in row for span in item))
    return lines + [()] * (rows - len(lines))


def _item(part: Segment, total: int, width: int) -> Line:
    room = min(_ITEM_WIDTH, width) - 2 - 18 - _ITEM_GAP
    line = (
        Span(part.sign + " ", part.role),
        Span(fit_name(part.name, max(4, room))),
        Span(f" {integer(part.blocks, 5)} blk", Role.STRONG),
        Span(f" {percent(part.blocks / total)}", Role.MUTED),
    )
    return (*line, Span(" " * max(0, _ITEM_WIDTH - cells(line))))


def _counts(kv: KvView, width: int, *, are_owned: bool) -> Line:
    line: list[Span] = []
    for label, value in (
        ("in use", kv.blocks_in_use),
        ("warm", kv.blocks_warm),
        ("free", kv.blocks_free),
    ):
        line += [Span(label, Role.LABEL), Span(f"{integer(value, 6)} blk   ")]
    if kv.blocks_free is None:
        line.append(Span(f"{DASH}: the scheduler cannot be asked", Role.MUTED))
    elif not are_owned:
        line.append(Span("owners not known", Role.MUTED))
    return clip(tuple(line), width)
