"""One engine, from its launch to the end of its last process.

Owns how a load is aborted, a smoke prompt given up and an engine ended, each within a bounded time.
It knows neither states nor who wants what: the supervisor makes one of these for each start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from agentserve.domain.errors import AgentServeError
from agentserve.domain.preset import Preset
from agentserve.engine.app_log import log_exception, log_line
from agentserve.engine.backend import (
    EngineBackend,
    Launch,
    PhaseListener,
    RunningEngine,
    StartOrder,
)
from agentserve.engine.blocking_call import call_in_thread
from agentserve.engine.engine_processes import (
    EngineProcess,
    end_processes,
    engine_pids,
    engine_processes,
    first_dead,
    shared_memory_of,
)
from agentserve.engine.smoke import run_smoke_prompt

_POLL_S = 0.25
_ABANDON_AFTER_S = 1.0
"""An aborted load without processes (an import) is left to end by itself after this time."""
_ABORT_S = 2.0
_CANCEL_S = 0.5
_CLOSE_S = 1.0
_SHUT_DOWN_S = 1.0
_TERM_GRACE_S = 1.0


class Generation:
    """Loads, watches and ends one engine; used once, on the serving loop.

    `load`, `warm_up` and `until_death` may be cancelled at any point: `end` ends whatever there is
    by then.

    Args:
        backend: Makes the engine.
        order: What to make.
    """

    def __init__(self, backend: EngineBackend, order: StartOrder) -> None:
        self._backend = backend
        self._order = order
        self._launch: Launch | None = None
        self._loading: asyncio.Future[RunningEngine] | None = None
        self._processes: tuple[EngineProcess, ...] = ()
        self._segments: set[Path] = set()
        self._leftover: asyncio.Future[None] | None = None

    @property
    def number(self) -> int:
        """Counts starts."""
        return self._order.mark.generation

    @property
    def preset(self) -> Preset:
        """What was ordered."""
        return self._order.preset

    @property
    def processes(self) -> tuple[EngineProcess, ...]:
        """EngineCore and workers, as found after the load."""
        return self._processes

    @property
    def leftover(self) -> asyncio.Future[None] | None:
        """What could not be interrupted and goes on after `end`, or None.

        A load changes the whole process (imports, environment), so the next one has to wait.
        """
        return self._leftover

    async def load(self, on_phase: PhaseListener) -> RunningEngine:
        """Load the engine.

        Raises:
            Exception: Whatever the backend raised.
        """
        launch = self._launch = self._backend.launch(self._order)
        self._loading = call_in_thread("agentserve-load", lambda: launch.load(on_phase))
        # Not awaited directly: that would cancel the future with us, and lose the engine.
        await asyncio.wait({self._loading})
        engine = self._loading.result()
        await self._find_processes()
        return engine

    async def warm_up(self, engine: RunningEngine) -> None:
        """Open the engine's application and let the smoke prompt pass.

        Raises:
            Exception: Whatever the application raised.
            AgentServeError: The engine died, or gave no usable answer.
        """
        warming = asyncio.create_task(self._open_and_prompt(engine))
        try:
            while not (await asyncio.wait({warming}, timeout=_POLL_S))[0]:
                if (death := self._death(engine)) is not None:
                    raise AgentServeError(death)
            if warming.cancelled():
                raise AgentServeError("The test prompt was cancelled.")
            warming.result()
        finally:
            if not warming.done():
                # Waited for: the application must not be closed while it is still being opened.
                await _cancel(warming)
        await self._find_processes()

    async def until_death(self, engine: RunningEngine) -> str:
        """Wait until the engine or one of its processes ends; one line about it."""
        while True:
            if (death := self._death(engine)) is not None:
                return death
            await asyncio.sleep(_POLL_S)

    async def end(self) -> None:
        """End the load or the engine, and every process; takes at most about nine seconds.

        Raises:
            AgentServeError: A process cannot be ended.
        """
        engine = await self._loaded_engine()
        shutting_down: asyncio.Future[None] | None = None
        if engine is not None:
            await _close(engine)
            # Beside the next step: the engine's own way waits for its processes one by one.
            shutting_down = _shut_down(engine)
        try:
            await self._end_processes()
        finally:
            if shutting_down is not None:
                await asyncio.wait({shutting_down}, timeout=_SHUT_DOWN_S)
                if not shutting_down.done():
                    log_line("The engine's own shut-down hangs; it is left behind.")
                    self._leftover = shutting_down

    async def _open_and_prompt(self, engine: RunningEngine) -> None:
        await engine.open()
        await run_smoke_prompt(
            engine.app, self._backend.smoke_route, engine.facts.served_model_name
        )

    def _death(self, engine: RunningEngine) -> str | None:
        """Look at the processes as well: vLLM takes seconds to notice a killed worker."""
        if (dead := first_dead(self._processes)) is not None:
            return f"The {dead.role} (process {dead.pid}) ended unexpectedly."
        return engine.death()

    async def _find_processes(self) -> None:
        mark = self._order.mark

        def scan() -> tuple[list[EngineProcess], set[Path]]:
            found = engine_processes(mark)
            return found, shared_memory_of([process.pid for process in found])

        found, segments = await call_in_thread("agentserve-scan", scan)
        self._processes = tuple(process for process in found if process.role != "helper")
        # Remembered: a process that is killed later cannot be asked any more.
        self._segments |= segments

    async def _loaded_engine(self) -> RunningEngine | None:
        """The engine, if there is one after an unfinished load was aborted."""
        launch, loading = self._launch, self._loading
        if launch is None or loading is None:
            return None
        if not loading.done():
            await self._abort(launch, loading)
        if not loading.done():
            self._leftover = asyncio.create_task(self._discard(launch, loading))
            return None
        return loading.result() if loading.exception() is None else None

    async def _abort(self, launch: Launch, loading: asyncio.Future[RunningEngine]) -> None:
        began_s = time.monotonic()
        aborting: asyncio.Future[None] | None = None
        while not loading.done():
            if aborting is None or aborting.done():
                # Again and again: processes may be started after the first one.
                aborting = call_in_thread("agentserve-abort", _logged(launch.abort))
            await asyncio.wait({loading}, timeout=_POLL_S)
            elapsed_s = time.monotonic() - began_s
            if elapsed_s >= _ABORT_S:
                return
            if elapsed_s >= _ABANDON_AFTER_S and not await self._has_processes():
                return

    async def _has_processes(self) -> bool:
        mark = self._order.mark
        return bool(await call_in_thread("agentserve-scan", lambda: engine_pids(mark)))

    async def _discard(self, launch: Launch, loading: asyncio.Future[RunningEngine]) -> None:
        """End what an abandoned load still starts."""
        while not loading.done():
            await call_in_thread("agentserve-abort", _logged(launch.abort))
            await asyncio.wait({loading}, timeout=_POLL_S)
        shutting_down = None if loading.exception() else _shut_down(loading.result())
        try:
            await self._end_processes()
        except AgentServeError as error:
            log_exception(error)
        if shutting_down is not None:
            await shutting_down

    async def _end_processes(self) -> None:
        mark, segments = self._order.mark, self._segments
        await call_in_thread(
            "agentserve-end",
            lambda: end_processes(mark, grace_s=_TERM_GRACE_S, segments=segments),
        )


async def _close(engine: RunningEngine) -> None:
    closing = asyncio.create_task(engine.close())
    await asyncio.wait({closing}, timeout=_CLOSE_S)
    if not closing.done():
        log_line("The engine's application does not close; it is left behind.")
    await _cancel(closing)


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task if it is not done, wait a moment, and log what it raised."""
    task.cancel()
    await asyncio.wait({task}, timeout=_CANCEL_S)
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        log_exception(error)


def _shut_down(engine: RunningEngine) -> asyncio.Future[None]:
    return call_in_thread("agentserve-shutdown", _logged(engine.shut_down))


def _logged(function: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - a broken engine's clean-up may raise anything
            log_exception(error)

    return call
