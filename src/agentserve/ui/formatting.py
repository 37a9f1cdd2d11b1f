"""Numbers as text of a fixed width, with their units; None and what is not finite become a dash.

Every function returns text of the same number of cells for every input, so that nothing on screen
moves when a value changes. Pure.
"""

from __future__ import annotations

import math
import time
from typing import TypeGuard

DASH = "\N{EN DASH}"

COUNT_WIDTH = 5
PERCENT_WIDTH = 7
DURATION_WIDTH = 7
RATE_WIDTH = 11
MEMORY_WIDTH = 8
UPTIME_WIDTH = 8
CLOCK_WIDTH = 8
AGE_WIDTH = 6

_DAY_S = 86_400
_GIB = 2**30
_MIB = 2**20


def dash(width: int) -> str:
    """Return the sign for an unknown value, right-aligned in `width` cells."""
    return DASH.rjust(width)


def three_digits(value: float) -> str:
    """Write 0 to 9999 in four cells: `1.23`, `12.3`, `123`, `1234`."""
    if value < 9.995:
        text = f"{value:z.2f}"
    elif value < 99.95:
        text = f"{value:z.1f}"
    else:
        text = f"{value:z.0f}"
    return text.rjust(4)


def count(value: float | None) -> str:
    """Write a number of things, exact below 10 000: ` 9999`, `12.3k`, `1.23M`; five cells."""
    if not _usable(value):
        return dash(COUNT_WIDTH)
    if value < 9_999.5:
        return f"{value:z.0f}".rjust(COUNT_WIDTH)
    for unit in "kMG":
        value /= 1000
        if value < 999.5:
            return three_digits(value) + unit
    return ">999G"


def percent(fraction: float | None) -> str:
    """Write a fraction of 1 in percent: ` 42.1 %`; seven cells."""
    if not _usable(fraction):
        return dash(PERCENT_WIDTH - 2) + " %"
    return f"{min(fraction, 9.994) * 100:z.1f}".rjust(PERCENT_WIDTH - 2) + " %"


def whole_percent(value: float | None) -> str:
    """Write a percentage without decimals: ` 87 %`; five cells."""
    if not _usable(value):
        return dash(3) + " %"
    return f"{min(value, 999):z.0f}".rjust(3) + " %"


def duration(seconds: float | None) -> str:
    """Write a duration with three digits: `1.23 ms`, ` 123 ms`, `12.3 s `; seven cells."""
    if not _usable(seconds):
        return dash(4) + "   "
    if seconds < 0.9995:
        return three_digits(seconds * 1000) + " ms"
    if seconds < 9_999.5:
        return three_digits(seconds) + " s "
    return ">9999 s"


def short_seconds(seconds: float | None) -> str:
    """Write seconds with one decimal: ` 12.3 s`; seven cells."""
    if not _usable(seconds):
        return dash(5) + " s"
    return (f"{seconds:z.1f}" if seconds < 999.95 else f"{min(seconds, 99_999):z.0f}").rjust(
        5
    ) + " s"


def about_seconds(seconds: float | None) -> str:
    """Write an estimate in whole seconds or minutes, as words: `12 s`, `3 min`; varying width."""
    if not _usable(seconds):
        return DASH
    if seconds < 119.5:
        return f"{seconds:z.0f} s"
    return f"{seconds / 60:z.0f} min"


def age(seconds: float | None) -> str:
    """Write how long ago something was: ` 12 s `, ` 3 min`, ` 2 h  `; six cells."""
    if not _usable(seconds):
        return dash(3) + "   "
    for size_s, unit, most in ((1, "s", 60), (60, "min", 60), (3_600, "h", 48)):
        if seconds < most * size_s:
            return f"{int(seconds // size_s):2d} {unit:<3}"
    return f"{min(int(seconds // _DAY_S), 99):2d} d  "


def rate(tokens_per_s: float | None) -> str:
    """Write a token rate: ` 45.2 tok/s`, `12.3k tok/s`; eleven cells."""
    return rate_number(tokens_per_s) + " tok/s"


def rate_number(value: float | None) -> str:
    """Write the number of a rate with one decimal below 100; five cells."""
    if not _usable(value):
        return dash(COUNT_WIDTH)
    return f"{value:z.1f}".rjust(COUNT_WIDTH) if value < 99.95 else count(value)


def memory(size_bytes: float | None) -> str:
    """Write an amount of memory: ` 512 MiB`, `12.3 GiB`; eight cells."""
    if not _usable(size_bytes):
        return dash(4) + " GiB"
    if size_bytes < 999.5 * _MIB:
        return f"{size_bytes / _MIB:z.0f}".rjust(4) + " MiB"
    return gibibytes(size_bytes) + " GiB"


def gibibytes(size_bytes: float | None) -> str:
    """Write the number of GiB without the unit; four cells."""
    if not _usable(size_bytes):
        return dash(4)
    return three_digits(min(size_bytes / _GIB, 9_999))


def gigabytes_per_s(bytes_per_s: float | None) -> str:
    """Write a bus rate in GB/s (10^9 bytes) without the unit; four cells."""
    if not _usable(bytes_per_s):
        return dash(4)
    return three_digits(min(bytes_per_s / 1e9, 9_999))


def integer(value: float | None, width: int) -> str:
    """Write a whole number in `width` cells; one that needs more is written as nines with `>`."""
    if not _usable(value):
        return dash(width)
    text = f"{value:z.0f}"
    return text.rjust(width) if len(text) <= width else ">" + "9" * (width - 1)


def times(value: float | None) -> str:
    """Write a factor: ` 3.12 x`; seven cells."""
    if not _usable(value):
        return dash(5) + " x"
    return (f"{value:z.2f}" if value < 99.995 else f"{min(value, 99_999):z.0f}").rjust(5) + " x"


def uptime(seconds: float | None) -> str:
    """Write how long something runs: ` 0:01:02`, from 100 hours on `  4d 04h`; eight cells."""
    if not _usable(seconds):
        return dash(UPTIME_WIDTH)
    whole = int(seconds)
    if whole < 100 * 3600:
        text = f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    else:
        text = f"{min(whole // _DAY_S, 999)}d {whole % _DAY_S // 3600:02d}h"
    return text.rjust(UPTIME_WIDTH)


def clock(unix_s: float | None) -> str:
    """Write a moment as local time of day, `HH:MM:SS`; eight cells."""
    if not _usable(unix_s):
        return dash(CLOCK_WIDTH)
    try:
        return time.strftime("%H:%M:%S", time.localtime(unix_s))
    except (OverflowError, ValueError, OSError):
        return dash(CLOCK_WIDTH)


def _usable(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and value >= 0
