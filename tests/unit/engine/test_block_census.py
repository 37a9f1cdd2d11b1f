"""The census on a stand-in for vLLM's pool; on the real one see the tests with an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.engine.vllm import plugin
from agentserve.engine.vllm.block_census import WALK_SHARE, BlockCensus


class Block:
    """One whose hash may be looked at, at a price."""

    def __init__(self, pool: Pool, users: int, block_hash: bytes | None) -> None:
        self._pool = pool
        self.ref_cnt = users
        self._block_hash = block_hash

    @property
    def block_hash(self) -> bytes | None:
        self._pool.work_s += self._pool.look_s
        return self._block_hash


class Pool:
    """Blocks after the null block, as pairs of users and whether each is cached."""

    def __init__(self, *blocks: tuple[int, bool], look_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.work_s = 0.0
        self.look_s = look_s
        self.blocks = [
            Block(self, 0, None),
            *(Block(self, users, b"hash" if cached else None) for users, cached in blocks),
        ]
        self.num_gpu_blocks = len(self.blocks)

    def get_num_free_blocks(self) -> int:
        return sum(block.ref_cnt == 0 for block in self.blocks[1:])

    def census(self) -> BlockCensus:
        return BlockCensus(self, lambda: self.now_s, lambda: self.work_s)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans())))
def test_each_block_but_the_null_block_is_counted(blocks: list[tuple[int, bool]]) -> None:
    assert Pool(*blocks).census().counts() == {
        "blocks_in_use": sum(users > 0 for users, _ in blocks),
        "blocks_warm": sum(cached and users == 0 for users, cached in blocks),
        "blocks_free": sum(not cached and users == 0 for users, cached in blocks),
        "blocks_cached": sum(cached for _, cached in blocks),
    }


def test_the_next_walk_waits_until_the_last_one_is_a_small_share_of_the_time() -> None:
    pool = Pool(*[(0, True)] * 99, look_s=0.0002)
    census = pool.census()
    first = census.counts()
    walk_s = pool.work_s
    assert walk_s == pytest.approx(0.02)
    pool.blocks[1].ref_cnt = 1
    pool.now_s += walk_s / WALK_SHARE - 0.01
    assert census.counts() == first
    assert pool.work_s == walk_s
    pool.now_s += 0.02
    assert census.counts()["blocks_in_use"] == 1


def test_asked_each_second_a_large_pool_costs_no_more_than_its_share() -> None:
    pool = Pool(*[(0, True)] * 99, look_s=0.0005)
    census = pool.census()
    began_s = pool.now_s
    while pool.now_s < began_s + 1000:
        census.counts()
        pool.now_s += 1.0
    assert pool.work_s <= 1000 * WALK_SHARE + 0.05


def test_of_a_small_pool_each_answer_is_a_count_of_its_own() -> None:
    pool = Pool((0, False), look_s=1e-7)
    census = pool.census()
    assert census.counts()["blocks_in_use"] == 0
    pool.blocks[1].ref_cnt = 1
    pool.now_s += 1.0
    assert census.counts()["blocks_in_use"] == 1


def engine_core(pool: Any) -> Any:
    running = SimpleNamespace(request_id="r-1", num_computed_tokens=50, num_prompt_tokens=40)
    return SimpleNamespace(
        scheduler=SimpleNamespace(
            kv_cache_manager=SimpleNamespace(block_pool=pool),
            max_num_scheduled_tokens=512,
            running=[running],
        )
    )


def test_what_the_scheduler_says_of_requests_is_fresh_while_counts_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool((1, True), (0, True), (0, False))
    walks: list[object] = []

    class Kept(BlockCensus):
        def __init__(self, pool: Pool) -> None:
            walks.append(pool)
            super().__init__(pool, lambda: 0.0, iter(range(10)).__next__)

    monkeypatch.setattr(plugin, "BlockCensus", Kept)
    core = engine_core(pool)
    first = plugin._scheduler_facts(core)
    assert first == {
        "blocks_in_use": 1,
        "blocks_warm": 1,
        "blocks_free": 1,
        "blocks_cached": 2,
        "live_token_budget": 512,
        "computed_prompt_tokens": {"r-1": 40},
    }
    pool.blocks[2].ref_cnt = 1
    core.scheduler.running = []
    second = plugin._scheduler_facts(core)
    assert second == {**first, "computed_prompt_tokens": {}}
    assert walks == [pool]


def test_a_pool_that_looks_different_is_not_known() -> None:
    assert plugin._scheduler_facts(engine_core(SimpleNamespace())) is None
