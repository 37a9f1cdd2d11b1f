"""Exceptions that an engine's processes printed, found in their log.

Owns the form of vLLM's log lines and of Python tracebacks, and which exceptions only report that
another one happened. It must not know what an exception means to a person: see
`agentserve.domain.failure_kinds`.

A line of vLLM reads `(Worker_TP0 pid=17) ERROR 11-29 19:00:00 [core.py:708] text`; processes that
die before their logging works print the bare text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

_MAX_DETAILS = 12

_PREFIX = re.compile(
    r"^(?:\((?P<process>[\w .:-]{1,60}?) pid=(?P<pid>\d{1,10})\) ?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL) \d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? "
    r"(?P<place>\[[^\]]{1,80}\]) ?)?"
)
_RANK_PREFIX = re.compile(r"^\[rank(\d{1,4})\]: ?")
_PROCESS_HEADER = re.compile(r"^Process ([\w.:-]{1,60}):\s*$")
_EXCEPTION = re.compile(
    r"^(?P<name>[A-Za-z_]\w{0,80}(?:\.[A-Za-z_]\w{0,80}){0,8})(?:: (?P<message>.*)|:?\s*)$"
)
_EXCEPTION_NAME = re.compile(
    r"(?:Error|Exception|Exit|Interrupt|Failure|Timeout|Expired|NotFound)\w{0,20}$"
)
_CHAIN = ("During handling of the above", "The above exception was the direct")
_TRACEBACK = "Traceback (most recent call last)"

_WRAPPER = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed"
    r"|EngineCore encountered an issue|Executor failed|EngineDeadError|EngineGenerateError"
    r"|EngineCore failed to start|EngineCore encountered a fatal error|WorkerProc failed"
    r"|WorkerProc hit an exception|output_handler failed"
    r"|Frontend process failed|Worker failed with error|resource_tracker:"
    r"|destroy_process_group\(\) was not called|[Ss]ee (?:the )?(?:root cause|stack trace) above"
    r"|see stack trace for root cause",
    re.IGNORECASE,
)
_WRAPPED_TEXT = re.compile(r"Worker failed with error ['\"](?P<text>.{1,2000}?)['\"](?:, please|$)")
_CONSEQUENCE_NAMES = frozenset(
    {
        "EOFError",
        "BrokenPipeError",
        "ConnectionResetError",
        "ConnectionRefusedError",
        "ConnectionAbortedError",
        "CancelledError",
        "SystemExit",
        "KeyboardInterrupt",
        "GeneratorExit",
        "ContextTerminated",
        "ZMQError",
    }
)
_CONSEQUENCE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe"
    r"|remote process exited or there was a network error|[Ss]ocket closed|^cancelled$",
    re.IGNORECASE,
)
_SIGNAL_DEATH = re.compile(r"Worker proc (?P<name>\S{1,60}) died unexpectedly \(exit code: -\d")


class LogText(msgspec.Struct, frozen=True):
    """One log line taken apart."""

    process: str
    """vLLM's name of the process, or "" for a bare line."""
    pid: str
    level: str
    """Logging level, or "" for a bare line."""
    place: str
    body: str

    @property
    def depth(self) -> int:
        """How far the process is from the app: worker 2, engine core 1, the app itself 0."""
        return process_depth(self.process)

    @property
    def is_harmless(self) -> bool:
        """Whether the process itself rated the line below an error: it went on after it."""
        return self.level in ("DEBUG", "INFO", "WARNING")


class Raised(msgspec.Struct, frozen=True, kw_only=True):
    """One exception, or one death by a signal, as it was printed."""

    process: str
    depth: int
    index: int
    """Position in the log of the line that names it."""
    name: str
    """Class name without its module."""
    line: str
    """The naming line, without the log prefix."""
    details: tuple[str, ...] = ()
    """Further lines of its message."""

    @property
    def text(self) -> str:
        """The whole message, lines joined."""
        return "\n".join((self.line, *self.details))

    @property
    def is_wrapper(self) -> bool:
        """Whether it only says that something else failed."""
        return bool(_WRAPPER.search(self.text))

    @property
    def is_consequence(self) -> bool:
        """Whether it is what a process says after another one has gone."""
        return self.name in _CONSEQUENCE_NAMES or bool(_CONSEQUENCE.search(self.line))


def process_depth(process: str) -> int:
    """Tell by its name how far a process is from the app: worker 2, engine core 1, else 0."""
    if "Worker" in process or process.startswith("rank"):
        return 2
    return 1 if "Core" in process else 0


