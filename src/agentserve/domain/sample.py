"""What the engine reports while it runs, in our own types.

The engine package makes these values; telemetry accumulates them. Neither knows the other: they
meet in `EngineObserver`, which the composition root hands from one to the other.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from agentserve.domain.request import InFlightRequest, RequestRecord


class SpecDecodeSample(msgspec.Struct, frozen=True):
    """Speculative decoding in one engine step."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]


class StepSample(msgspec.Struct, frozen=True, kw_only=True):
    """One engine step. Token and request counts are deltas of this step; None is 'not reported'."""

    running_requests: int | None
    waiting_requests: int | None
    kv_usage_fraction: float | None
    """Blocks of running requests only: 0 with a warm but idle cache."""
    prefix_requests: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    computed_prompt_tokens: int | None
    """Prompt tokens computed in this step."""
    generated_tokens: int
    preemptions: int
    itl_s: tuple[float, ...]
    """One latency per output event; with MTP an event can carry several tokens."""
    spec_decode: SpecDecodeSample | None


class SchedulerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What only the engine's scheduler knows; asked of it through our plugin."""

    blocks_in_use: int
    blocks_warm: int
    """Cached blocks that nobody uses: reusable, and evictable."""
    blocks_free: int
    """Blocks with nothing in them."""
    live_token_budget: int
    """Tokens per step now; at most the budget that the engine was started with."""
    computed_prompt_tokens: dict[str, int]
    """Prompt tokens computed so far of each running request, by the engine's internal id."""


class EngineObserver(Protocol):
    """Receives what an engine reports, on the engine's thread: must be O(1) and never block."""

    def generation_ready(self, generation: int) -> None:
        """A new engine is ready: all windows and totals begin anew."""

    def step(self, sample: StepSample) -> None:
        """The engine finished a step."""

    def first_token(self, ttft_s: float, cached_tokens: int | None, prompt_tokens: int) -> None:
        """A request got its first output; called once a request, never for an internal one.

        Args:
            ttft_s: From arrival in the engine client to the first output of the first choice.
            cached_tokens: Prompt tokens taken from the prefix cache; None when not reported.
            prompt_tokens: All tokens of the prompt, cached ones included.
        """

    def request_finished(self, record: RequestRecord) -> None:
        """A request ended, in whatever way."""


class InFlightSource(Protocol):
    """Lists the requests that are running or waiting now; may be called from any thread."""

    def in_flight(self) -> tuple[InFlightRequest, ...]:
        """The requests in order of arrival."""
