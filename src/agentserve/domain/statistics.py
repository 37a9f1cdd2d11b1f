"""Pure arithmetic on measurements: percentiles, shares and rates.

Owns one rule above all: what cannot be computed is None, never 0. It knows no clock and no window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentserve.domain.snapshot import Percentiles


def nearest_rank(ordered: Sequence[float], fraction: float) -> float | None:
    """Return the nearest-rank percentile: the least value with that share at or below it.

    The result is always a value that was measured; nothing is interpolated.

    Args:
        ordered: Values in ascending order.
        fraction: 0 < fraction <= 1; 0.95 asks for p95.

    Returns:
        The value of rank ceil(fraction * n), or None without values.
    """
    if not ordered:
        return None
    # Rounding first keeps 0.07 * 100 = 7.000000000000001 from becoming rank 8.
    rank = math.ceil(round(fraction * len(ordered), 9))
    return ordered[max(rank, 1) - 1]


def percentiles(ordered: Sequence[float]) -> Percentiles:
    """Summarise values in ascending order as nearest-rank p50, p95 and p99 with their n."""
    return Percentiles(
        p50=nearest_rank(ordered, 0.50),
        p95=nearest_rank(ordered, 0.95),
        p99=nearest_rank(ordered, 0.99),
        n=len(ordered),
    )


def share(part: float, whole: float) -> float | None:
    """Return part / whole, or None when the whole is 0."""
    return part / whole if whole > 0 else None


def rate_per_s(total: float, elapsed_s: float) -> float | None:
    """Return total / elapsed_s, or None when no time has passed."""
    return total / elapsed_s if elapsed_s > 0 else None
