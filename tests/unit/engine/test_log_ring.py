from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from agentserve.engine.log_ring import LogRing


@given(
    st.integers(1, 8),
    st.lists(st.lists(st.text(max_size=3), max_size=5), max_size=8),
    st.integers(-2, 50),
    st.none() | st.integers(1, 5),
)
def test_the_ring_equals_the_tail_of_a_list(
    capacity: int, batches: list[list[str]], cursor: int, limit: int | None
) -> None:
    ring = LogRing(capacity)
    everything: list[str] = []
    for texts in batches:
        ring.extend(texts, 0.0)
        everything += texts
    first_kept = max(0, len(everything) - capacity)
    start = min(max(cursor, first_kept), len(everything))
    batch = ring.since(cursor, limit)
    expected = everything[start:][:limit]
    assert [line.text for line in batch.lines] == expected
    assert [line.number for line in batch.lines] == list(range(start, start + len(expected)))
    assert batch.next_number == start + len(expected)
    assert batch.missed == max(0, first_kept - max(cursor, 0))
    assert ring.next_number == len(everything)
    assert ring.dropped_lines == first_kept
    assert ring.texts_since(cursor) == tuple(everything[start:])


def test_a_reader_that_follows_the_cursor_sees_each_line_once() -> None:
    ring = LogRing(100)
    seen: list[str] = []
    number = 0
    for count in range(10):
        ring.extend([f"{count}.{each}" for each in range(count)], 0.0)
        batch = ring.since(number)
        number = batch.next_number
        seen += [line.text for line in batch.lines]
    assert seen == [f"{count}.{each}" for count in range(10) for each in range(count)]


def test_a_waiting_reader_wakes_for_a_line_and_for_the_end() -> None:
    ring = LogRing()
    results: list[bool] = []

    def read() -> None:
        results.append(ring.wait_for(0, timeout_s=10))
        results.append(ring.wait_for(1, timeout_s=10))

    reader = threading.Thread(target=read)
    reader.start()
    ring.extend(["x"], 0.0)
    ring.close()
    reader.join(10)
    assert results == [True, False]
    assert ring.closed
    assert ring.wait_for(5, timeout_s=0) is False
