"""An engine that does nothing by itself: each of its steps can be held, broken or watched."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import msgspec

from agentserve.domain.errors import StartAbortedError
from agentserve.domain.lifecycle import EngineFacts
from agentserve.domain.request import InFlightRequest
from agentserve.domain.sample import SchedulerFacts
from agentserve.engine.backend import (
    AsgiApp,
    PhaseListener,
    Receive,
    Scope,
    Send,
    StartOrder,
)
from tests.harness.waiting import wait_until

FACTS = EngineFacts(
    vllm_version="0",
    device="none",
    model="model",
    served_model_name="model",
    tensor_parallel_size=2,
    max_model_len=100,
)


REQUEST = InFlightRequest(
    request_id="one",
    route="/v1/completions",
    phase="decode",
    prompt_tokens=8,
    cached_tokens=0,
    computed_tokens=8,
    generated_tokens=1,
    elapsed_s=1.0,
)


async def answer_completion(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer every request with a completion of four tokens."""
    while (await receive()).get("more_body", False):
        continue
    body = msgspec.json.encode({"choices": [{"text": "."}], "usage": {"completion_tokens": 4}})
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _nothing() -> None:
    return None


def wait_for_release(release: threading.Event) -> Callable[[], Awaitable[None]]:
    """An `on_open` or `on_close` that cannot be cancelled, as code with a bare `except` cannot."""

    async def wait() -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue

    return wait


class HookedBackend:
    """Makes `HookedEngine`s; `launches` holds every order that came."""

    simulated = False
    smoke_route = "/v1/completions"

    def __init__(self) -> None:
        self.launches: list[HookedLaunch] = []
        self.behave()

    def behave(self) -> None:
        """Take all hooks back."""
        self.on_load: Callable[[HookedLaunch, PhaseListener], object] = lambda *_: None
        self.on_abort: Callable[[HookedLaunch], object] = lambda launch: launch.aborted.set()
        self.on_open: Callable[[], Awaitable[object]] = _nothing
        self.on_close: Callable[[], Awaitable[object]] = _nothing
        self.on_shut_down: Callable[[], object] = lambda: None
        self.app: AsgiApp = answer_completion

    def launch(self, order: StartOrder) -> HookedLaunch:
        launch = HookedLaunch(self, order)
        self.launches.append(launch)
        return launch

    def wait_for_load(self, number: int = 1) -> None:
        """Wait until so many loads have begun: a start that is stopped at once has none."""
        wait_until(
            lambda: sum("loading" in launch.events for launch in tuple(self.launches)) >= number,
            20.0,
            f"load {number} has begun",
        )

    @property
    def engine(self) -> HookedEngine:
        """The newest engine."""
        engine = self.launches[-1].engine
        assert engine is not None
        return engine


class HookedLaunch:
    """One start; `events` tells what happened to its engine, in order."""

    def __init__(self, backend: HookedBackend, order: StartOrder) -> None:
        self.backend = backend
        self.order = order
        self.aborted = threading.Event()
        self.events: list[str] = []
        self.engine: HookedEngine | None = None

    def load(self, on_phase: PhaseListener) -> HookedEngine:
        self.events.append("loading")
        self.backend.on_load(self, on_phase)
        self.engine = HookedEngine(self)
        self.events.append("loaded")
        return self.engine

    def abort(self) -> None:
        self.events.append("abort")
        self.backend.on_abort(self)


def hang_until_aborted(launch: HookedLaunch, on_phase: PhaseListener) -> None:
    """An `on_load` that ends as vLLM's does when its processes are gone."""
    launch.aborted.wait()
    raise StartAbortedError("The start was aborted.")


class HookedEngine:
    """See `agentserve.engine.backend.RunningEngine`."""

    def __init__(self, launch: HookedLaunch) -> None:
        self._launch = launch
        self._backend = launch.backend
        self.cause_of_death: str | None = None
        self.requests: tuple[InFlightRequest, ...] = ()

    @property
    def facts(self) -> EngineFacts:
        return FACTS

    @property
    def app(self) -> AsgiApp:
        return self._backend.app

    @property
    def scheduler_facts(self) -> SchedulerFacts | None:
        return None

    def death(self) -> str | None:
        return self.cause_of_death

    def in_flight(self) -> tuple[InFlightRequest, ...]:
        return self.requests

    async def open(self) -> None:
        self._launch.events.append("opening")
        try:
            await self._backend.on_open()
        except asyncio.CancelledError:
            self._launch.events.append("open cancelled")
            raise
        self._launch.events.append("open")

    async def close(self) -> None:
        self._launch.events.append("closing")
        await self._backend.on_close()
        self._launch.events.append("closed")

    def shut_down(self) -> None:
        self._launch.events.append("shutting down")
        self._backend.on_shut_down()
        self._launch.events.append("shut down")
