"""The marks, on a stand-in for vLLM's manager; on the real one see the tests with an engine."""

from __future__ import annotations

from typing import Any

import pytest

from agentserve.engine.kv_event_wire import AllocationMark, LookupMark
from agentserve.engine.vllm import cache_marks


class Pool:
    def __init__(self, enable_kv_cache_events: bool = True) -> None:
        self.enable_kv_cache_events = enable_kv_cache_events
        self.kv_event_queue: list[Any] = []
        self.hash_block_size = 16


class Request:
    def __init__(self, prompt_tokens: int = 40) -> None:
        self.request_id = "r-1"
        self.num_prompt_tokens = prompt_tokens
        self.num_preemptions = 0
        self.block_hashes = [bytes([number]) * 32 for number in range(4)]


@pytest.fixture
def manager_class() -> type:
    class Manager:
        reads = True
        reused: tuple[str, ...] = ()
        evicts: tuple[str, ...] = ()

        def __init__(self, pool: Pool) -> None:
            self.block_pool = pool

        def prefix_cache_lookup_enabled(self, request: Request) -> bool:
            return self.reads

        def get_computed_blocks(self, request: Request) -> str:
            self.block_pool.kv_event_queue += self.reused
            return "found"

        def allocate_slots(self, request: Request, count: int, *, ahead: int = 0) -> int:
            self.block_pool.kv_event_queue += self.evicts
            return count + ahead

        def cache_blocks(self, request: Request, computed_tokens: int) -> None:
            self.block_pool.kv_event_queue += self.evicts

    cache_marks.install(Manager)
    return Manager


def test_a_lookup_is_marked_with_the_hashes_of_the_prompt_only_once(manager_class: type) -> None:
    manager, request = manager_class(Pool()), Request()
    assert manager.get_computed_blocks(request) == "found"
    request.num_preemptions = 1
    manager.get_computed_blocks(request)
    # Two whole blocks in 40 tokens; the others hold tokens of the answer.
    assert manager.block_pool.kv_event_queue == [
        LookupMark("r-1", 40, 0, b"\x00" * 8 + b"\x01" * 8),
        LookupMark("r-1", 40, 1, None),
    ]


def test_a_prompt_below_one_block_has_a_lookup_without_hashes(manager_class: type) -> None:
    manager = manager_class(Pool())
    manager.get_computed_blocks(Request(15))
    assert manager.block_pool.kv_event_queue == [LookupMark("r-1", 15, 0, b"")]


def test_a_request_that_reads_no_cache_has_no_mark(manager_class: type) -> None:
    manager = manager_class(Pool())
    manager.reads = False
    manager.get_computed_blocks(Request())
    assert manager.block_pool.kv_event_queue == []


def test_reports_of_reuse_are_taken_out(manager_class: type) -> None:
    manager = manager_class(Pool())
    manager.reused = ("stored",)
    manager.block_pool.kv_event_queue.append("earlier")
    manager.get_computed_blocks(Request())
    assert manager.block_pool.kv_event_queue[0] == "earlier"
    assert [type(event) for event in manager.block_pool.kv_event_queue[1:]] == [LookupMark]


def test_an_allocation_with_events_is_marked_before_them(manager_class: type) -> None:
    manager = manager_class(Pool())
    manager.block_pool.kv_event_queue.append("earlier")
    manager.evicts = ("removed", "stored")
    assert manager.allocate_slots(Request(), 3, ahead=2) == 5
    assert manager.block_pool.kv_event_queue == [
        "earlier",
        AllocationMark("r-1"),
        "removed",
        "stored",
    ]


def test_blocks_that_are_stored_after_the_allocation_are_marked_as_well(
    manager_class: type,
) -> None:
    manager = manager_class(Pool())
    manager.evicts = ("stored",)
    manager.cache_blocks(Request(), 32)
    assert manager.block_pool.kv_event_queue == [AllocationMark("r-1"), "stored"]


def test_an_allocation_without_events_is_not_marked(manager_class: type) -> None:
    manager = manager_class(Pool())
    assert manager.allocate_slots(Request(), 3) == 3
    assert manager.block_pool.kv_event_queue == []


def test_nothing_is_marked_where_nobody_publishes_events(manager_class: type) -> None:
    manager = manager_class(Pool(enable_kv_cache_events=False))
    manager.evicts = ("removed",)
    manager.get_computed_blocks(Request())
    manager.allocate_slots(Request(), 1)
    assert manager.block_pool.kv_event_queue == ["removed"]


def test_a_request_that_looks_different_is_served_without_a_mark(manager_class: type) -> None:
    manager, request = manager_class(Pool()), Request()
    del request.num_prompt_tokens
    assert manager.get_computed_blocks(request) == "found"
    assert manager.block_pool.kv_event_queue == []


def test_a_manager_that_looks_different_is_left_alone() -> None:
    class Manager:
        def get_computed_blocks(self, request: Request) -> str:
            return "found"

        def allocate_slots(self, requests: list[Request]) -> int:
            return len(requests)

        def cache_blocks(self, request: Request) -> None:
            pass

    lookup = Manager.get_computed_blocks
    with pytest.raises(AttributeError, match="other arguments"):
        cache_marks.install(Manager)
    assert Manager.get_computed_blocks is lookup
