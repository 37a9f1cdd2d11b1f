"""Part (d), under load: what 10,000 cache events a second cost those who wait for tokens."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.event_flood import EVENTS_PER_S
from bench.load import STREAMS, TOKENS, Load, run_load, warm_up
from bench.report import Figure, Section
from bench.servers import ROOT, AppServer
from bench.waiting import BenchError

_WARM_UP_S = 4.0
_SETTLE_S = 2.0
_AIM = 1.10
_LEAD_S = 0.5
"""The flood begins so long before the load; it ends after it."""


def measure_flood_cost(app: AppServer, model: str, *, rounds: int, seconds: float) -> Section:
    """Load the app without the flood, with it, and without it again, in each round.

    Args:
        app: Ours, ready; its process takes the flood in.
        model: Served name.
        rounds: How often.
        seconds: Length of each load.

    Returns:
        The section of the report.

    Raises:
        BenchError: The app did not take in every event that was sent.
    """
    before: list[Load] = []
    flooded: list[Load] = []
    after: list[Load] = []
    with _publisher(app.home) as publisher:
        warm_up(app.port, model, seconds=_WARM_UP_S)
        sent = 0
        for _ in range(rounds):
            time.sleep(_SETTLE_S)
            before.append(run_load(app.port, model, seconds=seconds))
            time.sleep(_SETTLE_S)
            _write(publisher, seconds)
            time.sleep(_LEAD_S)
            flooded.append(run_load(app.port, model, seconds=seconds - _LEAD_S))
            sent += _read(publisher)
            time.sleep(_SETTLE_S)
            after.append(run_load(app.port, model, seconds=seconds))
        seen = app.callback_times().flood
    if seen.lost or seen.events != sent:
        raise BenchError(f"of {sent:,} events the app took in {seen.events:,}")
    figures: list[Figure] = []
    for name, value in (("ITL p50", _p50), ("ITL p99", _p99)):
        quiet = [(value(one) + value(other)) / 2 for one, other in zip(before, after, strict=True)]
        figures += [
            Figure(
                name=f"{name} at the client",
                unit="ms",
                ours=_ms([value(load) for load in flooded]),
                plain=_ms(quiet),
                aim=_AIM,
            ),
            Figure(
                name=f"{name}, second time without over first time (the noise)",
                unit="ms",
                ours=_ms([value(load) for load in after]),
                plain=_ms([value(load) for load in before]),
            ),
        ]
    return Section(
        title=f"(d3) {STREAMS} streams x {TOKENS} tokens during {EVENTS_PER_S:,} cache events/s",
        figures=tuple(figures),
        notes=(
            f"A round is three loads of {seconds:g} s: without the flood, with it, without it.",
            f"All {sent:,} events were taken in by a second stream and tracker in the app.",
        ),
        sides=("with", "without"),
    )


@contextlib.contextmanager
def _publisher(folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.event_flood", str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as publisher:
        try:
            assert publisher.stdout is not None
            if publisher.stdout.readline() != "ready\n":
                raise BenchError("the flood's publisher did not start")
            yield publisher
        finally:
            publisher.kill()


def _write(publisher: subprocess.Popen[str], seconds: float) -> None:
    assert publisher.stdin is not None
    publisher.stdin.write(f"{seconds}\n")
    publisher.stdin.flush()


def _read(publisher: subprocess.Popen[str]) -> int:
    assert publisher.stdout is not None
    return int(publisher.stdout.readline())


def _p50(load: Load) -> float:
    return load.itl_p50_s


def _p99(load: Load) -> float:
    return load.itl_p99_s


def _ms(seconds: list[float]) -> tuple[float, ...]:
    return tuple(1_000 * value for value in seconds)
