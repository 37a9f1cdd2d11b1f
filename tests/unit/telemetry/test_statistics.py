from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.statistics import nearest_rank, percentiles, rate_per_s, share

values = st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=300)
whole_percents = st.integers(min_value=1, max_value=100)


@given(values, whole_percents)
def test_a_percentile_is_a_measured_value_with_at_least_that_share_at_or_below_it(
    sample: list[float], percent: int
) -> None:
    found = nearest_rank(sorted(sample), percent / 100)
    assert found in sample
    assert 100 * sum(value <= found for value in sample) >= percent * len(sample)


@given(values, whole_percents)
def test_no_smaller_value_has_that_share_at_or_below_it(sample: list[float], percent: int) -> None:
    found = nearest_rank(sorted(sample), percent / 100)
    assert found is not None
    assert 100 * sum(value < found for value in sample) < percent * len(sample)


@given(values)
def test_percentiles_are_in_order_and_count_all_values(sample: list[float]) -> None:
    summary = percentiles(sorted(sample))
    assert summary.p50 is not None
    assert summary.p95 is not None
    assert summary.p99 is not None
    assert min(sample) <= summary.p50 <= summary.p95 <= summary.p99 <= max(sample)
    assert summary.n == len(sample)


def test_percentiles_of_one_to_a_hundred_are_their_own_numbers() -> None:
    summary = percentiles([float(value) for value in range(1, 101)])
    assert (summary.p50, summary.p95, summary.p99) == (50, 95, 99)


def test_percentiles_of_nothing_are_unknown() -> None:
    summary = percentiles([])
    assert (summary.p50, summary.p95, summary.p99, summary.n) == (None, None, None, 0)


def test_a_share_of_nothing_is_unknown() -> None:
    assert share(0, 0) is None
    assert share(3, 4) == pytest.approx(0.75)


def test_a_rate_over_no_time_is_unknown() -> None:
    assert rate_per_s(5, 0) is None
    assert rate_per_s(0, 2.0) == 0.0
