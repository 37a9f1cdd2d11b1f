"""Log lines as data: time, text, and a mark for what sounds wrong."""

from __future__ import annotations

import re

from agentserve.domain.log import LogLine
from agentserve.ui.formatting import CLOCK_WIDTH, clock
from agentserve.ui.lines import Line, Lines, Role, Span, fit, wrap

_ERROR = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b|Error\b|^Traceback ")
_WARNING = re.compile(r"\bWARN(?:ING)?\b|Warning\b")
_TEXT_AT = CLOCK_WIDTH + 1


def title(missed: int) -> str:
    """Name the panel and say when lines are missing."""
    return f"Log · {missed} lines not shown, see the log file" if missed else "Log"


def draw(log: tuple[LogLine, ...], width: int, height: int) -> Lines:
    """Draw the last lines that fit, one row each.

    Args:
        log: Lines, oldest first.
        width: Cells per line.
        height: Rows to use at most.
    """
    if not log:
        return ((Span("nothing logged yet", Role.MUTED),),)[:height]
    return tuple(
        (
            Span(clock(line.at_unix_s) + " ", Role.MUTED),
            Span(fit(line.text, max(0, width - _TEXT_AT)), severity(line.text)),
        )
        for line in log[-height:]
        if height > 0
    )


def wrapped(line: LogLine, width: int) -> list[Line]:
    """Draw one log line in as many rows as it needs."""
    role = severity(line.text)
    rows = wrap(line.text, max(2, width - _TEXT_AT), most=40)
    first: Line = (Span(clock(line.at_unix_s) + " ", Role.MUTED), Span(rows[0], role))
    return [first, *((Span(" " * _TEXT_AT), Span(row, role)) for row in rows[1:])]


def severity(text: str) -> Role:
    """Choose the style of a line by the words that loggers use."""
    if _ERROR.search(text):
        return Role.FAILED
    if _WARNING.search(text):
        return Role.WARNING
    return Role.TEXT
