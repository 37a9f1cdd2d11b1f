"""Agent sessions as rows: the full table, the dashboard's compact one, and its one-line form.

Columns have fixed widths; where there is no room the least important ones leave. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rich.cells import cell_len

from agentserve.domain.session import CacheMonitorView, EvictionView, SessionView
from agentserve.ui.formatting import (
    DASH,
    age,
    count,
    duration,
    integer,
    percent,
    rate,
    whole_percent,
)
from agentserve.ui.glyphs import SIDE
from agentserve.ui.lines import BLANK, Line, Lines, Role, Span, cells, clip, fit, joined, wrap
from agentserve.ui.panels.pool_bar import FORMER_SESSION, Letters, fit_name
from agentserve.ui.verdict_words import VERDICT_WIDTH, is_loss, phrase, verdict_span

HEADING_ROWS = 1
_MARK = 2
_LETTER = 2
_LEAST_LABEL = 15
_MOST_LABEL = 32
_SIDE_WIDTH = 2
_RUNNING = "running"
_EVICTION = "last eviction"
_WHEN_WIDTH = 12
_LEAST_NAME = 10
_NO_LETTERS = Letters()


class Row(NamedTuple):
    """One session, and what its row needs beside it."""

    session: SessionView
    now_unix_s: float


class Column(NamedTuple):
    """One column right of the label."""

    heading: str
    """With the column's full width; the words also name its explanation."""
    rank: int
    """The column of the highest rank leaves first."""
    cell: Callable[[Row], Span]
    """Its text has the width of the heading, or is a number that is put to the right."""


def _resident(row: Row) -> Span:
    session = row.session
    share = None
    if session.resident_tokens is not None and session.prompt_tokens:
        share = 100 * session.resident_tokens / session.prompt_tokens
    return Span(whole_percent(share))


def _expected(row: Row) -> Span:
    session = row.session
    differs = (
        session.expected_cached_tokens is not None
        and session.cached_tokens is not None
        and session.expected_cached_tokens != session.cached_tokens
    )
    return Span(count(session.expected_cached_tokens), Role.WARNING if differs else Role.TEXT)


def _idle(row: Row) -> Span:
    if row.session.running_requests:
        return Span(_RUNNING, Role.ACCENT)
    idle_s = max(0.0, row.now_unix_s - row.session.last_seen_unix_s)
    return Span(age(idle_s) if row.session.last_seen_unix_s else age(None), Role.MUTED)


def _verdict(row: Row) -> Span:
    text, role = verdict_span(row.session.verdict)
    return Span(" " + text, role)


COLUMNS: tuple[Column, ...] = (
    Column("  agent         ", 9, lambda r: Span("  " + fit(r.session.agent or DASH, 14))),
    Column(" turns", 3, lambda r: Span(integer(r.session.requests, 6))),
    Column(" prompt", 2, lambda r: Span(count(r.session.prompt_tokens))),
    Column(" cached", 1, lambda r: Span(count(r.session.cached_tokens), Role.CACHED)),
    Column(" expected", 5, _expected),
    Column(" computed", 1, lambda r: Span(count(r.session.computed_tokens), Role.COMPUTED)),
    Column(" hit rate", 6, lambda r: Span(percent(r.session.hit_rate))),
    Column("    n", 6, lambda r: Span(integer(r.session.hit_rate_requests, 4), Role.MUTED)),
    Column(" resident", 4, _resident),
    Column("     TTFT", 7, lambda r: Span(duration(r.session.ttft_s))),
    Column(
        " last verdict".ljust(VERDICT_WIDTH + 1),
        0,
        _verdict,
    ),
    Column("    idle", 2, _idle),
    Column("  pool      ", 10, lambda r: Span("  " + fit(r.session.isolation or "common", 10))),
)


def columns_for(width: int) -> tuple[Column, ...]:
    """Choose the columns that leave the label its room, in `width` cells."""
    shown = list(COLUMNS)
    room = width - _MARK - _LETTER - _SIDE_WIDTH - _LEAST_LABEL
    while shown and sum(len(column.heading) for column in shown) > room:
        least = max(column.rank for column in shown)
        shown = [column for column in shown if column.rank != least]
    return tuple(shown)


