"""What the terminal itself is told: bell, window title, and a desktop notification.

Each is a sequence that prints nothing. They are written through the same writer as the screen, so
that none of them lands inside another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from agentserve.domain.snapshot import EngineView
from agentserve.domain.text import printable

_PUSH_TITLE = "\x1b[22;2t"
_POP_TITLE = "\x1b[23;2t"
_MOST_CHARACTERS = 120


class NotifyOptions(NamedTuple):
    """What a change of the engine's state may do."""

    bell: bool = True
    title: bool = True
    """The window's title (OSC 2); the old one comes back where the terminal keeps titles."""
    desktop: bool = False
    """A notification of the desktop (OSC 9), by terminals that know it."""


class TerminalNotifier:
    """Tells the terminal about the engine's state.

    Args:
        write: Takes one complete sequence.
        options: What is wanted.
        in_tmux: Whether a desktop notification must be wrapped to pass through tmux.
    """

    def __init__(
        self, write: Callable[[str], None], options: NotifyOptions, *, in_tmux: bool
    ) -> None:
        self._write = write
        self._options = options
        self._in_tmux = in_tmux
        self._title = ""

    def show(self, engine: EngineView) -> None:
        """Put state and preset into the title; writes only what changed."""
        if not self._options.title:
            return
        title = title_of(engine)
        if title == self._title:
            return
        if not self._title:
            self._write(_PUSH_TITLE)
        self._title = title
        self._write(f"\x1b]2;{title}\x07")

    def announce(self, text: str) -> None:
        """Ring, and notify the desktop, as far as wanted."""
        if self._options.bell:
            self._write("\x07")
        if self._options.desktop:
            self._write(desktop_sequence(text, in_tmux=self._in_tmux))

    def close(self) -> None:
        """Give the terminal its old title back."""
        if self._title:
            self._title = ""
            self._write(_POP_TITLE)


def title_of(engine: EngineView) -> str:
    """Write the window's title: the state first, because tabs are narrow."""
    preset = f" {printable(engine.preset, 40)}" if engine.preset else ""
    simulated = " (simulated)" if engine.simulated else ""
    return f"{engine.state.upper()}{preset}{simulated} - AgentServe"


def desktop_sequence(text: str, *, in_tmux: bool) -> str:
    """Write a desktop notification; text from outside becomes safe.

    Args:
        text: What happened.
        in_tmux: Wrap it, so that tmux hands it to the terminal (`allow-passthrough`).
    """
    sequence = f"\x1b]9;{printable(text, _MOST_CHARACTERS)}\x07"
    if not in_tmux:
        return sequence
    return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
