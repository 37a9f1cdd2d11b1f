"""Which session an engine's request belongs to, for blocks and evictions.

Owns the bounded memory from engine ids to sessions, and the joining of evictions. It must not know
what is resident.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping

import msgspec

from agentserve.domain.session import EVICTIONS_KEPT, EvictionView, PoolShare
from agentserve.telemetry.prefix_cache.evictions import Eviction

REQUESTS_KEPT = 8_192
"""Engine ids that are remembered; blocks of older requests count as nobody's."""
_JOINED_S = 1.0


class BlockOwners:
    """Sessions by the engine's ids of their requests."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, str] = OrderedDict()
        self._evictions: deque[EvictionView] = deque(maxlen=EVICTIONS_KEPT)

    def note(self, engine_request_id: str, session: str) -> None:
        """Remember whose request this is."""
        self._sessions[engine_request_id] = session
        while len(self._sessions) > REQUESTS_KEPT:
            self._sessions.popitem(last=False)

    def session_of(self, engine_request_id: str | None) -> str | None:
        """Whose request it is; None when it is not known."""
        return None if engine_request_id is None else self._sessions.get(engine_request_id)

    def clear(self) -> None:
        """Another engine begins, with ids of its own and an empty cache."""
        self._sessions.clear()

    def forget(self, session: str) -> None:
        """A session is no longer listed: what it computed is nobody's."""
        for request_id in [one for one, owner in self._sessions.items() if owner == session]:
            del self._sessions[request_id]

    def shares(self, owned_blocks: Mapping[str, int], cached_blocks: int) -> tuple[PoolShare, ...]:
        """Add blocks of requests up to sessions.

        Args:
            owned_blocks: Resident blocks by engine id.
            cached_blocks: All resident blocks.

        Returns:
            The shares, largest first; they add up to `cached_blocks`.
        """
        sums: dict[str | None, int] = {}
        for request_id, blocks in owned_blocks.items():
            session = self._sessions.get(request_id)
            sums[session] = sums.get(session, 0) + blocks
        rest = cached_blocks - sum(sums.values())
        if rest > 0:
            sums[None] = sums.get(None, 0) + rest
        ordered = sorted(sums.items(), key=lambda item: (item[0] is None, -item[1]))
        return tuple(PoolShare(session, blocks) for session, blocks in ordered if blocks)

    def evicted(self, evictions: Iterable[Eviction], at_unix_s: float) -> None:
        """Take in what was evicted just now."""
        for eviction in evictions:
            loser, winner = self.session_of(eviction.loser), self.session_of(eviction.winner)
            newest = self._evictions[0] if self._evictions else None
            if (
                newest is not None
                and (newest.loser, newest.winner) == (loser, winner)
                and at_unix_s - newest.at_unix_s <= _JOINED_S
            ):
                self._evictions[0] = msgspec.structs.replace(
                    newest,
                    blocks=newest.blocks + eviction.blocks,
                    tokens=(newest.tokens or 0) + eviction.tokens,
                )
            else:
                self._evictions.appendleft(
                    EvictionView(
                        at_unix_s=at_unix_s,
                        loser=loser,
                        winner=winner,
                        blocks=eviction.blocks,
                        tokens=eviction.tokens,
                    )
                )

    @property
    def evictions(self) -> tuple[EvictionView, ...]:
        """Newest first."""
        return tuple(self._evictions)
