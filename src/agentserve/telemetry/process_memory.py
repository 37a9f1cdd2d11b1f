"""Resident memory of the app and of the engine's processes, read from Linux' /proc.

Owns how the memory of a process is read and how often. Which processes belong to the product is
told by its caller.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from agentserve.domain.gpu import ProcessSample

CACHE_S = 2.0


class ProcessMemory:
    """Reads the resident memory of a changing set of processes.

    Args:
        pids_source: Lists (pid, role) of the processes to read; asked at each reading.
        clock: Monotonic clock, seconds.
        proc: Where the proc file system is mounted.
    """

    def __init__(
        self,
        pids_source: Callable[[], Iterable[tuple[int, str]]],
        *,
        clock: Callable[[], float] = time.monotonic,
        proc: Path = Path("/proc"),
    ) -> None:
        self._pids_source = pids_source
        self._clock = clock
        self._proc = proc
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._read_at_s: float | None = None
        self._samples: tuple[ProcessSample, ...] = ()

    def samples(self) -> tuple[ProcessSample, ...]:
        """Return the living processes in the order of the source, at most `CACHE_S` old."""
        now_s = self._clock()
        if self._read_at_s is None or now_s - self._read_at_s >= CACHE_S:
            self._samples = tuple(self._read_all())
            self._read_at_s = now_s
        return self._samples

    def _read_all(self) -> Iterable[ProcessSample]:
        for pid, role in self._pids_source():
            resident_bytes = self._resident_bytes(pid)
            if resident_bytes:
                yield ProcessSample(pid=pid, role=role, resident_bytes=resident_bytes)

    def _resident_bytes(self, pid: int) -> int | None:
        """Read the second field of /proc/<pid>/statm, pages; see proc(5). A zombie has 0."""
        try:
            fields = (self._proc / str(pid) / "statm").read_text(encoding="ascii").split()
        except OSError:
            return None
        return int(fields[1]) * self._page_bytes
