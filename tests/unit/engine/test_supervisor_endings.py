"""Stop, abort and close, with engines that hang, break or ignore it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agentserve.domain.lifecycle import (
    PHASE_ORDER,
    EngineState,
    StartPhase,
)
from agentserve.engine import engine_processes, generation, supervisor
from agentserve.engine.backend import PhaseListener
from agentserve.engine.simulated import SimulatedBackend, SimulationScript
from tests.harness.engine_children import children, is_alive
from tests.harness.hooked_backend import (
    HookedBackend,
    HookedLaunch,
    hang_until_aborted,
    wait_for_release,
)
from tests.harness.supervised import (
    CLOSE_LIMIT_S,
    DEADLINE_S,
    PHASE_LINES,
    PRESET,
    SETTLED,
    supervised,
)
from tests.harness.waiting import wait_until

QUICK = SimulationScript(phase_s=0.0)


@pytest.mark.parametrize("phase", PHASE_ORDER)
@pytest.mark.usefixtures("short_waits")
def test_a_start_that_hangs_can_be_aborted_in_every_phase(
    tmp_path: Path, phase: StartPhase
) -> None:
    backend = SimulatedBackend(SimulationScript(phase_s=0.0, hang_in=phase))
    with supervised(backend, tmp_path, capture_output=True) as app:
        app.supervisor.request_start(PRESET)
        app.wait_for_phase(phase)
        app.supervisor.request_stop()
        app.wait_for(EngineState.STOPPED)
        assert "ready" not in app.log.states
        assert app.log.states[-2:] == ["stopping", "stopped"]
        app.assert_unavailable()
        backend.script = QUICK
        app.start()


@pytest.mark.usefixtures("short_waits")
def test_a_load_that_ignores_the_abort_never_becomes_the_engine(tmp_path: Path) -> None:
    backend = HookedBackend()
    release = threading.Event()
    backend.on_load = lambda *_: release.wait()
    backend.on_abort = lambda _: None
    with supervised(backend, tmp_path) as app:
        app.supervisor.request_start(PRESET)
        backend.wait_for_load()
        app.supervisor.request_stop()
        app.wait_for(EngineState.STOPPED)
        late = backend.launches[0]
        assert late.events[-1] == "abort"

        app.supervisor.request_start(PRESET)
        app.log.wait(lambda c: c.status.generation == 2, DEADLINE_S)
        # Two loads at once would fight over imports and environment: the second one waits.
        assert len(backend.launches) == 1
        release.set()
        ready = app.wait_for(EngineState.READY)
        assert ready.status.generation == 2
        assert late.events[-2:] == ["shutting down", "shut down"]
        assert "opening" not in late.events
        assert app.supervisor.engine is backend.launches[1].engine


@pytest.mark.usefixtures("short_waits")
def test_waiting_for_an_abandoned_load_can_be_aborted(tmp_path: Path) -> None:
    backend = HookedBackend()
    release = threading.Event()
    backend.on_load = lambda *_: release.wait()
    with supervised(backend, tmp_path) as app:
        for _ in range(2):
            app.supervisor.request_start(PRESET)
            wait_until(lambda: app.supervisor.status.state == "starting", DEADLINE_S, "starting")
            backend.wait_for_load()
            app.stop()
        assert len(backend.launches) == 1
        release.set()
        app.start()


@pytest.mark.usefixtures("short_waits")
def test_what_an_abandoned_load_reports_late_is_not_taken_for_the_next_start(
    tmp_path: Path,
) -> None:
    backend = HookedBackend()
    release, reported = threading.Event(), threading.Event()

    def load(launch: HookedLaunch, on_phase: PhaseListener) -> None:
        if launch.order.mark.generation == 1:
            release.wait()
            on_phase(StartPhase.SPAWN)
            reported.set()

    backend.on_load = load
    with supervised(backend, tmp_path) as app:
        app.supervisor.request_start(PRESET)
        backend.wait_for_load()
        app.stop()
        app.supervisor.request_start(PRESET)
        app.log.wait(lambda c: c.status.generation == 2, DEADLINE_S)
        app.supervisor.observe_line(PHASE_LINES[StartPhase.GRAPHS])
        release.set()
        assert reported.wait(DEADLINE_S)
        app.wait_for(EngineState.READY)
        phases = [c.status.phase for c in app.log.changes if c.status.generation == 2]
        assert phases[:2] == [StartPhase.IMPORT, StartPhase.WARM_UP]


@pytest.mark.usefixtures("short_waits")
def test_an_engine_that_a_load_still_starts_after_it_was_abandoned_is_ended(
    tmp_path: Path,
) -> None:
    backend = HookedBackend()
    spawn, spawned = threading.Event(), threading.Event()
    with children() as started, supervised(backend, tmp_path) as app:

        def load(launch: HookedLaunch, on_phase: PhaseListener) -> None:
            spawn.wait()
            child = started.start(mark=launch.order.mark)
            spawned.set()
            child.wait()
            raise RuntimeError("Engine core initialization failed.")

        def abort(launch: HookedLaunch) -> None:
            for child in started.processes:
                child.terminate()

        backend.on_load, backend.on_abort = load, abort
        app.supervisor.request_start(PRESET)
        backend.wait_for_load()
        app.stop()
        spawn.set()
        assert spawned.wait(DEADLINE_S)
        wait_until(lambda: not is_alive(started.processes[0].pid), DEADLINE_S, "child ended")
        backend.on_load = lambda *_: None
        app.start()


@pytest.mark.usefixtures("short_waits")
def test_a_load_that_wins_the_race_against_the_abort_is_shut_down(tmp_path: Path) -> None:
    backend = HookedBackend()
    backend.on_load = lambda launch, _: launch.aborted.wait()
    with supervised(backend, tmp_path) as app:
        app.supervisor.request_start(PRESET)
        backend.wait_for_load()
        app.stop()
        assert app.log.states == ["stopped", "starting", "stopping", "stopped"]
        assert backend.launches[0].events[-2:] == ["shutting down", "shut down"]


@pytest.mark.usefixtures("short_waits")
def test_an_application_that_is_being_opened_is_cancelled_before_it_is_closed(
    tmp_path: Path,
) -> None:
    backend = HookedBackend()

    async def open_slowly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)

    backend.on_open = open_slowly
    with supervised(backend, tmp_path) as app:
        app.supervisor.request_start(PRESET)
        app.wait_for(EngineState.WARMING)
        wait_until(lambda: "opening" in backend.launches[0].events, DEADLINE_S, "opening")
        app.stop()
        assert backend.launches[0].events == [
            *("loading", "loaded", "opening", "open cancelled"),
            *("closing", "closed", "shutting down", "shut down"),
        ]


def _hang_opening(backend: HookedBackend, release: threading.Event) -> None:
    backend.on_open = wait_for_release(release)


def _hang_closing(backend: HookedBackend, release: threading.Event) -> None:
    backend.on_close = wait_for_release(release)


def _hang_shutting_down(backend: HookedBackend, release: threading.Event) -> None:
    backend.on_shut_down = lambda: release.wait()


def _hang_aborting(backend: HookedBackend, release: threading.Event) -> None:
    backend.on_load = hang_until_aborted
    backend.on_abort = lambda _: release.wait()


def _fail_closing(backend: HookedBackend, release: threading.Event) -> None:
    async def fail() -> None:
        raise RuntimeError("no lifespan")

    backend.on_close = fail


def _fail_shutting_down(backend: HookedBackend, release: threading.Event) -> None:
    def fail() -> None:
        raise RuntimeError("already dead")

    backend.on_shut_down = fail


def _fail_aborting(backend: HookedBackend, release: threading.Event) -> None:
    def fail(launch: HookedLaunch) -> None:
        launch.aborted.set()
        raise RuntimeError("no process")

    backend.on_load, backend.on_abort = hang_until_aborted, fail


@pytest.mark.parametrize(
    "misbehave",
    [
        _hang_opening,
        _hang_closing,
        _hang_shutting_down,
        _hang_aborting,
        _fail_closing,
        _fail_shutting_down,
        _fail_aborting,
    ],
)
@pytest.mark.usefixtures("short_waits")
def test_an_engine_that_misbehaves_while_it_is_ended_is_stopped_all_the_same(
    tmp_path: Path,
    misbehave: Callable[[HookedBackend, threading.Event], None],
) -> None:
    backend, release = HookedBackend(), threading.Event()
    misbehave(backend, release)
    try:
        with supervised(backend, tmp_path) as app:
            far = {"opening", "loading"}
            app.supervisor.request_start(PRESET)
            wait_until(
                lambda: (
                    app.supervisor.status.state == "ready"
                    or (backend.launches and far & set(backend.launches[0].events))
                ),
                DEADLINE_S,
                "as far as it comes",
            )
            app.stop()
            release.set()
            backend.behave()
            app.start()
    finally:
        release.set()


def test_all_waits_together_are_shorter_than_the_time_to_close() -> None:
    cancel = supervisor._CANCEL_S
    processes = generation._TERM_GRACE_S + engine_processes._KILL_S
    load = cancel + generation._ABORT_S + processes
    application = generation._CLOSE_S + generation._CANCEL_S
    engine = cancel + application + processes + generation._SHUT_DOWN_S
    assert supervisor._LOG_SETTLE_S + max(load, engine) < CLOSE_LIMIT_S - 1.0


def test_an_abort_takes_less_than_two_seconds_also_when_it_is_ignored() -> None:
    assert generation._ABANDON_AFTER_S + generation._POLL_S < 1.5


@pytest.mark.usefixtures("short_waits")
def test_an_engine_whose_shut_down_hangs_does_not_mix_with_the_next_load(tmp_path: Path) -> None:
    backend, release = HookedBackend(), threading.Event()
    backend.on_shut_down = lambda: release.wait()
    with supervised(backend, tmp_path) as app:
        app.start()
        app.stop()
        app.supervisor.request_start(PRESET)
        app.log.wait(lambda c: c.status.generation == 2, DEADLINE_S)
        assert len(backend.launches) == 1
        release.set()
        app.log.wait(lambda c: c.status.generation == 2 and c.status.state == "ready", DEADLINE_S)


@pytest.mark.usefixtures("short_waits")
def test_stopped_is_told_only_when_a_stubborn_process_is_gone(tmp_path: Path) -> None:
    backend = SimulatedBackend(SimulationScript(phase_s=0.0, ignore_stop=True))
    with supervised(backend, tmp_path) as app:
        app.start()
        assert backend.engine is not None
        child = backend.engine.process
        assert child is not None
        alive_when_stopped: list[bool] = []
        app.log.listener = lambda c: (
            alive_when_stopped.append(is_alive(child.pid)) if c.status.state == "stopped" else None
        )
        app.stop()
        assert alive_when_stopped == [False]
        assert child.wait(DEADLINE_S) == -9


@pytest.mark.parametrize(
    "script",
    [
        SimulationScript(phase_s=0.0),
        SimulationScript(phase_s=0.0, ignore_stop=True),
        SimulationScript(phase_s=0.0, hang_in=StartPhase.IMPORT, ignore_abort=True),
        SimulationScript(phase_s=0.0, hang_in=StartPhase.LOAD),
        SimulationScript(phase_s=0.0, hang_in=StartPhase.WARM_UP),
        SimulationScript(phase_s=0.0, fail_in=StartPhase.LOAD),
    ],
)
@pytest.mark.usefixtures("short_waits")
def test_closing_at_any_time_takes_less_than_ten_seconds(
    tmp_path: Path, script: SimulationScript
) -> None:
    with supervised(SimulatedBackend(script), tmp_path, capture_output=True) as app:
        app.supervisor.request_start(PRESET)
        if script.hang_in is not None:
            app.wait_for_phase(script.hang_in)
        else:
            app.log.wait(lambda c: c.status.state in SETTLED, DEADLINE_S)
    # Leaving the block closes, and fails after ten seconds.
    assert app.supervisor.status.state in {EngineState.STOPPED, EngineState.FAILED}


@pytest.mark.parametrize("state", ["starting", "warming", "ready"])
@pytest.mark.usefixtures("short_waits")
def test_a_cancelled_supervisor_ends_its_engine(tmp_path: Path, state: str) -> None:
    backend = HookedBackend()
    if state == "starting":
        backend.on_load = hang_until_aborted
    elif state == "warming":
        backend.on_open = asyncio.Event().wait
    with supervised(backend, tmp_path) as app:
        app.supervisor.request_start(PRESET)
        app.wait_for(EngineState(state))
        backend.wait_for_load()
        assert app.running is not None
        app.running.cancel()
        app.wait_for(EngineState.STOPPED)
        app.running = None
        assert backend.launches[0].events[-1] in {"shut down", "abort"}
