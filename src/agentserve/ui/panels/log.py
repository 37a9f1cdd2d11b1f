"""Log lines as data: time, text, and a mark for what sounds wrong."""

from __future__ import annotations

import re
from enum import StrEnum

from agentserve.domain.log import LogLine
from agentserve.domain.text import printable
from agentserve.ui.formatting import CLOCK_WIDTH, clock
from agentserve.ui.lines import Line, Lines, Role, Span, fit, wrap

_ERROR = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b|Error\b|^Traceback ")
_WARNING = re.compile(r"\bWARN(?:ING)?\b|Warning\b")
_TEXT_AT = CLOCK_WIDTH + 1
_LONGEST = 4_000


class Level(StrEnum):
    """Which lines are shown."""

    ALL = "all"
    WARNING = "warnings"
    ERROR = "errors"


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


def wrapped(line: LogLine, width: int, role: Role) -> list[Line]:
    """Draw one log line in as many rows as it needs."""
    rows = wrap(line.text, max(2, width - _TEXT_AT), most=40)
    first: Line = (Span(clock(line.at_unix_s) + " ", Role.MUTED), Span(rows[0], role))
    return [first, *((Span(" " * _TEXT_AT), Span(row, role)) for row in rows[1:])]


def long_row(line: LogLine, role: Role) -> Line:
    """Draw one log line as one row, as long as it is."""
    text = printable(line.text, _LONGEST)
    return (Span(clock(line.at_unix_s) + " ", Role.MUTED), Span(text, role))


def copied(line: LogLine) -> str:
    """Write one log line as it is copied."""
    return f"{clock(line.at_unix_s)} {printable(line.text, _LONGEST)}"


def severity(text: str) -> Role:
    """Choose the style of a line by the words that loggers use."""
    if _ERROR.search(text):
        return Role.FAILED
    if _WARNING.search(text):
        return Role.WARNING
    return Role.TEXT


def severity_after(text: str, before: Role) -> Role:
    """Choose the style of a line; one that is indented belongs to the line before it."""
    role = severity(text)
    return before if role is Role.TEXT and text[:1].isspace() else role


def passes(role: Role, level: Level) -> bool:
    """Tell whether a line of this severity is shown at this level."""
    if level is Level.ALL:
        return True
    return role is Role.FAILED or (role is Role.WARNING and level is Level.WARNING)


def marked(line: Line, wanted: str) -> Line:
    """Mark each place in a row that contains `wanted`, in any case."""
    if not wanted:
        return line
    pattern = re.compile(re.escape(wanted), re.IGNORECASE)
    spans: list[Span] = []
    for span in line:
        end = 0
        for match in pattern.finditer(span.text):
            spans += [
                Span(span.text[end : match.start()], span.role),
                Span(match.group(), Role.MARKED),
            ]
            end = match.end()
        spans.append(Span(span.text[end:], span.role))
    return tuple(span for span in spans if span.text)
