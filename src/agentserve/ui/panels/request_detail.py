"""One request: what it was, its tokens and speeds, and its phases drawn to scale."""

from __future__ import annotations

from agentserve.domain.request import InFlightRequest, RequestRecord
from agentserve.ui.formatting import (
    DASH,
    clock,
    duration,
    integer,
    percent,
    rate,
    short_seconds,
)
from agentserve.ui.glyphs import FILL, TRACK
from agentserve.ui.lines import BLANK, Line, Lines, Role, Span, clip, fact, fit, spread
from agentserve.ui.panels.requests import OUTCOMES
from agentserve.ui.request_list import Request, ttft_s

_MOST_WIDTH = 100
_LABEL = 10
_VALUE = 9


def draw(
    request: Request | None, session: str | None, sessions_key: str, width: int, height: int
) -> Lines:
    """Draw everything known about one request; what is not known is a dash.

    Args:
        request: The request, or None when there is none.
        session: Label of its session, where it is known.
        sessions_key: The key that shows the sessions; empty without one.
        width: Cells per line.
        height: Rows to use at most.
    """
    width = min(width, _MOST_WIDTH)
    if request is None:
        return ((Span("no request", Role.MUTED),),)[:height]
    lines: list[Line] = [
        spread(_timeline_title(request, width), _to_sessions(session, sessions_key), width),
        *_timeline(request, width),
        BLANK,
        *_columns(_facts(request, session), _tokens(request), width),
    ]
    return tuple(clip(line, width) for line in lines[: max(0, height)])


def phases(request: Request) -> tuple[tuple[str, float | None, float | None, Role], ...]:
    """Divide a request's life: name, begin and length in seconds, colour.

    Prefill counts from the end of the wait to the first output, so it holds the little work around
    the engine too. What is left after the last output is the end of the request.
    """
    if isinstance(request, InFlightRequest):
        return (
            ("queued", None, None, Role.MUTED),
            ("prefill", None, None, Role.COMPUTED),
            ("decode", None, None, Role.DECODE),
        )
    queued, ttft, decode = request.queued_s, request.ttft_s, request.decode_s
    prefill = None if ttft is None or queued is None else max(0.0, ttft - queued)
    rest = None if ttft is None or decode is None else max(0.0, request.elapsed_s - ttft - decode)
    return (
        ("queued", None if queued is None else 0.0, queued, Role.WARNING),
        ("prefill", queued, prefill, Role.COMPUTED),
        ("decode", ttft, decode, Role.DECODE),
        ("end", None if rest is None else request.elapsed_s - rest, rest, Role.MUTED),
    )


def _timeline_title(request: Request, width: int) -> Line:
    if isinstance(request, InFlightRequest):
        left: Line = (
            Span(f"▸ {fit(request.phase, 8)}", Role.ACCENT),
            Span(" running for", Role.LABEL),
            Span(short_seconds(request.elapsed_s), Role.STRONG),
        )
    else:
        outcome, role = OUTCOMES[request.outcome]
        left = (
            Span(outcome.strip(), role if role is not Role.MUTED else Role.READY),
            Span(f"  at {clock(request.finished_at_unix_s)}", Role.LABEL),
            Span("  after", Role.LABEL),
            Span(short_seconds(request.elapsed_s), Role.STRONG),
        )
    return clip(left, width)


def _to_sessions(session: str | None, key: str) -> Line:
    if session is None or not key:
        return ()
    return (Span(key, Role.KEY), Span(" shows the sessions", Role.LABEL))


def _timeline(request: Request, width: int) -> list[Line]:
    room = max(8, width - _LABEL - _VALUE - 1)
    total = request.elapsed_s
    lines: list[Line] = []
    for name, begin, length, role in phases(request):
        left, filled = _place(begin, length, total, room)
        track = TRACK if left is not None else " "
        before = left or 0
        lines.append(
            (
                Span(fit(name, _LABEL), Role.LABEL),
                Span(track * before, Role.TRACK),
                Span(FILL * filled, role),
                Span(track * (room - before - filled), Role.TRACK),
                Span(duration(length).rjust(_VALUE), Role.TEXT),
            )
        )
    if isinstance(request, InFlightRequest):
        note = "the times of its phases are known when it has ended"
        lines.append((Span(" " * _LABEL), Span(fit(note, room), Role.MUTED)))
    else:
        scale = "0" + short_seconds(total).strip().rjust(room - 1)
        lines.append((Span(" " * _LABEL), Span(scale, Role.MUTED)))
    return lines


def _place(
    begin: float | None, length: float | None, total: float, room: int
) -> tuple[int | None, int]:
    """Return first cell and number of cells; a phase that took time is never invisible."""
    if begin is None or length is None or total <= 0:
        return None, 0
    start = _cell(begin / total, room)
    end = _cell((begin + length) / total, room)
    if length <= 0:
        return start, 0
    start = min(start, room - 1)
    return start, max(1, end - start)


def _cell(share: float, room: int) -> int:
    # Clamped before rounding: a tiny total makes the share infinite.
    return round(min(1.0, share) * room)


def _facts(request: Request, session: str | None) -> list[tuple[str, str, Role]]:
    rows = [
        ("agent", request.agent or DASH, Role.TEXT),
        ("session", session or DASH, Role.TEXT),
        ("route", request.route or DASH, Role.TEXT),
        ("id", request.request_id, Role.MUTED),
    ]
    if isinstance(request, RequestRecord):
        rows += [
            ("answers", str(request.choices), Role.TEXT),
            ("engine start", f"gen {request.generation}", Role.TEXT),
            (
                "preempted",
                (DASH if request.preemptions is None else str(request.preemptions)) + " x",
                Role.WARNING if request.preemptions else Role.TEXT,
            ),
        ]
    return rows


def _tokens(request: Request) -> list[tuple[str, str, Role]]:
    cached = request.cached_tokens
    share = None if cached is None or not request.prompt_tokens else cached / request.prompt_tokens
    prefill = decode = None
    if isinstance(request, RequestRecord):
        decode = request.decode_tokens_per_s
        length = next((each[2] for each in phases(request) if each[0] == "prefill"), None)
        if length and request.computed_tokens is not None:
            prefill = request.computed_tokens / length
    return [
        ("prompt", integer(request.prompt_tokens, 8) + " tok", Role.TEXT),
        ("cached", f"{percent(share)} {integer(cached, 8)} tok", Role.CACHED),
        ("computed", integer(request.computed_tokens, 8) + " tok", Role.COMPUTED),
        ("generated", integer(request.generated_tokens, 8) + " tok", Role.DECODE),
        ("TTFT", duration(ttft_s(request)), Role.TEXT),
        ("prefill speed", rate(prefill), Role.COMPUTED),
        ("decode speed", rate(decode), Role.DECODE),
    ]


def _columns(
    left: list[tuple[str, str, Role]], right: list[tuple[str, str, Role]], width: int
) -> list[Line]:
    if width < 76:
        return [_fact(row, width) for row in (*right, *left)]
    column = (width - 4) // 2
    lines: list[Line] = []
    for index in range(max(len(left), len(right))):
        first = _fact(left[index], column) if index < len(left) else (Span(" " * column),)
        second = _fact(right[index], column) if index < len(right) else ()
        lines.append((*first, Span(" " * (width - 2 * column)), *second))
    return lines


def _fact(row: tuple[str, str, Role], width: int) -> Line:
    label, value, role = row
    room = max(0, width - len(label) - 2)
    shown = fit(value, min(len(value), room))
    return fact(label, shown, width, role)
