from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from agentserve.domain.gpu import GpuReport, GpuSample
from agentserve.telemetry.gpu import PCIE_EVERY_TICKS, GpuReader, GpuSampler

ANSWERING = GpuReport(gpus=(GpuSample(index=0, name="card", uuid="GPU-0", temperature_c=50),))
LOST = GpuReport(gpus=(GpuSample(index=0, name="card", uuid="GPU-0", lost=True),))
NO_DRIVER = GpuReport(unavailable_reason="no driver")
DEADLINE_S = 10.0


class ScriptedReader:
    """Answers with a list of reports, the last one for ever, and remembers what it was asked."""

    def __init__(self, *reports: GpuReport | Exception) -> None:
        self.reports = list(reports)
        self.calls: list[str] = []
        self.hang_at_read: int | None = None
        self.released = threading.Event()
        self.hanging = threading.Event()

    def read(self) -> GpuReport:
        self.calls.append("read")
        if self.hang_at_read is not None and self.calls.count("read") >= self.hang_at_read:
            self.hanging.set()
            self.released.wait()
        answer = self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def refresh_pcie_throughput(self) -> None:
        self.calls.append("pcie")

    def close(self) -> None:
        self.calls.append("close")


class ManualClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


Sampling = Callable[..., GpuSampler]


@pytest.fixture
def sampling() -> Iterator[Sampling]:
    started: list[GpuSampler] = []

    def start(
        reader: GpuReader,
        *,
        interval_s: float = 0.001,
        retry_interval_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> GpuSampler:
        sampler = GpuSampler(
            reader, interval_s=interval_s, retry_interval_s=retry_interval_s, clock=clock
        )
        sampler.start()
        started.append(sampler)
        return sampler

    yield start
    for sampler in started:
        sampler.stop(DEADLINE_S)


def wait_until(predicate: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not predicate():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        pause.wait(0.001)


def test_the_newest_report_is_published(sampling: Sampling) -> None:
    sampler = sampling(ScriptedReader(ANSWERING, LOST))
    wait_until(lambda: sampler.report == LOST)


def test_pcie_is_read_less_often_than_the_rest(sampling: Sampling) -> None:
    reader = ScriptedReader(ANSWERING)
    sampler = sampling(reader)
    wait_until(lambda: reader.calls.count("pcie") >= 3)
    sampler.stop(DEADLINE_S)
    between = "".join("p" if call == "pcie" else "r" for call in reader.calls if call != "close")
    assert between.startswith("rp" + "r" * PCIE_EVERY_TICKS + "p" + "r" * PCIE_EVERY_TICKS + "p")


def test_a_hanging_driver_delays_neither_readers_nor_stop(sampling: Sampling) -> None:
    reader = ScriptedReader(ANSWERING)
    reader.hang_at_read = 2
    sampler = sampling(reader)
    assert reader.hanging.wait(DEADLINE_S)
    begin = time.monotonic()
    assert sampler.report == ANSWERING
    assert sampler.stop(timeout_s=0.05) is False
    assert time.monotonic() - begin < 1.0
    reader.released.set()
    assert sampler.stop(DEADLINE_S) is True


def test_readings_of_a_driver_that_stopped_answering_are_not_shown_as_current(
    sampling: Sampling,
) -> None:
    clock = ManualClock()
    reader = ScriptedReader(ANSWERING)
    reader.hang_at_read = 2
    sampler = sampling(reader, clock=clock)
    assert reader.hanging.wait(DEADLINE_S)
    assert sampler.current_report() == ANSWERING
    clock.now_s = 42.0
    assert sampler.report_age_s() == pytest.approx(42.0)
    stale = sampler.current_report()
    assert stale.unavailable_reason is not None
    assert "has not answered for 42 s" in stale.unavailable_reason
    assert stale.gpus == (GpuSample(index=0, name="card", uuid="GPU-0"),)
    reader.released.set()


def test_a_driver_that_never_answers_is_noticed(sampling: Sampling) -> None:
    clock = ManualClock()
    reader = ScriptedReader(ANSWERING)
    reader.hang_at_read = 1
    sampler = sampling(reader, clock=clock)
    assert reader.hanging.wait(DEADLINE_S)
    assert sampler.current_report() == GpuReport()
    clock.now_s = 11.0
    assert sampler.current_report().unavailable_reason is not None
    reader.released.set()


def test_without_a_driver_it_looks_again_rarely(sampling: Sampling) -> None:
    reader = ScriptedReader(NO_DRIVER)
    sampler = sampling(reader, retry_interval_s=3600.0)
    wait_until(lambda: sampler.report == NO_DRIVER)
    assert sampler.stop(DEADLINE_S) is True
    assert reader.calls == ["read", "close"]


def test_the_reason_for_no_driver_does_not_become_stale(sampling: Sampling) -> None:
    clock = ManualClock()
    sampler = sampling(ScriptedReader(NO_DRIVER), retry_interval_s=3600.0, clock=clock)
    wait_until(lambda: sampler.report == NO_DRIVER)
    clock.now_s = 29.0
    assert sampler.current_report() == NO_DRIVER


def test_a_driver_that_appears_is_found(sampling: Sampling) -> None:
    sampler = sampling(ScriptedReader(NO_DRIVER, ANSWERING), retry_interval_s=0.001)
    wait_until(lambda: sampler.report == ANSWERING)


def test_a_lost_card_makes_it_open_the_driver_anew_after_a_while(sampling: Sampling) -> None:
    clock = ManualClock()
    reader = ScriptedReader(LOST)
    sampling(reader, retry_interval_s=30.0, clock=clock)
    wait_until(lambda: reader.calls.count("read") > 5)
    assert "close" not in reader.calls
    clock.now_s = 30.0
    wait_until(lambda: "close" in reader.calls)


def test_a_binding_that_breaks_is_a_reason_and_not_the_end(sampling: Sampling) -> None:
    sampler = sampling(ScriptedReader(TypeError("unexpected"), ANSWERING), retry_interval_s=0.001)
    wait_until(lambda: sampler.report == ANSWERING)


def test_what_broke_is_named(sampling: Sampling) -> None:
    sampler = sampling(ScriptedReader(TypeError("unexpected")))
    wait_until(lambda: sampler.report.unavailable_reason is not None)
    assert "TypeError" in (sampler.report.unavailable_reason or "")


def test_a_sampler_that_was_never_started_stops_at_once() -> None:
    assert GpuSampler(ScriptedReader(ANSWERING)).stop(timeout_s=0.0) is True
