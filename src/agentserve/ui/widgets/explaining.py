"""Walks over the figures of the dashboard and explains the one it stands on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from textual.binding import BindingType
from textual.content import Content
from textual.screen import Screen

from agentserve.ui.actions import ACTIONS, bindings
from agentserve.ui.explanations import EXPLANATIONS, Figure, figure_key, figures_in
from agentserve.ui.frame import EMPTY_FRAME, Frame
from agentserve.ui.lines import Span
from agentserve.ui.panels import explanation
from agentserve.ui.widgets.panel import Panel


class ExplainBox(Panel, can_focus=True):
    """Explains one figure; it takes the keys while it is open."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("explain")]

    def __init__(self) -> None:
        self.figure: Figure | None = None
        self._heading = ""
        super().__init__(
            explanation.draw, self._parts_of, lambda _frame: self._heading, id="explain-box"
        )

    def explain(self, figure: Figure, title: str, keys: str) -> None:
        """Show another figure.

        Args:
            figure: The figure.
            title: What stands at the top edge.
            keys: What stands at the bottom edge: how to go on.
        """
        self.figure = figure
        self._heading = title
        self.border_subtitle = Content(keys)
        self.show(EMPTY_FRAME)
        self.refresh(layout=True)

    def _parts_of(self, _frame: Frame) -> tuple[str, str]:
        return (self.figure.panel, self.figure.key) if self.figure else ("", "")


class Explaining:
    """Where the explanation stands.

    Args:
        screen: The screen that gets the box.
        panels: Its panels, in reading order.
    """

    def __init__(self, screen: Screen[Any], panels: Sequence[Panel]) -> None:
        self._screen = screen
        self._panels = {panel.id: panel for panel in panels if panel.id in EXPLANATIONS}
        self._box: ExplainBox | None = None

    @property
    def figure(self) -> Figure | None:
        """The figure that is explained now."""
        return self._box.figure if self._box is not None else None

    @property
    def figures(self) -> list[Figure]:
        """All figures on the screen that can be explained, in reading order."""
        return [
            figure
            for name, panel in self._panels.items()
            if panel.is_on_screen
            for figure in figures_in(name or "", panel.lines[: panel.size.height])
        ]

    def step(self, steps: int, frame: Frame) -> None:
        """Explain the next or the previous figure; the first one at the beginning."""
        figures = self.figures
        if not figures or not frame.serving:
            self._screen.notify(
                "No engine serves, so there are no figures to explain.", severity="warning"
            )
            return
        now = self.figure
        places = [(each.panel, each.key) for each in figures]
        if now is None:
            index = 0
        elif (now.panel, now.key) in places:
            index = (places.index((now.panel, now.key)) + steps) % len(figures)
        else:
            index = 0
        self._show(figures[index], frame)

    def close(self) -> bool:
        """Take the box away; False when there is none."""
        if self._box is None:
            return False
        self._box.remove()
        self._box = None
        for panel in self._panels.values():
            panel.mark(None)
        return True

    def _show(self, figure: Figure, frame: Frame) -> None:
        if self._box is None:
            self._box = ExplainBox()
            self._screen.mount(self._box)
            self._box.focus()
        for name, panel in self._panels.items():
            panel.mark(partial(_is_figure, figure.key) if name == figure.panel else None)
        panel = self._panels[figure.panel]
        # The box never covers what it explains.
        row = panel.content_region.y + figure.row
        self._box.set_class(row >= self._screen.size.height // 2, "-top")
        title = str(panel.border_title or "").partition(" · ")[0]
        keys = f"{_key('explain.next', frame)} next, {_key('view.back', frame)} close"
        self._box.explain(figure, f"{title} · {figure.key}", keys)


def _is_figure(key: str, span: Span) -> bool:
    return figure_key(span.text) == key


def _key(action_id: str, frame: Frame) -> str:
    return next(action.key_at(frame) for action in ACTIONS if action.id == action_id)
