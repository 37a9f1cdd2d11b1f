from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentserve.telemetry import windows
from agentserve.telemetry.windows import (
    LATENCY_WINDOW_S,
    MAX_ITL_SAMPLES,
    RING_SECONDS,
    LatencyWindow,
    TotalsRing,
    in_order,
)

event_seconds = st.lists(st.integers(min_value=0, max_value=400), max_size=80).map(sorted)


@given(event_seconds)
def test_the_ring_keeps_the_totals_of_its_last_seconds(seconds: list[int]) -> None:
    ring = TotalsRing()
    expected: dict[int, int] = {}
    for second in seconds:
        ring.at(second, None).generated_tokens += 1
        expected[second] = expected.get(second, 0) + 1
    newest = max(seconds, default=0)
    kept = {second: totals.generated_tokens for second, totals in ring.copy().items()}
    wanted = range(newest - RING_SECONDS + 1, newest + 1)
    assert {second: kept[second] for second in kept if second in wanted} == {
        second: count for second, count in expected.items() if second in wanted
    }


def test_a_copy_of_the_ring_does_not_change_with_later_events() -> None:
    ring = TotalsRing()
    ring.at(3, None).accepted_per_position.append(1)
    before = ring.copy()
    ring.at(3, None).generated_tokens += 5
    ring.at(3, None).accepted_per_position[0] += 1
    ring.at(3 + RING_SECONDS, None).generated_tokens += 7
    assert before[3].generated_tokens == 0
    assert before[3].accepted_per_position == [1]


def test_a_new_second_begins_with_the_kv_usage_known_before() -> None:
    totals = TotalsRing().at(9, 0.25)
    assert (totals.kv_usage_before, totals.kv_usage_fraction) == (0.25, 0.25)


@given(event_seconds, st.integers(min_value=0, max_value=100))
def test_the_latency_window_holds_exactly_the_samples_of_its_seconds(
    seconds: list[int], later: int
) -> None:
    window = LatencyWindow()
    for second in seconds:
        window.add_itl(second, (float(second), float(second)))
        window.add_ttft(second, float(second))
    now = max(seconds, default=0) + later
    first, kept = window.copy(now)
    assert first == max(0, now - LATENCY_WINDOW_S)
    inside = [float(second) for second in seconds if second >= first]
    assert in_order(entry.ttft_s for entry in kept) == inside
    assert in_order(entry.itl_s for entry in kept) == sorted(inside + inside)


def test_too_many_samples_shorten_the_window_by_whole_seconds() -> None:
    window = LatencyWindow()
    per_second = MAX_ITL_SAMPLES // 8
    for second in range(20):
        window.add_itl(second, [float(second)] * per_second)
    first, kept = window.copy(19)
    assert first == 12
    assert [entry.second for entry in kept] == list(range(12, 20))
    assert sum(len(entry.itl_s) for entry in kept) <= MAX_ITL_SAMPLES


def test_the_ring_holds_the_history_and_the_longest_window() -> None:
    assert windows.RING_SECONDS > 120
    assert windows.RING_SECONDS > LATENCY_WINDOW_S
