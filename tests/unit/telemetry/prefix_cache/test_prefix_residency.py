from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from agentserve.domain.cache_layout import CacheGroupLayout, CacheLayout
from agentserve.telemetry.prefix_cache.evictions import Eviction
from agentserve.telemetry.prefix_cache.removals import Removal, RemovalMemory
from agentserve.telemetry.prefix_cache.residency import ResidencyMap
from tests.unit.telemetry.prefix_cache.block_pool_model import BlockPoolModel

DENSE = CacheLayout(
    groups=(CacheGroupLayout(kind="full_attention", block_tokens=16),),
    hash_block_tokens=16,
    alignment_tokens=16,
)


def layout(groups: int, tail_groups: set[int]) -> CacheLayout:
    return CacheLayout(
        groups=tuple(
            CacheGroupLayout(
                kind="mamba" if group in tail_groups else "full_attention", block_tokens=16
            )
            for group in range(groups)
        ),
        hash_block_tokens=16,
        alignment_tokens=16,
    )


def replayed(*events: CacheEvent, of: CacheLayout = DENSE) -> ResidencyMap:
    residency = ResidencyMap(of)
    for event in events:
        residency.apply(event)
    return residency


def allocated(request_id: str) -> BlocksAllocated:
    return BlocksAllocated(request_id)


def stored(*hashes: int, group: int = 0) -> BlocksStored:
    return BlocksStored(group=group, hashes=hashes)


def removed(*hashes: int, group: int = 0) -> BlocksRemoved:
    return BlocksRemoved(group=group, hashes=hashes)


def lookup(request_id: str) -> PrefixLookup:
    return PrefixLookup(request_id=request_id, prompt_tokens=1, preemptions=0, block_hashes=None)


@st.composite
def pools(draw: st.DrawFn, *, copies: bool) -> BlockPoolModel:
    """A pool after random requests; without `copies` no hash is ever stored while resident."""
    groups = draw(st.integers(1, 3))
    tail_groups = set(range(1, groups)) if draw(st.booleans()) else set()
    pool = BlockPoolModel(draw(st.integers(3, 30)), groups, tail_groups if copies else set())
    sequences: list[list[int]] = [[]]
    fresh = iter(range(1, 10_000))
    for number in range(draw(st.integers(1, 20))):
        match draw(st.sampled_from(["run"] * 6 + ["end"] * 4 + ["clear"])):
            case "run":
                known = draw(st.sampled_from(sequences))
                shared = known[: draw(st.integers(0, len(known)))]
                new = draw(st.integers(0 if shared else 1, 6))
                hashes = shared + [next(fresh) for _ in range(new)]
                sequences.append(hashes)
                reused = draw(st.integers(0, len(hashes))) if copies else len(hashes)
                pool.run(f"r{number}", hashes, reused)
            case "end" if pool.used:
                pool.end(draw(st.sampled_from(sorted(pool.used))))
            case "clear":
                pool.clear()
    return pool


def replay_of(pool: BlockPoolModel) -> ResidencyMap:
    return replayed(*pool.events, of=layout(pool.groups, pool.tail_groups))


def copies_in(residency: ResidencyMap, keys: Sequence[tuple[int, int]]) -> dict[object, int]:
    return {key: residency.copies(*key) for key in keys if residency.copies(*key)}


@given(pools(copies=True))
def test_the_replay_knows_what_is_in_the_pool(pool: BlockPoolModel) -> None:
    residency = replay_of(pool)
    every_key = [(group, block_hash) for group in range(pool.groups) for block_hash in range(150)]
    assert copies_in(residency, every_key) == dict(pool.resident())
    assert residency.cached_blocks == pool.resident().total()
    assert sum(residency.owned_blocks().values()) == residency.cached_blocks
    assert all(count > 0 for count in residency.owned_blocks().values())
    assert residency.unmatched_removals == 0


