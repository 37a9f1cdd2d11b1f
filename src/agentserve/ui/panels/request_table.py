"""The full table of requests with a cursor, and its heading that names the order."""

from __future__ import annotations

from agentserve.domain.request import InFlightRequest, RequestRecord
from agentserve.ui.formatting import integer
from agentserve.ui.lines import BLANK, Line, Lines, Role, Span, cells, clip, fit
from agentserve.ui.panels.requests import ended_row, headings, name_width, running_row
from agentserve.ui.request_list import ListView, Request, SortKey, position, rows_of

_MARK = 2
_LEAST_WIDTH_FOR_OUTPUT = 96
HEADING_ROWS = 1


def title(
    in_flight: tuple[InFlightRequest, ...], recent: tuple[RequestRecord, ...], view: ListView
) -> str:
    """Name the panel with the numbers of requests that are shown."""
    shown = len(rows_of(in_flight, recent, view))
    kept = len(in_flight) + len(recent)
    count = f"{shown} of {kept}" if view.text else str(kept)
    return f"Requests · {count} · by {view.sort}"


def draw(
    in_flight: tuple[InFlightRequest, ...],
    recent: tuple[RequestRecord, ...],
    view: ListView,
    width: int,
    height: int,
) -> Lines:
    """Draw the heading and the rows in view, the one under the cursor marked.

    Args:
        in_flight: Requests that are not finished.
        recent: Finished ones, newest first.
        view: Order, filter and cursor.
        width: Cells per line.
        height: Rows to use at most.
    """
    rows = rows_of(in_flight, recent, view)
    with_output = width >= _LEAST_WIDTH_FOR_OUTPUT
    who = name_width(width - _MARK - (7 if with_output else 0))
    heading = _heading(who, view.sort, with_output=with_output)
    lines: list[Line] = [clip((Span(" " * _MARK), *heading), width)]
    if not rows:
        text = "no request matches the filter" if view.text else "no requests yet"
        lines += [BLANK, (Span(fit("  " + text, width), Role.MUTED),)]
        return tuple(lines[:height])
    room = max(0, height - HEADING_ROWS)
    view = view.scrolled(rows, max(1, room))
    at = position(rows, view.cursor)
    for index, request in enumerate(rows[view.top : view.top + room], view.top):
        lines.append(_row(request, who, width, is_chosen=index == at, with_output=with_output))
    return tuple(lines[:height])


def _heading(who: int, sort: SortKey, *, with_output: bool) -> Line:
    line: list[Span] = []
    output = (Span(" output", Role.MUTED),) if with_output else ()
    for span in (*headings(who), *output):
        is_key = span.text.strip() == sort
        line.append(Span(span.text, Role.ACCENT if is_key else span.role))
    return tuple(line)


def _row(request: Request, who: int, width: int, *, is_chosen: bool, with_output: bool) -> Line:
    if isinstance(request, InFlightRequest):
        row = running_row(request, who)
    else:
        row = ended_row(request, who)
    output = Span(f" {integer(request.generated_tokens, 6)}")
    line: Line = (*row, output) if with_output else row
    if not is_chosen:
        return clip((Span(" " * _MARK), *line), width)
    text = "".join(span.text for span in line)
    padded = text + " " * max(0, width - _MARK - cells(line))
    return clip((Span("▸ ", Role.ACCENT), Span(padded, Role.SELECTED)), width)
