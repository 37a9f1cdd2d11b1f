"""Part (a): throughput and token gaps with the screen open, against the plain server."""

from __future__ import annotations

import time

from bench.load import STREAMS, TOKENS, Load, run_load, warm_up
from bench.probed_app import CallbackTimes
from bench.report import Figure, Section
from bench.servers import AppServer, PlainServer

_WARM_UP_S = 4.0
_SETTLE_S = 2.0
"""vLLM's processes spin for about a second after their last step."""


def measure_screen_cost(
    app: AppServer, plain: PlainServer, model: str, *, rounds: int, seconds: float
) -> Section:
    """Load both servers in turn.

    Which one comes first alternates, so that a machine that slows down hurts both.

    Args:
        app: Ours, ready, with its callbacks timed.
        plain: The plain server, ready.
        model: Served name, the same on both.
        rounds: How often.
        seconds: Length of each side's load in a round.

    Returns:
        The section of the report.
    """
    for port in (app.port, plain.port):
        warm_up(port, model, seconds=_WARM_UP_S)
    ours: list[Load] = []
    theirs: list[Load] = []
    callbacks: list[CallbackTimes] = []
    written: list[float] = []

    def load_app() -> None:
        app.callback_times()
        bytes_before = app.terminal.bytes_read
        load = run_load(app.port, model, seconds=seconds)
        written.append((app.terminal.bytes_read - bytes_before) / load.elapsed_s)
        ours.append(load)
        callbacks.append(app.callback_times())

    def load_plain() -> None:
        theirs.append(run_load(plain.port, model, seconds=seconds))

    for number in range(rounds):
        for side in (load_app, load_plain) if number % 2 == 0 else (load_plain, load_app):
            time.sleep(_SETTLE_S)
            side()
    return Section(
        title=f"(a) {STREAMS} streams x {TOKENS} tokens with the screen open",
        figures=(
            Figure(
                name="output throughput",
                unit="tok/s",
                ours=tuple(load.tokens_per_s for load in ours),
                plain=tuple(load.tokens_per_s for load in theirs),
                aim=0.97,
                aim_is="at least",
            ),
            Figure(
                name="ITL p99 at the client",
                unit="ms",
                ours=_ms([load.itl_p99_s for load in ours]),
                plain=_ms([load.itl_p99_s for load in theirs]),
                aim=1.10,
            ),
            Figure(
                name="ITL p50 at the client",
                unit="ms",
                ours=_ms([load.itl_p50_s for load in ours]),
                plain=_ms([load.itl_p50_s for load in theirs]),
            ),
            Figure(
                name="TTFT p50 at the client",
                unit="ms",
                ours=_ms([load.ttft_p50_s for load in ours]),
                plain=_ms([load.ttft_p50_s for load in theirs]),
            ),
            Figure(
                name="longest callback of the screen, processor time",
                unit="ms",
                ours=_ms([times.cpu_max_s for times in callbacks]),
            ),
            Figure(
                name="p99 callback of the screen, processor time",
                unit="ms",
                ours=_ms([times.cpu_p99_s for times in callbacks]),
            ),
            Figure(
                name="longest callback of the screen, wall time",
                unit="ms",
                ours=_ms([times.wall_max_s for times in callbacks]),
            ),
            Figure(
                name="screen's thread",
                unit="% of a core",
                ours=tuple(100 * times.cpu_total_s / times.elapsed_s for times in callbacks),
            ),
            Figure(name="written to the terminal", unit="B/s", ours=tuple(written)),
        ),
        notes=(
            f"A round is {seconds:g} s of bursts on each side; both servers are up all the time.",
            "Gaps are between two events of a stream; a slow server puts several tokens in one.",
            "The processor time of a callback bounds how long the screen ran with the GIL.",
        ),
    )


def _ms(seconds: list[float]) -> tuple[float, ...]:
    return tuple(1_000 * value for value in seconds)
