"""A question with its answers."""

from __future__ import annotations

from typing import NamedTuple

from agentserve.ui.action import key_text
from agentserve.ui.lines import BLANK, Line, Lines, Role, Span, clip, fit, wrap

_LEAST_KEY_WIDTH = 5


class Choice(NamedTuple):
    """One answer."""

    key: str
    """Key name of Textual."""
    label: str
    meaning: str
    """What follows from it, in one sentence; may be empty."""
    result: str | None
    """What the dialog returns; None when nothing is to be done."""


def draw(
    body: tuple[str, ...],
    choices: tuple[Choice, ...],
    chosen: int,
    width: int,
    height: int,
) -> Lines:
    """Draw the text and one row an answer, the chosen one marked.

    Args:
        body: Paragraphs, also from outside.
        choices: The answers.
        chosen: Index of the answer that Enter gives.
        width: Cells per line.
        height: Rows to use at most; the text is cut before the answers.
    """
    rows = [row for text in body for row in wrap(text, width)]
    most = max(1, height - len(choices) - 1)
    if len(rows) > most:
        rows = [*rows[: most - 1], "…"]
    answers = choice_rows(choices, chosen, width)
    return (*((Span(row),) for row in rows), BLANK, *answers)[: max(0, height)]


def choice_rows(choices: tuple[Choice, ...], chosen: int, width: int) -> Lines:
    """Draw the answers alone."""
    keys = max((len(key_text(choice.key)) + 1 for choice in choices), default=0)
    widths = max(keys, _LEAST_KEY_WIDTH), max((len(choice.label) for choice in choices), default=0)
    return tuple(
        clip(_choice(choice, widths, width, is_chosen=index == chosen), width)
        for index, choice in enumerate(choices)
    )


def _choice(choice: Choice, widths: tuple[int, int], width: int, *, is_chosen: bool) -> Line:
    key_width, label_width = widths
    key = fit(key_text(choice.key), key_width)
    label = fit(choice.label, label_width)
    used = 2 + key_width + label_width + 2
    meaning = choice.meaning if used + len(choice.meaning) <= width else ""
    return (
        Span("▸ " if is_chosen else "  ", Role.ACCENT),
        Span(key, Role.KEY),
        Span(label, Role.STRONG if is_chosen else Role.TEXT),
        Span(f"  {meaning}" if meaning else "", Role.LABEL),
    )
