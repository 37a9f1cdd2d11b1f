"""Samples the GPUs on a thread of its own and publishes the newest report.

Owns when the driver is asked. Readers take one attribute and never wait for the driver: a call that
hangs in it delays neither them nor the end of the app, it only makes the report old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from agentserve.domain.gpu import GpuReport, GpuSample
from agentserve.telemetry.nvml import NvmlReader

INTERVAL_S = 1.0
RETRY_INTERVAL_S = 30.0
"""Between attempts while there is no driver, or a card does not answer."""
PCIE_EVERY_TICKS = 5
"""PCIe throughput blocks the driver for some 20 ms a value, so it is read less often."""
STALE_AFTER_S = 10.0


class GpuReader(Protocol):
    """What the sampler asks of NVML; see `NvmlReader`."""

    def read(self) -> GpuReport:
        """Read every GPU once; may block."""

    def refresh_pcie_throughput(self) -> None:
        """Measure PCIe throughput, to be part of later readings; slow."""

    def close(self) -> None:
        """Give the driver back; the next `read` opens it again."""


class _Published(NamedTuple):
    report: GpuReport
    at_s: float


class GpuSampler:
    """Reads the GPUs once a second on a daemon thread.

    Args:
        reader: Where readings come from; it is used on the sampler's thread only.
        interval_s: Between readings.
        retry_interval_s: Between attempts to open the driver anew when it is absent, or when a card
            is lost or answers nothing.
        stale_after_s: From this age on readings are no longer shown as current.
        clock: Monotonic clock, seconds.
    """

    def __init__(
        self,
        reader: GpuReader | None = None,
        *,
        interval_s: float = INTERVAL_S,
        retry_interval_s: float = RETRY_INTERVAL_S,
        stale_after_s: float = STALE_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader: GpuReader = NvmlReader() if reader is None else reader
        self._interval_s = interval_s
        self._retry_interval_s = retry_interval_s
        self._stale_after_s = stale_after_s
        self._clock = clock
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-sampler", daemon=True)
        # Replaced as a whole by the sampler's thread: readers need no lock.
        self._published = _Published(GpuReport(), clock())

    def start(self) -> None:
        """Begin to sample; a sampler is started once."""
        self._published = _Published(GpuReport(), self._clock())
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end and wait for it.

        Args:
            timeout_s: The longest wait. A thread that is stuck in the driver is left behind; as a
                daemon it does not keep the process alive.

        Returns:
            True when the thread has ended.
        """
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def report(self) -> GpuReport:
        """The newest report, however old; empty before the first one."""
        return self._published.report

    def report_age_s(self) -> float:
        """Seconds since the newest report, or since the start when there is none yet."""
        return self._clock() - self._published.at_s

    def current_report(self) -> GpuReport:
        """The newest report, or its cards without values once the driver has stopped answering."""
        published = self._published
        age_s = self._clock() - published.at_s
        # Without a driver the thread looks again rarely, and the reason stays true meanwhile.
        if age_s < self._stale_after_s or published.report.unavailable_reason is not None:
            return published.report
        return GpuReport(
            gpus=tuple(_identity(gpu) for gpu in published.report.gpus),
            unavailable_reason=(
                f"The GPU driver has not answered for {age_s:.0f} s; "
                "run nvidia-smi in another terminal and look at the kernel log (dmesg)."
            ),
            driver_version=published.report.driver_version,
        )

    def _run(self) -> None:
        tick = 0
        opened_at_s = self._clock()
        while not self._stopping.is_set():
            try:
                report = self._reader.read()
                self._publish(report)
                if report.unavailable_reason is not None:
                    opened_at_s = self._clock()
                elif _all_answer(report) or self._clock() - opened_at_s < self._retry_interval_s:
                    if tick % PCIE_EVERY_TICKS == 0:
                        self._reader.refresh_pcie_throughput()
                else:
                    # A card that came back after a reset is only seen by a new NVML session.
                    self._reader.close()
                    opened_at_s = self._clock()
            except Exception as error:  # noqa: BLE001 - a broken binding must not end the readings unseen
                report = _failed_report(error)
                self._publish(report)
            tick += 1
            unavailable = report.unavailable_reason is not None
            self._stopping.wait(self._retry_interval_s if unavailable else self._interval_s)
        self._reader.close()

    def _publish(self, report: GpuReport) -> None:
        self._published = _Published(report, self._clock())


def _failed_report(error: Exception) -> GpuReport:
    return GpuReport(
        unavailable_reason=(
            f"GPU readings failed ({type(error).__name__}); "
            "check the versions of the driver and of nvidia-ml-py."
        )
    )


def _all_answer(report: GpuReport) -> bool:
    return all(_answers(gpu) for gpu in report.gpus)


def _answers(gpu: GpuSample) -> bool:
    values = (gpu.memory_total_bytes, gpu.utilization_percent, gpu.temperature_c)
    return not gpu.lost and any(value is not None for value in values)


def _identity(gpu: GpuSample) -> GpuSample:
    return msgspec.structs.replace(
        GpuSample(index=gpu.index), uuid=gpu.uuid, name=gpu.name, lost=gpu.lost
    )