def read_line(line: str) -> LogText:
    """Take one log line apart; a line without a known prefix is all body."""
    found = _PREFIX.match(line)
    if found is not None and found.end() > 0:
        return LogText(
            found["process"] or "",
            found["pid"] or "",
            found["level"] or "",
            found["place"] or "",
            line[found.end() :],
        )
    if ranked := _RANK_PREFIX.match(line):
        return LogText(f"rank{ranked[1]}", "", "", "", line[ranked.end() :])
    return LogText("", "", "", "", line)


def is_wrapper_text(text: str) -> bool:
    """Tell whether a text only says that something else failed."""
    return bool(_WRAPPER.search(text))


def wrapped_text(text: str) -> str | None:
    """Return the message that a wrapper quotes, or None."""
    found = _WRAPPED_TEXT.search(text)
    return found["text"] if found else None


class _Stream:
    """Reads the lines of one process and collects its exceptions."""

    def __init__(self, process: str, found: list[Raised]) -> None:
        self._process = process
        self._found = found
        self._state = "idle"
        self._ignored = False
        self._place = ""
        self._naming: tuple[int, str, str] | None = None
        self._details: list[str] = []

    def read(self, index: int, text: LogText) -> None:
        body = text.body.strip("\r")
        stripped = body.strip()
        if header := _PROCESS_HEADER.match(body):
            self.finish()
            self._process = header[1]
        elif stripped.startswith(_TRACEBACK):
            self.finish()
            self._state = "traceback"
            self._place = text.place
            self._ignored = self._ignored or text.is_harmless
        elif stripped.startswith("Exception ignored in"):
            self.finish()
            self._ignored = True
        elif self._state == "traceback":
            self._read_in_traceback(index, body)
        elif self._state == "message" and self._continues(text, stripped):
            if len(self._details) < _MAX_DETAILS:
                self._details.append(stripped)
        else:
            self.finish()
            self._read_idle(index, text, stripped)

    def _read_in_traceback(self, index: int, body: str) -> None:
        if not body.strip() or body[0] in " |+":
            return
        if found := _EXCEPTION.match(body):
            self._naming = (index, found["name"].rpartition(".")[2], body.strip())
            self._state = "message"

    def _read_idle(self, index: int, text: LogText, stripped: str) -> None:
        if text.is_harmless:
            return
        if _SIGNAL_DEATH.search(stripped):
            # The worker itself cannot say anything any more: its parent speaks for it.
            self._found.append(
                Raised(process=self._process, depth=2, index=index, name="Died", line=stripped)
            )
            return
        found = _EXCEPTION.match(stripped)
        if found and found["message"] and _EXCEPTION_NAME.search(found["name"]):
            self._naming = (index, found["name"].rpartition(".")[2], stripped)
            self._place = text.place
            self._state = "message"

    def _continues(self, text: LogText, stripped: str) -> bool:
        return (
            bool(stripped)
            and text.place == self._place
            and not stripped.startswith(_CHAIN)
            and not _EXCEPTION_NAME.search(stripped.partition(":")[0])
        )

    def finish(self) -> None:
        if self._naming is not None and not self._ignored:
            index, name, line = self._naming
            self._found.append(
                Raised(
                    process=self._process,
                    depth=process_depth(self._process),
                    index=index,
                    name=name,
                    line=line,
                    details=tuple(self._details),
                )
            )
        if self._state != "idle":
            self._ignored = False
        self._state = "idle"
        self._naming = None
        self._details = []


def find_raised(lines: Iterable[LogText], first_index: int = 0) -> list[Raised]:
    """Find all exceptions in a log, in the order in which they were printed.

    The lines of several processes may be interleaved; each process is read on its own. Tracebacks
    that were logged below the level of an error were survived and are left out.

    Args:
        lines: The log, oldest first.
        first_index: Position of the first line, when these lines follow others.

    Returns:
        The exceptions; of a chained traceback each one, the original first.
    """
    found: list[Raised] = []
    streams: dict[tuple[str, str], _Stream] = {}
    for index, text in enumerate(lines, first_index):
        key = (text.process, text.pid)
        if key not in streams:
            streams[key] = _Stream(text.process, found)
        streams[key].read(index, text)
    for stream in streams.values():
        stream.finish()
    found.sort(key=lambda raised: raised.index)
    return found


def deepest_first(raised: Iterable[Raised]) -> Raised | None:
    """Choose the exception that explains the others.

    The first one of the process farthest from the app counts; wrappers never do, and what a process
    says because another one has gone counts only when there is nothing else.

    Returns:
        The exception, or None when there are only wrappers.
    """
    candidates = [each for each in raised if not each.is_wrapper]
    if not candidates:
        return None
    return min(candidates, key=lambda each: (each.is_consequence, -each.depth, each.index))
