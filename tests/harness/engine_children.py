"""Real processes that look like an engine's: marked, noted, titled, stubborn."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from agentserve.engine.engine_processes import GROUP_DIR_VARIABLE, MARKER_VARIABLE, EngineMark

PATIENT = """
import signal
"""
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
_ANNOUNCE_AND_WAIT = """
print("waiting", flush=True)
while True:
    signal.pause()
"""


SHARED_MEMORY = ("segment", "sem.mp-semaphore")
"""Names of what vLLM's processes leave in `/dev/shm` when they are killed."""


def mapping_shared_memory(path: Path) -> str:
    """Code of a process that maps a file in `/dev/shm`: a segment, or as multiprocessing's locks do
    a semaphore, if its name begins with `sem.`.
    """
    if path.name.startswith("sem."):
        return f"""
import signal
from _multiprocessing import SemLock
semaphore = SemLock(1, 1, 1, {path.name.replace("sem.", "/", 1)!r}, False)
"""
    return f"""
import mmap, signal
file = open({str(path)!r}, "w+b")
file.truncate(4096)
mapped = mmap.mmap(file.fileno(), 4096)
"""


class Children:
    """Starts processes, and ends what is left of them."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(
        self,
        code: str = PATIENT,
        *,
        mark: EngineMark | None = None,
        title: str = "",
        environment: Mapping[str, str] | None = None,
        new_group: bool = False,
    ) -> subprocess.Popen[str]:
        """Start a process and wait until its code has run.

        Args:
            code: Runs first; then the process waits for ever.
            mark: The engine that it belongs to, in its environment.
            title: Shown on its command line, where vLLM's processes show theirs.
            environment: More variables.
            new_group: Make it the leader of a process group.
        """
        base = {
            name: value
            for name, value in os.environ.items()
            if name not in {MARKER_VARIABLE, GROUP_DIR_VARIABLE}
        }
        process = subprocess.Popen(
            [sys.executable, "-ISc", code + _ANNOUNCE_AND_WAIT, title],
            env={**base, **(mark.variables if mark else {}), **(environment or {})},
            stdout=subprocess.PIPE,
            text=True,
            process_group=0 if new_group else None,
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        return process

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@contextlib.contextmanager
def children() -> Iterator[Children]:
    """Start processes, and leave none behind."""
    started = Children()
    try:
        yield started
    finally:
        started.close()


def start_time(pid: int) -> str:
    """Field 22 of proc_pid_stat(5), as group notes hold it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def note_group(mark: EngineMark, group: int, started: str) -> None:
    """Note a group as the spawn shim does."""
    mark.prepare()
    (mark.group_dir / str(group)).write_text(started)


def is_alive(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
