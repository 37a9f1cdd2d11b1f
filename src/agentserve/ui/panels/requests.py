"""Requests in flight, and the newest finished, aborted and failed ones."""

from __future__ import annotations

from agentserve.domain.request import InFlightRequest, RequestOutcome, RequestRecord
from agentserve.ui.formatting import DASH, clock, count, duration, rate_number, short_seconds
from agentserve.ui.lines import BLANK, Line, Lines, Role, Span, clip, fit

OUTCOMES = {
    RequestOutcome.STOP: ("  done   ", Role.MUTED),
    RequestOutcome.LENGTH: ("  length ", Role.MUTED),
    RequestOutcome.ABORTED: ("✗ aborted", Role.WARNING),
    RequestOutcome.ERROR: ("✗ error  ", Role.FAILED),
}
_FIXED_WIDTH = 8 + 1 + 6 + 7 + 9 + 8 + 7 + 2 + 9


def draw(
    in_flight: tuple[InFlightRequest, ...],
    recent: tuple[RequestRecord, ...],
    width: int,
    height: int,
) -> Lines:
    """Draw a table, running requests first, then the newest.

    Args:
        in_flight: Requests that the engine works on, in order of arrival.
        recent: Ended requests, newest first.
        width: Cells per line.
        height: Rows to use at most, the heading included.
    """
    who = name_width(width)
    rows = [running_row(request, who) for request in in_flight]
    rows += [ended_row(record, who) for record in recent[: max(0, height - 1 - len(rows))]]
    if not rows:
        rows = [(Span("no requests yet in this generation", Role.MUTED),)]
    return tuple(clip(line, width) for line in (headings(who), *rows)[:height])


def name_width(width: int) -> int:
    """Return the cells that are left for the client's name in a row `width` wide."""
    return max(6, width - _FIXED_WIDTH)


def headings(who: int, beside: str = "") -> Line:
    """Write the headings above rows whose client's name has `who` cells.

    Args:
        who: Cells of the client's name.
        beside: Heading of the cells after it.
    """
    return tuple(
        Span(text, Role.MUTED)
        for text in (
            f"{'time':<8} ",
            f"{'agent':<{who}}",
            *((beside,) if beside else ()),
            f"{'prompt':>6}",
            f"{'cached':>7}",
            f"{'computed':>9}",
            f"{'TTFT   ':>8}",
            f"{'tok/s':>7}",
            "    outcome",
        )
    )


def running_row(request: InFlightRequest, who: int, beside: Line = BLANK) -> Line:
    """Write one request that is not finished, with `beside` after the client's name."""
    return (
        Span(short_seconds(request.elapsed_s) + "  ", Role.ACCENT),
        Span(fit(client(request.agent, request.route), who)),
        *beside,
        Span(f" {count(request.prompt_tokens)}"),
        Span(f"  {count(request.cached_tokens)}", Role.CACHED),
        Span(f"    {count(request.computed_tokens)}", Role.COMPUTED),
        Span(" " * 15),
        Span("  ▸ " + fit(request.phase, 7), Role.ACCENT),
    )


def ended_row(record: RequestRecord, who: int, beside: Line = BLANK) -> Line:
    """Write one finished, aborted or failed request, with `beside` after the client's name."""
    outcome, role = OUTCOMES[record.outcome]
    return (
        Span(clock(record.finished_at_unix_s) + " ", Role.MUTED),
        Span(fit(client(record.agent, record.route), who)),
        *beside,
        Span(f" {count(record.prompt_tokens)}"),
        Span(f"  {count(record.cached_tokens)}", Role.CACHED),
        Span(f"    {count(record.computed_tokens)}", Role.COMPUTED),
        Span(f" {duration(record.ttft_s)}"),
        Span(f"  {rate_number(record.decode_tokens_per_s)}", Role.DECODE),
        Span(f"  {outcome}", role),
    )


def client(agent: str | None, route: str | None) -> str:
    """Write who asked, and on which route."""
    path = (route or DASH).removeprefix("/v1")
    return f"{agent} {path}" if agent else path
