"""The log over the whole screen."""

from __future__ import annotations

from collections.abc import Iterable

from textual.app import ComposeResult
from textual.screen import Screen

from agentserve.domain.log import LogLine
from agentserve.ui.frame import Frame
from agentserve.ui.panels import log as log_panel
from agentserve.ui.widgets.action_bar import ActionBar
from agentserve.ui.widgets.log_view import LogView


class LogScreen(Screen[None]):
    """Shows all lines that are kept, and follows the newest.

    Args:
        lines: Lines known already, oldest first.
        most_lines: Lines to keep.
    """

    AUTO_FOCUS = "LogView"

    def __init__(self, lines: Iterable[LogLine], most_lines: int) -> None:
        super().__init__()
        self.view = LogView(most_lines)
        self.view.extend(lines)
        self._bar = ActionBar()
        self._title = ""

    def compose(self) -> ComposeResult:
        """Put the log above the action bar."""
        yield self.view
        yield self._bar

    def extend(self, lines: Iterable[LogLine]) -> None:
        """Add lines at the end."""
        self.view.extend(lines)

    def show(self, frame: Frame) -> None:
        """Update the title and the action bar."""
        title = log_panel.title(frame.log_missed)
        if not self.view.following:
            title += " · paused, press end to follow"
        if title != self._title:
            self._title = title
            self.view.border_title = title
        self._bar.show(frame)
