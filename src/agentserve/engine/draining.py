"""Waiting for requests in flight before an engine is replaced.

Owns the countdown. New requests are refused while it runs; those in flight go on until they finish
or the time is up. What happens then is the supervisor's business.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from agentserve.domain.lifecycle import DrainStatus
from agentserve.engine.backend import RunningEngine
from agentserve.engine.front import Front, Unavailable

DRAIN_S = 60.0
"""How long requests may take to finish after a switch was asked for, in seconds."""
_POLL_S = 0.1


class Drain:
    """One countdown, on the serving loop.

    Args:
        front: Refuses new requests meanwhile.
        engine: Whose requests are waited for.
        status: What is waited for and until when; its clock is `clock`.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        front: Front,
        engine: RunningEngine,
        status: DrainStatus,
        clock: Callable[[], float],
    ) -> None:
        self._front = front
        self._engine = engine
        self._status = status
        self._clock = clock
        self._waiting: asyncio.Task[None] | None = None

    def begin(self, on_done: Callable[[], None]) -> None:
        """Refuse new requests, and call `on_done` when none is left or the time is up."""
        left_s = max(1.0, self._status.deadline_s - self._clock())
        self._front.detach(
            Unavailable("The engine is about to be replaced.", retry_after_s=math.ceil(left_s))
        )
        self._waiting = asyncio.create_task(self._wait(on_done))

    def give_up(self) -> None:
        """Stop waiting and let requests in again."""
        self.cancel()
        self._front.attach(self._engine.app, self._engine.death)

    def cancel(self) -> None:
        """Stop waiting; the front stays as it is."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    async def _wait(self, on_done: Callable[[], None]) -> None:
        while self._engine.in_flight() and self._clock() < self._status.deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        self._waiting = None
        on_done()
