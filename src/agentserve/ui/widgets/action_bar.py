"""The bottom line: the most used actions, dimmed while they are impossible, clickable."""

from __future__ import annotations

from functools import partial

from textual.events import Click

from agentserve.ui.actions import ACTIONS, Action
from agentserve.ui.frame import Frame
from agentserve.ui.lines import Line, Lines, Role, Span, cells
from agentserve.ui.widgets.panel import Panel

_GAP = " "
_WAY_BACK = "view.back"
_ALWAYS = frozenset({_WAY_BACK, "view.help", "app.quit"})
_AS_OWN = frozenset({("sessions", "view.explain")})
"""Views, and actions of the app that their bars keep like their own."""
_TITLE_WIDTHS = {"engine.toggle": 5, "engine.restart": 7}


def items(frame: Frame, width: int, scope: str = "") -> list[tuple[Action, Line]]:
    """Lay the bar out: the actions of the view, then those of the app, each with key and title.

    The width of an item never changes, so that the bar holds still. Where there is no room for all
    of them, those of the highest rank leave, the last of them first.

    Args:
        frame: Decides which titles are shown and what is dimmed.
        width: Cells of the bar.
        scope: Name of the view, whose own actions come first.
    """
    shown: list[tuple[Action, Line]] = []
    scopes = ("",) if not scope else (scope, "")
    for action in (each for name in scopes for each in ACTIONS if each.scope == name):
        offered = action.in_bar if isinstance(action.in_bar, bool) else action.in_bar(frame)
        if not offered and not (scope and action.id == _WAY_BACK):
            continue
        possible = any(each.against(frame) is None for each in _stands_for(action))
        key, title = action.bar_text or (action.key_at(frame), action.title_at(frame))
        if action.id in frame.keys_of:
            key = action.key_at(frame)
        title = title.ljust(_TITLE_WIDTHS.get(action.id, 0))
        item = (
            Span(f" {key} ", Role.KEY if possible else Role.DIMMED),
            Span(title + _GAP, Role.LABEL if possible else Role.DIMMED),
        )
        shown.append((action, item))
    while sum(cells(item) for _, item in shown) > width:
        shown.remove(max(reversed(shown), key=lambda each: _rank(each[0], scope)))
    return shown


def _stands_for(action: Action) -> list[Action]:
    """List the actions that one item offers: those that differ in their parameters only."""
    if action.bar_text is None:
        return [action]
    name = action.call.partition("(")[0]
    return [each for each in ACTIONS if each.call.partition("(")[0] == name]


def _rank(action: Action, scope: str) -> int:
    """Rank an action in the bar of a view, where the app's own ones matter less than leaving."""
    if (scope, action.id) in _AS_OWN:
        return 0
    if scope and not action.scope and action.id not in _ALWAYS:
        return action.bar_rank + 10
    return action.bar_rank


def draw(frame: Frame, width: int, height: int, scope: str = "") -> Lines:
    """Draw the bar.

    Args:
        frame: What is possible now.
        width: Cells of the bar.
        height: Rows to use at most.
        scope: Name of the view, whose own actions come first.
    """
    return (tuple(span for _, item in items(frame, width, scope) for span in item),)[:height]


class ActionBar(Panel):
    """Offers actions to keyboard and mouse.

    Args:
        scope: Name of the view it belongs to.
    """

    def __init__(self, scope: str = "") -> None:
        super().__init__(
            partial(draw, scope=scope),
            lambda frame: (frame.without_measurements(),),
            id="action-bar",
        )
        self._scope = scope

    async def on_click(self, event: Click) -> None:
        """Perform the action under the pointer."""
        if self._parts is None:
            return
        x = 0
        for action, item in items(self._parts[0], self.size.width, self._scope):
            x += cells(item)
            if event.x < x:
                await self.app.run_action(action.call)
                return
