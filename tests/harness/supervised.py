"""A supervisor as the app runs it: on a real serving loop, behind the front, on a real socket."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import httpx

from agentserve.domain.cache_event import CacheEvents, CacheEventsLost
from agentserve.domain.lifecycle import EngineFacts, EngineState, StartPhase, StateChanged
from agentserve.domain.preset import EngineOptions, Preset
from agentserve.domain.request import FirstToken, RequestRecord, RequestStart
from agentserve.domain.sample import CacheFacts, StepSample
from agentserve.engine.backend import EngineBackend
from agentserve.engine.collaborators import LogSource
from agentserve.engine.front import Front
from agentserve.engine.listening import base_url, bind_listener
from agentserve.engine.log_ring import LogRing
from agentserve.engine.output import OutputCapture
from agentserve.engine.serve_loop import ServeLoop
from agentserve.engine.supervisor import EngineSupervisor

PRESET = Preset(name="tiny", engine=EngineOptions(model="model"))
OTHER_PRESET = Preset(name="other", engine=EngineOptions(model="model"))
PHASE_LINES = {
    StartPhase.LOAD: "(Worker_TP0 pid=7) INFO Starting to load model m...",
    StartPhase.PROFILE: "(Worker_TP0 pid=7) INFO Model loading took 9.71 GiB and 1.0 seconds",
    StartPhase.KV_CACHE: "(EngineCore pid=6) INFO Available KV cache memory: 1.63 GiB",
    StartPhase.GRAPHS: "(Worker_TP0 pid=7) INFO Capturing CUDA graphs (decode, FULL)",
}
"""What an engine prints when it enters a phase."""
SETTLED = frozenset({EngineState.STOPPED, EngineState.READY, EngineState.FAILED})
CLOSE_LIMIT_S = 10.0
DEADLINE_S = 20.0
"""For what has no limit of its own: long enough for a busy machine."""


class History:
    """Remembers starts in memory."""

    def __init__(self) -> None:
        self.starts: dict[str, list[float]] = {}
        self.recorded = threading.Event()

    def expected_start_s(self, preset: Preset) -> float | None:
        durations = self.starts.get(preset.name)
        return durations[-1] if durations else None

    def record_start(self, preset: Preset, duration_s: float, facts: EngineFacts) -> None:
        self.starts.setdefault(preset.name, []).append(duration_s)
        self.recorded.set()


class Observer:
    """Counts what an engine reports."""

    def __init__(self) -> None:
        self.generations: list[int] = []
        self.steps: list[StepSample] = []
        self.starts: list[RequestStart] = []
        self.first_tokens: list[FirstToken] = []
        self.records: list[RequestRecord] = []
        self.answers: list[Sequence[int]] = []
        """Token ids of the answers, beside `records`."""
        self.facts: list[CacheFacts] = []
        self.cache: list[CacheEvents | CacheEventsLost] = []

    def generation_ready(self, generation: int) -> None:
        self.generations.append(generation)

    def step(self, sample: StepSample) -> None:
        self.steps.append(sample)

    def request_started(self, start: RequestStart) -> None:
        self.starts.append(start)

    def first_token(self, first: FirstToken) -> None:
        self.first_tokens.append(first)

    def request_finished(self, record: RequestRecord, answer_token_ids: Sequence[int]) -> None:
        self.records.append(record)
        self.answers.append(answer_token_ids)

    def cache_facts(self, facts: CacheFacts) -> None:
        self.facts.append(facts)

    def cache_events(self, events: CacheEvents | CacheEventsLost) -> None:
        self.cache.append(events)


class StateLog:
    """Every published change, and waiting for one."""

    def __init__(self) -> None:
        self.changes: list[StateChanged] = []
        self.listener: Callable[[StateChanged], object] = lambda _: None
        """Called first, on the serving loop."""
        self._changed = threading.Condition()

    def __call__(self, change: StateChanged) -> None:
        self.listener(change)
        with self._changed:
            self.changes.append(change)
            self._changed.notify_all()

    @property
    def states(self) -> list[EngineState]:
        """The states in order, each once until the next one."""
        states = [EngineState.STOPPED]
        for change in self.changes:
            if change.status.state is not states[-1]:
                states.append(change.status.state)
        return states

    def wait(
        self, wanted: Callable[[StateChanged], bool], deadline_s: float, after: int = 0
    ) -> StateChanged:
        """The first change after number `after` that is wanted."""

        def found() -> StateChanged | None:
            return next((change for change in self.changes[after:] if wanted(change)), None)

        with self._changed:
            change = self._changed.wait_for(found, deadline_s)
        assert change is not None, [
            (c.status.state.value, c.status.phase, c.status.failure) for c in self.changes[after:]
        ]
        return change


class Supervised:
    """The running whole."""

    def __init__(
        self,
        backend: EngineBackend,
        runtime_dir: Path,
        port: int = 0,
        log: LogSource | None = None,
        front: Front | None = None,
    ) -> None:
        self.ring = LogRing()
        self.log = StateLog()
        self.history = History()
        self.observer = Observer()
        self.listener = bind_listener("127.0.0.1", port)
        self.port: int = self.listener.getsockname()[1]
        self.front = front or Front(lambda: b'{"schema":1}')
        self.supervisor = EngineSupervisor(
            backend=backend,
            front=self.front,
            observer=self.observer,
            app_id=f"test-{self.port}",
            runtime_dir=runtime_dir,
            on_change=self.log,
            history=self.history,
            log=log or self.ring,
        )
        self.serve_loop = ServeLoop(self.front, self.listener)
        self.client = httpx.Client(base_url=base_url(self.listener), trust_env=False, timeout=10.0)
        self.running: Future[None] | None = None

    def open(self) -> None:
        self.serve_loop.start()
        self.running = self.serve_loop.submit(self.supervisor.run())

    def close(self) -> None:
        """Close as the app does, within the time that the app has."""
        self.client.close()
        try:
            if self.running is not None:
                self.supervisor.request_close()
                self.running.result(CLOSE_LIMIT_S)
        finally:
            assert self.serve_loop.close(5.0)

    def get(self, path: str = "/v1/models") -> httpx.Response:
        return self.client.get(path)

    def start(self, preset: Preset = PRESET) -> None:
        """Start and wait for READY."""
        after = len(self.log.changes)
        self.supervisor.request_start(preset)
        self.wait_for(EngineState.READY, after=after)

    def stop(self) -> None:
        """Stop and wait for STOPPED."""
        after = len(self.log.changes)
        self.supervisor.request_stop()
        self.wait_for(EngineState.STOPPED, after=after)

    def wait_for(
        self, state: EngineState, deadline_s: float = DEADLINE_S, after: int = 0
    ) -> StateChanged:
        """Wait for the first change to `state` after change number `after`."""
        return self.log.wait(lambda c: c.status.state is state, deadline_s, after)

    def wait_for_phase(self, phase: StartPhase) -> None:
        self.log.wait(lambda c: c.status.phase is phase, DEADLINE_S)

    def assert_unavailable(self) -> None:
        """The API says that there is no engine, in the way that clients understand."""
        answer = self.get()
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert answer.json()["error"]["type"] == "engine_unavailable"


@contextlib.contextmanager
def supervised(
    backend: EngineBackend, runtime_dir: Path, *, capture_output: bool = False, port: int = 0
) -> Iterator[Supervised]:
    """Run a supervisor, and close it within ten seconds.

    Args:
        backend: Makes the engines.
        runtime_dir: An empty folder.
        capture_output: Lead descriptors 1 and 2 into the log as the app does. Only inside a test
            function, since pytest moves them around it.
        port: Where to listen.
    """
    with contextlib.ExitStack() as stack:
        whole = Supervised(backend, runtime_dir, port)
        if capture_output:
            capture = OutputCapture(None, whole.ring)
            capture.add_listener(lambda line: whole.supervisor.observe_line(line.text))
            stack.enter_context(capture)
        stack.callback(whole.close)
        whole.open()
        yield whole
