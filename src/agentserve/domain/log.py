"""Lines of the engine's log, as data.

Owns how a raw line becomes safe to show. It must not know where lines come from or go to.
"""

from __future__ import annotations

import msgspec


class LogLine(msgspec.Struct, frozen=True):
    """One line that an engine process, or the app itself, wrote."""

    number: int
    """Counts all lines since the app started."""
    at_unix_s: float
    text: str
    """Without control characters and escape sequences; bounded in length."""


class LogBatch(msgspec.Struct, frozen=True):
    """Lines after a cursor."""

    lines: tuple[LogLine, ...]
    next_number: int
    """The cursor to ask with next time."""
    missed: int
    """Lines between the cursor and the first line here that are no longer kept."""
