"""The bottom line: the most used actions, dimmed while they are impossible, clickable."""

from __future__ import annotations

from textual.events import Click

from agentserve.ui.actions import ACTIONS, Action
from agentserve.ui.frame import Frame
from agentserve.ui.lines import Line, Lines, Role, Span, cells
from agentserve.ui.widgets.panel import Panel

_GAP = " "
_TITLE_WIDTHS = {"engine.toggle": 5}


def items(frame: Frame, width: int) -> list[tuple[Action, Line]]:
    """Lay the bar out: as many actions as fit, each with key and title.

    The width of an item never changes, so that the bar holds still.

    Args:
        frame: Decides which titles are shown and what is dimmed.
        width: Cells of the bar.
    """
    shown: list[tuple[Action, Line]] = []
    room = width
    for action in ACTIONS:
        if not action.in_bar:
            continue
        possible = action.against(frame) is None
        key, title = action.bar_text or (action.key_label, action.title_at(frame))
        title = title.ljust(_TITLE_WIDTHS.get(action.id, 0))
        item = (
            Span(f" {key} ", Role.KEY if possible else Role.DIMMED),
            Span(title + _GAP, Role.LABEL if possible else Role.DIMMED),
        )
        if cells(item) > room:
            break
        room -= cells(item)
        shown.append((action, item))
    return shown


def draw(frame: Frame, width: int, height: int) -> Lines:
    """Draw the bar.

    Args:
        frame: What is possible now.
        width: Cells of the bar.
        height: Rows to use at most.
    """
    return (tuple(span for _, item in items(frame, width) for span in item),)[:height]


class ActionBar(Panel):
    """Offers actions to keyboard and mouse."""

    def __init__(self) -> None:
        super().__init__(draw, lambda frame: (frame.without_measurements(),), id="action-bar")

    async def on_click(self, event: Click) -> None:
        """Perform the action under the pointer."""
        if self._parts is None:
            return
        x = 0
        for action, item in items(self._parts[0], self.size.width):
            x += cells(item)
            if event.x < x:
                await self.app.run_action(action.call)
                return
