"""A pseudo terminal that somebody always reads, as a terminal emulator would.

The program in it stays in our session. `pty.fork` and ptyprocess would make a new one, and Linux
shares the processor out between sessions first (autogroup): client and server would then be
scheduled as two groups, and tokens arrive in bursts from any server.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import pyte

COLUMNS, ROWS = 120, 40
_READ_BYTES = 65_536


class Terminal:
    """A terminal of 120 x 40 cells, read by a thread that only counts unless told to keep."""

    def __init__(self, *, keep: bool = False) -> None:
        self.master, self.slave = os.openpty()
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.bytes_read = 0
        """What the program has written so far."""
        self._keep = keep
        self._chunks: list[tuple[float, bytes]] = []
        self._slave_open = True
        self._reader = threading.Thread(target=self._read, name="bench-terminal", daemon=True)
        self._reader.start()

    def hand_over(self) -> None:
        """Leave the terminal to the program that was started on `slave`."""
        if self._slave_open:
            self._slave_open = False
            os.close(self.slave)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self.master, keys.encode())

    def kept(self) -> tuple[tuple[float, bytes], ...]:
        """What was written, with the monotonic time of each part."""
        return tuple(self._chunks)

    def close(self) -> None:
        """Hang up; the program must have ended."""
        self.hand_over()
        self._reader.join(2.0)
        os.close(self.master)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.master, _READ_BYTES)
            except OSError:  # EIO: nobody holds the other end any more
                return
            if not data:
                return
            self.bytes_read += len(data)
            if self._keep:
                self._chunks.append((time.monotonic(), data))


def time_of_text(chunks: Sequence[tuple[float, bytes]], *texts: str) -> float | None:
    """Find when a terminal first showed all of some texts at once.

    Interpreting the output happens here, afterwards: done while reading, it would compete with the
    program for the processor.

    Args:
        chunks: Output with the time of each part.
        *texts: Every one must stand within one row of the screen.

    Returns:
        The time of the part that completed them, or None.
    """
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    for time_s, data in chunks:
        stream.feed(data)
        rows = screen.display
        if all(any(text in row for row in rows) for text in texts):
            return time_s
    return None
