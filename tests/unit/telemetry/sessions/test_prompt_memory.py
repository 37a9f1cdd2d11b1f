from __future__ import annotations

import sys
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.prompt import PartKind, PartText, PromptPart
from agentserve.telemetry.sessions.prompt_memory import PromptMemory, RememberedPrompt
from agentserve.telemetry.sessions.token_prefix import token_array

HASH_BLOCK_TOKENS = 16


def hashes_of(tokens: list[int]) -> array[int]:
    """Chained hashes as an engine makes them: equal hashes mean an equal prefix."""
    ends = range(HASH_BLOCK_TOKENS, len(tokens) + 1, HASH_BLOCK_TOKENS)
    return array("Q", [hash(tuple(tokens[:end])) & (2**64 - 1) for end in ends])


def prompt(tokens: list[int], text: str = "") -> RememberedPrompt:
    part = PartText(part=PromptPart(kind=PartKind.SYSTEM), text=text)
    return RememberedPrompt(
        generation=1,
        cache_salt=None,
        prompt_tokens=len(tokens),
        tokens=token_array(tokens),
        parts=(part,),
        hashes=hashes_of(tokens),
        hash_tokens=HASH_BLOCK_TOKENS,
    )


def taken(token_ids: list[int], before: RememberedPrompt | None) -> RememberedPrompt:
    """A prompt that got its hashes first and then its tokens."""
    late = prompt(token_ids)
    late.tokens = None
    late.take_tokens(token_ids, before)
    return late


class Walked(list[int]):
    """Token ids that tell which of them were made into an array."""

    def __getitem__(self, key: Any) -> Any:
        self.asked = key
        return super().__getitem__(key)


@given(st.lists(st.integers(0, 2), max_size=200), st.integers(0, 200), st.integers(0, 200))
def test_tokens_are_the_same_whatever_came_before(before: list[int], kept: int, added: int) -> None:
    now = before[:kept] + [1] * added
    assert taken(now, prompt(before)).tokens == taken(now, None).tokens == token_array(now)


def test_only_tokens_behind_equal_hashes_are_made_into_an_array() -> None:
    before = prompt([1] * 100)
    before.add_answer([2] * 40)
    now = Walked([1] * 100 + [2] * 40 + [3] * 10)
    assert taken(now, before).tokens == token_array(list(now))
    assert now.asked == slice(96, None)


@pytest.mark.parametrize("other", [{"generation": 2}, {"cache_salt": "blue"}, {"hashes": None}])
def test_tokens_are_copied_only_where_equal_hashes_say_so(other: dict[str, Any]) -> None:
    before = prompt([1] * 100)
    for name, value in other.items():
        setattr(before, name, value)
    before.tokens = token_array([9] * 100)
    assert taken([1] * 100, before).tokens == token_array([1] * 100)
    before.tokens = None
    assert taken([1] * 100, before).tokens == token_array([1] * 100)


def test_a_sequence_takes_no_room_that_it_does_not_need() -> None:
    remembered = prompt([1] * 10_000)
    remembered.add_answer([2] * 100)
    assert sys.getsizeof(remembered.tokens) == sys.getsizeof(token_array([])) + 4 * 10_100


def test_the_answer_belongs_to_the_sequence_of_the_next_turn() -> None:
    remembered = prompt([1, 2, 3])
    remembered.add_answer([4, 5])
    assert remembered.sequence_tokens == 5
    assert remembered.prompt_tokens == 3
    assert remembered.common_tokens(prompt([1, 2, 3, 4, 9])) == (4, 1)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 400))
def test_without_tokens_the_common_part_is_known_to_a_step(
    shared: int, rest_before: int, rest_now: int
) -> None:
    before = [7] * shared + [1] * rest_before
    now = [7] * shared + [2] * rest_now
    exact = min(shared, len(before), len(now))
    remembered = prompt(before)
    remembered.forget_text()
    common, step = remembered.common_tokens(prompt(now))
    assert step == 128
    assert common is not None
    assert common <= exact < common + step
    assert prompt(now).common_tokens(remembered) == (common, step)


def test_a_sequence_with_neither_tokens_nor_hashes_shares_an_unknown_number() -> None:
    remembered = prompt([1] * 100)
    remembered.tokens = remembered.hashes = None
    assert remembered.common_tokens(prompt([1] * 100))[0] is None


@pytest.mark.parametrize("other", [{"generation": 2}, {"cache_salt": "blue"}])
def test_hashes_of_another_engine_or_salt_tell_nothing(other: dict[str, Any]) -> None:
    remembered, now = prompt([1] * 300), prompt([1] * 300)
    for name, value in other.items():
        setattr(now, name, value)
    now.hashes = array("Q", [5] * len(now.hashes or ()))
    assert remembered.common_tokens(now) == (300, 1)
    remembered.forget_text()
    assert remembered.common_tokens(now)[0] is None


def test_an_image_that_changed_behind_equal_tokens_ends_what_is_common() -> None:
    remembered, now = prompt([1] * 300), prompt([1] * 320)
    assert remembered.common_tokens(now) == (300, 1)
    assert now.hashes is not None
    for place in range(7, len(now.hashes)):
        now.hashes[place] += 1
    assert remembered.common_tokens(now) == (7 * HASH_BLOCK_TOKENS, HASH_BLOCK_TOKENS)


def test_the_sessions_seen_longest_ago_give_up_their_text_first() -> None:
    forgotten: list[str] = []
    memory = PromptMemory(budget_bytes=1_000, on_forgotten=forgotten.append)
    memory.put("a", prompt([1] * 100))
    memory.put("b", prompt([2] * 100))
    memory.put("a", prompt([1] * 100))
    memory.put("c", prompt([3] * 100))
    assert forgotten == ["b"]
    kept = memory.get("b")
    assert kept is not None
    assert kept.tokens is None
    assert kept.parts == ()
    assert kept.hashes is not None
    assert memory.text_bytes == 800


def test_a_growing_answer_counts() -> None:
    memory = PromptMemory(budget_bytes=1_000)
    memory.put("a", prompt([1] * 100))
    memory.put("b", prompt([2] * 100))
    growing = memory.get("b")
    assert growing is not None
    growing.add_answer([3] * 100)
    memory.measure("b")
    assert memory.text_bytes == 800
    older = memory.get("a")
    assert older is not None
    assert older.tokens is None


def test_text_counts_by_what_it_takes() -> None:
    assert prompt([], "abc").text_bytes == 3
    assert prompt([], "日本").text_bytes == 8


def test_one_prompt_above_the_budget_is_still_kept_whole() -> None:
    memory = PromptMemory(budget_bytes=10)
    memory.put("a", prompt([1] * 100))
    kept = memory.get("a")
    assert kept is not None
    assert kept.tokens is not None


def test_a_dropped_session_takes_its_bytes_along() -> None:
    memory = PromptMemory()
    memory.put("a", prompt([1] * 100))
    memory.drop("a")
    assert memory.text_bytes == 0
    assert memory.get("a") is None
    assert memory.newest_first() == ()