@given(pools(copies=False))
def test_without_copies_the_replay_knows_who_stored_and_who_took_each_block(
    pool: BlockPoolModel,
) -> None:
    residency = replay_of(pool)
    assert residency.owned_blocks() == dict(pool.owned())
    left = {
        (group, block_hash): removal
        for group in range(pool.groups)
        for block_hash in range(150)
        if (removal := residency.removal_of(group, block_hash)) is not None
    }
    assert left == pool.removals
    evictions = residency.take_evictions()
    assert {(each.loser, each.winner): each.blocks for each in evictions} == dict(pool.losses)


@given(pools(copies=True), st.data())
def test_a_replay_that_goes_on_from_a_listing_knows_what_is_in_the_pool(
    pool: BlockPoolModel, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(pool.events)))
    shape = layout(pool.groups, pool.tail_groups)
    before = replayed(*pool.events[:place], of=shape)
    groups = [array(BLOCK_HASH_TYPECODE) for _ in range(pool.groups)]
    for group, hashes in enumerate(groups):
        for block_hash in range(150):
            hashes.extend([block_hash] * before.copies(group, block_hash))
    residency = replayed(BlocksStored(group=0, hashes=(999,)), of=shape)
    version = residency.version
    residency.begin_again(CacheContents(tuple(groups)))
    assert residency.version > version
    for event in pool.events[place:]:
        residency.apply(event)
    every_key = [(group, block_hash) for group in range(pool.groups) for block_hash in range(150)]
    assert copies_in(residency, every_key) == dict(pool.resident())
    assert residency.cached_blocks == pool.resident().total()
    assert residency.unmatched_removals == 0


def test_after_a_listing_it_is_known_what_left_before_and_in_the_gap() -> None:
    residency = replayed(
        BlocksAllocated("a"),
        BlocksStored(group=0, hashes=(1, 2, 3)),
        BlocksAllocated("b"),
        BlocksRemoved(group=0, hashes=(1,)),
        of=layout(1, set()),
    )
    residency.begin_again(CacheContents((array(BLOCK_HASH_TYPECODE, [3, 4]),)))
    assert residency.removal_of(0, 1) == Removal("b", "a")
    assert residency.removal_of(0, 2) == Removal(None, "a")
    assert residency.removal_of(0, 3) is None
    assert residency.removal_of(0, 4) is None


def test_a_listing_of_other_groups_is_refused() -> None:
    residency = replayed(of=layout(1, set()))
    with pytest.raises(ValueError, match="2 groups instead of 1"):
        residency.begin_again(CacheContents((array(BLOCK_HASH_TYPECODE),) * 2))


@given(pools(copies=True))
def test_a_second_replay_after_a_reset_ends_the_same(pool: BlockPoolModel) -> None:
    first = replay_of(pool)
    again = replay_of(pool)
    again.reset(again.layout)
    assert (again.cached_blocks, again.owned_blocks(), again.take_evictions()) == (0, {}, [])
    for event in pool.events:
        again.apply(event)
    assert again.owned_blocks() == first.owned_blocks()
    assert again.take_evictions() == first.take_evictions()


def test_a_hash_that_was_stored_twice_stays_until_it_is_removed_twice() -> None:
    residency = replayed(stored(1), stored(1), removed(1))
    assert residency.copies(0, 1) == 1
    assert residency.removal_of(0, 1) is None
    residency.apply(removed(1))
    assert residency.copies(0, 1) == 0


def test_of_several_copies_the_newest_goes_first() -> None:
    residency = replayed(
        allocated("a"), stored(1), allocated("b"), stored(1), allocated("c"), stored(1)
    )
    assert residency.owned_blocks() == {"a": 1, "b": 1, "c": 1}
    residency.apply(removed(1))
    assert residency.owned_blocks() == {"a": 1, "b": 1}
    residency.apply(removed(1))
    assert residency.owned_blocks() == {"a": 1}
    assert residency.take_evictions() == []


