from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentserve.telemetry.sessions.token_prefix import common_prefix_length, token_array

tokens = st.lists(st.integers(0, 3), max_size=40)


@given(tokens, tokens, tokens)
def test_the_common_prefix_is_what_a_walk_finds(
    shared: list[int], first: list[int], second: list[int]
) -> None:
    left, right = shared + first, shared + second
    walked = 0
    while walked < min(len(left), len(right)) and left[walked] == right[walked]:
        walked += 1
    assert common_prefix_length(token_array(left), token_array(right)) == walked
    for equal in (len(shared), walked):
        assert common_prefix_length(token_array(left), token_array(right), equal) == walked


def test_a_token_id_of_any_vocabulary_fits() -> None:
    assert token_array([0, 2**31]).tolist() == [0, 2**31]
    assert token_array([1]).itemsize == 4
