from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentserve.telemetry.process_memory import CACHE_S, ProcessMemory

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ManualClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def write_statm(proc: Path, pid: int, resident_pages: int) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "statm").write_text(f"9000 {resident_pages} 20 1 0 300 0\n")


def test_the_memory_of_this_process_is_read() -> None:
    memory = ProcessMemory(lambda: [(os.getpid(), "app")])
    (sample,) = memory.samples()
    assert (sample.pid, sample.role) == (os.getpid(), "app")
    assert 5_000_000 < sample.resident_bytes < 5_000_000_000


def test_resident_memory_is_pages_times_their_size(tmp_path: Path) -> None:
    write_statm(tmp_path, 7, 100)
    memory = ProcessMemory(lambda: [(7, "worker 0")], proc=tmp_path)
    assert memory.samples()[0].resident_bytes == 100 * PAGE_BYTES


def test_vanished_and_dead_processes_are_left_out(tmp_path: Path) -> None:
    write_statm(tmp_path, 7, 100)
    write_statm(tmp_path, 8, 0)
    memory = ProcessMemory(
        lambda: [(6, "engine core"), (7, "worker 0"), (8, "worker 1")], proc=tmp_path
    )
    assert [sample.pid for sample in memory.samples()] == [7]


def test_a_reading_serves_all_readers_for_two_seconds(tmp_path: Path) -> None:
    clock = ManualClock()
    asked: list[float] = []

    def pids() -> list[tuple[int, str]]:
        asked.append(clock.now_s)
        return [(7, "worker 0")]

    write_statm(tmp_path, 7, 100)
    memory = ProcessMemory(pids, clock=clock, proc=tmp_path)
    memory.samples()
    write_statm(tmp_path, 7, 200)
    clock.now_s = CACHE_S - 0.1
    assert memory.samples()[0].resident_bytes == 100 * PAGE_BYTES
    clock.now_s = CACHE_S
    assert memory.samples()[0].resident_bytes == 200 * PAGE_BYTES
    assert asked == pytest.approx([0.0, CACHE_S])
