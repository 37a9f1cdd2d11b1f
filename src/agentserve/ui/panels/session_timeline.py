"""The turns of one session, newest first, as bars to one scale. Pure."""

from __future__ import annotations

from agentserve.domain.session import SessionView, TurnView
from agentserve.ui.formatting import clock, count, duration, integer, percent
from agentserve.ui.glyphs import COMPUTED_FILL, EXPECTED, FILL, GENERATED_FILL, UNKNOWN
from agentserve.ui.lines import Line, Lines, Role, Span, clip, fit, joined
from agentserve.ui.panels.pool_bar import divided
from agentserve.ui.session_list import top_row, turn_position
from agentserve.ui.verdict_words import VERDICT_WIDTH, verdict_span

HEAD_ROWS = 3
"""Two lines about the session, and the heading."""
_MARK = 2
_NUMBER = 5
_CLOCK = 10
_FIGURES = 8 + 9 + 8 + 9
_LEAST_BAR = 12


def draw(
    session: SessionView | None, cursor: int | None, top: int, width: int, height: int
) -> Lines:
    """Draw what is known of the session, then one bar a turn.

    Args:
        session: The session; None when it left the list.
        cursor: Number of the chosen turn; None is the newest.
        top: First turn in view.
        width: Cells per line.
        height: Rows to use at most.
    """
    if session is None:
        text = "This session left the list for newer ones."
        return ((Span(fit(text, width).rstrip(), Role.MUTED),),)[:height]
    turns = session.history
    with_clock = width >= 100
    with_figures = width >= 76
    room = width - _MARK - _NUMBER - VERDICT_WIDTH - 2
    room -= _CLOCK if with_clock else 0
    room = max(_LEAST_BAR, room - (_FIGURES if with_figures else 0))
    scale = max((turn.prompt_tokens + (turn.generated_tokens or 0) for turn in turns), default=0)
    lines: list[Line] = [*head(session, width)]
    lines.append(_heading(scale, room, with_clock=with_clock, with_figures=with_figures))
    index = turn_position(turns, cursor)
    rows = max(1, height - HEAD_ROWS)
    first = top_row(top, index, len(turns), rows)
    for at, turn in enumerate(turns[first : first + rows], first):
        line: Line = (
            Span("▸ " if at == index else "  ", Role.ACCENT),
            Span(integer(turn.number, 4) + " ", Role.STRONG if at == index else Role.LABEL),
            *((Span(clock(turn.at_unix_s) + "  ", Role.MUTED),) if with_clock else ()),
            *bar_of(turn, scale, room),
            *(_figures(turn) if with_figures else ()),
            Span("  "),
            verdict_span(turn.verdict),
        )
        lines.append(line)
    if not turns:
        lines.append((Span("  no turn is kept", Role.MUTED),))
    return tuple(clip(line, width) for line in lines[: max(0, height)])


def title(session: SessionView | None) -> str:
    """Name the panel with the number of turns; of a long session only the newest are kept."""
    if session is None or not session.history:
        return "Turns"
    kept = len(session.history)
    if kept < session.requests:
        return f"Turns · the newest {kept:,} of {session.requests:,}"
    return f"Turns · {kept:,} · newest first"


def head(session: SessionView, width: int) -> Lines:
    """Write who the session is, and its totals."""
    kind: Line = (Span("side query", Role.WARNING),) if session.side else ()
    turns = f"{session.requests:,} turn{'' if session.requests == 1 else 's'}"
    pool = f"own cache {session.isolation}" if session.isolation else "common cache"
    who = joined(
        (
            (Span(fit(session.label, 32).rstrip(), Role.STRONG),),
            kind,
            (Span(fit(session.agent, 24).rstrip()),) if session.agent else (),
            (Span(turns),),
            (Span("known by ", Role.LABEL), Span(session.identity.value)),
            (Span(fit(pool, 40).rstrip(), Role.LABEL),),
        )
    )
    rate = (
        Span("hit rate", Role.LABEL),
        Span(percent(session.hit_rate)),
        Span(f"  n {session.hit_rate_requests:,}", Role.MUTED),
    )
    resident = (
        Span("resident", Role.LABEL),
        Span(f" {count(session.resident_tokens)} of {count(session.prompt_tokens)} tok"),
    )
    ttft = (Span("TTFT", Role.LABEL), Span(f" {duration(session.ttft_s)}"))
    return clip(who, width), clip(joined((rate, resident, ttft), "   "), width)


def bar_of(turn: TurnView, scale: int, width: int) -> Line:
    """Draw one turn: cached, computed and generated tokens, and where reuse was expected to end.

    Args:
        turn: The turn; where its cached tokens are not known the prompt is drawn as one part.
        scale: Tokens that fill the bar.
        width: Cells of the bar.
    """
    prompt, cached = turn.prompt_tokens, turn.cached_tokens
    generated = turn.generated_tokens or 0
    room = 0 if scale <= 0 else min(width, max(1, round((prompt + generated) / scale * width)))
    if cached is None:
        parts = [(UNKNOWN, Role.MUTED, prompt)]
    else:
        cached = min(cached, prompt)
        parts = [
            (FILL, Role.CACHED, cached),
            (COMPUTED_FILL, Role.COMPUTED, prompt - cached),
        ]
    parts.append((GENERATED_FILL, Role.DECODE, generated))
    rooms = divided([each[2] for each in parts], room)
    line = [Span(fill * cells_, role) for (fill, role, _), cells_ in zip(parts, rooms, strict=True)]
    line.append(Span(" " * (width - sum(rooms))))
    expected = turn.expected_cached_tokens
    if expected is None or cached is None or expected == turn.cached_tokens or scale <= 0:
        return tuple(line)
    return _with_mark(line, min(width - 1, round(expected / scale * width)))


def _with_mark(line: list[Span], at: int) -> Line:
    """Put the mark of the expected end into a bar."""
    marked: list[Span] = []
    x = 0
    for span in line:
        end = x + len(span.text)
        if x <= at < end:
            marked += [
                Span(span.text[: at - x], span.role),
                Span(EXPECTED, Role.WARNING),
                Span(span.text[at - x + 1 :], span.role),
            ]
        else:
            marked.append(span)
        x = end
    return tuple(marked)


def _heading(scale: int, room: int, *, with_clock: bool, with_figures: bool) -> Line:
    lead = _MARK + _NUMBER + (_CLOCK if with_clock else 0)
    names = "turn" + ("  began" if with_clock else "")
    axis = fit(f"max {count(scale).strip()} tok", room, right=True)
    figures = ("  cached", " computed", "  output", "     TTFT") if with_figures else ()
    return (
        Span(fit("  " + names, lead), Role.MUTED),
        Span(axis, Role.MUTED),
        *(Span(each, Role.MUTED) for each in figures),
        Span("  verdict", Role.MUTED),
    )


def _figures(turn: TurnView) -> Line:
    return (
        Span(f"   {count(turn.cached_tokens)}", Role.CACHED),
        Span(f"    {count(turn.computed_tokens)}", Role.COMPUTED),
        Span(f"   {count(turn.generated_tokens)}", Role.DECODE),
        Span(f"  {duration(turn.ttft_s)}"),
    )
