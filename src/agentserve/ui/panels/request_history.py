"""Past requests as a picture: hit rate, computed tokens and TTFT by day, preset, agent, session.

Owns the drawing for both the screen and `agentserve-tui history`, which prints the same lines as
plain text. It must not know where a report comes from or how it is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from agentserve.domain.history import DayTotals, HistoryTotals, RequestHistoryReport
from agentserve.ui.action import key_for
from agentserve.ui.formatting import clock, count, duration, integer, percent
from agentserve.ui.glyphs import bar
from agentserve.ui.lines import (
    BLANK,
    Line,
    Lines,
    Role,
    Span,
    cells,
    clip,
    fit,
    joined,
    wrap,
)

_MOST_WIDTH = 132
_GUTTER = 4
_LEAST_WIDTH_FOR_TWO = 160
"""From this width on the days stand beside the tables."""
_LEAST_WIDTH_FOR_CACHED = 96
_LEAST_NAME, _MOST_NAME = 18, 36
_MOST_BAR = 36
_FIXED = 37
"""Cells of a row beside its name, its two bars and the cached tokens."""
_DIGITS = 6
"""Of a session's digest: enough to tell the newest sessions apart."""
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_OFF = "Requests are not recorded: config.toml says [history] enabled = false."
_ALL_IN = "agentserve-tui history --json"


class HistoryPage(NamedTuple):
    """What the view of past requests shows."""

    days: int
    report: RequestHistoryReport | None = None
    problem: str | None = None
    """Why there is no report; one sentence and what to do."""
    is_reading: bool = False
    read_at_unix_s: float | None = None
    has_more_days: bool = True
    """Whether a longer time can be chosen."""


class _Columns(NamedTuple):
    name: int
    bar: int
    with_cached: bool


def title(page: HistoryPage) -> str:
    """Name the panel with the days it shows, and say while they are being read."""
    state = "reading…" if page.is_reading else f"read at {clock(page.read_at_unix_s)}"
    return f"History · last {page.days} days · {state}"


def draw_page(
    page: HistoryPage, keys_of: Mapping[str, tuple[str, ...]], width: int, height: int
) -> Lines:
    """Draw the report, or one sentence why there is none, with the next key.

    Args:
        page: The report and how far it is read.
        keys_of: The keys that the user gave, by action id.
        width: Cells per line.
        height: Rows to use at most.
    """
    report = page.report
    if report is not None and report.total.requests:
        return draw(report, width, height)
    if page.problem is not None:
        text, role = page.problem, Role.WARNING
    elif report is not None:
        text, role = nothing(report), Role.TEXT
    else:
        return ((Span("reading…", Role.MUTED),),)[: max(0, height)]
    lines: list[Line] = [(Span(row, role),) for row in wrap(text, min(width, 96), most=6)]
    keys: list[tuple[str, str]] = []
    if report is not None and report.latest_at_unix_s is not None and page.has_more_days:
        keys.append((key_for("history.more", keys_of), "more days"))
    keys.append((key_for("history.reload", keys_of), "read again"))
    keys.append((key_for("view.back", keys_of), "back"))
    parts: list[Line] = [(Span(key, Role.KEY), Span(f" {does}", Role.LABEL)) for key, does in keys]
    return (*lines, BLANK, clip(joined(parts, "   "), width))[: max(0, height)]


def nothing(report: RequestHistoryReport) -> str:
    """Say in one sentence why a report has no requests."""
    if report.latest_at_unix_s is not None:
        latest = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.latest_at_unix_s))
        days = f"from {report.first_day} to {report.last_day}"
        return f"No requests {days}; the newest one stored ended {latest}."
    if not report.is_recorded:
        return _OFF
    return "No history yet: it begins with the first finished request."


