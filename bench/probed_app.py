"""`agentserve-tui` with a clock on every callback of the screen's event loop.

It also takes in the flood of cache events that part (d) sends (see `event_flood`). The clock
answers how long the screen can hold the interpreter's lock (GIL) and so delay the serving thread.
Run as `python -m bench.probed_app WORD...` with the words of `agentserve-tui`. At each SIGUSR1 it
writes what it has seen since the last one to the file that `AGENTSERVE_BENCH_PROBE` names.

The processor time of a callback bounds the time for which it *ran* with the lock: a thread that
runs Python without a pause does so for at most its own processor time, and most callbacks give the
lock up in between, at system calls and when another thread has asked for 5 ms. Not bounded by it is
time in which the kernel let another process run while the screen held the lock; the longest wall
time covers that, but also waiting for the lock, so it is reported beside it and proves nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from array import array
from pathlib import Path
from types import FrameType

import msgspec

from bench.event_flood import FloodReceiver, FloodSeen

PROBE_VARIABLE = "AGENTSERVE_BENCH_PROBE"


class CallbackTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks of the screen's event loop in a stretch of time."""

    callbacks: int
    elapsed_s: float
    cpu_total_s: float
    cpu_max_s: float
    cpu_p99_s: float
    wall_max_s: float
    flood: FloodSeen
    """Of a flood of cache events, since the app began."""


class CallbackProbe:
    """Times the callbacks of the asyncio loop on the thread that makes it."""

    def __init__(self, file: Path, flood: FloodReceiver) -> None:
        self._file = file
        self._flood = flood
        self._thread = threading.get_ident()
        self._cpu_s = array("d")
        self._wall_max_s = 0.0
        self._since_s = time.monotonic()

    def install(self) -> None:
        """Begin; also takes SIGUSR1."""
        run = asyncio.events.Handle._run
        thread, probe = self._thread, self

        def timed_run(handle: asyncio.events.Handle) -> None:
            if threading.get_ident() != thread:
                run(handle)
                return
            wall_s, cpu_s = time.monotonic(), time.thread_time()
            run(handle)
            probe._cpu_s.append(time.thread_time() - cpu_s)
            probe._wall_max_s = max(probe._wall_max_s, time.monotonic() - wall_s)

        # Tasks' steps and timers go through it as well; asyncio has no public place for this.
        asyncio.events.Handle._run = timed_run  # type: ignore[method-assign,assignment]
        signal.signal(signal.SIGUSR1, self._report)

    def _report(self, _signum: int, _frame: FrameType | None) -> None:
        ordered = sorted(self._cpu_s)
        now_s = time.monotonic()
        times = CallbackTimes(
            callbacks=len(ordered),
            elapsed_s=now_s - self._since_s,
            cpu_total_s=sum(ordered),
            cpu_max_s=ordered[-1] if ordered else 0.0,
            cpu_p99_s=ordered[int(0.99 * (len(ordered) - 1))] if ordered else 0.0,
            wall_max_s=self._wall_max_s,
            flood=self._flood.seen(),
        )
        self._cpu_s = array("d")
        self._wall_max_s, self._since_s = 0.0, now_s
        unfinished = self._file.with_suffix(".new")
        unfinished.write_bytes(msgspec.json.encode(times))
        unfinished.rename(self._file)


def main() -> int:
    """Run the app's own command line under the probe.

    Returns:
        The process exit status.
    """
    from agentserve.__main__ import main as agentserve_main

    probe_file = Path(os.environ[PROBE_VARIABLE])
    flood = FloodReceiver(probe_file.parent)
    CallbackProbe(probe_file, flood).install()
    flood.start()
    return agentserve_main()


if __name__ == "__main__":
    sys.exit(main())
