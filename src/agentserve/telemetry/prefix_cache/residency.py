"""Which blocks are resident in the prefix cache, and which request stored them.

Owns the replay of cache events. It must not know what a lookup makes of it, nor sessions.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentserve.domain.cache_event import (
    BlocksAllocated,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheContents,
    CacheEvent,
    PrefixLookup,
)
from agentserve.domain.cache_layout import FULL_ATTENTION, CacheLayout
from agentserve.telemetry.prefix_cache.evictions import Eviction, EvictionSums
from agentserve.telemetry.prefix_cache.lookup import LookupRules, Tables, lookup_rules
from agentserve.telemetry.prefix_cache.removals import Removal, RemovalMemory


class _Owner:
    """A request that stored blocks; shared by all of them, so that a block costs one reference."""

    __slots__ = ("blocks", "request_id")

    def __init__(self, request_id: str | None) -> None:
        self.request_id = request_id
        self.blocks = 0


class ResidencyMap:
    """Replays the events of one engine's cache, O(1) per block.

    A hash that is stored while resident has one more copy. vLLM's events do not say which copy is
    removed. Lookups use and so refresh the oldest copy, so the newest is taken to go first: the
    first storer keeps the hash until its last copy is gone, and each copy counts for its storer.

    Counts are of (group, hash) pairs. That is one for each block, except where a hit may end
    inside a block: there a block can be resident under a second hash, and counts twice.

    Args:
        layout: How the engine's cache is cut.
    """

    def __init__(self, layout: CacheLayout) -> None:
        self.version = 0
        """Grows with every event that changes what is resident."""
        self.reset(layout)

    def reset(self, layout: CacheLayout) -> None:
        """Forget everything; another engine, or a replay that starts again, follows."""
        self.layout = layout
        self.rules: LookupRules | None = lookup_rules(layout)
        self._first_attention = next(
            (
                index
                for index, group in enumerate(layout.groups)
                if group.cacheable and group.kind == FULL_ATTENTION
            ),
            None,
        )
        self._tables: list[dict[int, _Owner]] = [{} for _ in layout.groups]
        self._copies: list[dict[int, list[_Owner]]] = [{} for _ in layout.groups]
        """Owners of the second and later copies."""
        self._owners: dict[str, _Owner] = {}
        self._nobody = _Owner(None)
        self._request_id: str | None = None
        self._removals = RemovalMemory()
        self._removal = Removal(None, None)
        """The newest one: blocks that leave together share it."""
        self._evictions = EvictionSums()
        self.cached_blocks = 0
        """Resident blocks over all groups, copies included."""
        self.unmatched_removals = 0
        """Removals of what was not resident here: above 0 the replay has missed something."""
        self.version += 1

    def begin_again(self, contents: CacheContents) -> None:
        """Go on from a listing, whose blocks nobody is known to have stored.

        What was resident and is not listed was removed by nobody knows whom.

        Raises:
            ValueError: The listing has another number of groups.
        """
        if len(contents.groups) != len(self.layout.groups):
            raise ValueError(f"{len(contents.groups)} groups instead of {len(self.layout.groups)}")
        before, removals = self._tables, self._removals
        self.reset(self.layout)
        self._removals = removals
        for group, hashes in enumerate(contents.groups):
            self._store(group, hashes)
            for block_hash in before[group].keys() - self._tables[group].keys():
                removal = Removal(None, before[group][block_hash].request_id)
                removals.add(self._key(group, block_hash), removal)

    @property
    def tables(self) -> Tables:
        """For each group the hashes that are resident; a live view."""
        return self._tables

    def apply(self, event: CacheEvent) -> None:
        """Replay the next event."""
        # Removals of single blocks are most of all events, and matching patterns takes longer.
        if isinstance(event, BlocksRemoved):
            if event.hashes and 0 <= event.group < len(self._tables):
                self._remove(event.group, event.hashes)
        elif isinstance(event, BlocksStored):
            if event.hashes and 0 <= event.group < len(self._tables):
                self._store(event.group, event.hashes)
        elif isinstance(event, BlocksAllocated):
            self._request_id = event.request_id
        elif isinstance(event, PrefixLookup):
            self._request_id = None
        elif isinstance(event, CacheCleared):
            self._clear()

    def copies(self, group: int, block_hash: int) -> int:
        """How many times the hash is resident in the group."""
        if block_hash not in self._tables[group]:
            return 0
        return 1 + len(self._copies[group].get(block_hash, ()))

    def owned_blocks(self) -> dict[str, int]:
        """Resident blocks by the engine id of the request that stored them.

        What is missing to `cached_blocks` was stored by no known request.
        """
        return {request_id: owner.blocks for request_id, owner in self._owners.items()}

    def removal_of(self, group: int, block_hash: int) -> Removal | None:
        """How a block left that is not resident now.

        Returns:
            Who removed whose block, or None when it is resident, was never stored, was cleared
            with the whole cache, or left too long ago (`REMOVALS_KEPT`).
        """
        # What came back stays in the memory until it is replaced: to forget it at each store would
        # cost every new block as much as storing it does.
        if block_hash in self._tables[group]:
            return None
        return self._removals.get(self._key(group, block_hash))

    def take_evictions(self) -> list[Eviction]:
        """Who lost how much to whom since the last call."""
        return self._evictions.take()

    def _key(self, group: int, block_hash: int) -> int:
        return block_hash * len(self._tables) + group

    def _store(self, group: int, hashes: Sequence[int]) -> None:
        table = self._tables[group]
        owner = self._owner()
        copies = self._copies[group]
        for block_hash in hashes:
            if block_hash in table:
                copies.setdefault(block_hash, []).append(owner)
            else:
                table[block_hash] = owner
        owner.blocks += len(hashes)
        self.cached_blocks += len(hashes)
        self.version += 1

    def _remove(self, group: int, hashes: Sequence[int]) -> None:
        table = self._tables[group]
        copies = self._copies[group]
        winner = self._request_id
        attention = group == self._first_attention
        tokens = self.layout.groups[group].block_tokens if attention else 0
        for block_hash in hashes:
            if copies and (later := copies.get(block_hash)) is not None:
                owner = later.pop()
                if not later:
                    del copies[block_hash]
            else:
                resident = table.pop(block_hash, None)
                if resident is None:
                    self.unmatched_removals += 1
                    continue
                owner = resident
                self._evictions.add(owner.request_id, winner, tokens)
                removal = self._removal
                if removal.of != owner.request_id or removal.by != winner:
                    removal = self._removal = Removal(winner, owner.request_id)
                self._removals.add(self._key(group, block_hash), removal)
            owner.blocks -= 1
            self.cached_blocks -= 1
            if owner.blocks == 0 and owner.request_id is not None:
                del self._owners[owner.request_id]
        self.version += 1

    def _owner(self) -> _Owner:
        request_id = self._request_id
        if request_id is None:
            return self._nobody
        owner = self._owners.get(request_id)
        if owner is None:
            owner = self._owners[request_id] = _Owner(request_id)
        return owner

    def _clear(self) -> None:
        for group in range(len(self._tables)):
            self._tables[group].clear()
            self._copies[group].clear()
        self._owners.clear()
        self._removals = RemovalMemory()
        self.cached_blocks = 0
        self.version += 1
