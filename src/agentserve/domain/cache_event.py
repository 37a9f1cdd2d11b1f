"""What happens to the blocks of the prefix cache, in the order in which the scheduler did it.

The engine package makes these values from vLLM's KV events and from the marks that our plugin puts
between them; telemetry replays them. Block hashes are vLLM's 64-bit form: equal hashes mean an
equal prefix, salt and adapters included.
"""

from __future__ import annotations

from array import array

import msgspec

BLOCK_HASH_TYPECODE = "Q"
"""`array` type code of block hashes: unsigned, 64 bits."""


class BlocksStored(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Blocks became reusable. The same hash can be stored again while it is resident."""

    group: int
    hashes: tuple[int, ...]
    """Only blocks that were kept: empty where a group skipped all of them."""
    session_header: str | None = None
    """vLLM's own session id of the request, from `X-Session-ID`."""


class BlocksRemoved(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Blocks were evicted or overwritten: one residency of each hash ends."""

    group: int
    hashes: tuple[int, ...]


class CacheCleared(msgspec.Struct, frozen=True, gc=False):
    """Every block was forgotten."""


class PrefixLookup(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler looked for a prefix: what is resident now decides what is reused.

    A request that is not admitted is looked up again in a later step; only the last lookup before
    its first scheduled step counts.
    """

    request_id: str
    """The engine's internal id."""
    prompt_tokens: int
    preemptions: int
    """Above 0 when the request was preempted before: no longer its first lookup."""
    block_hashes: array[int] | None
    """Hash of every whole hash block of the prompt, in order; None on repeated lookups."""


class BlocksAllocated(msgspec.Struct, frozen=True, gc=False):
    """The events that follow, up to the next mark, happened to make room for this request."""

    request_id: str


class CacheContents(msgspec.Struct, frozen=True, gc=False):
    """All that is resident, listed again after events were lost."""

    groups: tuple[array[int], ...]
    """The hashes of each group, in no order; a hash once for each of its copies."""


CacheEvent = (
    BlocksStored | BlocksRemoved | CacheCleared | PrefixLookup | BlocksAllocated | CacheContents
)


class CacheEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Some events of one generation, in order."""

    generation: int
    events: tuple[CacheEvent, ...]


class CacheEventsLost(msgspec.Struct, frozen=True, kw_only=True):
    """Events are missing and could not be had again: what is resident is unknown from here on.

    Until a `CacheContents` comes.
    """

    generation: int
    batches: int
    """How many batches are missing; 0 when no more events come at all."""
