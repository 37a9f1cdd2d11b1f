from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.session import VolatileKind
from agentserve.telemetry.sessions.token_prefix import common_prefix_length
from agentserve.telemetry.sessions.volatile import volatile_kind

CLOCK, DATE, COUNTER = VolatileKind.CLOCK, VolatileKind.DATE, VolatileKind.COUNTER
RANDOM_ID, NONCE = VolatileKind.RANDOM_ID, VolatileKind.NONCE

BEHIND = ". You are a careful engineer. Read files before you change them."

VALUES = [
    (CLOCK, "The time is 14:03", "The time is 14:04"),
    (CLOCK, "The time is 09:59:59", "The time is 10:00:01"),
    (CLOCK, "It is 9:59 pm", "It is 10:00 pm"),
    (CLOCK, "It is 2 PM", "It is 3 PM"),
    (CLOCK, "now: 2026-11-29T14:03:22Z", "now: 2026-11-29T14:03:25Z"),
    (CLOCK, "now: 2026-11-29 14:03:22.123+01:00", "now: 2026-11-30 08:11:02.923+01:00"),
    (CLOCK, "now: 20261129T140322Z", "now: 20261129T140401Z"),
    (CLOCK, '{"ts":1796000000,"x":1}', '{"ts":1796000060,"x":1}'),
    (CLOCK, "ts=1796000000123", "ts=1796000060456"),
    (CLOCK, "Sun Nov 29 14:03:22 UTC 2026", "Mon Nov 30 01:13:02 UTC 2026"),
    (DATE, "Today's date: 2026-11-29", "Today's date: 2026-11-30"),
    (DATE, "Today's date: 2026/11/29", "Today's date: 2027/01/01"),
    (DATE, "Datum: 29.11.2026", "Datum: 30.11.2026"),
    (DATE, "Date: 11/29/2026", "Date: 11/30/2026"),
    (DATE, "Today is Sunday, November 29, 2026", "Today is Monday, November 30, 2026"),
    (DATE, "Today is 29 Nov 2026", "Today is 1 Dec 2026"),
    (DATE, "Today is Sunday", "Today is Monday"),
    (COUNTER, "This is turn 7 of 20", "This is turn 8 of 20"),
    (COUNTER, "tokens used: 12345", "tokens used: 23456"),
    (COUNTER, "Tokens remaining: 9,876", "Tokens remaining: 10,001"),
    (COUNTER, "context: 43% used", "context: 51% used"),
    (COUNTER, '{"turn": 9, "mode": "x"}', '{"turn": 10, "mode": "x"}'),
    (COUNTER, "Step 3 of 12", "Step 4 of 12"),
    (COUNTER, "Attempt #2", "Attempt #3"),
    (
        RANDOM_ID,
        "dir f47ac10b-58cc-4372-a567-0e02b2c3d479",
        "dir 0b9e2c11-aa01-4f0e-9be2-77aa12c0ffee",
    ),
    (
        RANDOM_ID,
        "dir f47ac10b-58cc-4372-a567-0e02b2c3d479",
        "dir f47ac10b-1111-4f0e-9be2-77aa12c0ffee",
    ),
    (RANDOM_ID, "call_8fK2mQ9xW3zP7aBc", "call_9dL4nR8yX2wT6bVe"),
    (RANDOM_ID, "build d41d8cd98f00b204e9800998ecf8427e", "build 9e107d9d372bb6826bd81d3542a419d6"),
    (RANDOM_ID, "HEAD a1b2c3d", "HEAD 9f8e7d6"),
    (RANDOM_ID, "x 01ARZ3NDEKTSV4RRFFQ69G5FAV", "x 01ARZ3NDEKM9XQ2WVBN8T4C7ZK"),
    (RANDOM_ID, "id V1StGXR8_Z5jdHi6B-myT", "id qP9sLw0xT_4kMn7Zb-RfG2"),
    (RANDOM_ID, "/tmp/tmpk3j2x9qa/out", "/tmp/tmpz8w4p1mf/out"),
    (NONCE, "nonce: 81723", "nonce: 99120"),
    (NONCE, "request_id=abc-77123", "request_id=qqe-99120"),
    (NONCE, '{"requestId": "r5512aa"}', '{"requestId": "r9917bc"}'),
    (NONCE, "Trace ID: f47ac10b-58cc", "Trace ID: 11fe82aa-1c2d"),
    (CLOCK, "It is 14:03, turn 7", "It is 14:04, turn 8"),
]

