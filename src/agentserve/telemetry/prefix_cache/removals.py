"""Memory of blocks that left the cache: who took the room, who had computed them.

Owns the bound of that memory. It must not know what is resident.
"""

from __future__ import annotations

from typing import NamedTuple

REMOVALS_KEPT = 100_000
"""Most removed hashes remembered; at least the newest half of them always are."""


class Removal(NamedTuple):
    """How the last copy of a block left the cache."""

    by: str | None
    """Engine id of the request that needed room; None when it is not known."""
    of: str | None
    """Engine id of the request that had stored the block; None when it is not known.

    Equal to `by` where a request overwrote its own block, or pushed it out itself.
    """


class RemovalMemory:
    """The newest removals, by a key that the owner of the memory makes of group and hash.

    Two generations of dicts instead of one queue: adding, finding and forgetting are O(1), and an
    entry costs no links.

    Args:
        limit: Most removals kept.
    """

    def __init__(self, limit: int = REMOVALS_KEPT) -> None:
        self._half = max(1, limit // 2)
        self._newer: dict[int, Removal] = {}
        self._older: dict[int, Removal] = {}

    def add(self, key: int, removal: Removal) -> None:
        """Remember a removal; one before it of the same key is replaced."""
        if len(self._newer) >= self._half:
            self._older = self._newer
            self._newer = {}
        self._newer[key] = removal

    def get(self, key: int) -> Removal | None:
        """How the block left, or None when it never did or that is forgotten."""
        found = self._newer.get(key)
        return found if found is not None else self._older.get(key)

    def __len__(self) -> int:
        # A key that was removed twice can be in both.
        return len(self._newer) + len(self._older)
