"""The terminal belongs to the screen, everything else that is written goes to the log.

Owns file descriptors 1 and 2 between `start` and `restore`. vLLM, its children and C libraries
write to them; here they lead into a pipe, and a thread moves what arrives into a bounded ring and a
file. The screen keeps the terminal through private descriptors that no child inherits. It must not
know what the lines mean.

Call `start` before Textual runs, before vLLM is imported and before a child is started.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import io
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TextIO

from agentserve.domain.log import LogLine
from agentserve.engine.log_file import LogFile
from agentserve.engine.log_lines import LineSplitter
from agentserve.engine.log_ring import LogRing

LOG_FILE_NAME = "engine.log"
CRASH_FILE_NAME = "crash.log"

LineListener = Callable[[LogLine], None]
"""Called with each line on a thread of its own: slow listeners delay nobody but each other."""

_STDOUT = 1
_STDERR = 2
_READ_BYTES = 256 * 1024
_PIPE_BYTES = 1024 * 1024
_BAR_PAUSE_S = 0.5
_JOIN_S = 2.0


class _LogStream(io.TextIOWrapper):
    """Writes to the pipe, but names the terminal's descriptor to those who ask for its size."""

    def __init__(self, pipe_end: int, terminal_fd: int) -> None:
        # vLLM's log handler of this process writes here; `closefd` leaves descriptor 1 alone.
        raw = io.FileIO(pipe_end, "w", closefd=False)
        super().__init__(io.BufferedWriter(raw), "utf-8", "backslashreplace", line_buffering=True)
        self._terminal_fd = terminal_fd

    def fileno(self) -> int:
        return self._terminal_fd