NEAR_MISSES = [
    ("I met Bob yesterday", "I met Alice yesterday"),
    ("timeout = 30", "timeout = 60"),
    ("return a[10:20]", "return a[10:25]"),
    ("version 1.2.3", "version 1.2.4"),
    ("main.py:12:30: error", "main.py:12:34: error"),
    ("retry_count = 3", "retry_count = 4"),
    ("max_tokens: 500", "max_tokens: 900"),
    ("use at most 3 messages", "use at most 5 messages"),
    ("max turns: 5", "max turns: 10"),
    ("limit: turn 5", "limit: turn 6"),
    ("you may 10 items", "you may 12 items"),
    ("getUserById2", "setOwnerByName3"),
    ("gpt-4o-mini-2024-07-18", "gpt-4.1-nano-2025-04-14"),
    ("at 14:03 with Bob", "at 15:30 with Alice"),
    ("The time is 14:03 here", "The hour was late there"),
    ("a facade of code", "a decade of code"),
    ("the request id format", "the request id layout"),
    ("utf8mb4_general_ci", "utf8mb3_unicode_ci"),
    ("costs 14.03", "costs 14.05"),
    ("mask a1b2c3d4e5f6a7b8", "mask a1b2c3d4e5f6a7b9"),
    ("color #ff8800", "color #ee7700"),
    ("ports 8080:80", "ports 8081:80"),
    ("see step 3 for it", "see step 4 for it"),
    ("x = 1/2", "x = 3/2"),
    ("meet on Sunday", "meet on Monday"),
    ("read_file", "write_file"),
    ("sha256sum", "sha512sum"),
    ("3 tools", "4 tools"),
    ("It is 14:03", "It is late"),
]


def kind_of(before: str, after: str) -> VolatileKind | None:
    start = common_prefix_length(before, after)
    return volatile_kind(before[:start], before[start:], after[start:])


@pytest.mark.parametrize(("kind", "before", "after"), VALUES)
@pytest.mark.parametrize("behind", ["", BEHIND])
def test_a_value_that_changes_by_itself_is_named(
    kind: VolatileKind, before: str, after: str, behind: str
) -> None:
    assert kind_of(before + behind, after + behind) is kind
    assert kind_of(after + behind, before + behind) is kind


@pytest.mark.parametrize(("before", "after"), NEAR_MISSES)
@pytest.mark.parametrize("behind", ["", BEHIND])
def test_edited_prose_and_code_is_not_volatile(before: str, after: str, behind: str) -> None:
    assert kind_of(before + behind, after + behind) is None
    assert kind_of(after + behind, before + behind) is None


def test_a_clock_beside_other_edits_is_not_all_that_changed() -> None:
    assert kind_of("It is 14:03. Be kind.", "It is 14:04. Be brief.") is None


@given(st.integers(0, 23), st.integers(0, 59), st.integers(0, 23), st.integers(0, 59))
def test_every_pair_of_times_is_a_clock_wherever_it_was_cut(
    hour: int, minute: int, other_hour: int, other_minute: int
) -> None:
    before = f"Now it is {hour:02}:{minute:02}{BEHIND}"
    after = f"Now it is {other_hour:02}:{other_minute:02}{BEHIND}"
    if before != after:
        assert kind_of(before, after) is CLOCK


@given(st.uuids(version=4), st.uuids(version=4))
def test_every_pair_of_uuids_is_a_random_id(first: object, second: object) -> None:
    if first != second:
        assert kind_of(f"run in {first}{BEHIND}", f"run in {second}{BEHIND}") is RANDOM_ID


@given(
    st.text(st.sampled_from("abcdefghij ,."), max_size=60),
    st.text(st.sampled_from("abcdefghij ,."), max_size=60),
)
def test_words_without_digits_are_never_volatile(before: str, after: str) -> None:
    if before != after:
        assert kind_of(before, after) is None


@given(st.text(max_size=80), st.text(max_size=80), st.text(max_size=80))
def test_any_text_is_taken(context: str, before: str, after: str) -> None:
    volatile_kind(context, before, after)


def test_many_changed_values_in_a_large_text_take_linear_time() -> None:
    old, new = ("".join(f"10:0{i % 9} it " for i in range(first, 100_000)) for first in (0, 1))
    begun = time.perf_counter()
    assert volatile_kind("", old, new) is VolatileKind.CLOCK
    assert time.perf_counter() - begun < 2
