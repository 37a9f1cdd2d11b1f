"""Reads cache events as somebody who knows nothing else: what is resident, what is reusable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from agentserve.domain.cache_event import (
    BlocksAllocated,
    BlocksRemoved,
    BlocksStored,
    CacheEvents,
    CacheEventsLost,
    PrefixLookup,
)


def replay(batches: Iterable[CacheEvents | CacheEventsLost], block_tokens: int) -> dict[str, int]:
    """Replay events of one full-attention group.

    Returns:
        Reusable tokens of each request at its lookup, by the engine's internal id.
    """
    resident: Counter[int] = Counter()
    reusable: dict[str, int] = {}
    for batch in batches:
        assert isinstance(batch, CacheEvents)
        for event in batch.events:
            match event:
                case BlocksStored(group=0, hashes=hashes):
                    resident.update(hashes)
                case BlocksRemoved(group=0, hashes=hashes):
                    resident.subtract(hashes)
                    assert all(resident[block_hash] >= 0 for block_hash in hashes)
                case PrefixLookup(block_hashes=hashes) if hashes is not None:
                    assert len(hashes) == event.prompt_tokens // block_tokens
                    blocks = 0
                    for block_hash in hashes[: (event.prompt_tokens - 1) // block_tokens]:
                        if not resident[block_hash]:
                            break
                        blocks += 1
                    reusable[event.request_id] = blocks * block_tokens
                case BlocksAllocated(request_id):
                    assert request_id in reusable
                case _:
                    raise AssertionError(event)
    return reusable
