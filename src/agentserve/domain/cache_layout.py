"""How an engine's prefix cache is cut into groups and blocks.

Owns the facts that a prediction of reuse needs. It must not know how they are asked for.
"""

from __future__ import annotations

import msgspec

FULL_ATTENTION = "full_attention"
MAMBA = "mamba"


class CacheGroupLayout(msgspec.Struct, frozen=True, kw_only=True):
    """One KV cache group of the engine (a hybrid model has several)."""

    kind: str
    """vLLM's name of the group's kind: `full_attention`, `mamba`, `sliding_window` ..."""
    block_tokens: int
    drops_last_block: bool = False
    """Whether a lookup gives up the last matched block, as draft models (MTP) need it."""
    cacheable: bool = True
    """False for groups that take no part in prefix caching."""


class CacheLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of one engine, in vLLM's order: the index is the events' group number."""

    groups: tuple[CacheGroupLayout, ...]
    hash_block_tokens: int
    """Tokens per block hash; every group's block is a whole multiple."""
    alignment_tokens: int
    """A hit is rounded down to a multiple of this."""

    @property
    def predictable(self) -> bool:
        """Whether only group kinds occur whose lookup we know: full attention and mamba."""
        cacheable = [group for group in self.groups if group.cacheable]
        return (
            any(group.kind == FULL_ATTENTION for group in cacheable)
            and all(group.kind in (FULL_ATTENTION, MAMBA) for group in cacheable)
            and self.hash_block_tokens > 0
        )

    @property
    def block_tokens(self) -> int:
        """The step in which prefixes are reused: the largest block and the alignment."""
        blocks = [group.block_tokens for group in self.groups if group.cacheable]
        fine = self.alignment_tokens < max(blocks, default=1)
        return self.alignment_tokens if fine else max([self.alignment_tokens, *blocks])
