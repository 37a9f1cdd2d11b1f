"""The prefix cache of the running engine as its events tell it, and what lookups found there.

Owns the replay of one engine at a time, lookups by the engine's request ids, and whose blocks they
are. It must not know turns, prompts' text or verdicts.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence

from agentserve.domain.cache_event import (
    CacheContents,
    CacheEvents,
    CacheEventsLost,
    PrefixLookup,
)
from agentserve.domain.cache_layout import FULL_ATTENTION, CacheLayout
from agentserve.domain.sample import CacheFacts
from agentserve.domain.session import EvictionView, PoolShare
from agentserve.telemetry.prefix_cache.residency import ResidencyMap
from agentserve.telemetry.prefix_cache.reuse import find_losses, find_reuse, resident_tokens
from agentserve.telemetry.sessions.block_owners import BlockOwners
from agentserve.telemetry.sessions.judgement import Lookup
from agentserve.telemetry.sessions.prompt_memory import RememberedPrompt

LOOKUPS_KEPT = 256
"""Lookups that are kept until their request ends; those of unknown requests leave by age."""
NOT_ASKED = "This vLLM's scheduler cannot be asked, so what is resident is unknown."
NOT_PREDICTABLE = "This model's cache has groups whose lookup is not known here."
EVENTS_LOST = (
    "Cache events were lost: what is resident is unknown until the engine lists it, with the next"
    " request."
)
EVENTS_ENDED = "No cache events come any more: what is resident is unknown until the next start."
DOUBTFUL = "what is resident may be wrong until the next start."


class CacheReplay:
    """Replays cache events.

    Args:
        unix_clock: Unix time, seconds.
    """

    def __init__(self, unix_clock: Callable[[], float]) -> None:
        self._unix_clock = unix_clock
        self.generation = 0
        self.decode: Callable[[Sequence[int]], str] | None = None
        self._problem: str | None = None
        self.owners = BlockOwners()
        self._layout: CacheLayout | None = None
        self._residency: ResidencyMap | None = None
        self._lost_residency: ResidencyMap | None = None
        """Goes on when the engine has listed what is resident."""
        self._lookups: OrderedDict[str, Lookup] = OrderedDict()

    @property
    def problem(self) -> str | None:
        """Why it is not known what is resident, in one sentence; None while it is known."""
        residency = self._residency
        if residency is not None and residency.unmatched_removals:
            return f"Blocks left that never came ({residency.unmatched_removals:,}): {DOUBTFUL}"
        return self._problem

    @property
    def residency_known(self) -> bool:
        """Whether lookups can be explained."""
        return self._residency is not None

    @property
    def version(self) -> int | None:
        """Another one whenever something else is resident; None while that is not known."""
        return None if self._residency is None else self._residency.version

    @property
    def hash_block_tokens(self) -> int:
        """Tokens per block hash; 0 when it is not known."""
        return 0 if self._layout is None else self._layout.hash_block_tokens

    @property
    def block_tokens(self) -> int | None:
        """The step in which prefixes are reused."""
        return None if self._layout is None else self._layout.block_tokens

    def begin(self, facts: CacheFacts) -> None:
        """Another engine begins with an empty cache."""
        self.generation = facts.generation
        self.decode = facts.decode
        self._layout = layout = facts.layout
        self._lookups.clear()
        self.owners.clear()
        self._residency = self._lost_residency = None
        if layout is None:
            self._problem = NOT_ASKED
        elif not layout.predictable:
            self._problem = NOT_PREDICTABLE
        else:
            self._problem = None
            self._residency = ResidencyMap(layout)

    def lose(self, lost: CacheEventsLost) -> None:
        """Stop: a replay with a gap would be wrong."""
        if lost.generation != self.generation:
            return
        if self._residency is not None:
            self._lost_residency, self._residency = self._residency, None
        if self._lost_residency is not None:
            self._problem = EVENTS_LOST if lost.batches else EVENTS_ENDED

    def apply(self, batch: CacheEvents) -> list[str]:
        """Replay some events.

        Returns:
            The engine's ids of the requests that were looked up.
        """
        looked_up: list[str] = []
        if batch.generation != self.generation:
            return looked_up
        residency = self._residency
        replay = None if residency is None else residency.apply
        for event in batch.events:
            if isinstance(event, PrefixLookup) and not event.preemptions:
                self._look_up(event)
                looked_up.append(event.request_id)
            if replay is not None:
                replay(event)
            elif isinstance(event, CacheContents):
                residency = self._begin_again(event)
                replay = None if residency is None else residency.apply
        if residency is not None:
            self.owners.evicted(residency.take_evictions(), self._unix_clock())
        return looked_up

    def _begin_again(self, contents: CacheContents) -> ResidencyMap | None:
        residency = self._lost_residency
        if residency is None:
            return None
        try:
            residency.begin_again(contents)
        except ValueError:
            return None
        self._residency, self._lost_residency, self._problem = residency, None, None
        return residency

    def lookup(self, engine_request_id: str) -> Lookup | None:
        """The newest lookup of a request before any preemption."""
        return self._lookups.get(engine_request_id)

    def forget_lookup(self, engine_request_id: str) -> None:
        """The request ended."""
        self._lookups.pop(engine_request_id, None)

    def _look_up(self, event: PrefixLookup) -> None:
        known = self._lookups.pop(event.request_id, None)
        hashes = event.block_hashes
        if hashes is None and known is not None:
            hashes = known.hashes
        self._lookups[event.request_id] = self._find(hashes, event.prompt_tokens)
        while len(self._lookups) > LOOKUPS_KEPT:
            self._lookups.popitem(last=False)

    def _find(self, hashes: array[int] | None, prompt_tokens: int) -> Lookup:
        residency = self._residency
        if hashes is None or residency is None:
            return Lookup(hashes, None, None)
        reuse = find_reuse(residency, hashes, prompt_tokens)
        losses = None if reuse is None else find_losses(residency, hashes, reuse)
        return Lookup(hashes, reuse, losses)

    def resident_tokens(self, prompt: RememberedPrompt) -> int | None:
        """How much of a prompt a next turn could reuse now; None when that is not known."""
        residency = self._residency
        if residency is None or prompt.hashes is None:
            return None
        if prompt.hash_tokens == self.hash_block_tokens:
            return resident_tokens(residency, prompt.hashes)
        if any(group.kind != FULL_ATTENTION for group in residency.layout.groups):
            # States are kept at some positions only, and which they are is not among these hashes.
            return None
        return prompt.coarse_resident_tokens(residency.tables)

    @property
    def cached_blocks(self) -> int | None:
        """Resident blocks; None when they are not known."""
        return None if self._residency is None else self._residency.cached_blocks

    @property
    def shares(self) -> tuple[PoolShare, ...]:
        """Whose blocks they are."""
        residency = self._residency
        if residency is None:
            return ()
        return self.owners.shares(residency.owned_blocks(), residency.cached_blocks)

    @property
    def evictions(self) -> tuple[EvictionView, ...]:
        """Newest first."""
        return self.owners.evictions
