"""Who lost how much to whom since it was last asked.

Owns the sums. It must not know blocks one by one.
"""

from __future__ import annotations

from typing import NamedTuple


class Eviction(NamedTuple):
    """Blocks that left the cache, summed up for one loser and one winner."""

    loser: str | None
    """Engine id of the request that had stored them; None when it is not known."""
    winner: str | None
    """Engine id of the request that needed room; None when it is not known."""
    blocks: int
    """Over all groups; only those of which no other copy is left."""
    tokens: int
    """Of the first full attention group: what the loser can no longer reuse."""


class EvictionSums:
    """Sums of evictions until they are taken."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str | None, str | None], list[int]] = {}

    def add(self, loser: str | None, winner: str | None, tokens: int) -> None:
        """One block left.

        Args:
            loser: Who had stored it.
            winner: Who needed room. Blocks that a request takes from itself are no eviction: it
                overwrites its own checkpoints.
            tokens: Tokens of attention that went with it.
        """
        if loser is not None and loser == winner:
            return
        sums = self._sums.get((loser, winner))
        if sums is None:
            sums = self._sums[loser, winner] = [0, 0]
        sums[0] += 1
        sums[1] += tokens

    def take(self) -> list[Eviction]:
        """The sums since the last call, in order of the first loss."""
        sums, self._sums = self._sums, {}
        return [Eviction(*pair, blocks, tokens) for pair, (blocks, tokens) in sums.items()]
