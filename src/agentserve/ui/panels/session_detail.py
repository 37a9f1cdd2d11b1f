"""One turn's verdict in full, with the place that changed, and the layout of the prompt. Pure.

Excerpts and names of tools come from clients: they are drawn as text, whatever they contain.
"""

from __future__ import annotations

from collections.abc import Container

from rich.cells import cell_len

from agentserve.domain.session import Excerpt, LayoutPartView, SessionView, TurnView, Verdict
from agentserve.domain.text import printable
from agentserve.ui.formatting import DASH, clock, count, duration
from agentserve.ui.glyphs import bar
from agentserve.ui.lines import BLANK, Line, Lines, Role, Span, clip, fit, joined, wrap
from agentserve.ui.panels.requests import OUTCOMES
from agentserve.ui.session_list import turn_position
from agentserve.ui.verdict_words import is_loss, sign, word

_LABEL = 9
_MOST_WIDTH = 110
_LONGEST_EXCERPT = 400
_PART_WIDTH = 26
_CHANGES_WIDTH = 32
_BLANKS = " ↵"
"""Where a row of an excerpt may end; ↵ stands for a line's end in excerpts."""


def draw(
    session: SessionView | None, cursor: int | None, scroll: int, width: int, height: int
) -> Lines:
    """Draw the chosen turn and the prompt's layout, from line `scroll` on.

    Args:
        session: The session; None when it left the list.
        cursor: Number of the chosen turn; None is the newest.
        scroll: First line in view.
        width: Cells per line.
        height: Rows to use at most.
    """
    lines = text_lines(session, cursor, width)
    scroll = clipped_scroll(scroll, len(lines), height)
    shown = lines[scroll : scroll + max(0, height)]
    below = len(lines) - scroll - height
    if below > 0 and height > 1:
        more = f"↓ {below + 1} more lines"
        shown = (*shown[:-1], (Span(fit(more, width).rstrip(), Role.MUTED),))
    return shown


def clipped_scroll(scroll: int, lines: int, height: int) -> int:
    """Return the first line in view that leaves no empty rows at the end."""
    return max(0, min(scroll, lines - height))


def text_lines(session: SessionView | None, cursor: int | None, width: int) -> Lines:
    """Write everything about the chosen turn and the prompt's layout."""
    if session is None or not session.history:
        return ()
    width = max(10, min(width, _MOST_WIDTH))
    turn = session.history[turn_position(session.history, cursor)]
    lines: list[Line] = [*_turn_lines(turn), *_verdict(turn.verdict, session, width)]
    if session.layout:
        lines += [BLANK, *_layout(session, width)]
    return tuple(clip(line, width) for line in lines)


def _turn_lines(turn: TurnView) -> Lines:
    if turn.running:
        state: Line = (Span("▸ running", Role.ACCENT),)
    elif turn.outcome is not None:
        outcome, role = OUTCOMES[turn.outcome]
        state = (Span(outcome.strip(), role),)
    else:
        state = (Span(DASH, Role.MUTED),)
    began = joined(
        (
            (Span(f"turn {turn.number:,}", Role.STRONG), Span(f" at {clock(turn.at_unix_s)}")),
            state,
            (Span(f"output {_exact(turn.generated_tokens)} tok", Role.DECODE),),
            (Span(f"TTFT {duration(turn.ttft_s).strip()}"),),
            (Span(f"engine start {turn.generation}", Role.MUTED),),
        )
    )
    tokens = joined(
        (
            (Span(f"prompt {turn.prompt_tokens:,}"),),
            (Span(f"cached {_exact(turn.cached_tokens)}", Role.CACHED),),
            (Span(f"expected {_exact(turn.expected_cached_tokens)}"),),
            (Span(f"computed {_exact(turn.computed_tokens)}", Role.COMPUTED),),
        )
    )
    return began, tokens


def _exact(tokens: int | None) -> str:
    return DASH if tokens is None else f"{tokens:,}"


def _verdict(verdict: Verdict | None, session: SessionView, width: int) -> list[Line]:
    if verdict is None:
        return [(Span("The verdict comes with the first token.", Role.MUTED),)]
    mark, role = sign(verdict)
    lines: list[Line] = []
    for index, row in enumerate(wrap(verdict.sentence, width - _LABEL)):
        name = f"{mark} {word(verdict)}" if index == 0 else ""
        if index == 0 and cell_len(name) > _LABEL - 1:
            # A long name gets a line of its own.
            lines.append((Span(name, role),))
            name = ""
        lines.append((Span(fit(name, _LABEL), role), Span(row, Role.STRONG)))
    where = _where(verdict)
    if where:
        lines += _entry("where", where, width)
    lost = _lost(verdict)
    if lost:
        lines += _entry("lost", lost, width)
    if verdict.advice:
        lines += _entry("do", verdict.advice, width, Role.STRONG)
    if verdict.excerpt is not None:
        lines += _excerpt(verdict.excerpt, width)
    return lines


def _where(verdict: Verdict) -> str:
    parts = []
    if verdict.part is not None:
        parts.append(verdict.part.label)
    if verdict.token_index is not None:
        step = verdict.token_index_step
        near = f" (within {step:,} tokens)" if step > 1 else ""
        parts.append(f"token {verdict.token_index:,}{near}")
    return ", ".join(parts)


