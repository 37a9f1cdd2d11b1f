"""Reads the request history in a child process, so that a large file never slows down serving.

Owns the child, its time and the size of its answer. The child is `agentserve-tui history --json`
of the same environment, and so of the same folders.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

import msgspec

from agentserve.cli.main import PROGRAM
from agentserve.domain.history import HistoryUnreadableError, RequestHistoryReport
from agentserve.domain.text import printable
from agentserve.engine.vllm.environment import variables_of_others

TIMEOUT_S = 10.0
MOST_SESSIONS = 100
_MOST_BYTES = 8 * 2**20
_MOST_ERROR_BYTES = 4_096
_COMMAND = (sys.executable, "-m", "agentserve", "history", "--json")
_LOOK = f"Run {PROGRAM} history in a shell."


class HistoryReader:
    """Asks for reports, one child for each; from any thread.

    Args:
        simulated: Whether the app plays an invented engine, which has no history.
        command: The program that prints a report; the days are added to it.
        timeout_s: How long it may take, in seconds; then it is killed.
        most_bytes: The longest answer that is read.
    """

    def __init__(
        self,
        *,
        simulated: bool = False,
        command: Sequence[str] = _COMMAND,
        timeout_s: float = TIMEOUT_S,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self._simulated = simulated
        self._command = (*command, "--sessions", str(MOST_SESSIONS), "--days")
        self._timeout_s = timeout_s
        self._most_bytes = most_bytes
        self._child: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def read(self, days: int) -> RequestHistoryReport:
        """Read the last `days` days, today included.

        Raises:
            HistoryUnreadableError: There is no report.
        """
        if self._simulated:
            raise HistoryUnreadableError(
                "Requests of an invented engine are not recorded.",
                f"Start {PROGRAM} without --simulate to see those of real ones.",
            )
        try:
            status, answer, said = self._ask(days)
            if status == 0:
                return msgspec.json.decode(answer, type=RequestHistoryReport)
        except (OSError, msgspec.DecodeError) as error:
            raise HistoryUnreadableError("The request history could not be read.", _LOOK) from error
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        sentence = printable(last.removeprefix(f"{PROGRAM}: "))
        raise HistoryUnreadableError(
            sentence or f"The reader of the request history ended with status {status}.",
            "" if sentence else _LOOK,
        )

    def close(self) -> None:
        """End a child that runs, and begin no other one."""
        self._is_closed = True
        if (child := self._child) is not None:
            child.kill()

    def _ask(self, days: int) -> tuple[int, bytes, bytes]:
        """Run the child; its exit status, its answer and what it said on standard error."""
        late = threading.Event()
        with subprocess.Popen(
            [*self._command, str(days)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**variables_of_others(os.environ), "PYTHONIOENCODING": "utf-8"},
        ) as child:
            self._child = child
            if self._is_closed:
                child.kill()

            def give_up() -> None:
                late.set()
                child.kill()

            timer = threading.Timer(self._timeout_s, give_up)
            timer.daemon = True
            timer.start()
            try:
                assert child.stdout is not None
                assert child.stderr is not None
                answer = child.stdout.read(self._most_bytes + 1)
                if len(answer) > self._most_bytes:
                    raise HistoryUnreadableError(
                        "The request history is too long to show.", "Choose fewer days."
                    )
                said = child.stderr.read(_MOST_ERROR_BYTES)
                status = child.wait()
            finally:
                timer.cancel()
                child.kill()
                self._child = None
        if late.is_set() and status != 0:
            raise HistoryUnreadableError(
                f"Reading the request history took longer than {self._timeout_s:.0f} s.",
                "Choose fewer days, or try again.",
            )
        return status, answer, said
