"""One request of the simulated engine, from arrival to its record.

Owns what is counted and stamped, and the values that report it. It must not know why anything
happens. Durations follow the play's own clock, so that a slow machine does not bend them; points in
time are true ones.
"""

from __future__ import annotations

import time

from agentserve.domain.request import (
    FirstToken,
    InFlightRequest,
    RequestOrigin,
    RequestOutcome,
    RequestRecord,
    RequestStart,
)
from agentserve.engine.simulated_agents import SimulatedAgent, SimulatedRequest


class SimulatedTurn:
    """A request while it runs.

    Args:
        number: Unique within the life of the app.
        generation: Number of the start.
        agent: Who asks.
        request: What it asks.
        answer_tokens: The answer ends after these; early when it is to be aborted.
        at_s: Now, on the play's clock.
    """

    def __init__(
        self,
        number: int,
        generation: int,
        agent: SimulatedAgent,
        request: SimulatedRequest,
        answer_tokens: int,
        at_s: float,
    ) -> None:
        self.number = number
        self.agent = agent
        self.request = request
        self.answer_tokens = answer_tokens
        self.cached_tokens: int | None = None
        """None while it waits."""
        self.computed_tokens = 0
        self.generated_tokens = 0
        self._generation = generation
        self._started_at_s = at_s
        self._admitted_at_s: float | None = None
        self._first_token_at_s: float | None = None

    @property
    def engine_request_id(self) -> str:
        """The id that events call it by."""
        return f"simulated-{self.number}"

    @property
    def prompt_tokens(self) -> int:
        """Length of its prompt."""
        return len(self.request.prompt)

    @property
    def admitted(self) -> bool:
        """Whether it runs."""
        return self._admitted_at_s is not None

    @property
    def decoding(self) -> bool:
        """Whether its whole prompt is computed."""
        return self._first_token_at_s is not None

    @property
    def aborted(self) -> bool:
        """Whether its answer ends early."""
        return self.generated_tokens < len(self.request.answer)

    def admit(self, cached_tokens: int, at_s: float) -> None:
        """It begins to run, with this much reused."""
        self._admitted_at_s = at_s
        self.cached_tokens = cached_tokens

    def start(self) -> RequestStart:
        """What is reported of it at arrival."""
        profile = self.agent.profile
        return RequestStart(
            number=self.number,
            generation=self._generation,
            engine_request_id=self.engine_request_id,
            origin=RequestOrigin(
                number=self.number, route=profile.route, user_agent=profile.user_agent
            ),
            at_unix_s=time.time(),
            choices=1,
            prompt_token_ids=self.request.prompt,
            cache_salt=None,
            body=self.request.body,
        )

    def first_token(self, at_s: float) -> FirstToken:
        """It has its first output; returns what is reported of that."""
        self._first_token_at_s = at_s
        return FirstToken(
            number=self.number,
            ttft_s=at_s - self._started_at_s,
            queued_s=self._queued_s,
            cached_tokens=self.cached_tokens,
            prompt_tokens=self.prompt_tokens,
        )

    def in_flight(self, now_s: float) -> InFlightRequest:
        """What is shown of it while it runs."""
        running = "decode" if self.decoding else "prefill"
        return InFlightRequest(
            number=self.number,
            request_id=self.engine_request_id,
            route=self.agent.profile.route,
            agent=self.agent.profile.user_agent,
            phase=running if self.admitted else "queued",
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            computed_tokens=self.computed_tokens,
            generated_tokens=self.generated_tokens,
            elapsed_s=now_s - self._started_at_s,
        )

    def record(self, now_s: float) -> RequestRecord:
        """What is reported of it at its end."""
        first_token_at_s = self._first_token_at_s
        reported = first_token_at_s is not None
        return RequestRecord(
            number=self.number,
            request_id=self.engine_request_id,
            generation=self._generation,
            route=self.agent.profile.route,
            agent=self.agent.profile.user_agent,
            finished_at_unix_s=time.time(),
            outcome=RequestOutcome.ABORTED if self.aborted else RequestOutcome.STOP,
            choices=1,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens if reported else None,
            computed_tokens=self.computed_tokens if reported else None,
            generated_tokens=self.generated_tokens,
            queued_s=self._queued_s,
            ttft_s=None if first_token_at_s is None else first_token_at_s - self._started_at_s,
            decode_s=None if first_token_at_s is None else now_s - first_token_at_s,
            elapsed_s=now_s - self._started_at_s,
            preemptions=0,
        )

    @property
    def _queued_s(self) -> float | None:
        return None if self._admitted_at_s is None else self._admitted_at_s - self._started_at_s
