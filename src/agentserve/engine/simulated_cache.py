"""An invented prefix cache: one pool of blocks, reused and evicted as vLLM does it.

Owns which blocks hold which prefix, and reports every change as the events that a real engine
reports. It follows vLLM's pool for one group of full attention (`vllm/v1/core/block_pool.py`), so
that a replay of the events gives the same reuse. It stores no text.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence

from agentserve.domain.cache_event import (
    BLOCK_HASH_TYPECODE,
    BlocksAllocated,
    BlocksRemoved,
    BlocksStored,
    CacheEvent,
    CacheEvents,
    PrefixLookup,
)
from agentserve.domain.cache_layout import FULL_ATTENTION, CacheGroupLayout, CacheLayout

_HASH_BYTES = 8


class _Sequence:
    """One running request."""

    def __init__(self, hashes: array[int]) -> None:
        self.hashes = hashes
        self.blocks: list[int] = []
        self.stored = 0
        """Blocks at the start that have a hash."""


class SimulatedCache:
    """Blocks and who uses them.

    Args:
        blocks_total: Size of the pool.
        block_tokens: Tokens per block.
        generation: Number of the start.
        report: Gets events; called by `flush` only.
    """

    def __init__(
        self,
        blocks_total: int,
        block_tokens: int,
        generation: int,
        report: Callable[[CacheEvents], None],
    ) -> None:
        self.blocks_total = blocks_total
        self.block_tokens = block_tokens
        self._generation = generation
        self._report = report
        self._unused: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks_total))
        """Blocks that nobody uses, the next one to be taken first."""
        self._references = [0] * blocks_total
        self._hash_of: list[int | None] = [None] * blocks_total
        self._blocks_of: dict[int, list[int]] = {}
        self._warm = 0
        self._cached = 0
        self._sequences: dict[str, _Sequence] = {}
        self._events: list[CacheEvent] = []

    @property
    def layout(self) -> CacheLayout:
        """The cache as a prediction of reuse needs it."""
        group = CacheGroupLayout(kind=FULL_ATTENTION, block_tokens=self.block_tokens)
        return CacheLayout(
            groups=(group,),
            hash_block_tokens=self.block_tokens,
            alignment_tokens=self.block_tokens,
        )

    def counts(self) -> tuple[int, int, int]:
        """Blocks in use, warm and free; from any thread."""
        unused = len(self._unused)
        warm = min(self._warm, unused)
        return self.blocks_total - unused, warm, unused - warm

    @property
    def cached_blocks(self) -> int:
        """Blocks that can be reused, in use or not."""
        return self._cached

    def admit(self, request_id: str, prompt: Sequence[int], answer: Sequence[int]) -> int:
        """Look up a prompt and take the blocks that it can reuse.

        Args:
            request_id: The engine's internal id.
            prompt: Token ids.
            answer: Token ids that will follow.

        Returns:
            Tokens that need not be computed: whole blocks, and never the last token.
        """
        sequence = _Sequence(prefix_hashes([*prompt, *answer], self.block_tokens))
        self._sequences[request_id] = sequence
        self._events.append(
            PrefixLookup(
                request_id=request_id,
                prompt_tokens=len(prompt),
                preemptions=0,
                block_hashes=sequence.hashes[: len(prompt) // self.block_tokens],
            )
        )
        for block_hash in sequence.hashes[: (len(prompt) - 1) // self.block_tokens]:
            if block_hash not in self._blocks_of:
                break
            self._use(self._blocks_of[block_hash][0])
            sequence.blocks.append(self._blocks_of[block_hash][0])
        sequence.stored = len(sequence.blocks)
        return sequence.stored * self.block_tokens

    def advance(self, request_id: str, tokens: int) -> None:
        """Make room for the first `tokens` of a request; its whole blocks become reusable.

        Raises:
            KeyError: All blocks are in use.
        """
        sequence = self._sequences[request_id]
        needed = -(-tokens // self.block_tokens)
        removed: list[int] = []
        while len(sequence.blocks) < needed:
            sequence.blocks.append(self._take(removed))
        whole = tokens // self.block_tokens
        stored = tuple(sequence.hashes[sequence.stored : whole])
        for block, block_hash in zip(sequence.blocks[sequence.stored :], stored, strict=False):
            self._hash_of[block] = block_hash
            self._blocks_of.setdefault(block_hash, []).append(block)
        self._cached += len(stored)
        sequence.stored = max(sequence.stored, whole)
        if removed or stored:
            self._events.append(BlocksAllocated(request_id))
        if removed:
            self._events.append(BlocksRemoved(group=0, hashes=tuple(removed)))
        if stored:
            self._events.append(BlocksStored(group=0, hashes=stored))

    def release(self, request_id: str) -> None:
        """End a request: its blocks stay reusable until somebody needs the room."""
        # The end of a prompt is given up before its start, which more requests can reuse.
        for block in reversed(self._sequences.pop(request_id).blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._unused[block] = None
                self._warm += self._hash_of[block] is not None

    def flush(self) -> None:
        """Report what happened since the last call."""
        if self._events:
            events = CacheEvents(generation=self._generation, events=tuple(self._events))
            self._events.clear()
            self._report(events)

    def _use(self, block: int) -> None:
        if self._references[block] == 0:
            del self._unused[block]
            self._warm -= self._hash_of[block] is not None
        self._references[block] += 1

    def _take(self, removed: list[int]) -> int:
        block = next(iter(self._unused), None)
        if block is None:
            raise KeyError("all blocks are in use")
        self._use(block)
        if (block_hash := self._hash_of[block]) is not None:
            self._hash_of[block] = None
            self._cached -= 1
            self._blocks_of[block_hash].remove(block)
            if not self._blocks_of[block_hash]:
                del self._blocks_of[block_hash]
            removed.append(block_hash)
        return block


def prefix_hashes(token_ids: Sequence[int], block_tokens: int) -> array[int]:
    """Return a stable 64-bit hash of the prefix up to the end of each whole block."""
    tokens = array("I", token_ids)
    data, width = tokens.tobytes(), block_tokens * tokens.itemsize
    hashes = array(BLOCK_HASH_TYPECODE)
    parent = b""
    for start in range(0, len(data) - width + 1, width):
        block = parent + data[start : start + width]
        parent = hashlib.blake2b(block, digest_size=_HASH_BYTES).digest()
        hashes.append(int.from_bytes(parent, "little"))
    return hashes
