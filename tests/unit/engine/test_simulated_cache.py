from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.cache_event import (
    BlocksAllocated,
    BlocksRemoved,
    BlocksStored,
    CacheEvent,
    CacheEvents,
    PrefixLookup,
)
from agentserve.engine.simulated_cache import SimulatedCache, prefix_hashes
from tests.unit.engine.cache_replay import replay

BLOCK = 4
Prompt = tuple[int, ...]


class Played:
    """A cache with what it reported."""

    def __init__(self, blocks: int) -> None:
        self.batches: list[CacheEvents] = []
        self.cache = SimulatedCache(blocks, BLOCK, 7, self.batches.append)
        self.reused: dict[str, int] = {}

    @property
    def events(self) -> list[CacheEvent]:
        self.cache.flush()
        return [event for batch in self.batches for event in batch.events]

    def request(self, request_id: str, prompt: Prompt, *, release: bool = True) -> int:
        """Run one request to its last prompt token."""
        cached = self.cache.admit(request_id, prompt, ())
        self.reused[request_id] = cached
        self.cache.advance(request_id, len(prompt))
        if release:
            self.cache.release(request_id)
        return cached


def prompt(*starts: int) -> Prompt:
    """A prompt of whole blocks; equal numbers give equal blocks."""
    return tuple(start * 100 + offset for start in starts for offset in range(BLOCK))


def test_a_repeated_prompt_is_reused_in_whole_blocks_but_for_its_last_token() -> None:
    played = Played(16)
    assert played.request("a", prompt(1, 2, 3)) == 0
    assert played.request("b", prompt(1, 2, 3)) == 2 * BLOCK
    assert played.request("c", (*prompt(1, 2, 3), 9)) == 3 * BLOCK
    assert played.request("d", prompt(2, 3)) == 0
    assert played.request("e", (1,)) == 0


def test_the_answer_is_reused_too() -> None:
    played = Played(16)
    played.cache.admit("a", prompt(1), prompt(2, 3))
    played.cache.advance("a", 3 * BLOCK - 1)
    played.cache.release("a")
    assert played.request("b", prompt(1, 2, 3, 4)) == 2 * BLOCK


def test_what_was_used_longest_ago_goes_first_and_from_its_end() -> None:
    played = Played(4)
    played.request("old", prompt(1, 2))
    played.request("new", prompt(3, 4))
    played.request("old again", prompt(1, 5), release=False)
    (removed,) = [event for event in played.events if isinstance(event, BlocksRemoved)]
    # The first block of the old prompt was taken in use; its second one was the oldest left.
    assert removed.hashes == (prefix_hashes(prompt(1, 2), BLOCK)[1],)
    assert played.request("new again", prompt(3, 9)) == BLOCK


def test_blocks_in_use_are_never_taken() -> None:
    played = Played(3)
    played.request("a", prompt(1, 2, 3), release=False)
    played.cache.admit("b", prompt(4), ())
    with pytest.raises(KeyError):
        played.cache.advance("b", BLOCK)


def test_events_come_in_the_order_in_which_things_happened() -> None:
    played = Played(2)
    played.request("a", prompt(1, 2))
    played.request("b", (*prompt(3), 9))
    a, b = prefix_hashes(prompt(1, 2), BLOCK), prefix_hashes(prompt(3), BLOCK)
    assert played.events == [
        PrefixLookup(request_id="a", prompt_tokens=8, preemptions=0, block_hashes=a),
        BlocksAllocated("a"),
        BlocksStored(group=0, hashes=tuple(a)),
        PrefixLookup(request_id="b", prompt_tokens=5, preemptions=0, block_hashes=b),
        BlocksAllocated("b"),
        BlocksRemoved(group=0, hashes=(a[1], a[0])),
        BlocksStored(group=0, hashes=tuple(b)),
    ]
    assert {batch.generation for batch in played.batches} == {7}


def test_nothing_is_reported_before_a_flush_nor_twice() -> None:
    played = Played(2)
    played.request("a", prompt(1))
    assert played.batches == []
    played.cache.flush()
    played.cache.flush()
    assert len(played.batches) == 1


def test_a_hash_tells_the_whole_prefix() -> None:
    assert prefix_hashes(prompt(1, 2), BLOCK)[0] == prefix_hashes(prompt(1, 3), BLOCK)[0]
    assert prefix_hashes(prompt(1, 2), BLOCK)[1] != prefix_hashes(prompt(3, 2), BLOCK)[1]
    assert len(prefix_hashes((1, 2, 3, 4, 5, 6, 7), BLOCK)) == 1
    assert len(prefix_hashes((1, 2, 3), BLOCK)) == 0


ACTIONS = st.lists(
    st.tuples(
        # Few different blocks, so that prefixes meet.
        st.lists(st.integers(1, 3), min_size=1, max_size=6),
        st.integers(0, BLOCK - 1),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(blocks=st.integers(7, 24), actions=ACTIONS)
def test_a_replay_of_the_events_gives_the_same_reuse_and_the_same_blocks(
    blocks: int, actions: list[tuple[list[int], int, int]]
) -> None:
    played = Played(blocks)
    running: list[str] = []
    for number, (starts, more, kept) in enumerate(actions):
        tokens = (*prompt(*starts), *range(more))
        # One request alone always has room.
        while running and len(running) * 7 + 7 > blocks:
            played.cache.release(running.pop(0))
        played.request(str(number), tokens, release=kept == 0)
        if kept:
            running.append(str(number))
        counts = played.cache.counts()
        assert min(counts) >= 0
        assert sum(counts) == blocks
        stored = sum(len(e.hashes) for e in played.events if isinstance(e, BlocksStored))
        removed = sum(len(e.hashes) for e in played.events if isinstance(e, BlocksRemoved))
        assert played.cache.cached_blocks == stored - removed
        assert counts[1] <= stored - removed <= counts[0] + counts[1]
    played.cache.flush()
    assert replay(played.batches, BLOCK) == played.reused
    for request_id in running:
        played.cache.release(request_id)
    assert played.cache.counts()[0] == 0