def title(sessions: int, *, forgotten: int = 0) -> str:
    """Name the panel with the number of sessions."""
    more = f" · {forgotten:,} older ones left the list" if forgotten else ""
    return f"Sessions · {sessions:,} · newest first{more}"


def draw(
    sessions: tuple[SessionView, ...],
    chosen: str | None,
    letters: Letters,
    now_unix_s: float,
    nothing: str,
    width: int,
    height: int,
) -> Lines:
    """Draw the heading and one row a session, the chosen one marked.

    Args:
        sessions: Those in view only, newest first.
        chosen: Id of the session under the cursor.
        letters: Letters of the sessions in the pool bar.
        now_unix_s: Time of the snapshot, for the idle time.
        nothing: What to say where there is no session.
        width: Cells per line.
        height: Rows to use at most.
    """
    columns = columns_for(width)
    label = _label_width(columns, width)
    lines: list[Line] = [clip(_heading(columns, label, mark=_MARK), width)]
    if not sessions:
        lines += [BLANK, *((Span("  " + row, Role.MUTED),) for row in wrap(nothing, width - 2))]
    for session in sessions[: max(0, height - HEADING_ROWS)]:
        row = _row(Row(session, now_unix_s), columns, label, letters)
        lines.append(_marked(row, width, is_chosen=session.id == chosen))
    return _fitting(lines, columns, width)[: max(0, height)]


def draw_compact(
    sessions: tuple[SessionView, ...],
    total: int,
    lost: SessionView | None,
    losses: int,
    key: str,
    now_unix_s: float,
    width: int,
    height: int,
) -> Lines:
    """Draw the dashboard's table; in one row only, say what matters most.

    Args:
        sessions: The newest ones.
        total: Number of all sessions.
        lost: The newest one whose last turn lost reuse.
        losses: Number of those.
        key: Opens the view of sessions.
        now_unix_s: Time of the snapshot.
        width: Cells per line.
        height: Rows to use at most.
    """
    if height < 2:
        return (_summary(total, lost, losses, key, width),)[: max(0, height)]
    columns = columns_for(width + _MARK + _LETTER)
    label = _label_width(columns, width + _MARK + _LETTER)
    lines: list[Line] = [clip(_heading(columns, label), width)]
    if not sessions:
        lines.append((Span(fit("no agent session yet", width).rstrip(), Role.MUTED),))
    for session in sessions[: max(0, height - 1)]:
        row = _row(Row(session, now_unix_s), columns, label, None)
        lines.append(row)
    return _fitting(lines, columns, width)[:height]


def draw_footer(
    monitor: CacheMonitorView,
    labels: Mapping[str, str],
    now_unix_s: float,
    width: int,
    height: int,
) -> Lines:
    """Draw how far the figures can be trusted, and below it the last evictions, newest first.

    Args:
        monitor: The monitor about itself.
        labels: Labels by id of the sessions that the evictions name.
        now_unix_s: Time of the snapshot.
        width: Cells per line.
        height: Rows to use at most.
    """
    right = monitor.predictions - monitor.mispredictions
    if monitor.predictions:
        role = Role.WARNING if monitor.mispredictions else Role.READY
        predicted: Line = (
            Span("predicted right", Role.LABEL),
            Span(f" {right:,} of {monitor.predictions:,}", role),
        )
    else:
        predicted = (Span("predicted right", Role.LABEL), Span(" no turn yet", Role.MUTED))
    speed: Line = (
        Span("prefill speed", Role.LABEL),
        Span(f" {rate(monitor.prefill_tokens_per_s).strip()}"),
    )
    lines: list[Line] = [joined((predicted, speed), "   ")]
    if monitor.residency_problem:
        problem = fit(monitor.residency_problem, width - 2).rstrip()
        lines.append((Span("! " + problem, Role.WARNING),))
    elif not monitor.evictions:
        lines.append((Span(_EVICTION, Role.LABEL), Span(" none", Role.MUTED)))
    lead = len(_EVICTION) + 1
    for index, each in enumerate(monitor.evictions[: max(0, height - len(lines))]):
        label = Span(fit(_EVICTION if index == 0 else "", lead), Role.LABEL)
        lines.append((label, *eviction(each, labels, now_unix_s, width - lead)))
    return tuple(clip(line, width) for line in lines)[: max(0, height)]


