"""The adviser's one line; blank when all is well, so that nothing moves."""

from __future__ import annotations

from agentserve.domain.adviser import Advice, Direction
from agentserve.domain.pending import ToggleOption
from agentserve.ui.actions import ACTIONS
from agentserve.ui.frame import Frame
from agentserve.ui.lines import Line, Lines, Role, Span, cells, clip

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
    """Draw the hint; where there is no room for all of it, the remedy stays.

    Args:
        advice: The hint, or None.
        key: The key to press for it; empty where there is none.
        width: Cells of the line.
        height: Rows to use at most.
    """
    if advice is None:
        return ()[:height]
    mark: Line = (Span("! ", Role.WARNING),)
    remedy: list[Span] = [Span("  ▸ ", Role.ACCENT), Span(advice.remedy, Role.STRONG)]
    if key:
        remedy += [Span("  "), Span(key, Role.KEY)]
    room = width - cells(mark) - cells(remedy)
    text = clip((Span(advice.text, Role.TEXT),), max(0, room)) if room >= 24 else ()
    if not text:
        remedy = remedy[1:]
    return (clip((*mark, *text, *remedy), width),)[:height]