def draw(report: RequestHistoryReport, width: int, height: int, most_rows: int = 100) -> Lines:
    """Draw the totals, the days, the newest first, and a table by preset, agent and session.

    Args:
        report: Totals of at least one request.
        width: Cells per line.
        height: Rows to use at most.
        most_rows: Rows of a table; what is left out is counted.
    """
    if width >= _LEAST_WIDTH_FOR_TWO:
        column = min(_MOST_WIDTH, (width - _GUTTER) // 2)
        days = [*_days(report, column)]
        lines = [BLANK, *_beside(days, [*_tables(report, column, most_rows)], column)]
    else:
        column = min(width, _MOST_WIDTH)
        lines = [BLANK, *_days(report, column), BLANK, *_tables(report, column, most_rows)]
    lines = [*_summary(report, column), *lines, BLANK, *_notes(report)]
    return tuple(clip(line, width) for line in lines[: max(0, height)])


def _summary(report: RequestHistoryReport, width: int) -> Iterator[Line]:
    total = report.total
    requests = (
        ("requests", f"{total.requests:,}"),
        ("hit rate", percent(total.hit_rate).strip()),
        ("computed", count(total.computed_tokens).strip()),
        ("generated", count(total.generated_tokens).strip()),
    )
    waits = (
        ("TTFT p50", duration(total.ttft_s.p50).strip()),
        ("p95", duration(total.ttft_s.p95).strip()),
        *(("aborted", f"{number:,}") for number in (total.aborted,) if number),
        *(("failed", f"{number:,}") for number in (total.failed,) if number),
    )
    for figures in (requests, waits):
        parts: list[Line] = [
            (Span(f"{name} ", Role.LABEL), Span(value, Role.STRONG)) for name, value in figures
        ]
        yield clip(joined(parts), width)
    if not report.is_recorded:
        yield (Span(_OFF, Role.WARNING),)


def _notes(report: RequestHistoryReport) -> Iterator[Line]:
    total = report.total
    rate = f"hit rate: cached / prompt tokens, n {total.hit_rate_requests:,}"
    yield (Span(f"{rate}; TTFT n {total.ttft_s.n:,}", Role.MUTED),)
    yield (Span("computed: each bar against the largest of its table", Role.MUTED),)


def _days(report: RequestHistoryReport, width: int) -> Iterator[Line]:
    columns = _columns(width)
    most = _most_computed([day.totals for day in report.days])
    yield _heading("by day", columns, "n")
    idle = 0
    for day in reversed(report.days):
        if not day.totals.requests:
            idle += 1
            continue
        yield from _idle(idle)
        idle = 0
        yield _row(_day_name(day), day.totals, most, columns)
    yield from _idle(idle)


def _day_name(day: DayTotals) -> str:
    return f"{day.day.isoformat()} {_WEEKDAYS[day.day.weekday()]}"


def _idle(days: int) -> Iterator[Line]:
    if days:
        text = f"{days} days" if days > 1 else "1 day"
        yield (Span(f"  {text} without requests", Role.MUTED),)


def _tables(report: RequestHistoryReport, width: int, most_rows: int) -> Iterator[Line]:
    columns = _columns(width)
    presets = [(row.preset or "(none)", row.totals) for row in report.presets]
    yield from _table("by preset", presets, len(presets), most_rows, columns)
    agents = [(_agent(row.agent), row.totals) for row in report.agents]
    yield BLANK
    yield from _table("by agent", agents, len(agents), most_rows, columns)
    if report.sessions:
        sessions = [
            (f"{row.session[:_DIGITS]} {_agent(row.agent)}", row.totals) for row in report.sessions
        ]
        # A report may carry the newest sessions only; its agents count all of them.
        known = max(len(sessions), sum(agent.sessions for agent in report.agents))
        yield BLANK
        yield from _table("by session, newest", sessions, known, most_rows, columns, "turns")


def _table(
    heading: str,
    rows: Sequence[tuple[str, HistoryTotals]],
    known: int,
    most_rows: int,
    columns: _Columns,
    counted: str = "n",
) -> Iterator[Line]:
    shown = rows[:most_rows]
    most = _most_computed([totals for _, totals in shown])
    yield _heading(heading, columns, counted)
    for name, totals in shown:
        yield _row(name, totals, most, columns)
    if known > len(shown):
        yield (Span(f"  {known - len(shown):,} more: {_ALL_IN}", Role.MUTED),)


def _columns(width: int) -> _Columns:
    with_cached = width >= _LEAST_WIDTH_FOR_CACHED
    room = width - _FIXED - (7 if with_cached else 0)
    name = min(_MOST_NAME, max(_LEAST_NAME, room * 2 // 5))
    bars = min(_MOST_BAR, max(0, (room - name) // 2))
    return _Columns(max(0, min(room - 2 * bars, _MOST_NAME)), bars, with_cached)


def _heading(name: str, columns: _Columns, counted: str) -> Line:
    cached = f"{'cached':>7}" if columns.with_cached else ""
    figures = (
        f" {fit('hit rate', columns.bar + 7, right=not columns.bar)}{cached} "
        f"{fit('computed', columns.bar + 6)}{'TTFT p50':>9}{'p95':>6}{counted:>7}"
    )
    return (Span(fit(name, columns.name), Role.STRONG), Span(figures, Role.MUTED))


def _row(name: str, totals: HistoryTotals, most_computed: int, columns: _Columns) -> Line:
    hit, missed = bar(totals.hit_rate, columns.bar)
    computed = totals.computed_tokens
    share = None if computed is None or not most_computed else computed / most_computed
    filled, rest = bar(share, columns.bar)
    cached = f" {count(totals.cached_tokens):>6}" if columns.with_cached else ""
    return (
        Span(fit(name, columns.name) + " ", Role.LABEL),
        Span(hit, Role.CACHED),
        Span(missed, Role.TRACK),
        Span(percent(totals.hit_rate) + cached + " "),
        Span(filled, Role.COMPUTED),
        # An amount has no full length, so what is left of it stays empty.
        Span(" " * len(rest)),
        Span(f" {count(computed)}"),
        Span(f" {duration(totals.ttft_s.p50)} {duration(totals.ttft_s.p95)}"),
        Span(integer(totals.requests, 6)),
    )


def _most_computed(rows: Sequence[HistoryTotals]) -> int:
    return max((totals.computed_tokens or 0 for totals in rows), default=0)


def _agent(name: str | None) -> str:
    return name or "(unnamed)"


def _beside(left: list[Line], right: list[Line], column: int) -> Iterator[Line]:
    for index in range(max(len(left), len(right))):
        first = left[index] if index < len(left) else BLANK
        second = right[index] if index < len(right) else BLANK
        yield (*first, Span(" " * (column + _GUTTER - cells(first))), *second)