class OutputCapture:
    """Leads descriptors 1 and 2 into the log, and back; each object does it once.

    Args:
        log_folder: Where `engine.log` and `crash.log` are written; None writes no files.
        ring: Where the newest lines are kept.
    """

    def __init__(self, log_folder: Path | None, ring: LogRing | None = None) -> None:
        self.ring = ring if ring is not None else LogRing()
        self._log_folder = log_folder
        self._log_file = LogFile(log_folder / LOG_FILE_NAME) if log_folder else None
        self._listeners: tuple[LineListener, ...] = ()
        self._listener_errors = 0
        self._missed_by_listeners = 0
        self._lock = threading.Lock()
        self._active = False
        self._saved_stdout = self._saved_stderr = -1
        self._pipe = self._wake = -1
        self._terminal_stdout: TextIO | None = None
        self._terminal_stderr: TextIO | None = None
        self._python_streams: tuple[TextIO | None, TextIO | None] = (None, None)
        self._python_hook: Callable[[threading.ExceptHookArgs], object] | None = None
        self._crash_file: IO[Any] | None = None
        self._reader: threading.Thread | None = None

    @property
    def terminal_stdout(self) -> TextIO:
        """Where standard output led before: for the JSON lines of `serve`."""
        if self._terminal_stdout is None:
            return sys.stdout
        return self._terminal_stdout

    @property
    def terminal_stderr(self) -> TextIO:
        """Where standard error led before: for messages to the person who started us."""
        if self._terminal_stderr is None:
            return sys.stderr
        return self._terminal_stderr

    @property
    def log_stream(self) -> TextIO:
        """A text stream into the log, for Python code whose `sys.stderr` was replaced."""
        return sys.__stdout__ if self._active and sys.__stdout__ else sys.stderr

    @property
    def listener_errors(self) -> int:
        """How often a listener raised."""
        return self._listener_errors

    @property
    def missed_by_listeners(self) -> int:
        """Lines that left the ring before the listeners came to them."""
        return self._missed_by_listeners

    @property
    def failed_file_writes(self) -> int:
        """Writes that the log file did not take, for example because the disk is full."""
        return self._log_file.failed_writes if self._log_file else 0

    def add_listener(self, listener: LineListener) -> None:
        """Call `listener` with each line from now on; what it raises is counted and dropped."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def start(self) -> None:
        """Take descriptors 1 and 2; does nothing when they are taken already."""
        with self._lock:
            if self._active:
                return
            self._active = True
            _flush(sys.stdout, sys.stderr)
            self._saved_stdout = fcntl.fcntl(_STDOUT, fcntl.F_DUPFD_CLOEXEC, 3)
            self._saved_stderr = fcntl.fcntl(_STDERR, fcntl.F_DUPFD_CLOEXEC, 3)
            self._pipe, pipe_end = os.pipe()
            wait_for_stop, self._wake = os.pipe()
            with contextlib.suppress(OSError):
                # A burst should not make the engine wait; the default is 64 KiB.
                fcntl.fcntl(pipe_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            os.dup2(pipe_end, _STDOUT)
            os.dup2(pipe_end, _STDERR)
            os.close(pipe_end)
            self._replace_streams()
            self._python_hook = threading.excepthook
            threading.excepthook = _print_thread_error
            self._enable_faulthandler()
            self._reader = threading.Thread(
                target=self._read,
                args=(self._pipe, wait_for_stop),
                name="agentserve-log-reader",
                daemon=True,
            )
            self._reader.start()
            threading.Thread(
                target=self._notify, name="agentserve-log-listeners", daemon=True
            ).start()

    def restore(self) -> None:
        """Give descriptors 1 and 2 back; what is in the pipe still reaches the log.

        Safe to call again, and from any thread.
        """
        with self._lock:
            if not self._active:
                return
            self._active = False
            _flush(sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
            os.dup2(self._saved_stdout, _STDOUT)
            os.dup2(self._saved_stderr, _STDERR)
            sys.__stdout__, sys.__stderr__ = self._python_streams  # type: ignore[misc, assignment]
            self._disable_faulthandler()
            if self._python_hook is not None:
                threading.excepthook = self._python_hook
            os.close(self._wake)
            reader, self._reader = self._reader, None
            for stream in (self._terminal_stdout, self._terminal_stderr):
                if stream is not None:
                    with contextlib.suppress(OSError, ValueError):
                        stream.close()
            self._terminal_stdout = self._terminal_stderr = None
        if reader is not None and reader is not threading.current_thread():
            reader.join(_JOIN_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()

    def _replace_streams(self) -> None:
        """Give Textual the terminal, and Python's own streams the pipe.

        Textual draws on `sys.__stderr__` and asks `sys.__stdout__` for the terminal's size;
        `sys.stdout` and `sys.stderr` keep writing to descriptors 1 and 2.
        """
        self._python_streams = (sys.__stdout__, sys.__stderr__)
        self._terminal_stdout = _text_file(self._saved_stdout)
        self._terminal_stderr = _text_file(self._saved_stderr)
        sys.__stdout__ = _LogStream(_STDOUT, self._saved_stdout)  # type: ignore[misc]
        sys.__stderr__ = self._terminal_stderr  # type: ignore[misc, assignment]
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)

    def _enable_faulthandler(self) -> None:
        """A crash cannot be read from a pipe whose reader has crashed: it goes to a file."""
        if self._log_folder is None:
            return
        with contextlib.suppress(OSError):
            self._log_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            path = self._log_folder / CRASH_FILE_NAME
            self._crash_file = os.fdopen(os.open(path, flags, 0o600), "a")
            faulthandler.enable(self._crash_file)

    def _disable_faulthandler(self) -> None:
        if self._crash_file is None:
            return
        faulthandler.disable()
        self._crash_file.close()
        self._crash_file = None

    def _read(self, pipe: int, wait_for_stop: int) -> None:
        splitter = LineSplitter()
        stopping = False
        try:
            while True:
                pause = 0.0 if stopping else _BAR_PAUSE_S if splitter.has_unshown_bar else None
                watched = [pipe] if stopping else [pipe, wait_for_stop]
                readable, _, _ = select.select(watched, [], [], pause)
                if pipe in readable:
                    data = os.read(pipe, _READ_BYTES)
                    if not data:
                        break
                    self._keep(splitter.feed(data))
                elif wait_for_stop in readable:
                    # Once more without waiting, for what was written before the stop.
                    stopping = True
                elif stopping:
                    break
                else:
                    self._keep(splitter.show_bar())
        finally:
            self._keep(splitter.finish())
            self.ring.close()
            if self._log_file is not None:
                self._log_file.close()
            os.close(pipe)
            os.close(wait_for_stop)

    def _keep(self, texts: list[str]) -> None:
        if not texts:
            return
        self.ring.extend(texts, time.time())
        if self._log_file is not None:
            self._log_file.write("".join(f"{text}\n" for text in texts).encode())

    def _notify(self) -> None:
        number = self.ring.next_number
        while self.ring.wait_for(number):
            batch = self.ring.since(number)
            number = batch.next_number
            self._missed_by_listeners += batch.missed
            listeners = self._listeners
            for line in batch.lines:
                for listener in listeners:
                    try:
                        listener(line)
                    except Exception:  # noqa: BLE001 - a listener's bug must not end the log
                        self._listener_errors += 1


def _print_thread_error(error: threading.ExceptHookArgs) -> None:
    """Print what ended a thread; Python would use `sys.stderr`, which Textual swallows."""
    if error.exc_type is SystemExit or sys.__stdout__ is None:
        return
    name = error.thread.name if error.thread else "unknown"
    lines = traceback.format_exception(error.exc_type, error.exc_value, error.exc_traceback)
    sys.__stdout__.write(f"Exception in thread {name}:\n{''.join(lines)}")


def _text_file(fd: int) -> TextIO:
    return open(fd, "w", encoding="utf-8", errors="backslashreplace", buffering=1)


def _flush(*streams: TextIO | None) -> None:
    for stream in streams:
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
