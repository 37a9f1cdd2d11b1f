from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from agentserve.domain.cache_event import CacheEvents
from agentserve.domain.sample import CacheFacts
from agentserve.telemetry.sessions.exchange import NO_SESSIONS, MonitorInput, SessionsView
from agentserve.telemetry.sessions.monitor import SessionMonitor
from agentserve.telemetry.sessions.tracker import SessionTracker
from tests.unit.telemetry.sessions.scripted_engine import LAYOUT

LIMIT_S = 10.0


class Recorded(SessionMonitor):
    """Notes on which thread it is used, and fails when told."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[str] = set()
        self.handled: list[object] = []
        self.fails = False

    def handle(self, value: MonitorInput) -> None:
        self.threads.add(threading.current_thread().name)
        if self.fails:
            raise ValueError("secret prompt text")
        self.handled.append(value)
        super().handle(value)

    def view(self) -> SessionsView:
        self.threads.add(threading.current_thread().name)
        return super().view()


class World:
    def __init__(self) -> None:
        self.monitor = Recorded()
        self.errors: list[BaseException] = []
        self.tracker = SessionTracker(lambda: self.monitor, self.errors.append)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.tracker.start()
    yield world
    world.tracker.close(LIMIT_S)


def facts(generation: int) -> CacheFacts:
    return CacheFacts(generation=generation, layout=LAYOUT)


def test_everything_is_handled_in_order_on_one_thread(world: World) -> None:
    values = [facts(1), CacheEvents(generation=1, events=()), facts(2)]
    world.tracker.cache_facts(values[0])  # type: ignore[arg-type]
    world.tracker.cache_events(values[1])  # type: ignore[arg-type]
    world.tracker.cache_facts(values[2])  # type: ignore[arg-type]
    assert world.tracker.flush(LIMIT_S)
    assert world.monitor.handled == values
    assert world.monitor.threads == {"session-tracker"}


def test_a_view_is_published_without_asking(world: World) -> None:
    before = world.tracker.view()
    world.tracker.cache_facts(CacheFacts(generation=1, layout=None))
    assert world.tracker.flush(LIMIT_S)
    after = world.tracker.view()
    assert before is NO_SESSIONS
    assert after.monitor.residency_problem is not None
    assert world.tracker.view() is after


def test_a_fault_is_reported_and_tracking_goes_on(world: World) -> None:
    world.monitor.fails = True
    world.tracker.cache_facts(facts(1))
    assert world.tracker.flush(LIMIT_S)
    world.monitor.fails = False
    world.tracker.cache_facts(facts(2))
    assert world.tracker.flush(LIMIT_S)
    assert [type(error) for error in world.errors] == [ValueError]
    assert world.monitor.handled == [facts(2)]


def test_what_waits_is_handled_before_the_end() -> None:
    world = World()
    for generation in range(100):
        world.tracker.cache_facts(facts(generation))
    world.tracker.start()
    world.tracker.close(LIMIT_S)
    assert len(world.monitor.handled) == 100


def test_closing_what_never_started_returns() -> None:
    World().tracker.close(LIMIT_S)


def test_an_app_without_an_engine_does_not_load_the_monitor() -> None:
    script = (
        "import sys, agentserve.cli.product;"
        "sys.exit('agentserve.telemetry.sessions.monitor' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
