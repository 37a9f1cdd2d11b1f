"""The full table of requests with a cursor, and its heading that names the order."""

from __future__ import annotations

from typing import NamedTuple

from agentserve.domain.request import InFlightRequest, RequestRecord
from agentserve.ui.formatting import DASH, integer
from agentserve.ui.lines import BLANK, Line, Lines, Role, Span, cells, clip, fit
from agentserve.ui.panels.requests import ended_row, headings, name_width, running_row
from agentserve.ui.request_list import (
    ListView,
    Request,
    SortKey,
    position,
    rows_of,
    session_label,
)
from agentserve.ui.session_list import Labels

_MARK = 2
_LEAST_WIDTH_FOR_OUTPUT = 96
_LEAST_AGENT, _MOST_AGENT = 24, 48
"""A session is named where the first is left for the agent; beyond the second its figures would
stand too far away to be read as one row."""
_LEAST_SESSION, _MOST_SESSION = 18, 36
HEADING_ROWS = 1


class _Columns(NamedTuple):
    agent: int
    session: int
    """0: none."""
    output: bool


def title(
    in_flight: tuple[InFlightRequest, ...],
    recent: tuple[RequestRecord, ...],
    labels: Labels,
    view: ListView,
) -> str:
    """Name the panel with the numbers of requests that are shown."""
    shown = len(rows_of(in_flight, recent, labels, view))
    kept = len(in_flight) + len(recent)
    count = f"{shown} of {kept}" if view.text else str(kept)
    return f"Requests · {count} · by {view.sort}"


def draw(
    in_flight: tuple[InFlightRequest, ...],
    recent: tuple[RequestRecord, ...],
    labels: Labels,
    view: ListView,
    width: int,
    height: int,
) -> Lines:
    """Draw the heading and the rows in view, the one under the cursor marked.

    Args:
        in_flight: Requests that are not finished.
        recent: Finished ones, newest first.
        labels: Of their sessions.
        view: Order, filter and cursor.
        width: Cells per line.
        height: Rows to use at most.
    """
    rows = rows_of(in_flight, recent, labels, view)
    columns = _columns(width)
    heading = _heading(columns, view.sort)
    lines: list[Line] = [clip((Span(" " * _MARK), *heading), width)]
    if not rows:
        text = "no request matches the filter" if view.text else "no requests yet"
        lines += [BLANK, (Span(fit("  " + text, width), Role.MUTED),)]
        return tuple(lines[:height])
    room = max(0, height - HEADING_ROWS)
    view = view.scrolled(rows, max(1, room))
    at = position(rows, view.cursor)
    for index, request in enumerate(rows[view.top : view.top + room], view.top):
        label = session_label(request, labels)
        lines.append(_row(request, label, columns, width, is_chosen=index == at))
    return tuple(lines[:height])


def _columns(width: int) -> _Columns:
    output = width >= _LEAST_WIDTH_FOR_OUTPUT
    names = name_width(width - _MARK - (7 if output else 0))
    if names < _LEAST_AGENT + 1 + _LEAST_SESSION:
        return _Columns(names, 0, output)
    session = min(_MOST_SESSION, max(_LEAST_SESSION, names // 3))
    return _Columns(min(_MOST_AGENT, names - 1 - session), session, output)


def _heading(columns: _Columns, sort: SortKey) -> Line:
    line: list[Span] = []
    session = f" {'session':<{columns.session}}" if columns.session else ""
    output = (Span(" output", Role.MUTED),) if columns.output else ()
    for span in (*headings(columns.agent, session), *output):
        is_key = span.text.strip() == sort
        line.append(Span(span.text, Role.ACCENT if is_key else span.role))
    return tuple(line)


def _row(
    request: Request, label: str | None, columns: _Columns, width: int, *, is_chosen: bool
) -> Line:
    session: Line = ()
    if columns.session:
        session = (Span(" " + fit(label or DASH, columns.session), Role.LABEL),)
    if isinstance(request, InFlightRequest):
        row = running_row(request, columns.agent, session)
    else:
        row = ended_row(request, columns.agent, session)
    output = Span(f" {integer(request.generated_tokens, 6)}")
    line: Line = (*row, output) if columns.output else row
    if not is_chosen:
        return clip((Span(" " * _MARK), *line), width)
    text = "".join(span.text for span in line)
    padded = text + " " * max(0, width - _MARK - cells(line))
    return clip((Span("▸ ", Role.ACCENT), Span(padded, Role.SELECTED)), width)
