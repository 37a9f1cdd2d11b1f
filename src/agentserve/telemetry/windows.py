"""Per-second totals and latency samples of one engine generation, bounded in memory.

Owns how measurements are kept and for how long. Time here is whole seconds since the generation
became ready; which clock that is, and who may read, is the business of `engine_stats`.

What was kept for a finished second never changes again, so a reader may work on it without a lock.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

RING_SECONDS = 128
"""Totals kept: the 120 points of the history, and the second that is running."""
LATENCY_WINDOW_S = 60
MAX_ITL_SAMPLES = 16_384
"""Bounds memory and the time to sort: a minute at 273 output events a second."""


@dataclass(slots=True)
class SecondTotals:
    """What happened in one second."""

    second: int
    kv_usage_before: float | None
    """KV usage when this second began: what it still is where nothing ran before."""
    kv_usage_fraction: float | None
    generated_tokens: int = 0
    computed_prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    ttft_sum_s: float = 0.0
    ttft_count: int = 0
    itl_sum_s: float = 0.0
    itl_count: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)


def add_positions(totals: list[int], counts: Sequence[int]) -> None:
    """Add `counts` to `totals` position by position, growing it where needed."""
    if len(totals) < len(counts):
        totals.extend([0] * (len(counts) - len(totals)))
    for position, count in enumerate(counts):
        totals[position] += count


class TotalsRing:
    """The totals of the last `RING_SECONDS` seconds; seconds without events take no work."""

    def __init__(self) -> None:
        self._slots: list[SecondTotals | None] = [None] * RING_SECONDS
        self._newest: SecondTotals | None = None

    def at(self, second: int, kv_usage_fraction: float | None) -> SecondTotals:
        """Return the totals of `second` to add to.

        Args:
            second: Never smaller than in an earlier call.
            kv_usage_fraction: KV usage known so far, kept as that of a new second.
        """
        newest = self._newest
        if newest is None or newest.second != second:
            newest = SecondTotals(second, kv_usage_fraction, kv_usage_fraction)
            self._newest = newest
            # A new object each time: a reader may still hold the one that was here.
            self._slots[second % RING_SECONDS] = newest
        return newest

    def copy(self) -> dict[int, SecondTotals]:
        """Return the kept totals by second, detached from later events."""
        kept = {slot.second: slot for slot in self._slots if slot is not None}
        if self._newest is not None:
            newest = self._newest
            kept[newest.second] = replace(
                newest, accepted_per_position=list(newest.accepted_per_position)
            )
        return kept


@dataclass(slots=True)
class SecondLatencies:
    """The latency samples of one second, in order of arrival."""

    second: int
    itl_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)


class LatencyWindow:
    """Latency samples of the last `LATENCY_WINDOW_S` seconds, and of the second that is running.

    Whole seconds are dropped: those that are too old, and the oldest ones beyond `MAX_ITL_SAMPLES`.
    """

    def __init__(self) -> None:
        self._seconds: deque[SecondLatencies] = deque()
        self._itl_samples = 0
        self._first_kept_second = 0

    def add_itl(self, second: int, values_s: Sequence[float]) -> None:
        """Keep inter-token latencies of `second`, in seconds."""
        self._at(second).itl_s.extend(values_s)
        self._itl_samples += len(values_s)
        while self._itl_samples > MAX_ITL_SAMPLES and len(self._seconds) > 1:
            self._drop_oldest()

    def add_ttft(self, second: int, value_s: float) -> None:
        """Keep one time to first token of `second`, in seconds."""
        self._at(second).ttft_s.append(value_s)

    def copy(self, second: int) -> tuple[int, list[SecondLatencies]]:
        """Return the first second of the window that ends in `second`, and its samples."""
        first = max(self._first_kept_second, second - LATENCY_WINDOW_S, 0)
        kept = [latencies for latencies in self._seconds if latencies.second >= first]
        if kept:
            last = kept[-1]
            kept[-1] = SecondLatencies(last.second, list(last.itl_s), list(last.ttft_s))
        return first, kept

    def _at(self, second: int) -> SecondLatencies:
        if not self._seconds or self._seconds[-1].second != second:
            while self._seconds and self._seconds[0].second < second - LATENCY_WINDOW_S:
                self._drop_oldest()
            self._seconds.append(SecondLatencies(second))
        return self._seconds[-1]

    def _drop_oldest(self) -> None:
        dropped = self._seconds.popleft()
        self._itl_samples -= len(dropped.itl_s)
        self._first_kept_second = dropped.second + 1


def in_order(samples: Iterable[Sequence[float]]) -> list[float]:
    """Return all samples in ascending order."""
    return sorted(itertools.chain.from_iterable(samples))
