"""What the supervisor needs from an engine, whatever makes it.

Owns the contract between the supervisor and a backend. A backend knows how one engine is loaded and
ended; it never decides when, and it never writes engine state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

import msgspec

from agentserve.domain.lifecycle import EngineFacts, StartPhase
from agentserve.domain.preset import Preset
from agentserve.domain.request import InFlightRequest
from agentserve.domain.sample import EngineObserver, SchedulerFacts
from agentserve.engine.engine_processes import EngineMark

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI 3 application (asgi.readthedocs.io)."""

PhaseListener = Callable[[StartPhase], None]


class StartOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One start."""

    preset: Preset
    mark: EngineMark
    """Generation, and what every process of this engine must bear."""
    observer: EngineObserver


class RunningEngine(Protocol):
    """A loaded engine, used on the serving loop except where noted."""

    @property
    def facts(self) -> EngineFacts:
        """What the engine says about itself."""

    @property
    def app(self) -> AsgiApp:
        """The engine's own HTTP application."""

    def death(self) -> str | None:
        """One line about why the engine is dead, or None while it lives; from any thread."""

    def in_flight(self) -> tuple[InFlightRequest, ...]:
        """Requests that are not finished, in order of arrival; from any thread."""

    @property
    def scheduler_facts(self) -> SchedulerFacts | None:
        """The scheduler's newest answer; None where it cannot be asked; from any thread."""

    async def open(self) -> None:
        """Make the application ready to be called; runs its lifespan start-up."""

    async def close(self) -> None:
        """Run the application's lifespan shut-down; no request may be accepted any more."""

    def shut_down(self) -> None:
        """End the engine and its processes; blocks; called on a thread of its own."""


class Launch(Protocol):
    """One start under way."""

    def load(self, on_phase: PhaseListener) -> RunningEngine:
        """Load the engine; blocks; called on a thread of its own.

        Raises:
            StartAbortedError: `abort` was called.
            AgentServeError: The start failed for a known reason.
        """

    def abort(self) -> None:
        """Make `load` end soon; from any thread, any number of times."""


class EngineBackend(Protocol):
    """Makes engines."""

    @property
    def simulated(self) -> bool:
        """True when no real model runs."""

    @property
    def smoke_route(self) -> str:
        """The path that the fixed prompt before READY is posted to."""

    def launch(self, order: StartOrder) -> Launch:
        """Prepare a start; does no work yet."""
