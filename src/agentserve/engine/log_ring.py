"""The newest lines of the log, in memory.

Owns numbering and the bound: when it is full the oldest lines go, and a reader is told how many it
missed. It knows neither where lines come from nor who reads them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from itertools import islice

from agentserve.domain.log import LogBatch, LogLine


class LogRing:
    """A bounded list of numbered log lines; any thread may write and read.

    Args:
        capacity: Most lines to keep.
    """

    def __init__(self, capacity: int = 5_000) -> None:
        self._lines: deque[LogLine] = deque(maxlen=capacity)
        self._next_number = 0
        self._changed = threading.Condition()
        self._closed = False

    @property
    def next_number(self) -> int:
        """The number that the next line will get: how many lines there were."""
        return self._next_number

    @property
    def dropped_lines(self) -> int:
        """Lines that are no longer kept."""
        return self._next_number - len(self._lines)

    def extend(self, texts: Iterable[str], at_unix_s: float) -> None:
        """Append lines.

        Args:
            texts: Lines that are safe to show, oldest first.
            at_unix_s: When they were read.
        """
        with self._changed:
            for text in texts:
                self._lines.append(LogLine(self._next_number, at_unix_s, text))
                self._next_number += 1
            self._changed.notify_all()

    def since(self, number: int, limit: int | None = None) -> LogBatch:
        """Return lines from a cursor on.

        Args:
            number: The cursor: 0 at first, then the `next_number` of the batch before.
            limit: Most lines to return, the oldest first.

        Returns:
            The lines; `missed` counts those between the cursor and the oldest line still kept.
        """
        with self._changed:
            first = self._next_number - len(self._lines)
            start = min(max(number, first), self._next_number)
            stop = None if limit is None else start - first + limit
            lines = tuple(islice(self._lines, start - first, stop))
            return LogBatch(
                lines=lines,
                next_number=start + len(lines),
                missed=max(0, start - max(number, 0)),
            )

    def texts_since(self, number: int) -> tuple[str, ...]:
        """Return the texts of the lines from `number` on that are still kept."""
        return tuple(line.text for line in self.since(number).lines)

    def wait_for(self, number: int, timeout_s: float | None = None) -> bool:
        """Wait until a line with this number exists.

        Args:
            number: The cursor of the reader.
            timeout_s: How long to wait; None waits until `close`.

        Returns:
            Whether there is such a line now.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._next_number > number, timeout_s)
            return self._next_number > number

    def close(self) -> None:
        """Wake everybody who waits; no more lines will come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether the last line has come."""
        return self._closed
