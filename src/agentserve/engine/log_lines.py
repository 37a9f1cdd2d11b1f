"""Bytes from a pipe, made into log lines.

Owns where a line begins and ends: bounded length, progress bars, lines that two processes wrote
into each other. It knows neither files nor threads.
"""

from __future__ import annotations

import re

from agentserve.domain.text import printable

MAX_LINE_CHARACTERS = 2_000
_MAX_PENDING_BYTES = 16 * 1024

# A process that writes while the progress bar of another one is unfinished continues its line.
_RECORD_START = re.compile(
    r"(?<=.)(?=\([\w.-]{1,60} pid=\d{1,10}\) (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d )"
)


class LineSplitter:
    """Cuts a byte stream into lines that are safe to show.

    A progress bar redraws its line after a carriage return: its first and its last state become
    lines, the states between are left out.
    """

    def __init__(self) -> None:
        self._pending = bytearray()
        self._overflowed = False
        self._bar_shown = False

    @property
    def has_unshown_bar(self) -> bool:
        """Whether a progress bar has been drawn whose first state is not a line yet."""
        return not self._bar_shown and self._pending.startswith(b"\r") and len(self._pending) > 1

    def feed(self, data: bytes) -> list[str]:
        """Take bytes as they come.

        Args:
            data: Any piece of the stream.

        Returns:
            The lines that are complete now.
        """
        lines: list[str] = []
        *complete, rest = data.split(b"\n")
        for part in complete:
            self._pend(part)
            self._end_line(lines)
        if rest:
            self._pend(rest)
            self._shorten_bar(lines)
        return lines

    def show_bar(self) -> list[str]:
        """Return the state of a progress bar that has paused, once for each bar."""
        if not self.has_unshown_bar:
            return []
        self._bar_shown = True
        return _texts(bytes(self._pending))

    def finish(self) -> list[str]:
        """Return the last line, which has no end."""
        lines: list[str] = []
        if self._pending:
            self._end_line(lines)
        return lines

    def _pend(self, part: bytes) -> None:
        room = _MAX_PENDING_BYTES - len(self._pending)
        if len(part) <= room:
            self._pending += part
            return
        cut = part.rfind(b"\r")
        if cut > 0:
            # Only the newest state of a long-running bar matters.
            self._pending = bytearray(part[cut:][:_MAX_PENDING_BYTES])
            return
        self._pending += part[:room]

    def _shorten_bar(self, lines: list[str]) -> None:
        """Drop all states of a progress bar but the newest, after its first one became a line."""
        # A carriage return at the very end may belong to a line end that is still to come.
        cut = self._pending.rfind(b"\r", 0, len(self._pending) - 1)
        if cut <= 0:
            return
        states = [state for state in bytes(self._pending[:cut]).split(b"\r") if state.strip()]
        if states and not self._bar_shown:
            self._bar_shown = True
            lines.extend(_texts(states[0]))
        del self._pending[:cut]

    def _end_line(self, lines: list[str]) -> None:
        states = [state for state in bytes(self._pending).split(b"\r") if state]
        if len(states) > 1 and not self._bar_shown:
            lines.extend(_texts(states[0]))
        lines.extend(_texts(states[-1] if states else b""))
        self._pending.clear()
        self._bar_shown = False


def _texts(raw: bytes) -> list[str]:
    text = raw.decode("utf-8", errors="replace").strip("\r\n")
    parts = _RECORD_START.split(text) if " pid=" in text else [text]
    return [printable(part.rstrip(), MAX_LINE_CHARACTERS) for part in parts]
