"""Starts, watches and ends engines: the single writer of engine state.

Everything here runs on the serving loop. Requests from other threads only set what is wanted and
wake it; `status` is a snapshot that it replaces as a whole. What one engine needs is in
`agentserve.engine.generation`. It does not know vLLM, files or the screen.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from agentserve.domain.errors import AgentServeError
from agentserve.domain.failure import Failure
from agentserve.domain.lifecycle import (
    DrainStatus,
    EngineState,
    EngineStatus,
    StartPhase,
    StateChanged,
    may_follow,
)
from agentserve.domain.preset import Preset
from agentserve.domain.sample import EngineObserver
from agentserve.engine.app_log import log_exception
from agentserve.engine.backend import EngineBackend, RunningEngine, StartOrder
from agentserve.engine.blocking_call import call_in_thread, done_before
from agentserve.engine.collaborators import LogSource, StartHistory
from agentserve.engine.draining import Drain
from agentserve.engine.engine_processes import EngineMark, EngineProcess
from agentserve.engine.error_failure import (
    failure_from_error,
    failure_from_log,
    stated_failure,
)
from agentserve.engine.front import Front, Unavailable
from agentserve.engine.generation import Generation
from agentserve.engine.phases import PhaseTracker, phase_of_line

_LOG_SETTLE_S = 0.3
"""After a death the last log lines are still on their way through the pipe."""
_CANCEL_S = 0.7
_IDLE = frozenset({EngineState.STOPPED, EngineState.FAILED})
_SILENT_PHASES = frozenset({StartPhase.IMPORT, StartPhase.CONFIG})
"""No engine process runs in these: a line that names a phase is a late one of the engine before."""


class EngineSupervisor:
    """Runs at most one engine at a time.

    Args:
        backend: Makes engines.
        front: Gets the engine's application while it is ready.
        observer: Gets what the engine reports.
        app_id: Identifies this app to its processes.
        runtime_dir: Private folder of this app.
        on_change: Called on the serving loop at each change of state or phase; must not block.
        history: Durations of earlier starts.
        log: Source for explanations.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        backend: EngineBackend,
        front: Front,
        observer: EngineObserver,
        app_id: str,
        runtime_dir: Path,
        on_change: Callable[[StateChanged], None],
        history: StartHistory,
        log: LogSource,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._front = front
        self._observer = observer
        self._app_id = app_id
        self._runtime_dir = runtime_dir
        self._on_change = on_change
        self._history = history
        self._log = log
        self._clock = clock
        self._status = EngineStatus(simulated=backend.simulated)
        self._engine: RunningEngine | None = None
        self._processes: tuple[EngineProcess, ...] = ()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: deque[Callable[[], None]] = deque()
        self._wanted: Preset | None = None
        self._closing = False
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._phases = PhaseTracker()
        self._log_start = 0
        self._leftover: asyncio.Future[None] | None = None
        self._drain: Drain | None = None
        self._were_ready: list[str] = []

    @property
    def status(self) -> EngineStatus:
        """The newest published status; from any thread."""
        return self._status

    @property
    def engine(self) -> RunningEngine | None:
        """The engine while it is ready, else None; from any thread."""
        return self._engine

    @property
    def processes(self) -> tuple[EngineProcess, ...]:
        """EngineCore and workers while the engine is ready; from any thread."""
        return self._processes

    @property
    def mark(self) -> EngineMark:
        """What identifies the current generation's processes."""
        return EngineMark(self._app_id, self._status.generation, self._runtime_dir)

    def request_start(self, preset: Preset) -> None:
        """Start `preset` unless something runs, starts or stops; from any thread."""
        self._call(lambda: self._want(preset, replace=False))

    def request_restart(
        self,
        preset: Preset,
        drain_s: float = 0.0,
        on_begin: Callable[[], None] = lambda: None,
    ) -> None:
        """End what runs, then start `preset`; from any thread.

        Args:
            preset: What to start.
            drain_s: How long requests in flight may take to finish first, in seconds.
            on_begin: Called on the serving loop when it can no longer be given up.
        """
        self._call(lambda: self._replace(preset, drain_s, on_begin))

    def request_stop(self, drain_s: float = 0.0) -> None:
        """End what runs or starts; from any thread.

        Args:
            drain_s: How long requests in flight may take to finish first, in seconds.
        """
        self._call(lambda: self._replace(None, drain_s, lambda: None))

    def cancel_drain(self) -> None:
        """Give up a replacement that still waits for requests; from any thread."""

        def cancel() -> None:
            if (drain := self._drain) is not None:
                self._drop_drain()
                drain.give_up()
                self._publish(self._with(drain=None))

        self._call(cancel)

    def request_close(self) -> None:
        """End what runs and return from `run`, within ten seconds; from any thread."""

        def close() -> None:
            self._closing = True
            self._want(None, replace=True)

        self._call(close)

    def observe_line(self, text: str) -> None:
        """Look for a start phase in a log line; on the log reader's thread."""
        if self._status.state is not EngineState.STARTING:
            return
        if (phase := phase_of_line(text)) is not None:
            self._call(lambda: self._enter_logged_phase(phase))

    async def run(self) -> None:
        """Serve requests, earlier ones included, until `request_close`."""
        self._loop = asyncio.get_running_loop()
        self._take_calls()
        try:
            while not self._closing:
                await self._wake.wait()
                self._wake.clear()
                if (preset := self._wanted) is not None and not self._closing:
                    self._wanted = None
                    self._stop.clear()
                    await self._run_one(preset)
        finally:
            if self._leftover is not None:
                self._leftover.cancel()

    def _call(self, function: Callable[[], None]) -> None:
        """Run a function on the loop; kept for `run` when there is no loop yet."""
        self._calls.append(function)
        if self._loop is not None:
            # A closed loop has no engine either, so there is nothing left to ask for.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take_calls)

    def _take_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _want(self, preset: Preset | None, *, replace: bool) -> None:
        if not replace and (self._status.state not in _IDLE or self._wanted is not None):
            return
        self._drop_drain()  # a decision replaces one that still waits
        self._wanted = preset
        self._stop.set()
        self._wake.set()

    def _replace(self, preset: Preset | None, drain_s: float, on_begin: Callable[[], None]) -> None:
        engine = self._engine

        def begin() -> None:
            self._want(preset, replace=True)
            try:
                on_begin()
            except Exception as error:  # noqa: BLE001 - the replacement goes on without it
                log_exception(error)

        if drain_s <= 0 or engine is None or not engine.in_flight():
            begin()
            return
        self._drop_drain()
        target = preset.name if preset else None
        status = DrainStatus(target_preset=target, deadline_s=self._clock() + drain_s)
        self._drain = Drain(self._front, engine, status, self._clock)
        self._drain.begin(begin)
        self._publish(self._with(drain=status))

    def _drop_drain(self) -> None:
        if self._drain is not None:
            self._drain.cancel()
            self._drain = None

    async def _run_one(self, preset: Preset) -> None:
        """Run one engine from its start to its end, whatever goes wrong."""
        failure: Failure | None = None
        try:
            failure = await self._run_generation(preset)
        except Exception as error:  # noqa: BLE001 - after a bug of ours the next start must work
            log_exception(error)
            hint = "Read the log."
            failure = stated_failure("internal", "Error in this app", repr(error), hint)
        finally:
            # vLLM freezes the heap while it serves, and its objects would stay for ever. Only here
            # have all frames that held the engine returned.
            gc.unfreeze()
            gc.collect()
            self._settle(failure)

    async def _run_generation(self, preset: Preset) -> Failure | None:
        generation = self._begin(preset)
        serving = asyncio.create_task(self._serve(generation))
        failure: Failure | None = None
        try:
            if await done_before(serving, self._stop):
                failure = await self._fail(serving)
        finally:
            if failure is None:
                self._front.detach(Unavailable("The engine is stopping."))
                self._publish(self._with(state=EngineState.STOPPING, drain=None))
            problem = await self._end(generation, serving)
        return failure or problem

    def _begin(self, preset: Preset) -> Generation:
        now_s = self._clock()
        number = self._status.generation + 1
        self._phases = PhaseTracker()
        self._log_start = self._log.next_number
        self._front.detach(Unavailable("The engine is starting."))
        self._publish(
            EngineStatus(
                state=EngineState.STARTING,
                generation=number,
                preset=preset.name,
                phase=self._phases.phase,
                started_at_s=now_s,
                phase_started_at_s=now_s,
                expected_start_s=self._history.expected_start_s(preset),
                previous_preset=next((p for p in self._were_ready if p != preset.name), None),
                simulated=self._backend.simulated,
            )
        )
        order = StartOrder(preset=preset, mark=self.mark, observer=self._observer)
        return Generation(self._backend, order)

    async def _serve(self, generation: Generation) -> None:
        """Start an engine and watch it; only ever ends by an exception."""
        if self._leftover is not None:
            await asyncio.wait({self._leftover})
            self._leftover = None

        def on_phase(phase: StartPhase) -> None:
            self._call(lambda: self._enter_phase(generation.number, phase))

        engine = await generation.load(on_phase)
        self._enter_phase(generation.number, StartPhase.WARM_UP)
        self._publish(self._with(state=EngineState.WARMING, facts=engine.facts))
        await generation.warm_up(engine)
        self._enter_ready(generation, engine)
        raise AgentServeError(await generation.until_death(engine))

    def _enter_ready(self, generation: Generation, engine: RunningEngine) -> None:
        now_s = self._clock()
        self._observer.generation_ready(generation.number)
        self._processes = generation.processes
        self._engine = engine
        self._front.attach(engine.app, engine.death)
        self._publish(
            self._with(
                state=EngineState.READY,
                facts=engine.facts,
                finished_phases=self._status.finished_phases_at(now_s),
                phase=None,
                phase_started_at_s=None,
                ready_at_s=now_s,
            )
        )
        preset, began_s = generation.preset, self._status.started_at_s
        self._were_ready = [preset.name, *(p for p in self._were_ready if p != preset.name)]
        if began_s is not None:
            # It writes a file; nothing depends on when.
            call_in_thread(
                "agentserve-history",
                lambda: self._history.record_start(preset, now_s - began_s, engine.facts),
            )

    async def _fail(self, serving: asyncio.Task[None]) -> Failure:
        """Publish why an engine failed, before its remains are cleared away."""
        self._engine, self._processes = None, ()
        self._front.detach(Unavailable("The engine has failed."))
        error = serving.exception() or AgentServeError("The engine ended.")
        failure = await self._explain(error)
        if not isinstance(error, AgentServeError):
            # Raised in this process, so nobody else has printed it.
            log_exception(error)
        self._publish_failed(failure)
        return failure

    async def _end(self, generation: Generation, serving: asyncio.Task[None]) -> Failure | None:
        self._engine, self._processes = None, ()
        serving.cancel()
        await asyncio.wait({serving}, timeout=_CANCEL_S)
        try:
            await generation.end()
        except Exception as error:  # noqa: BLE001 - whatever stays behind is told, not lost
            log_exception(error)
            hint = error.hint if isinstance(error, AgentServeError) else "Read the log."
            return stated_failure("not_ended", "The engine has not ended", str(error), hint)
        finally:
            self._leftover = generation.leftover or self._leftover
        return None

    def _settle(self, failure: Failure | None) -> None:
        if failure is None:
            self._front.detach(Unavailable("No engine is running."))
            self._publish(self._at_rest(state=EngineState.STOPPED, facts=None))
        elif self._status.state is not EngineState.FAILED:
            self._publish_failed(failure)

    def _publish_failed(self, failure: Failure) -> None:
        self._front.detach(Unavailable(f"The engine has failed: {failure.title}."))
        # The facts stay: they help to explain.
        self._publish(self._at_rest(state=EngineState.FAILED, failure=failure))

    def _at_rest(self, **changes: Any) -> EngineStatus:
        return self._with(
            phase=None, phase_started_at_s=None, ready_at_s=None, drain=None, **changes
        )

    async def _explain(self, error: BaseException) -> Failure:
        phase = str(self._status.phase or "ready")
        if (failure := failure_from_error(error, phase)) is not None:
            return failure
        await asyncio.sleep(_LOG_SETTLE_S)
        lines = self._log.texts_since(self._log_start)
        return await call_in_thread(
            "agentserve-explain", lambda: failure_from_log(error, phase, lines)
        )

    def _enter_logged_phase(self, phase: StartPhase) -> None:
        if self._phases.phase not in _SILENT_PHASES:
            self._enter_phase(self._status.generation, phase)

    def _enter_phase(self, generation: int, phase: StartPhase) -> None:
        status = self._status
        # An abandoned load of an earlier generation may still report.
        if status.state is not EngineState.STARTING or status.generation != generation:
            return
        if self._phases.enter(phase):
            now_s = self._clock()
            self._publish(
                self._with(
                    phase=phase,
                    phase_started_at_s=now_s,
                    finished_phases=self._status.finished_phases_at(now_s),
                )
            )

    def _with(self, **changes: Any) -> EngineStatus:
        return msgspec.structs.replace(self._status, **changes)

    def _publish(self, status: EngineStatus) -> None:
        previous = self._status.state
        assert status.state is previous or may_follow(previous, status.state), (
            f"{previous} -> {status.state}"
        )
        self._status = status
        try:
            self._on_change(StateChanged(status, previous))
        except Exception as error:  # noqa: BLE001 - a listener's bug must not end the supervisor
            log_exception(error)
