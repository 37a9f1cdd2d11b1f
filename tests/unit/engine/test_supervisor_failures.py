"""What an engine dies of, how fast that is noticed, and what is told about it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agentserve.domain.errors import AgentServeError, EngineMissingError, EngineStartError
from agentserve.domain.failure import Failure
from agentserve.domain.lifecycle import PHASE_ORDER, EngineState, StartPhase, StateChanged
from agentserve.engine import engine_processes, generation
from agentserve.engine.backend import PhaseListener, Receive, Scope, Send
from agentserve.engine.simulated import SimulatedBackend, SimulationScript
from tests.harness.engine_children import (
    SHARED_MEMORY,
    STUBBORN,
    Children,
    children,
    is_alive,
    mapping_shared_memory,
)
from tests.harness.hooked_backend import HookedBackend, HookedLaunch
from tests.harness.supervised import DEADLINE_S, PRESET, Supervised, supervised
from tests.harness.waiting import wait_until

QUICK = SimulationScript(phase_s=0.0)
DEATH_LIMIT_S = 2.0


@pytest.fixture
def started() -> Iterator[Children]:
    with children() as running:
        yield running


@pytest.fixture(params=SHARED_MEMORY)
def segment(request: pytest.FixtureRequest) -> Iterator[Path]:
    path = Path(f"/dev/shm/{request.param}-{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


def failed_start(app: Supervised) -> Failure:
    app.supervisor.request_start(PRESET)
    failure = app.wait_for(EngineState.FAILED).status.failure
    assert failure is not None
    return failure


def assert_failed_front(app: Supervised, title: str) -> None:
    answer = app.get()
    assert answer.status_code == 503
    assert title in answer.json()["error"]["message"]


@pytest.mark.parametrize("phase", PHASE_ORDER)
@pytest.mark.usefixtures("short_waits")
def test_a_failure_in_any_phase_is_explained_by_its_deepest_cause(
    tmp_path: Path, phase: StartPhase
) -> None:
    backend = SimulatedBackend(SimulationScript(phase_s=0.0, fail_in=phase))
    with supervised(backend, tmp_path, capture_output=True) as app:
        failure = failed_start(app)
        assert failure.kind == "out_of_memory"
        assert any("Tried to allocate 1.20 GiB" in line for line in failure.raw)
        assert "ready" not in app.log.states
        assert_failed_front(app, failure.title)
        backend.script = QUICK
        app.start()
        assert app.supervisor.status.failure is None
        assert app.get().status_code == 200


@pytest.mark.usefixtures("short_waits")
def test_only_the_log_of_the_failed_generation_explains_it(tmp_path: Path) -> None:
    backend = HookedBackend()
    with supervised(backend, tmp_path) as app:
        app.ring.extend(
            [
                "(Worker_TP1 pid=1) ERROR 01-31 12:00:00 [core.py:1] OutOfMemoryError: CUDA out of"
                " memory."
            ],
            0,
        )
        app.start()
        app.ring.extend(
            [
                "(Worker_TP0 pid=1) ERROR 01-31 12:00:00 [core.py:1] ValueError: the cause of"
                " this time"
            ],
            0,
        )
        backend.engine.cause_of_death = "The engine has died."
        failure = app.wait_for(EngineState.FAILED).status.failure
        assert failure is not None
        assert "the cause of this time" in failure.cause
        assert failure.phase == "ready"


@pytest.mark.usefixtures("short_waits")
def test_a_bad_answer_to_the_test_prompt_is_a_failure(tmp_path: Path) -> None:
    backend = SimulatedBackend(SimulationScript(phase_s=0.0, bad_answer=True))
    with supervised(backend, tmp_path) as app:
        failure = failed_start(app)
        assert "HTTP 500" in failure.cause
        assert "simulated failure" in failure.cause
        assert failure.phase == StartPhase.WARM_UP
        assert app.observer.generations == []


@pytest.mark.usefixtures("short_waits")
def test_the_log_explains_a_bad_answer_when_it_can(tmp_path: Path) -> None:
    backend = HookedBackend()

    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        app.ring.extend(
            ["(EngineCore pid=1) ERROR 01-31 12:00:00 [core.py:1] ValueError: no kernel image"], 0
        )
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"EngineDeadError"})

    backend.app = fail
    with supervised(backend, tmp_path) as app:
        assert "no kernel image" in failed_start(app).cause


@pytest.mark.parametrize(
    ("error", "kind", "cause"),
    [
        (EngineMissingError("vLLM is not installed.", "Install it."), "engine_missing", "vLLM is"),
        (
            EngineStartError(Failure(kind="k", title="t", cause="known already", hint="h")),
            "k",
            "known already",
        ),
        (AgentServeError("A sentence of ours."), "unknown", "A sentence of ours."),
        (RuntimeError("a reason"), "unknown", "RuntimeError: a reason"),
        (SystemExit(2), "unknown", "SystemExit: 2"),
        (StopIteration("early"), "unknown", "StopIteration: early"),
    ],
)
@pytest.mark.usefixtures("short_waits")
def test_whatever_a_load_raises_is_told_and_the_next_start_works(
    tmp_path: Path, error: BaseException, kind: str, cause: str
) -> None:
    backend = HookedBackend()

    def load(*_: object) -> None:
        raise error

    backend.on_load = load
    with supervised(backend, tmp_path) as app:
        failure = failed_start(app)
        assert failure.kind == kind
        assert cause in failure.cause
        backend.behave()
        app.start()


@pytest.mark.usefixtures("short_waits")
def test_an_exception_in_this_process_can_be_read_in_the_log(tmp_path: Path) -> None:
    backend = SimulatedBackend(SimulationScript(phase_s=0.0, fail_in=StartPhase.CONFIG))
    with supervised(backend, tmp_path, capture_output=True) as app:
        failed_start(app)
        wait_until(
            lambda: any("in _pass_phase" in text for text in app.ring.texts_since(0)),
            DEADLINE_S,
            "the traceback is in the log",
        )


@pytest.mark.usefixtures("short_waits")
def test_what_a_failure_quotes_is_printable_and_holds_no_key(tmp_path: Path) -> None:
    backend = HookedBackend()

    def load(*_: object) -> None:
        raise AgentServeError("\x1b[31mbad key sk-abcdefghijklmnop", "\x07Look it up.")

    backend.on_load = load
    with supervised(backend, tmp_path) as app:
        failure = failed_start(app)
        assert failure.cause.isprintable()
        assert failure.hint.isprintable()
        assert "abcdefgh" not in failure.cause


def test_death_while_ready_is_noticed_within_two_seconds(tmp_path: Path) -> None:
    backend = SimulatedBackend(QUICK)
    with supervised(backend, tmp_path) as app:

        def noticed_after_s() -> float:
            after = len(app.log.changes)
            app.start()
            assert backend.engine is not None
            began_s = time.monotonic()
            backend.engine.die("The engine core has died.")
            # The front asks the engine itself, long before anybody has explained anything.
            assert app.get().status_code == 503
            failed = app.wait_for(EngineState.FAILED, after=after)
            assert failed.status.failure is not None
            assert failed.status.failure.cause == "The engine core has died."
            assert app.supervisor.engine is None
            return time.monotonic() - began_s

        # A machine that is busy with something else may spoil a try.
        assert any(noticed_after_s() < DEATH_LIMIT_S for _ in range(3))
        app.start()


@pytest.mark.parametrize(
    ("title", "role"), [("VLLM::Worker_TP1", "worker 1"), ("VLLM::EngineCore", "engine core")]
)
def test_a_killed_process_is_noticed_although_the_engine_says_nothing(
    tmp_path: Path,
    started: Children,
    segment: Path,
    title: str,
    role: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = HookedBackend()
    monkeypatch.setattr(generation, "_TERM_GRACE_S", 0.3)

    def load(launch: HookedLaunch, _: PhaseListener) -> None:
        mark = launch.order.mark
        started.start(mapping_shared_memory(segment), mark=mark, title=title)
        started.start(STUBBORN, mark=mark, title="VLLM::Worker_TP0")
        started.start(mark=mark, title="helper")

    backend.on_load = load
    with supervised(backend, tmp_path) as app:
        app.start()
        victim, other, _ = started.processes
        shown = {process.pid: process.role for process in app.supervisor.processes}
        assert shown == {victim.pid: role, other.pid: "worker 0"}
        victim.kill()
        failure = app.wait_for(EngineState.FAILED).status.failure
        assert failure is not None
        assert f"The {role} (process {victim.pid}) ended unexpectedly" in failure.cause
        assert app.supervisor.processes == ()
        assert_failed_front(app, failure.title)
        # Failed is told before the rest is cleared away; the next start waits for that.
        backend.behave()
        app.start()
        assert not any(is_alive(child.pid) for child in started.processes)
        assert not segment.exists()


@pytest.mark.usefixtures("short_waits")
def test_a_process_that_is_killed_during_the_test_prompt_is_noticed(
    tmp_path: Path, started: Children
) -> None:
    backend = HookedBackend()

    async def hang(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        started.processes[0].kill()
        await receive()

    backend.app = hang
    backend.on_load = lambda launch, _: (
        started.start(mark=launch.order.mark, title="VLLM::Worker_TP0")
    )
    with supervised(backend, tmp_path) as app:
        assert "worker 0" in failed_start(app).cause


@pytest.mark.usefixtures("short_waits")
def test_a_helper_may_end(tmp_path: Path, started: Children) -> None:
    backend = HookedBackend()
    backend.on_load = lambda launch, _: started.start(mark=launch.order.mark)
    with supervised(backend, tmp_path) as app:
        app.start()
        started.processes[0].kill()
        started.processes[0].wait()
        backend.engine.cause_of_death = "something else"
        failure = app.wait_for(EngineState.FAILED).status.failure
        assert failure is not None
        assert failure.cause == "something else"


@pytest.mark.usefixtures("short_waits")
def test_processes_of_a_failed_start_are_ended(tmp_path: Path, started: Children) -> None:
    backend = HookedBackend()

    def load(launch: HookedLaunch, _: PhaseListener) -> None:
        started.start(STUBBORN, mark=launch.order.mark)
        raise RuntimeError("Engine core initialization failed.")

    backend.on_load = load
    with supervised(backend, tmp_path) as app:
        failed_start(app)
        wait_until(lambda: not is_alive(started.processes[0].pid), DEADLINE_S, "child ended")


@pytest.mark.usefixtures("short_waits")
def test_a_stop_during_the_clean_up_after_a_failure_cancels_the_wish_to_start(
    tmp_path: Path, started: Children
) -> None:
    backend = HookedBackend()

    def load(launch: HookedLaunch, _: PhaseListener) -> None:
        started.start(STUBBORN, mark=launch.order.mark)
        raise RuntimeError("no")

    backend.on_load = load
    with supervised(backend, tmp_path) as app:

        def start_and_stop(change: StateChanged) -> None:
            if change.status.state is EngineState.FAILED:
                app.supervisor.request_start(PRESET)
                app.supervisor.request_stop()

        app.log.listener = start_and_stop
        failed_start(app)
    assert app.supervisor.status.state is EngineState.FAILED
    assert app.supervisor.status.generation == 1


@pytest.mark.usefixtures("short_waits")
def test_processes_that_cannot_be_ended_are_told_instead_of_stopped(
    tmp_path: Path, started: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = HookedBackend()
    backend.on_load = lambda launch, _: started.start(mark=launch.order.mark)
    with supervised(backend, tmp_path) as app:
        app.start()
        with monkeypatch.context() as patched:
            patched.setattr(engine_processes, "send_signal", lambda *_: None)
            app.supervisor.request_stop()
            failure = app.wait_for(EngineState.FAILED, 10.0).status.failure
        assert failure is not None
        assert failure.kind == "not_ended"
        assert str(started.processes[0].pid) in failure.cause
        assert "stopped" not in app.log.states[1:]


class BrokenLog:
    """A log that cannot be read."""

    next_number = 0

    def texts_since(self, number: int) -> Sequence[str]:
        raise OSError("no log")


@pytest.mark.usefixtures("short_waits")
def test_after_a_bug_of_ours_the_next_start_works(tmp_path: Path) -> None:
    backend = SimulatedBackend(SimulationScript(phase_s=0.0, fail_in=StartPhase.LOAD))
    app = Supervised(backend, tmp_path, log=BrokenLog())
    app.open()
    try:
        failure = failed_start(app)
        assert failure.kind == "internal"
        backend.script = QUICK
        app.start()
    finally:
        app.close()


@pytest.mark.usefixtures("short_waits")
def test_a_listener_that_raises_changes_nothing(tmp_path: Path) -> None:
    with supervised(SimulatedBackend(QUICK), tmp_path) as app:

        def fail(change: StateChanged) -> None:
            raise RuntimeError("a bug on the screen")

        app.log.listener = fail
        app.supervisor.request_start(PRESET)
        wait_until(lambda: app.supervisor.status.state == "ready", DEADLINE_S, "ready")
        assert app.get().status_code == 200
