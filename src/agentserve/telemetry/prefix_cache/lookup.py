"""vLLM's rules of prefix lookup, as figures derived once from a cache's layout.

Owns which groups are looked up together and how far their hits reach. It must not know how what
is resident came to be; it sees one set-like table of hashes for each group.

Source: vLLM 0.32 and 0.33, `v1/core/kv_cache_coordinator.py` (`UnitaryKVCacheCoordinator`,
`HybridKVCacheCoordinator`) and `v1/core/single_type_kv_cache_manager.py` (`FullAttentionManager`,
`MambaManager`), method `find_longest_cache_hit`.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Sequence
from itertools import filterfalse
from math import lcm
from typing import NamedTuple

from agentserve.domain.cache_layout import FULL_ATTENTION, CacheLayout

Tables = Sequence[Container[int]]
"""For each group of the layout, in order, the hashes that are resident in it."""


_SCANNED_BLOCKS = 256
"""Blocks that are looked up in one go."""


class JointGroups(NamedTuple):
    """Groups that one lookup treats alike: a block counts where each of them has it.

    vLLM joins groups of an equal spec. Kind, block size and the drop are what the result depends
    on: groups that are equal in these and were looked up one after the other give the same length.
    """

    ids: tuple[int, ...]
    block_tokens: int
    step: int
    """Block hashes per block of these groups."""
    alignment_tokens: int
    drops_last_block: bool

    @property
    def drop_tokens(self) -> int:
        """What a draft model gives up; also how much further its lookup may reach before that."""
        return min(self.alignment_tokens, self.block_tokens)

    @property
    def fine(self) -> bool:
        """Whether a hit may end inside a block, at a block hash."""
        return (
            self.alignment_tokens < self.block_tokens
            and self.block_tokens % self.alignment_tokens == 0
        )

    def hold(self, tables: Tables, block_hash: int) -> bool:
        """Whether the block is resident in each of the groups."""
        return all(block_hash in tables[group] for group in self.ids)

    def scan_blocks(self, tables: Tables, hashes: array[int]) -> int:
        """How many whole blocks are resident from the start, the way vLLM looks: left to right."""
        wanted = hashes[self.step - 1 :: self.step]
        count = len(wanted)
        for group in self.ids:
            held = tables[group].__contains__
            # In C, piece by piece: a prompt of 100,000 tokens has 6,250 blocks, and to find the
            # place of one among all of them takes half as long as to look all of them up.
            for start in range(0, count, _SCANNED_BLOCKS):
                piece = wanted[start : min(start + _SCANNED_BLOCKS, count)]
                missing = next(filterfalse(held, piece), None)
                if missing is not None:
                    count = start + piece.index(missing)
                    break
        return count

    def bisect_blocks(self, tables: Tables, hashes: array[int]) -> int:
        """The same as `scan_blocks`, in a logarithm of the lookups.

        Right because the resident part of a sequence is a prefix. Whoever uses a block uses all
        blocks before it, and vLLM frees a request's blocks from the tail: so of two blocks of one
        sequence the earlier is let go later, stands behind the other in the queue of eviction,
        and outlives it. Blocks are also stored from the start. This holds for full attention, for
        copies (each copy of a block was let go together with copies of all blocks before it), and
        for groups taken together. Where a KV connector drops single blocks it can fail; then the
        answer is the end of some resident run, and too large at most.
        """
        first, *others = (tables[group] for group in self.ids)
        low, high = 0, len(hashes) // self.step
        # Most sequences are resident as a whole, or have left as a whole.
        if high and hashes[self.step - 1] not in first:
            return 0
        while low < high:
            middle = (low + high) // 2
            block_hash = hashes[(middle + 1) * self.step - 1]
            if block_hash in first and (not others or all(block_hash in each for each in others)):
                low = middle + 1
            else:
                high = middle
        return low

    def attention_tokens(
        self,
        tables: Tables,
        hashes: array[int],
        blocks: int,
        longest_tokens: int,
        *,
        drop: bool,
    ) -> int:
        """Length of the hit of full attention groups (`FullAttentionManager`).

        Args:
            tables: What is resident.
            hashes: The block hashes of the sequence.
            blocks: Whole blocks resident from the start.
            longest_tokens: The hit may not be longer, before the drop.
            drop: Whether to give up the last block where the groups do so.

        Returns:
            Tokens.
        """
        whole = min(blocks, longest_tokens // self.block_tokens)
        length = whole * self.block_tokens
        if self.fine:
            units = self.block_tokens // self.alignment_tokens
            first = whole * units
            end = min(first + units - 1, longest_tokens // self.alignment_tokens, len(hashes))
            for index in range(end - 1, first - 1, -1):
                if self.hold(tables, hashes[index]):
                    length = (index + 1) * self.alignment_tokens
                    break
        if drop and self.drops_last_block and length > 0:
            length -= self.drop_tokens
        return length - length % self.alignment_tokens

    def state_tokens(
        self,
        tables: Tables,
        hashes: array[int],
        longest_tokens: int,
        probes: int | None = None,
    ) -> int | None:
        """The last position at which each of the groups has a state (`MambaManager`).

        Args:
            tables: What is resident.
            hashes: The block hashes of the sequence.
            longest_tokens: The position may not be later.
            probes: Most positions looked at, from the right; None for all.

        Returns:
            Tokens, 0 when there is none, None when `probes` ended the search.
        """
        # A hit is a multiple of the alignment, and of the block unless it may end inside one.
        unit = self.alignment_tokens
        if not self.fine:
            unit = lcm(unit, self.block_tokens)
        hashes_per_unit = unit * self.step // self.block_tokens
        end = min(longest_tokens // unit, len(hashes) // hashes_per_unit)
        stop = 0 if probes is None else max(0, end - probes)
        first, *others = (tables[group] for group in self.ids)
        for count in range(end, stop, -1):
            block_hash = hashes[count * hashes_per_unit - 1]
            if block_hash in first and (not others or all(block_hash in each for each in others)):
                return count * unit
        return 0 if stop == 0 else None


class LookupRules(NamedTuple):
    """What a lookup needs to know of a layout."""

    hash_block_tokens: int
    attention: tuple[JointGroups, ...]
    """In vLLM's order; never empty."""
    states: tuple[JointGroups, ...]
    single: bool
    """One group only: vLLM's unitary coordinator, whose lookup has no margin for the drop."""

    def longest_hit(
        self,
        tables: Tables,
        hashes: array[int],
        attention_blocks: Sequence[int],
        limit_tokens: int,
        *,
        drop: bool,
        probes: int | None = None,
    ) -> int | None:
        """What can be reused of a sequence.

        vLLM repeats the lookup over all groups until none shortens the hit. It looks attention up
        once, since a shorter hit is always one there too, and states never drop. So the repetition
        is one over the states alone.

        Args:
            tables: What is resident.
            hashes: The block hashes of the sequence.
            attention_blocks: For each of `attention`, the whole blocks resident from the start.
            limit_tokens: The hit may not be longer.
            drop: Whether draft models give up a block.
            probes: Most positions looked at in search of a state; None for all.

        Returns:
            Tokens; None only when `probes` ended the search.
        """
        whole = len(hashes) * self.hash_block_tokens
        length = limit_tokens
        for groups, blocks in zip(self.attention, attention_blocks, strict=True):
            longest = length
            if drop and groups.drops_last_block and not self.single:
                longest = min(length + groups.drop_tokens, whole)
            length = groups.attention_tokens(tables, hashes, blocks, longest, drop=drop)
        while True:
            before = length
            for groups in self.states:
                found = groups.state_tokens(tables, hashes, length, probes)
                if found is None:
                    return None
                length = found
            if length == before or len(self.states) == 1:
                return length

    def held_tokens(
        self, tables: Tables, hashes: array[int], attention_blocks: Sequence[int]
    ) -> int:
        """What the attention groups hold from the start, whole blocks not rounded further."""
        whole = len(hashes) * self.hash_block_tokens
        return min(
            max(
                blocks * groups.block_tokens,
                groups.attention_tokens(tables, hashes, blocks, whole, drop=False),
            )
            for groups, blocks in zip(self.attention, attention_blocks, strict=True)
        )


def lookup_rules(layout: CacheLayout) -> LookupRules | None:
    """Derive the rules of a layout's lookup.

    Returns:
        The rules, or None when a kind of group occurs whose lookup is not known here.
    """
    if not layout.predictable:
        return None
    joint: dict[tuple[bool, int, bool], list[int]] = {}
    for index, group in enumerate(layout.groups):
        if group.cacheable:
            attention = group.kind == FULL_ATTENTION
            key = (attention, group.block_tokens, group.drops_last_block)
            joint.setdefault(key, []).append(index)
    groups = {
        key: JointGroups(
            ids=tuple(ids),
            block_tokens=key[1],
            step=key[1] // layout.hash_block_tokens,
            alignment_tokens=layout.alignment_tokens,
            drops_last_block=key[2],
        )
        for key, ids in joint.items()
    }
    return LookupRules(
        hash_block_tokens=layout.hash_block_tokens,
        attention=tuple(each for key, each in groups.items() if key[0]),
        states=tuple(each for key, each in groups.items() if not key[0]),
        single=len(layout.groups) == 1,
    )
