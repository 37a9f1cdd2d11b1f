"""What every screen of ours can do; known to the app without importing the screens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.screen import Screen

from agentserve.domain.log import LogLine
from agentserve.ui.frame import Frame


class FrameScreen(Screen[None]):
    """A screen that is drawn from one frame per tick."""

    SCOPE: ClassVar[str] = ""
    """Name of the view in the registry of actions; empty where it has none of its own."""

    def show(self, frame: Frame) -> None:
        """Draw `frame`, as far as it differs from what is shown."""

    def with_choice(self, frame: Frame) -> Frame:
        """Add to a frame what is chosen here, for the actions that work on it."""
        return frame

    def extend(self, lines: Iterable[LogLine]) -> None:
        """Take new log lines, oldest first; only a screen that shows all of them cares."""

    def explain(self) -> bool:
        """Explain the first figure, or the next one; False where figures are not explained."""
        return False

    def step_back(self) -> bool:
        """Undo the last thing opened inside; False when there is nothing and the screen is left."""
        return False
