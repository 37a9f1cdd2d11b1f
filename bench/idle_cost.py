"""Part (b): the app without an engine: how soon it shows itself, and what it uses when idle."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import psutil

from bench.processes import descendants
from bench.report import Figure, Section
from bench.servers import AppServer, app_server
from bench.terminal import time_of_text
from bench.waiting import wait_for

_FRAME_MARKS = ("STOPPED", "q quit")
"""The first row's badge and the last row's last item: with both, everything between is there."""
_FRAME_DEADLINE_S = 20.0
_SETTLE_S = 3.0


class _Idle(msgspec.Struct, frozen=True, kw_only=True):
    first_frame_s: float
    core_percent: float
    rss_mib: float
    written_bytes_per_s: float


def measure_idle_cost(home: Path, *, rounds: int, idle_s: float) -> Section:
    """Start the app without an engine again and again.

    Args:
        home: `AGENTSERVE_HOME` of all rounds.
        rounds: How often, after one start that is not measured and leaves the byte code.
        idle_s: For how long processor time and output are counted, in seconds.

    Returns:
        The section of the report.
    """
    with app_server(home, "--no-start", keep_output=True) as app:
        _first_frame_s(app)
    idle = [_measure(home, idle_s) for _ in range(rounds)]
    return Section(
        title="(b) without an engine",
        figures=(
            Figure(
                name="first frame",
                unit="s",
                ours=tuple(each.first_frame_s for each in idle),
                aim=0.5,
            ),
            Figure(
                name="processor",
                unit="% of a core",
                ours=tuple(each.core_percent for each in idle),
                aim=2,
            ),
            Figure(name="RSS", unit="MiB", ours=tuple(each.rss_mib for each in idle), aim=55),
            Figure(
                name="written to the terminal",
                unit="B/s",
                ours=tuple(each.written_bytes_per_s for each in idle),
                aim=1_000,
            ),
        ),
        notes=(
            "First frame: from the spawn of Python until the terminal shows the last row.",
            f"Idle: {idle_s:g} s, begun {_SETTLE_S:g} s after the first frame; helpers included.",
        ),
    )


def _measure(home: Path, idle_s: float) -> _Idle:
    with app_server(home, "--no-start", keep_output=True) as app:
        first_frame_s = _first_frame_s(app)
        time.sleep(_SETTLE_S)
        processes = [psutil.Process(app.process.pid), *descendants(app.process.pid)]
        began_s = time.monotonic()
        cpu_before_s, bytes_before = _cpu_s(processes), app.terminal.bytes_read
        time.sleep(idle_s)
        elapsed_s = time.monotonic() - began_s
        cpu_s = _cpu_s(processes) - cpu_before_s
        written = app.terminal.bytes_read - bytes_before
        rss = sum(process.memory_info().rss for process in processes)
    return _Idle(
        first_frame_s=first_frame_s,
        core_percent=100 * cpu_s / elapsed_s,
        rss_mib=rss / 2**20,
        written_bytes_per_s=written / elapsed_s,
    )


def _first_frame_s(app: AppServer) -> float:
    """Wait for the first frame, then find out when it was there."""
    last_word = _FRAME_MARKS[-1].split()[-1].encode()
    # Looked for in the raw output, which takes next to nothing from the app that draws it.
    wait_for(
        lambda: last_word in b"".join(data for _, data in app.terminal.kept()),
        _FRAME_DEADLINE_S,
        "a first frame",
        poll_s=0.2,
    )
    shown_s = wait_for(
        lambda: time_of_text(app.terminal.kept(), *_FRAME_MARKS), 5.0, f"{_FRAME_MARKS} on screen"
    )
    return shown_s - app.spawned_s


def _cpu_s(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)
