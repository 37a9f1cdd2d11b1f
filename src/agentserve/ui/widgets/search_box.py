"""One line to type a text into; it exists only while somebody types."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input


class SearchBox(Input):
    """Tells its screen about each change, and when it is closed.

    Args:
        prompt: Shown while it is empty.
        value: The text to begin with.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]
    DEFAULT_CSS = """
    SearchBox {
        dock: bottom;
        height: 1;
        margin-bottom: 1;
        border: none;
        padding: 0 1;
        background: $panel;
        &:focus { border: none; background-tint: $foreground 0%; }
        & > .input--placeholder { color: $agentserve-muted; }
    }
    """

    class Left(Message):
        """Somebody gave up typing."""

    def __init__(self, prompt: str, value: str) -> None:
        super().__init__(value, placeholder=prompt, select_on_focus=False, max_length=200)
        self.cursor_blink = False

    def action_leave(self) -> None:
        """Close without a text."""
        self.post_message(self.Left())
