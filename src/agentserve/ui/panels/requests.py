"""Requests in flight, and the newest finished, aborted and failed ones."""

from __future__ import annotations

from agentserve.domain.request import InFlightRequest, RequestOutcome, RequestRecord
from agentserve.ui.formatting import DASH, clock, count, duration, rate_number, short_seconds
from agentserve.ui.lines import Line, Lines, Role, Span, clip, fit

_OUTCOMES = {
    RequestOutcome.STOP: ("  done   ", Role.MUTED),
    RequestOutcome.LENGTH: ("  length ", Role.MUTED),
    RequestOutcome.ABORTED: ("✗ aborted", Role.WARNING),
    RequestOutcome.ERROR: ("✗ error  ", Role.FAILED),
}
_FIXED_WIDTH = 8 + 1 + 6 + 7 + 9 + 8 + 7 + 2 + 9
_HEADINGS = f"{'prompt':>6}{'cached':>7}{'computed':>9}{'TTFT   ':>8}{'tok/s':>7}  "


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
    who = max(6, width - _FIXED_WIDTH)
    heading: Line = (Span(f"{'time':<8} {'agent':<{who}}{_HEADINGS}  outcome", Role.MUTED),)
    rows = [_running(request, who) for request in in_flight]
    rows += [_ended(record, who) for record in recent[: max(0, height - 1 - len(rows))]]
    if not rows:
        rows = [(Span("no requests yet in this generation", Role.MUTED),)]
    return tuple(clip(line, width) for line in (heading, *rows)[:height])


def _running(request: InFlightRequest, who: int) -> Line:
    return (
        Span(short_seconds(request.elapsed_s) + "  ", Role.ACCENT),
        Span(fit(_client(request.agent, request.route), who)),
        Span(f" {count(request.prompt_tokens)}"),
        Span(f"  {count(request.cached_tokens)}", Role.CACHED),
        Span(f"    {count(request.computed_tokens)}", Role.COMPUTED),
        Span(" " * 15),
        Span("  ▸ " + fit(request.phase, 7), Role.ACCENT),
    )


def _ended(record: RequestRecord, who: int) -> Line:
    outcome, role = _OUTCOMES[record.outcome]
    name = _client(record.agent, record.route)
    return (
        Span(clock(record.finished_at_unix_s) + " ", Role.MUTED),
        Span(fit(name, who)),
        Span(f" {count(record.prompt_tokens)}"),
        Span(f"  {count(record.cached_tokens)}", Role.CACHED),
        Span(f"    {count(record.computed_tokens)}", Role.COMPUTED),
        Span(f" {duration(record.ttft_s)}"),
        Span(f"  {rate_number(record.decode_tokens_per_s)}", Role.DECODE),
        Span(f"  {outcome}", role),
    )


def _client(agent: str | None, route: str | None) -> str:
    path = (route or DASH).removeprefix("/v1")
    return f"{agent} {path}" if agent else path
