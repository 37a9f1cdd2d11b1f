"""The log over the whole screen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Input

from agentserve.domain.log import LogLine
from agentserve.ui.actions import bindings
from agentserve.ui.frame import EMPTY_FRAME, Frame
from agentserve.ui.glyphs import to_ascii
from agentserve.ui.lines import fit
from agentserve.ui.panels import log as log_panel
from agentserve.ui.panels.log import Level
from agentserve.ui.screens.base import FrameScreen
from agentserve.ui.widgets.action_bar import ActionBar
from agentserve.ui.widgets.log_view import LogView
from agentserve.ui.widgets.search_box import SearchBox

SCOPE = "log"


class LogScreen(FrameScreen):
    """Shows all lines that are kept, and follows the newest.

    Args:
        lines: Lines known already, oldest first.
        most_lines: Lines to keep.
    """

    SCOPE: ClassVar[str] = SCOPE
    CSS_PATH = "log.tcss"
    AUTO_FOCUS = "LogView"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE)]

    def __init__(self, lines: Iterable[LogLine], most_lines: int) -> None:
        super().__init__()
        self.view = LogView(most_lines)
        self.view.extend(lines)
        self._frame = EMPTY_FRAME
        self._bar = ActionBar(SCOPE)
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
        self._frame = frame
        self._show_title()
        self._bar.show(frame)

    def step_back(self) -> bool:
        """Take the search away before the screen itself is left."""
        if not self.view.wanted:
            return False
        self.view.search("")
        self._show_title()
        return True

    def action_follow(self) -> None:
        """Follow the newest line again."""
        self.view.follow()
        self._show_title()

    def action_find(self, steps: int) -> None:
        """Go to the next or the previous line found."""
        self.view.find(steps)
        self._show_title()

    def action_cycle_level(self) -> None:
        """Show all lines, warnings and errors, or only errors."""
        levels = tuple(Level)
        self.view.show_level(levels[(levels.index(self.view.level) + 1) % len(levels)])
        self._show_title()

    def action_toggle_wrap(self) -> None:
        """Wrap long lines, or let them run out of view."""
        self.view.show_wrapped(wraps=not self.view.wraps)
        self._show_title()

    def action_copy_view(self) -> None:
        """Copy the lines in view."""
        lines = self.view.lines_in_view()
        self.app.copy_to_clipboard("\n".join(log_panel.copied(line) for line in lines))
        self.notify(f"Copied {len(lines)} lines", markup=False)

    async def action_start_search(self) -> None:
        """Open the line to type a search into."""
        if not self.query(SearchBox):
            box = SearchBox("text to find", self.view.wanted)
            await self.mount(box)
            box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while somebody types."""
        event.stop()
        self.view.search(event.value)
        self._show_title()

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the search and close the line."""
        event.stop()
        await self._close_search()

    async def on_search_box_left(self, event: SearchBox.Left) -> None:
        """Forget the search and close the line."""
        event.stop()
        self.view.search("")
        self._show_title()
        await self._close_search()

    async def _close_search(self) -> None:
        await self.query(SearchBox).remove()
        self.view.focus()

    def _show_title(self) -> None:
        view = self.view
        parts = [log_panel.title(self._frame.log_missed)]
        if view.level is not Level.ALL:
            parts.append(f"only {view.level}")
        if view.wanted:
            parts.append(_found(view))
        if not view.following:
            parts.append(f"paused, {_key(self._frame)} follows")
        title = " · ".join(parts)
        if title != self._title:
            self._title = title
            if getattr(self.app, "ascii_only", False):
                title = to_ascii(title)
            view.border_title = Content(title)


def _found(view: LogView) -> str:
    numbers = view.matches
    wanted = fit(view.wanted, min(len(view.wanted), 24))
    if view.found in numbers:
        return f"{wanted}: {numbers.index(view.found) + 1} of {len(numbers)} lines"
    return f"{wanted}: in {len(numbers)} lines" if numbers else f"{wanted}: not found"


def _key(frame: Frame) -> str:
    keys = frame.keys_of.get("log.follow")
    return keys[0] if keys else "f"
