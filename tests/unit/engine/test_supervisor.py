"""Starts, readiness, and requests in any order."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentserve.domain.lifecycle import (
    PHASE_ORDER,
    EngineState,
    StateChanged,
    may_follow,
)
from agentserve.engine import generation, supervisor
from agentserve.engine.backend import PhaseListener
from agentserve.engine.front import Front
from agentserve.engine.log_ring import LogRing
from agentserve.engine.simulated import SimulatedBackend, SimulationScript
from agentserve.engine.supervisor import EngineSupervisor
from tests.harness.hooked_backend import (
    HookedBackend,
    HookedLaunch,
)
from tests.harness.supervised import (
    DEADLINE_S,
    OTHER_PRESET,
    PHASE_LINES,
    PRESET,
    SETTLED,
    History,
    Observer,
    StateLog,
    Supervised,
    supervised,
)
from tests.harness.waiting import wait_until

QUICK = SimulationScript(phase_s=0.0)


def assert_only_allowed_changes(changes: list[StateChanged]) -> None:
    state, number, phase = EngineState.STOPPED, 0, -1
    for change in changes:
        status = change.status
        assert change.previous is state
        assert status.state is state or may_follow(state, status.state)
        began = status.state is EngineState.STARTING and state is not EngineState.STARTING
        assert status.generation == number + began
        if status.phase is not None:
            reached = PHASE_ORDER.index(status.phase)
            assert reached >= (0 if began else phase)
            phase = reached
        state, number = status.state, status.generation


@pytest.mark.usefixtures("short_waits")
def test_a_start_passes_every_phase_in_order_and_becomes_ready(tmp_path: Path) -> None:
    backend = HookedBackend()
    with supervised(backend, tmp_path, capture_output=True) as app:

        def load(launch: HookedLaunch, on_phase: PhaseListener) -> None:
            for phase in PHASE_ORDER[:-1]:
                if phase in PHASE_LINES:
                    os.write(2, f"{PHASE_LINES[phase]}\n".encode())
                else:
                    on_phase(phase)
                app.wait_for_phase(phase)
                app.assert_unavailable()

        backend.on_load = load
        app.assert_unavailable()
        app.start()
        assert app.get().status_code == 200
        assert app.log.states == ["stopped", "starting", "warming", "ready"]
        phases = [c.status.phase for c in app.log.changes if c.status.state == "starting"]
        assert phases == list(PHASE_ORDER)
        status = app.supervisor.status
        assert [finished.phase for finished in status.finished_phases] == list(PHASE_ORDER)
        assert all(finished.duration_s >= 0 for finished in status.finished_phases)
        assert status.phase is None
        assert status.facts == backend.engine.facts
        assert app.supervisor.engine is backend.engine
        assert app.observer.generations == [1]


@pytest.mark.usefixtures("short_waits")
def test_the_simulated_engine_goes_the_same_way(tmp_path: Path) -> None:
    backend = SimulatedBackend(SimulationScript(phase_s=0.02))
    with supervised(backend, tmp_path, capture_output=True) as app:
        app.start()
        assert app.log.states == ["stopped", "starting", "warming", "ready"]
        assert_only_allowed_changes(app.log.changes)
        assert {"import", "config", "spawn", "warm-up"} <= {c.status.phase for c in app.log.changes}
        assert app.get().json()["data"][0]["id"] == "model"
        assert app.supervisor.status.simulated


@pytest.mark.usefixtures("short_waits")
def test_stop_and_restart_keep_the_port_and_count_generations(tmp_path: Path) -> None:
    with supervised(SimulatedBackend(QUICK), tmp_path) as app:
        app.start()
        app.stop()
        app.assert_unavailable()
        assert app.supervisor.engine is None
        assert app.supervisor.status.facts is None
        app.start(OTHER_PRESET)
        assert app.get().status_code == 200
        after = len(app.log.changes)
        app.supervisor.request_restart(PRESET)
        ready = app.wait_for(EngineState.READY, after=after)
        assert (ready.status.generation, ready.status.preset) == (3, "tiny")
        assert app.get().status_code == 200
        assert app.observer.generations == [1, 2, 3]
        assert_only_allowed_changes(app.log.changes)


@pytest.mark.usefixtures("short_waits")
def test_a_second_start_knows_how_long_the_first_one_took(tmp_path: Path) -> None:
    with supervised(SimulatedBackend(QUICK), tmp_path) as app:
        app.start()
        assert app.supervisor.status.expected_start_s is None
        assert app.history.recorded.wait(DEADLINE_S)
        app.stop()
        app.start()
        expected = app.supervisor.status.expected_start_s
        assert expected == app.history.starts["tiny"][0]


@pytest.mark.usefixtures("short_waits")
def test_a_request_before_the_loop_runs_is_not_lost(tmp_path: Path) -> None:
    app = Supervised(SimulatedBackend(QUICK), tmp_path)
    app.supervisor.request_start(PRESET)
    app.open()
    try:
        app.wait_for(EngineState.READY)
    finally:
        app.close()


@pytest.mark.usefixtures("short_waits")
def test_requests_after_the_end_are_ignored(tmp_path: Path) -> None:
    with supervised(SimulatedBackend(QUICK), tmp_path) as app:
        pass
    app.supervisor.request_start(PRESET)
    app.supervisor.request_stop()
    app.supervisor.request_close()
    assert app.log.changes == []


@pytest.mark.usefixtures("short_waits")
def test_two_quick_requests_end_in_the_state_that_was_asked_for_last(tmp_path: Path) -> None:
    with supervised(SimulatedBackend(QUICK), tmp_path) as app:
        ask = app.supervisor
        ask.request_start(PRESET)
        ask.request_stop()
        ask.request_start(OTHER_PRESET)
        assert app.wait_for(EngineState.READY).status.preset == "other"
        after = len(app.log.changes)
        ask.request_restart(PRESET)
        ask.request_restart(OTHER_PRESET)
        assert app.wait_for(EngineState.READY, after=after).status.preset == "other"
        assert app.supervisor.status.generation <= 3
        after = len(app.log.changes)
        ask.request_restart(PRESET)
        ask.request_stop()
        app.wait_for(EngineState.STOPPED, after=after)
        assert app.log.states[-1] == "stopped"


@pytest.mark.usefixtures("short_waits")
def test_nothing_is_left_after_five_generations(tmp_path: Path) -> None:
    def tasks(app: Supervised) -> int:
        async def count() -> int:
            return len(asyncio.all_tasks())

        return app.serve_loop.submit(count()).result(DEADLINE_S)

    def measure(app: Supervised) -> tuple[int, int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd")), tasks(app)  # noqa: PTH208

    backend = SimulatedBackend(QUICK)
    with supervised(backend, tmp_path) as app:
        app.start()
        app.get()
        app.stop()
        before: tuple[int, int, int] = (0, 0, 0)

        def settled() -> bool:
            nonlocal before
            last, before = before, measure(app)
            return last == before

        wait_until(settled, DEADLINE_S, "threads of the first generation have ended")
        for _ in range(5):
            app.start()
            app.get()
            app.stop()
        wait_until(lambda: measure(app) <= before, DEADLINE_S, "everything is back")


@pytest.mark.usefixtures("short_waits")
def test_an_engine_is_out_of_memory_when_stopped_is_told(tmp_path: Path) -> None:
    backend = HookedBackend()
    alive_when_stopped: list[bool] = []
    with supervised(backend, tmp_path) as app:
        app.start()
        app.get()
        engine = weakref.ref(backend.engine)
        backend.on_shut_down = backend.launches.clear
        app.log.listener = lambda c: (
            alive_when_stopped.append(engine() is not None) if c.status.state == "stopped" else None
        )
        gc.freeze()  # as vLLM does while it serves
        app.stop()
        assert alive_when_stopped == [False]
        assert gc.get_freeze_count() == 0


REQUESTS = st.lists(
    st.one_of(
        st.sampled_from(["start", "start other", "stop", "restart", "die"]),
        st.tuples(st.just("ticks"), st.integers(1, 60)),
        st.just("settle"),
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(requests=REQUESTS)
def test_any_sequence_of_requests_makes_only_allowed_changes_and_settles(
    requests: list[str | tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = StateLog()
    backend = HookedBackend()

    async def play() -> None:
        ring = LogRing()
        under_test = EngineSupervisor(
            backend=backend,
            front=Front(lambda: b"{}"),
            observer=Observer(),
            app_id="property",
            runtime_dir=tmp_path_factory.getbasetemp(),
            on_change=log,
            history=History(),
            log=ring,
        )

        async def until(*states: EngineState) -> None:
            async with asyncio.timeout(DEADLINE_S):
                while under_test.status.state not in states:  # noqa: ASYNC110 - any of many
                    await asyncio.sleep(0.002)

        running = asyncio.create_task(under_test.run())
        last = "stop"
        for request in requests:
            match request:
                case "start":
                    under_test.request_start(PRESET)
                case "start other":
                    under_test.request_start(OTHER_PRESET)
                case "stop":
                    under_test.request_stop()
                case "restart":
                    under_test.request_restart(PRESET)
                case "die":
                    if under_test.engine is not None:
                        backend.engine.cause_of_death = "The engine has died."
                case "settle":
                    await until(*SETTLED)
                case (_, int(ticks)):
                    for _ in range(ticks):
                        await asyncio.sleep(0.001)
            if request in {"start", "start other", "stop", "restart"}:
                last = str(request)
            elif request == "die":
                last = "die"
        await asyncio.sleep(0.001)
        if last == "restart":
            await until(EngineState.READY)
        elif last == "stop":
            await until(EngineState.STOPPED, EngineState.FAILED)
        else:
            await until(*SETTLED)
        under_test.request_close()
        await asyncio.wait_for(running, 10.0)
        assert under_test.status.state in {EngineState.STOPPED, EngineState.FAILED}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(generation, "_POLL_S", 0.01)
        patched.setattr(supervisor, "_LOG_SETTLE_S", 0.01)
        asyncio.run(play())
    assert_only_allowed_changes(log.changes)
