from __future__ import annotations

import msgspec
import pytest

from agentserve.domain.cache_event import (
    BlocksAllocated,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheContents,
    PrefixLookup,
)
from agentserve.engine.kv_event_wire import AllocationMark, ContentsMark, LookupMark, decode_events
from tests.unit.engine.kv_publisher import batch, stored

LARGEST = (1 << 64) - 1


def removed(*hashes: int | bytes, **fields: object) -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **fields}


def test_every_kind_of_event_is_decoded_in_order() -> None:
    payload = batch(
        LookupMark("r-1", 40, 0, (7).to_bytes(8, "big") + LARGEST.to_bytes(8, "big")),
        AllocationMark("r-1"),
        removed(5, group_idx=1),
        stored(7, LARGEST, group_idx=2, session_id="s"),
        {"type": "AllBlocksCleared"},
    )
    lookup, *others = decode_events(payload)
    assert isinstance(lookup, PrefixLookup)
    assert (lookup.request_id, lookup.prompt_tokens, lookup.preemptions) == ("r-1", 40, 0)
    assert list(lookup.block_hashes or ()) == [7, LARGEST]
    assert others == [
        BlocksAllocated("r-1"),
        BlocksRemoved(group=1, hashes=(5,)),
        BlocksStored(group=2, hashes=(7, LARGEST), session_header="s"),
        CacheCleared(),
    ]


def test_a_listing_has_the_hashes_of_each_group() -> None:
    one, two = (7).to_bytes(8, "big"), LARGEST.to_bytes(8, "big")
    (listing,) = decode_events(batch(ContentsMark([one + two + one, b""])))
    assert isinstance(listing, CacheContents)
    assert [list(hashes) for hashes in listing.groups] == [[7, LARGEST, 7], []]


def test_a_repeated_lookup_carries_no_hashes() -> None:
    (lookup,) = decode_events(batch(LookupMark("r-1", 40, 2)))
    assert lookup == PrefixLookup(
        request_id="r-1", prompt_tokens=40, preemptions=2, block_hashes=None
    )


def test_hashes_as_bytes_become_the_same_integers() -> None:
    whole = bytes(range(32))
    assert decode_events(batch(stored(whole), removed(whole))) == (
        BlocksStored(group=0, hashes=(int.from_bytes(whole[-8:], "big"),)),
        BlocksRemoved(group=0, hashes=(int.from_bytes(whole[-8:], "big"),)),
    )


def test_unknown_kinds_between_known_ones_are_left_out() -> None:
    payload = batch(stored(1), {"type": "BlockMoved", "block_hashes": "x"}, removed(1))
    assert [type(event) for event in decode_events(payload)] == [BlocksStored, BlocksRemoved]


def test_a_group_that_kept_nothing_has_no_hashes() -> None:
    assert decode_events(batch(stored())) == (BlocksStored(group=0, hashes=()),)


@pytest.mark.parametrize("medium", ["CPU", "STORAGE"])
def test_blocks_outside_of_the_pool_are_left_out(medium: str) -> None:
    events = decode_events(batch(stored(1, medium=medium), removed(1, medium=medium), removed(2)))
    assert events == (BlocksRemoved(group=0, hashes=(2,)),)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"events": []}),
        batch({"type": "BlockRemoved", "block_hashes": 7}),
        batch({"type": "BlockMoved"}, {"type": "BlockStored"}),
        batch("no event"),
        batch(LookupMark("r-1", 40, 0, b"12345")),
        batch(LookupMark("r-1", 40, 0, bytes(12))),
        batch(ContentsMark([bytes(8), bytes(9)])),
    ],
    ids=[
        "empty",
        "unused byte",
        "no batch",
        "hashes are no list",
        "unknown type",
        "no map",
        "hashes cut",
        "hashes of another length",
        "listing of another length",
    ],
)
def test_a_batch_that_looks_different_is_refused(payload: bytes) -> None:
    """Left out silently, what is resident would be wrong from then on."""
    with pytest.raises(msgspec.DecodeError):
        decode_events(payload)
