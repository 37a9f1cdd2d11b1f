"""Part (c): a switch inside the app, against ending the plain server and starting it again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec

from agentserve.domain.lifecycle import PhaseTime, StartPhase
from agentserve.engine.phases import PhaseTracker
from agentserve.engine.smoke import SMOKE_TOKENS
from bench.report import Figure, Section
from bench.servers import AppServer, PlainServer
from bench.waiting import BenchError

_IMPORT = frozenset({StartPhase.IMPORT, StartPhase.CONFIG, StartPhase.SPAWN})
"""What a spawned process does until it loads is importing."""
_SETTLE_S = 2.0
"""vLLM's processes spin for about a second after their last step."""


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """One switch in parts, in seconds."""

    total_s: float
    import_s: float
    weights_s: float
    rest_s: float
    """Profiling, KV cache, warm-up and the first answer."""

    @property
    def stop_s(self) -> float:
        """The end of the engine before."""
        return self.total_s - self.import_s - self.weights_s - self.rest_s


def measure_switch_time(app: AppServer, plain: PlainServer, model: str, *, rounds: int) -> Section:
    """Switch both in turn, alternating which is first.

    Args:
        app: Ours, ready.
        plain: The plain server, ready.
        model: Served name, the same on both.
        rounds: How often.

    Returns:
        The section of the report.
    """
    ours: list[Switch] = []
    theirs: list[Switch] = []
    for number in range(rounds):
        for side in (app, plain) if number % 2 == 0 else (plain, app):
            time.sleep(_SETTLE_S)
            if side is app:
                ours.append(_switch_app(app))
            else:
                theirs.append(_switch_plain(plain, model))
    parts = (
        ("switch to READY", "total_s", 0.65),
        ("of it stop", "stop_s", None),
        ("of it import (the children's too)", "import_s", None),
        ("of it weights", "weights_s", None),
        ("of it rest", "rest_s", None),
    )
    return Section(
        title="(c) switch to READY, against kill and start",
        figures=tuple(
            Figure(
                name=name,
                unit="s",
                ours=tuple(getattr(switch, field) for switch in ours),
                plain=tuple(getattr(switch, field) for switch in theirs),
                aim=aim,
            )
            for name, field, aim in parts
        ),
        notes=(
            "Ours: from the key `r` to READY of the next generation, test prompt included.",
            f"Plain: from TERM until all its processes are gone and the next server has answered "
            f"{SMOKE_TOKENS} tokens; its parts are found in its log by the same patterns.",
            "The other side's engine is idle meanwhile.",
        ),
    )


def _switch_app(app: AppServer) -> Switch:
    before = app.snapshot()
    if before is None:
        raise BenchError("the app does not answer")
    pressed_s = time.monotonic()
    app.terminal.press("r")
    engine = app.wait_ready(before.engine.generation + 1).engine
    return switch_from(time.monotonic() - pressed_s, engine.finished_phases)


def _switch_plain(plain: PlainServer, model: str) -> Switch:
    began_s = time.monotonic()
    plain.stop()
    plain.start()
    plain.wait_answer(model, SMOKE_TOKENS)
    ready_s = time.monotonic()
    return switch_from(ready_s - began_s, phases_of_log(plain.log(), plain.spawned_s, ready_s))


def switch_from(total_s: float, phases: Iterable[PhaseTime]) -> Switch:
    """Sum the phases of a start into the parts of a switch.

    Args:
        total_s: The whole switch, the stop before the start included.
        phases: The phases of the start.

    Returns:
        The switch in parts; what is in no phase is its stop.
    """
    import_s = weights_s = rest_s = 0.0
    for time_of_phase in phases:
        if time_of_phase.phase in _IMPORT:
            import_s += time_of_phase.duration_s
        elif time_of_phase.phase is StartPhase.LOAD:
            weights_s += time_of_phase.duration_s
        else:
            rest_s += time_of_phase.duration_s
    return Switch(total_s=total_s, import_s=import_s, weights_s=weights_s, rest_s=rest_s)


def phases_of_log(
    lines: Sequence[tuple[float, str]], spawned_s: float, ready_s: float
) -> tuple[PhaseTime, ...]:
    """Divide a start of the plain server as the app divides its own.

    Args:
        lines: Its log, with the time of each line.
        spawned_s: When the process was started.
        ready_s: When it had answered.

    Returns:
        The phases that its log shows, without a gap from the start to the answer.
    """
    tracker = PhaseTracker()
    entered = [(spawned_s, tracker.phase)]
    for time_s, text in lines:
        if time_s <= ready_s and (phase := tracker.observe(text)) is not None:
            entered.append((time_s, phase))
    ends_s = [time_s for time_s, _ in entered[1:]] + [ready_s]
    return tuple(
        PhaseTime(phase, end_s - time_s)
        for (time_s, phase), end_s in zip(entered, ends_s, strict=True)
    )
