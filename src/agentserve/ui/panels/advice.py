"""The adviser's one line; blank when all is well, so that nothing moves."""

from __future__ import annotations

import re

from agentserve.domain.adviser import Advice, Direction
from agentserve.domain.pending import ToggleOption
from agentserve.ui.actions import ACTIONS
from agentserve.ui.frame import Frame
from agentserve.ui.lines import Line, Lines, Role, Span, cells, clip

_DISPENSABLE = re.compile(r"; |, | \(")
_ACTIONS = {
    (ToggleOption.TOKEN_BUDGET, Direction.DOWN): "change.budget_down",
    (ToggleOption.TOKEN_BUDGET, Direction.UP): "change.budget_up",
    (ToggleOption.DRAFT_TOKENS, Direction.DOWN): "change.draft_tokens",
    (ToggleOption.SEATS, Direction.DOWN): "change.set_seats",
    (ToggleOption.SEATS, Direction.UP): "change.set_seats",
    (ToggleOption.CONTEXT, Direction.UP): "change.set_context",
}


def key_for(advice: Advice | None, frame: Frame) -> str:
    """Return the key that changes what the advice is about; empty where it has none."""
    if advice is None or advice.option is None or advice.direction is None:
        return ""
    wanted = _ACTIONS.get((advice.option, advice.direction))
    action = next((each for each in ACTIONS if each.id == wanted), None)
    if action is None:
        return ""
    return action.key_at(frame) or next(
        each.key_at(frame) for each in ACTIONS if each.id == "app.palette"
    )


def draw(advice: Advice | None, key: str, width: int, height: int) -> Lines:
    """Draw the hint; where there is no room for all of it, what was seen stays whole.

    Args:
        advice: The hint, or None.
        key: The key to press for it; empty where there is none.
        width: Cells of the line.
        height: Rows to use at most.
    """
    if advice is None:
        return ()[:height]
    mark: Line = (Span("! ", Role.WARNING),)
    press: Line = (Span("  "), Span(key, Role.KEY)) if key else ()
    seen = advice.text.partition(": ")[0]
    remedy = _DISPENSABLE.split(advice.remedy, maxsplit=1)[0]
    shown: Line = ()
    for text, what in (
        (advice.text, advice.remedy),
        (seen, advice.remedy),
        (seen, remedy),
        (seen, ""),
    ):
        does: Line = (Span("  ▸ ", Role.ACCENT), Span(what, Role.STRONG)) if what else ()
        shown = (*mark, Span(text), *does, *press)
        if cells(shown) <= width:
            break
    return (clip(shown, width),)[:height]
