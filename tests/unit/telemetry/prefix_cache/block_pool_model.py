"""A block pool as simple as can be: it emits events as vLLM does, and knows the truth."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from agentserve.domain.cache_event import (
    BlocksAllocated,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheEvent,
    PrefixLookup,
)


@dataclass
class Block:
    key: tuple[int, int] | None = None
    """Group and hash of what it holds."""
    owner: str | None = None
    users: int = 0


class BlockPoolModel:
    """Blocks are used from the head of a queue of free ones, and return to its tail.

    Every group stores a block for each hash of a sequence, except that groups in `tail_groups`
    store one for the last hash only, as state layers do.
    """

    def __init__(self, blocks: int, groups: int, tail_groups: set[int]) -> None:
        self.blocks = [Block() for _ in range(blocks)]
        self.free = deque(self.blocks)
        self.groups = groups
        self.tail_groups = tail_groups
        self.events: list[CacheEvent] = []
        self.used: dict[str, list[list[Block]]] = {}
        self.removals: dict[tuple[int, int], tuple[str, str | None]] = {}
        """By and of whom, for what is not resident."""
        self.losses: Counter[tuple[str | None, str]] = Counter()
        """Blocks by loser and winner."""

    def run(self, request_id: str, hashes: list[int], reused: int) -> None:
        """Take up a sequence: find at most `reused` of its blocks, compute and store the others."""
        self.events.append(
            PrefixLookup(request_id=request_id, prompt_tokens=0, preemptions=0, block_hashes=None)
        )
        found = self._find(hashes[:reused])
        needed = sum(
            1 if group in self.tail_groups else len(hashes) - len(found[group])
            for group in range(self.groups)
        )
        idle = sum(block.users == 0 for blocks in found for block in blocks)
        if needed > len(self.free) - idle:
            return
        self.events.append(BlocksAllocated(request_id))
        for blocks in found:
            for block in blocks:
                if block.users == 0:
                    self.free.remove(block)
                block.users += 1
        self.used[request_id] = found
        for group in range(self.groups):
            tail = group in self.tail_groups
            missing = hashes[-1:] if tail else hashes[len(found[group]) :]
            taken = [self._take(request_id) for _ in missing]
            for block, block_hash in zip(taken, missing, strict=True):
                block.key, block.owner = (group, block_hash), request_id
                self.removals.pop((group, block_hash), None)
            found[group].extend(taken)
            self.events.append(BlocksStored(group=group, hashes=tuple(missing)))

    def end(self, request_id: str) -> None:
        for blocks in self.used.pop(request_id, []):
            for block in reversed(blocks):
                block.users -= 1
                if block.users == 0:
                    self.free.append(block)

    def clear(self) -> None:
        for request_id in list(self.used):
            self.end(request_id)
        for block in self.blocks:
            block.key = None
        self.removals.clear()
        self.events.append(CacheCleared())

    def resident(self) -> Counter[tuple[int, int]]:
        return Counter(block.key for block in self.blocks if block.key is not None)

    def owned(self) -> Counter[str | None]:
        return Counter(block.owner for block in self.blocks if block.key is not None)

    def _find(self, hashes: list[int]) -> list[list[Block]]:
        found: list[list[Block]] = [[] for _ in range(self.groups)]
        for group in set(range(self.groups)) - self.tail_groups:
            for block_hash in hashes:
                holders = [block for block in self.blocks if block.key == (group, block_hash)]
                if not holders:
                    break
                found[group].append(holders[0])
        return found

    def _take(self, request_id: str) -> Block:
        block = self.free.popleft()
        block.users = 1
        if block.key is not None:
            key, block.key = block.key, None
            self.events.append(BlocksRemoved(group=key[0], hashes=(key[1],)))
            if not any(other.key == key for other in self.blocks):
                self.removals[key] = (request_id, block.owner)
                if block.owner != request_id:
                    self.losses[block.owner, request_id] += 1
        return block
