"""Runs the real `GpuSampler` in a process of its own and prints what it saw as one JSON line.

A process of its own, because the driver library is found through LD_LIBRARY_PATH at start, and can
be loaded only once.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time

import msgspec

from agentserve.domain.gpu import GpuReport
from agentserve.telemetry.gpu import GpuSampler


class Observation(msgspec.Struct, frozen=True):
    """What one run of the sampler showed."""

    reports: list[GpuReport]
    """Published reports, oldest first."""
    longest_read_s: float
    """The longest time that a reader waited for a report."""
    current: GpuReport
    """What the sampler called current at the end."""
    age_s: float
    stopped: bool
    stop_s: float
    """How long stopping took."""
    pynvml_imported: bool


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--reports", type=int, required=True, help="stop after so many")
    parser.add_argument("--deadline-s", type=float, default=20.0, help="or after so long")
    parser.add_argument("--interval-s", type=float, default=0.01)
    parser.add_argument("--retry-s", type=float, default=30.0)
    parser.add_argument("--stale-s", type=float, default=10.0)
    parser.add_argument("--stop-timeout-s", type=float, default=5.0)
    options = parser.parse_args()
    sampler = GpuSampler(
        interval_s=options.interval_s,
        retry_interval_s=options.retry_s,
        stale_after_s=options.stale_s,
    )
    pause = threading.Event()
    reports: list[GpuReport] = []
    longest_read_s = 0.0
    initial = sampler.report
    sampler.start()
    deadline = time.monotonic() + options.deadline_s
    while len(reports) < options.reports and time.monotonic() < deadline:
        asked = time.monotonic()
        report = sampler.report
        longest_read_s = max(longest_read_s, time.monotonic() - asked)
        if report != initial and (not reports or report is not reports[-1]):
            reports.append(report)
        pause.wait(0.001)
    current, age_s = sampler.current_report(), sampler.report_age_s()
    asked = time.monotonic()
    stopped = sampler.stop(options.stop_timeout_s)
    observation = Observation(
        reports=reports,
        longest_read_s=longest_read_s,
        current=current,
        age_s=age_s,
        stopped=stopped,
        stop_s=time.monotonic() - asked,
        pynvml_imported="pynvml" in sys.modules,
    )
    sys.stdout.write(msgspec.json.encode(observation).decode() + "\n")


if __name__ == "__main__":
    main()