def _lost(verdict: Verdict) -> str:
    if not verdict.lost_tokens or not is_loss(verdict):
        return ""
    plural = "" if verdict.lost_tokens == 1 else "s"
    parts = [f"{verdict.lost_tokens:,} token{plural} computed again"]
    if verdict.cost_s is not None:
        parts.append(f"{duration(verdict.cost_s).strip()} of prefill")
    return ", ".join(parts)


def _entry(label: str, text: str, width: int, role: Role = Role.TEXT) -> list[Line]:
    return [
        (Span(fit(label if index == 0 else "", _LABEL), Role.LABEL), Span(row, role))
        for index, row in enumerate(wrap(text, width - _LABEL))
    ]


def _excerpt(excerpt: Excerpt, width: int) -> list[Line]:
    start = excerpt.change_start
    return [
        *_marked_text("before", excerpt.before, start, excerpt.before_change_end, width),
        *_marked_text("now", excerpt.after, start, excerpt.after_change_end, width),
    ]


def _marked_text(label: str, text: str, start: int, end: int, width: int) -> list[Line]:
    """Write a text in rows, with carets below what changed; below a gap where it is empty."""
    room = max(2, width - _LABEL)
    # Made printable apart, for that moves the places of what follows.
    parts = (
        (printable(text[:start], _LONGEST_EXCERPT), False),
        (printable(text[start:end], _LONGEST_EXCERPT), True),
        (printable(text[end:], _LONGEST_EXCERPT), False),
    )
    characters = [(each, changed) for part, changed in parts for each in part]
    gap = len(parts[0][0]) if not parts[1][0] else -1
    if gap == len(characters):
        characters.append((" ", False))
    kept = {index for index, (_, changed) in enumerate(characters) if changed or index == gap}
    lines: list[Line] = []
    for index, (first, row) in enumerate(_rows(characters, kept, room)):
        marks = "".join(
            ("^" if first + at in kept else " ") * cell_len(each)
            for at, (each, _) in enumerate(row)
        )
        name = Span(fit(label if index == 0 else "", _LABEL), Role.LABEL)
        lines.append((name, *_spans(row)))
        if marks.strip():
            lines.append((Span(" " * _LABEL), Span(marks.rstrip(), Role.WARNING)))
    return lines or [(Span(fit(label, _LABEL), Role.LABEL), Span("nothing", Role.MUTED))]


def _rows(
    characters: list[tuple[str, bool]], kept: Container[int], room: int
) -> list[tuple[int, list[tuple[str, bool]]]]:
    """Break characters into rows of at most `room` cells; each with its first index.

    A blank for which a row has no room is left out, unless its index is in `kept`.
    """
    rows: list[tuple[int, list[tuple[str, bool]]]] = []
    first = 0
    while first < len(characters):
        end = _row_end(characters, first, room)
        rows.append((first, characters[first:end]))
        first = end
        if first < len(characters) and characters[first][0] == " " and first not in kept:
            first += 1
    return rows


def _row_end(characters: list[tuple[str, bool]], first: int, room: int) -> int:
    """Return where the row that begins at `first` ends: behind a blank where possible."""
    end, used = first, 0
    while end < len(characters) and (used := used + cell_len(characters[end][0])) <= room:
        end += 1
    if end == len(characters) or characters[end][0] == " ":
        return end
    start, stop = end, end
    while start > first and characters[start - 1][0] not in _BLANKS:
        start -= 1
    while stop < len(characters) and characters[stop][0] not in _BLANKS:
        stop += 1
    # What no row can hold is cut here rather than at the end of the next one.
    fits_below = sum(cell_len(each) for each, _ in characters[start:stop]) <= room
    return start if start > first and fits_below else end


def _spans(row: list[tuple[str, bool]]) -> list[Span]:
    spans: list[Span] = []
    for each, changed in row:
        role = Role.MARKED if changed else Role.TEXT
        if spans and spans[-1].role is role:
            spans[-1] = Span(spans[-1].text + each, role)
        else:
            spans.append(Span(each, role))
    return spans


def _layout(session: SessionView, width: int) -> list[Line]:
    known = [part.tokens for part in session.layout if part.tokens is not None]
    total = sum(known)
    lines: list[Line] = [
        (
            Span("Prompt layout", Role.STRONG),
            Span("  in the order of the prompt, tokens estimated", Role.MUTED),
        )
    ]
    lines += [_part(part, total, width) for part in session.layout]
    if session.layout_advice:
        lines += _entry("do", session.layout_advice, width, Role.STRONG)
    return lines


def _part(view: LayoutPartView, total: int, width: int) -> Line:
    name = min(_PART_WIDTH, max(8, width // 3))
    share = None if view.tokens is None or not total else view.tokens / total
    room = max(0, width - name - 10 - _CHANGES_WIDTH)
    filled, _ = bar(share, room)
    changed = (
        Span(f"  changed in {view.changes:,} of {view.turns:,} turns", Role.WARNING)
        if view.changes
        else Span("  never changed", Role.MUTED)
    )
    return (
        Span(fit(view.part.label, name)),
        Span(f" {count(view.tokens)} tok", Role.STRONG),
        *((Span(" " + fit(filled, room - 1), Role.KV),) if room > 4 else ()),
        changed,
    )