def eviction(one: EvictionView, labels: Mapping[str, str], now_unix_s: float, width: int) -> Line:
    """Say when who lost how much to whom; names give way where `width` cells are too few."""
    unit = "token" if one.tokens is not None else "block"
    amount = one.blocks if one.tokens is None else one.tokens
    lost = f" lost {amount:,} {unit}{'' if amount == 1 else 's'} to "
    when = f"{age(max(0.0, now_unix_s - one.at_unix_s)).strip()} ago".ljust(_WHEN_WIDTH)
    loser = labels.get(one.loser, FORMER_SESSION) if one.loser else "no known session"
    winner = labels.get(one.winner, FORMER_SESSION) if one.winner else "an unknown request"
    room = max(2 * _LEAST_NAME, width - len(lost) - _WHEN_WIDTH)
    first = fit_name(loser, max(room // 2, room - cell_len(winner))).rstrip()
    second = fit_name(winner, room - cell_len(first)).rstrip()
    return Span(when, Role.MUTED), Span(f"{first}{lost}{second}")


def losses_of(sessions: tuple[SessionView, ...]) -> tuple[SessionView | None, int]:
    """Return the newest session whose last turn lost reuse, and how many there are."""
    lost = [session for session in sessions if is_loss(session.verdict)]
    return (lost[0] if lost else None), len(lost)


def _summary(total: int, lost: SessionView | None, losses: int, key: str, width: int) -> Line:
    open_key: Line = (Span("  "), Span(key, Role.KEY), Span(" for more", Role.MUTED))
    if not total:
        what: Line = (Span("no agent session yet", Role.MUTED),)
        return clip((*what, *open_key), width)
    line: Line = (Span(f"{total:,} session{'' if total == 1 else 's'}", Role.LABEL),)
    if lost is not None and lost.verdict is not None:
        cause = fit(phrase(lost.verdict), 60).rstrip()
        line = (
            *line,
            Span(" · ", Role.MUTED),
            Span(f"{losses:,} lost reuse", Role.WARNING),
            Span(f": {cause}"),
        )
    else:
        line = (*line, Span(" · ", Role.MUTED), Span("0 lost reuse", Role.READY))
    return (*clip(line, max(1, width - cells(open_key))), *open_key)


def _fitting(lines: list[Line], columns: tuple[Column, ...], width: int) -> Lines:
    """Cut rows where not even the last column fits; measuring each row would cost a tick's time."""
    if columns:
        return tuple(lines)
    return tuple(clip(line, max(0, width)) for line in lines)


def _label_width(columns: tuple[Column, ...], width: int) -> int:
    fixed = sum(len(column.heading) for column in columns)
    room = width - _MARK - _LETTER - _SIDE_WIDTH - fixed
    return max(1, min(_MOST_LABEL, room))


def _heading(columns: tuple[Column, ...], label: int, *, mark: int = 0) -> Line:
    lead = mark + _LETTER if mark else 0
    return (
        Span(" " * lead),
        Span(fit("session", label + _SIDE_WIDTH), Role.MUTED),
        *(Span(column.heading, Role.MUTED) for column in columns),
    )


def _row(
    row: Row, columns: tuple[Column, ...], label: int, letters: Letters | None = _NO_LETTERS
) -> Line:
    session = row.session
    name = (SIDE + " " if session.side else "") + session.label
    line: list[Span] = []
    if letters is not None:
        line += [letters.span(session.id), Span(" ")]
    role = Role.MUTED if session.side else Role.STRONG
    line.append(Span(fit_name(name, label + _SIDE_WIDTH), role))
    for column in columns:
        cell = column.cell(row)
        room = len(column.heading) - cell_len(cell.text)
        line.append(Span(" " * room + cell.text, cell.role) if room > 0 else cell)
    return tuple(line)


def _marked(row: Line, width: int, *, is_chosen: bool) -> Line:
    if not is_chosen:
        return (Span(" " * _MARK), *row)
    text = "".join(span.text for span in row)
    padded = text + " " * max(0, width - _MARK - cells(row))
    return Span("▸ ", Role.ACCENT), Span(padded, Role.SELECTED)
