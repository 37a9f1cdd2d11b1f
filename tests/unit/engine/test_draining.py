"""Replacing an engine after its requests have finished, or when the time is up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentserve.domain.lifecycle import EngineState
from tests.harness.hooked_backend import REQUEST, HookedBackend
from tests.harness.supervised import DEADLINE_S, OTHER_PRESET, PRESET, Supervised, supervised


@pytest.fixture
def backend() -> HookedBackend:
    return HookedBackend()


@pytest.fixture
def app(backend: HookedBackend, tmp_path: Path) -> Iterator[Supervised]:
    with supervised(backend, tmp_path) as running:
        running.start()
        yield running


def assert_nothing_begins(app: Supervised) -> None:
    """Nothing changes within a few polls of a drain that should be gone."""
    before = app.supervisor.status
    ended = threading.Event()
    assert not ended.wait(0.5)
    assert app.supervisor.status == before


def test_a_switch_waits_for_requests_and_refuses_new_ones(
    app: Supervised, backend: HookedBackend
) -> None:
    first = backend.engine
    first.requests = (REQUEST,)
    app.supervisor.request_restart(OTHER_PRESET, drain_s=30)
    app.log.wait(lambda c: c.status.drain is not None, DEADLINE_S)
    assert app.supervisor.status.state is EngineState.READY
    drain = app.supervisor.status.drain
    assert drain is not None
    assert drain.target_preset == "other"
    refused = app.get()
    assert refused.status_code == 503
    assert 25 <= int(refused.headers["retry-after"]) <= 31
    after = len(app.log.changes)
    first.requests = ()
    app.wait_for(EngineState.READY, after=after)
    status = app.supervisor.status
    assert (status.preset, status.drain, status.previous_preset) == ("other", None, "tiny")
    assert app.get().status_code == 200


def test_when_the_time_is_up_the_rest_is_aborted(app: Supervised, backend: HookedBackend) -> None:
    backend.engine.requests = (REQUEST,)
    after = len(app.log.changes)
    app.supervisor.request_restart(PRESET, drain_s=0.2)
    app.wait_for(EngineState.READY, after=after + 1)
    assert app.supervisor.status.generation == 2


def test_a_given_up_switch_lets_requests_in_again(app: Supervised, backend: HookedBackend) -> None:
    backend.engine.requests = (REQUEST,)
    app.supervisor.request_restart(OTHER_PRESET, drain_s=30)
    app.log.wait(lambda c: c.status.drain is not None, DEADLINE_S)
    after = len(app.log.changes)
    app.supervisor.cancel_drain()
    app.log.wait(lambda c: c.status.drain is None, DEADLINE_S, after)
    assert app.get().status_code == 200
    backend.engine.requests = ()
    assert_nothing_begins(app)
    assert app.supervisor.status.generation == 1


def test_without_requests_nothing_is_waited_for(app: Supervised) -> None:
    after = len(app.log.changes)
    app.supervisor.request_restart(PRESET, drain_s=30)
    app.wait_for(EngineState.READY, after=after)
    assert all(change.status.drain is None for change in app.log.changes)


def test_a_stop_can_wait_too_and_a_second_one_does_not(
    app: Supervised, backend: HookedBackend
) -> None:
    backend.engine.requests = (REQUEST,)
    app.supervisor.request_stop(drain_s=30)
    app.log.wait(lambda c: c.status.drain is not None, DEADLINE_S)
    app.supervisor.request_stop()
    app.wait_for(EngineState.STOPPED)
    assert app.supervisor.status.drain is None
    backend.engine.requests = ()
    assert_nothing_begins(app)
    assert app.supervisor.status.state is EngineState.STOPPED


def test_switching_now_replaces_a_switch_that_waits(
    app: Supervised, backend: HookedBackend
) -> None:
    first = backend.engine
    first.requests = (REQUEST,)
    app.supervisor.request_restart(OTHER_PRESET, drain_s=30)
    app.log.wait(lambda c: c.status.drain is not None, DEADLINE_S)
    after = len(app.log.changes)
    app.supervisor.request_restart(PRESET)
    app.wait_for(EngineState.READY, after=after)
    first.requests = ()
    assert_nothing_begins(app)
    assert (app.supervisor.status.preset, app.supervisor.status.generation) == ("tiny", 2)


def test_giving_up_too_late_does_not_bring_the_old_engine_back(
    app: Supervised, backend: HookedBackend
) -> None:
    first = backend.engine
    first.requests = (REQUEST,)
    app.supervisor.request_restart(OTHER_PRESET, drain_s=30)
    app.log.wait(lambda c: c.status.drain is not None, DEADLINE_S)
    after = len(app.log.changes)
    first.requests = ()
    app.wait_for(EngineState.READY, after=after)
    first.cause_of_death = "It was ended."
    app.supervisor.cancel_drain()
    assert_nothing_begins(app)
    assert app.get().status_code == 200


def test_what_belongs_to_a_replacement_is_done_when_it_begins(
    app: Supervised, backend: HookedBackend
) -> None:
    begun: list[str] = []
    backend.engine.requests = (REQUEST,)
    app.supervisor.request_restart(OTHER_PRESET, 30, lambda: begun.append("given up"))
    app.log.wait(lambda c: c.status.drain is not None, DEADLINE_S)
    app.supervisor.cancel_drain()
    app.supervisor.request_restart(OTHER_PRESET, 0, lambda: begun.append("begun"))
    app.log.wait(lambda c: c.status.generation == 2, DEADLINE_S)
    assert begun == ["begun"]


def test_an_engine_that_dies_while_draining_has_failed(
    app: Supervised, backend: HookedBackend
) -> None:
    backend.engine.requests = (REQUEST,)
    app.supervisor.request_restart(OTHER_PRESET, drain_s=30)
    app.log.wait(lambda c: c.status.drain is not None, DEADLINE_S)
    backend.engine.cause_of_death = "It died."
    app.wait_for(EngineState.FAILED)
    assert app.supervisor.status.drain is None


def test_after_a_failed_switch_the_last_ready_preset_is_offered(
    app: Supervised, backend: HookedBackend
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no")

    backend.on_load = fail
    app.supervisor.request_restart(OTHER_PRESET)
    app.wait_for(EngineState.FAILED)
    assert app.supervisor.status.previous_preset == "tiny"
