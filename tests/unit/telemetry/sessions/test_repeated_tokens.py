from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from agentserve.telemetry.sessions.repeated_tokens import PIECE_TOKENS, repeated_tokens
from agentserve.telemetry.sessions.token_prefix import common_prefix_length, token_array

SOURCE = random.Random(7)


def text(length: int) -> list[int]:
    return [SOURCE.randrange(150_000) for _ in range(length)]


def count(before: list[int], now: list[int]) -> int:
    first, second = token_array(before), token_array(now)
    return repeated_tokens(first, second, common_prefix_length(first, second))


def test_all_behind_a_replaced_value_is_repeated() -> None:
    head, tail, more = text(100), text(5_000), text(300)
    assert count([*head, 1, 2, *tail], [*head, 3, 4, 5, *tail, *more]) == 5_000


def test_what_stands_behind_messages_that_were_cut_is_repeated() -> None:
    head, cut, kept, more = text(100), text(9_000), text(6_000), text(300)
    assert count([*head, *cut, *kept], [*head, *kept, *more]) == 6_000


def test_what_was_summarised_is_not_repeated() -> None:
    head = text(100)
    assert count([*head, *text(9_000)], [*head, *text(3_000)]) == 0


def test_several_changes_are_stepped_over() -> None:
    head, one, two, three = text(10), text(1_000), text(1_000), text(1_000)
    before = [*head, 1, *one, 2, *two, 3, *three]
    now = [*head, 4, 4, *one, *two, 5, *three, *text(50)]
    assert count(before, now) == 3_000


def test_bytes_of_two_neighbours_are_no_token() -> None:
    # In memory ones look like 256s, but for one byte.
    assert count([9, *[256] * 80], [8, *[1] * 33, *[256] * 80]) >= PIECE_TOKENS


@given(st.lists(st.integers(0, 2), max_size=150), st.lists(st.integers(0, 2), max_size=150),
       st.lists(st.integers(0, 2), max_size=80))  # fmt: skip
def test_never_more_is_repeated_than_both_have(
    before: list[int], now: list[int], shared: list[int]
) -> None:
    first, second = before + shared * 2, now + shared * 2
    start = common_prefix_length(token_array(first), token_array(second))
    in_both = Counter(first[start:]) & Counter(second[start:])
    found = count(first, second)
    assert found <= in_both.total()
    assert found == 0 or found >= PIECE_TOKENS
