"""The msgpack form of a batch of KV events, and what our own types make of it.

Owns the wire types: those of vLLM (`vllm/distributed/kv_events.py`) as far as they are needed, and
the marks that our plugin puts between them. It must not know sockets, and it must not import vLLM:
the engine's processes and the app both load it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import cast

import msgspec

from agentserve.domain.cache_event import (
    BLOCK_HASH_TYPECODE,
    BlocksAllocated,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheContents,
    CacheEvent,
    PrefixLookup,
)

BLOCK_HASH_BYTES = 8
"""vLLM's integer form of a block hash: the lowest 64 bits, so the last bytes, big endian."""
_GPU = "GPU"


class LookupMark(msgspec.Struct, tag="AgentserveLookup", omit_defaults=True, gc=False):
    """The lookup that follows is about this request."""

    request_id: str
    prompt_tokens: int
    preemptions: int = 0
    block_hashes: bytes | None = None
    """`BLOCK_HASH_BYTES` of each whole hash block of the prompt; None on repeated lookups."""


class AllocationMark(msgspec.Struct, tag="AgentserveAllocation", gc=False):
    """The events that follow come from making room for this request."""

    request_id: str


class ContentsMark(msgspec.Struct, tag="AgentserveContents", gc=False):
    """All that is resident here: no earlier event matters any more."""

    groups: list[bytes]
    """For each group `BLOCK_HASH_BYTES` of each hash, once for each of its copies."""


class _BlockStored(msgspec.Struct, tag="BlockStored", gc=False):
    block_hashes: tuple[int | bytes, ...]
    group_idx: int | None = None
    medium: str | None = None
    session_id: str | None = None


class _BlockRemoved(msgspec.Struct, tag="BlockRemoved", gc=False):
    block_hashes: tuple[int | bytes, ...]
    group_idx: int | None = None
    medium: str | None = None


class _AllBlocksCleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    pass


_WireEvent = (
    _BlockStored | _BlockRemoved | _AllBlocksCleared | LookupMark | AllocationMark | ContentsMark
)


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[_WireEvent]


class _RawBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]


class _Tagged(msgspec.Struct, gc=False):
    type: str


_KNOWN_TAGS = frozenset(
    {
        "BlockStored",
        "BlockRemoved",
        "AllBlocksCleared",
        "AgentserveLookup",
        "AgentserveAllocation",
        "AgentserveContents",
    }
)
_decode_batch = msgspec.msgpack.Decoder(_Batch).decode
_decode_raw_batch = msgspec.msgpack.Decoder(_RawBatch).decode
_decode_tagged = msgspec.msgpack.Decoder(_Tagged).decode
_decode_event = msgspec.msgpack.Decoder(_WireEvent).decode


def decode_events(payload: bytes) -> tuple[CacheEvent, ...]:
    """Decode one batch.

    Event kinds that we do not know are left out: vLLM may add some. So are blocks outside of the
    GPU's pool, such as those of an offloading tier.

    Args:
        payload: A msgpack `EventBatch`.

    Returns:
        The events in order.

    Raises:
        msgspec.DecodeError: The batch, or an event of a kind that we know, looks different.
    """
    try:
        events: Iterable[_WireEvent] = _decode_batch(payload).events
    except msgspec.ValidationError:
        events = [
            _decode_event(raw)
            for raw in _decode_raw_batch(payload).events
            if _decode_tagged(raw).type in _KNOWN_TAGS
        ]
    return tuple(event for event in map(_domain_event, events) if event is not None)


def _domain_event(event: _WireEvent) -> CacheEvent | None:
    match event:
        case _BlockStored():
            if event.medium not in (None, _GPU):
                return None
            return BlocksStored(
                group=event.group_idx or 0,
                hashes=_integers(event.block_hashes),
                session_header=event.session_id,
            )
        case _BlockRemoved():
            if event.medium not in (None, _GPU):
                return None
            return BlocksRemoved(group=event.group_idx or 0, hashes=_integers(event.block_hashes))
        case LookupMark():
            return PrefixLookup(
                request_id=event.request_id,
                prompt_tokens=event.prompt_tokens,
                preemptions=event.preemptions,
                block_hashes=None if event.block_hashes is None else _hashes(event.block_hashes),
            )
        case AllocationMark():
            return BlocksAllocated(event.request_id)
        case ContentsMark():
            return CacheContents(tuple(_hashes(blob) for blob in event.groups))
        case _AllBlocksCleared():
            return CacheCleared()


def _integers(hashes: tuple[int | bytes, ...]) -> tuple[int, ...]:
    # All of a kind: it depends on one of vLLM's environment variables.
    if not hashes or isinstance(hashes[0], int):
        return cast("tuple[int, ...]", hashes)
    whole = cast("tuple[bytes, ...]", hashes)
    return tuple(int.from_bytes(block_hash[-BLOCK_HASH_BYTES:], "big") for block_hash in whole)


def _hashes(blob: bytes) -> array[int]:
    if len(blob) % BLOCK_HASH_BYTES:
        raise msgspec.ValidationError(f"{len(blob)} bytes are no whole number of block hashes")
    hashes = array(BLOCK_HASH_TYPECODE, blob)
    if sys.byteorder == "little":
        hashes.byteswap()
    return hashes