def test_one_group_does_not_hold_what_another_holds() -> None:
    residency = replayed(stored(1, group=1), of=layout(2, {1}))
    assert (residency.copies(0, 1), residency.copies(1, 1)) == (0, 1)


def test_blocks_stored_without_a_mark_belong_to_nobody() -> None:
    residency = replayed(stored(1, 2))
    assert residency.cached_blocks == 2
    assert residency.owned_blocks() == {}


def test_a_lookup_ends_the_time_of_the_request_that_was_allocated() -> None:
    residency = replayed(allocated("a"), stored(1), lookup("b"), stored(2))
    assert residency.owned_blocks() == {"a": 1}
    assert residency.cached_blocks == 2


def test_a_removal_tells_who_took_whose_block_until_it_is_stored_again() -> None:
    residency = replayed(allocated("a"), stored(1), allocated("b"), removed(1))
    assert residency.removal_of(0, 1) == Removal(by="b", of="a")
    residency.apply(stored(1))
    assert residency.removal_of(0, 1) is None


def test_one_event_can_remove_blocks_of_several_requests() -> None:
    residency = replayed(
        allocated("a"), stored(1), allocated("b"), stored(2), allocated("c"), removed(1, 2)
    )
    assert residency.removal_of(0, 1) == Removal(by="c", of="a")
    assert residency.removal_of(0, 2) == Removal(by="c", of="b")


def test_evictions_are_summed_by_loser_and_winner_and_taken_once() -> None:
    residency = replayed(
        allocated("a"),
        stored(1, 2, group=0),
        stored(2, group=1),
        allocated("b"),
        removed(1, 2, group=0),
        removed(2, group=1),
        of=layout(2, {1}),
    )
    assert residency.take_evictions() == [Eviction("a", "b", blocks=3, tokens=32)]
    assert residency.take_evictions() == []


def test_a_request_that_overwrites_its_own_block_evicts_nobody() -> None:
    residency = replayed(allocated("a"), stored(1), removed(1))
    assert residency.take_evictions() == []
    assert residency.removal_of(0, 1) == Removal(by="a", of="a")


def test_clearing_the_cache_is_not_an_eviction() -> None:
    residency = replayed(allocated("a"), stored(1), stored(1), CacheCleared())
    assert (residency.cached_blocks, residency.owned_blocks()) == (0, {})
    assert residency.take_evictions() == []
    assert residency.removal_of(0, 1) is None
    residency.apply(stored(1))
    assert residency.copies(0, 1) == 1


def test_a_removal_of_what_was_not_there_is_counted_and_changes_nothing() -> None:
    residency = replayed(allocated("a"), stored(1), removed(2))
    assert residency.unmatched_removals == 1
    assert residency.cached_blocks == 1
    assert residency.take_evictions() == []


def test_events_of_a_group_that_the_layout_lacks_are_left_out() -> None:
    residency = replayed(stored(1, group=7), removed(1, group=7), stored(1, group=-1))
    assert residency.cached_blocks == 0


def test_the_version_changes_with_residency_and_not_with_marks() -> None:
    residency = ResidencyMap(DENSE)
    seen = [residency.version]
    for event in (stored(1), stored(1), removed(1), removed(1), stored(2), CacheCleared()):
        residency.apply(event)
        seen.append(residency.version)
    assert seen == sorted(set(seen))
    for mark in (allocated("a"), lookup("b"), stored()):
        residency.apply(mark)
    assert residency.version == seen[-1]


@given(st.lists(st.integers(0, 30), max_size=120), st.integers(2, 20))
def test_the_newest_half_of_the_removals_is_never_forgotten(keys: list[int], limit: int) -> None:
    memory = RemovalMemory(limit)
    for number, key in enumerate(keys):
        memory.add(key, Removal(by=str(number), of=None))
        assert len(memory) <= limit
    newest = {key: number for number, key in enumerate(keys)}
    recent = list(Counter(reversed(keys)))[: limit // 2]
    assert all(memory.get(key) == Removal(str(newest[key]), None) for key in recent)
