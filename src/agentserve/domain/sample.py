"""What the engine reports while it runs, in our own types.

The engine package makes these values; telemetry accumulates them. Neither knows the other: they
meet in `EngineObserver`, which the composition root hands from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from agentserve.domain.cache_event import CacheEvents, CacheEventsLost
from agentserve.domain.cache_layout import CacheLayout
from agentserve.domain.request import FirstToken, InFlightRequest, RequestRecord, RequestStart


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
    """What only the engine's scheduler knows; asked of it through our plugin.

    The counts of blocks are of one moment, some seconds ago in a pool of very many blocks.
    """

    blocks_in_use: int
    blocks_warm: int
    """Cached blocks that nobody uses: reusable, and evictable."""
    blocks_free: int
    """Blocks with nothing in them."""
    live_token_budget: int
    """Tokens per step now; at most the budget that the engine was started with."""
    computed_prompt_tokens: dict[str, int]
    """Prompt tokens computed so far of each running request, by the engine's internal id."""
    blocks_cached: int | None = None
    """Blocks that can be reused, in use or not."""


class CacheFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says about its prefix cache before its first request."""

    generation: int
    layout: CacheLayout | None
    """None where the scheduler cannot be asked: then nothing can be expected."""
    decode: Callable[[Sequence[int]], str] | None = None
    """Turns token ids into text; from any thread."""


class EngineObserver(Protocol):
    """Receives what an engine reports: must be O(1) and never block.

    Called on the engine's thread, the two methods about cache events on a thread of their own.
    """

    def generation_ready(self, generation: int) -> None:
        """A new engine is ready: all windows and totals begin anew."""

    def step(self, sample: StepSample) -> None:
        """The engine finished a step."""

    def request_started(self, start: RequestStart) -> None:
        """A request was handed to the engine; never called for an internal one."""

    def first_token(self, first: FirstToken) -> None:
        """A request got its first output; called once a request, never for an internal one."""

    def request_finished(self, record: RequestRecord, answer_token_ids: Sequence[int]) -> None:
        """A request ended, in whatever way.

        Args:
            record: Facts about it.
            answer_token_ids: Tokens of the answer; empty where there were several.
        """

    def cache_facts(self, facts: CacheFacts) -> None:
        """A new engine's cache is empty; called before the first event of its generation."""

    def cache_events(self, events: CacheEvents | CacheEventsLost) -> None:
        """Blocks of the prefix cache were stored, removed or looked up."""


class InFlightSource(Protocol):
    """Lists the requests that are running or waiting now; may be called from any thread."""

    def in_flight(self) -> tuple[InFlightRequest, ...]:
        """The requests in order of arrival."""
