from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.ui import formatting as f

NUMBERS = st.none() | st.floats() | st.integers(-(10**20), 10**20).map(float)

FIXED: dict[Callable[[float | None], str], int] = {
    f.count: f.COUNT_WIDTH,
    f.percent: f.PERCENT_WIDTH,
    f.whole_percent: 5,
    f.duration: f.DURATION_WIDTH,
    f.short_seconds: 7,
    f.rate: f.RATE_WIDTH,
    f.rate_number: f.COUNT_WIDTH,
    f.memory: f.MEMORY_WIDTH,
    f.gibibytes: 4,
    f.gigabytes_per_s: 4,
    f.times: 7,
    f.uptime: f.UPTIME_WIDTH,
    f.clock: f.CLOCK_WIDTH,
    f.age: f.AGE_WIDTH,
}


@pytest.mark.parametrize("write", FIXED, ids=lambda write: write.__name__)
@given(value=NUMBERS)
def test_every_number_is_as_wide_as_every_other(
    write: Callable[[float | None], str], value: float | None
) -> None:
    assert len(write(value)) == FIXED[write]


@pytest.mark.parametrize("write", FIXED, ids=lambda write: write.__name__)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -1.0])
def test_what_is_not_known_is_a_dash_and_never_a_digit(
    write: Callable[[float | None], str], value: float | None
) -> None:
    text = write(value)
    assert f.DASH in text
    assert not any(character.isdigit() for character in text)


@given(value=NUMBERS, width=st.integers(1, 9))
def test_integers_keep_their_width(value: float | None, width: int) -> None:
    assert len(f.integer(value, width)) == width


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f.count(0), "    0"),
        (f.age(59.9), "59 s  "),
        (f.age(60), " 1 min"),
        (f.age(7_300), " 2 h  "),
        (f.age(48 * 3_600), " 2 d  "),
        (f.count(9_999), " 9999"),
        (f.count(10_000), "10.0k"),
        (f.count(12_345), "12.3k"),
        (f.count(126_812), " 127k"),
        (f.count(1_234_567), "1.23M"),
        (f.count(10**15), ">999G"),
        (f.percent(0.421), " 42.1 %"),
        (f.percent(1.0), "100.0 %"),
        (f.percent(0.0), "  0.0 %"),
        (f.duration(0.00123), "1.23 ms"),
        (f.duration(0.123), " 123 ms"),
        (f.duration(0.9996), "1.00 s "),
        (f.duration(12.34), "12.3 s "),
        (f.rate(45.21), " 45.2 tok/s"),
        (f.rate(12_345), "12.3k tok/s"),
        (f.memory(512 * 2**20), " 512 MiB"),
        (f.memory(12.34 * 2**30), "12.3 GiB"),
        (f.uptime(62), " 0:01:02"),
        (f.uptime(100 * 3600), "  4d 04h"),
        (f.times(3.124), " 3.12 x"),
        (f.clock(0), "00:00:00"),
        (f.about_seconds(12.4), "12 s"),
        (f.about_seconds(180), "3 min"),
    ],
)
def test_numbers_read_as_documented(text: str, expected: str) -> None:
    assert text == expected
