"""Small questions over the present screen: choose an answer, or write a line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click, Key, Paste
from textual.screen import ModalScreen
from textual.widgets import Input

from agentserve.domain.errors import AgentServeError
from agentserve.domain.text import printable
from agentserve.ui.frame import EMPTY_FRAME, Frame
from agentserve.ui.lines import Lines, Role, Span, wrap
from agentserve.ui.panels import dialog
from agentserve.ui.panels.dialog import Choice
from agentserve.ui.screens.base import FrameScreen
from agentserve.ui.widgets.panel import Panel

_CONTINUED_LINE = re.compile(r"\s*\\\s*[\r\n]+\s*")


class ChoiceDialog(FrameScreen, ModalScreen[None]):
    """Asks for one of several answers.

    Args:
        title: The question, also as one for the present frame; may hold text from outside.
        body: Text for the present frame.
        choices: The answers; the first is the one that Enter gives.
        decide: Called with the result of the answer after the dialog has gone; not called for
            None.
        wide: For long text.
    """

    CSS_PATH = "dialogs.tcss"

    # With the action's id, so that the user's own keys hold here too.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "app.quit", show=False, id="app.quit"),
        # This one leaves from every dialog, whatever keys the user gave.
        Binding("ctrl+c", "app.quit", show=False),
    ]

    def __init__(
        self,
        title: str | Callable[[Frame], str],
        body: Callable[[Frame], tuple[str, ...]],
        choices: Sequence[Choice],
        decide: Callable[[str], None] = lambda _result: None,
        *,
        wide: bool = False,
    ) -> None:
        super().__init__(classes="-wide" if wide else None)
        self._decide = decide
        self._choices = tuple(choices)
        self._chosen = 0
        self._frame = EMPTY_FRAME
        self._panel = Panel(
            dialog.draw,
            lambda frame: (body(frame), self._choices, self._chosen),
            title if callable(title) else printable(title, 60),
            id="dialog",
        )

    def compose(self) -> ComposeResult:
        """Show the question in a box."""
        yield self._panel

    def show(self, frame: Frame) -> None:
        """Draw the text for `frame`."""
        self._frame = frame
        self._panel.show(frame)

    def on_key(self, event: Key) -> None:
        """Take an answer, or move to another one."""
        step = {"up": -1, "k": -1, "down": 1, "j": 1, "tab": 1, "shift+tab": -1}.get(event.key)
        if step is not None:
            self._chosen = (self._chosen + step) % len(self._choices)
            self.show(self._frame)
        elif event.key == "enter":
            self._answer(self._choices[self._chosen].result)
        elif event.key == "escape":
            self._answer(None)
        else:
            for choice in self._choices:
                if choice.key == event.key:
                    self._answer(choice.result)
                    break
            else:
                return
        event.stop()

    def on_click(self, event: Click) -> None:
        """Take the answer under the pointer; a click outside the box changes nothing."""
        rows = self._panel.lines
        offset = event.get_content_offset(self._panel)
        first = len(rows) - len(self._choices)
        if offset is not None and first <= offset.y < len(rows):
            self._answer(self._choices[offset.y - first].result)

    def _answer(self, result: str | None) -> None:
        if self.app.screen is not self:
            # Keys of one burst wait in the dialog's queue: the first has answered.
            return
        self.app.pop_screen()
        if result is not None:
            self._decide(result)


class TextDialog(FrameScreen, ModalScreen[None]):
    """Asks for one line, and asks again while it cannot be accepted.

    Args:
        title: The question; may hold text from outside.
        body: Text above the field.
        accept: Takes the line; an AgentServeError keeps the dialog open and is shown in it.
        value: What stands in the field at first.
        then: Called with the accepted line after the dialog has gone.
    """

    CSS_PATH = "dialogs.tcss"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", show=False),
        # Else the field copies with it.
        Binding("ctrl+c", "app.quit", show=False, priority=True),
    ]

    def __init__(
        self,
        title: str,
        body: tuple[str, ...],
        accept: Callable[[str], None],
        value: str = "",
        then: Callable[[str], None] = lambda _text: None,
    ) -> None:
        super().__init__()
        self._then = then
        self._body = body
        self._accept = accept
        self._problem = ""
        self._title = printable(title, 60)
        self._panel = Panel(_text_rows, lambda _frame: (self._body, self._problem))
        self._input = _PastingInput(value, compact=True)

    def compose(self) -> ComposeResult:
        """Show text and field in a box."""
        with Vertical(id="dialog") as box:
            box.border_title = Content(self._title)
            box.border_subtitle = Content("enter accepts, esc cancels")
            yield self._panel
            yield self._input

    def show(self, frame: Frame) -> None:
        """Draw the text."""
        self._panel.show(frame)

    def on_mount(self) -> None:
        """Show the text at once."""
        self._panel.show(EMPTY_FRAME)

    def action_close(self) -> None:
        """Close the dialog without an answer."""
        if self.app.screen is self:
            self.app.pop_screen()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close the dialog when the line was accepted."""
        event.stop()
        if self.app.screen is not self:
            return
        text = event.value.strip()
        if not text:
            self.app.pop_screen()
            return
        try:
            self._accept(text)
        except AgentServeError as error:
            self._problem = " ".join(part for part in (error.message, error.hint) if part)
            self._panel.show(EMPTY_FRAME)
        else:
            self.app.pop_screen()
            self._then(text)


class _PastingInput(Input):
    """A field that takes a command pasted over several lines."""

    def _on_paste(self, event: Paste) -> None:
        event.stop()
        event.prevent_default()
        text = _CONTINUED_LINE.sub(" ", event.text)
        self.insert_text_at_cursor(printable(text, 8_000).strip())


def _text_rows(body: tuple[str, ...], problem: str, width: int, height: int) -> Lines:
    rows = [(Span(row, Role.LABEL),) for text in body for row in wrap(text, width)]
    rows += [(Span(row, Role.FAILED),) for row in wrap(problem, width, most=4)] if problem else []
    return tuple(rows[:height])
