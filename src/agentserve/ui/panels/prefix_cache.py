"""Reuse of prompt tokens: hit rates with their n, and cached and computed tokens as two lanes."""

from __future__ import annotations

from agentserve.domain.snapshot import HistoryView, PrefixCacheView, ThroughputView
from agentserve.ui.formatting import count, integer, percent, rate, rate_number
from agentserve.ui.lines import Lines, Role, Span
from agentserve.ui.panels.meters import graph, meter, peak_of


def draw(
    cache: PrefixCacheView,
    throughput: ThroughputView,
    history: HistoryView,
    width: int,
    height: int,
) -> Lines:
    """Draw hit rates and the two lanes of prompt tokens.

    Args:
        cache: Hit rates and totals of this generation.
        throughput: Rates of the lanes now.
        history: Graphs of the lanes.
        width: Cells per line.
        height: Rows to use at most; the graphs take what the rates leave.
    """
    rows = max(1, (height - 2) // 2)
    lane_rows = min(rows, 5)
    return (
        meter(
            "recent",
            cache.hit_rate_recent,
            _rate_and_n(cache.hit_rate_recent, cache.recent_requests),
            width,
            Role.CACHED,
        ),
        meter(
            "since up",
            cache.hit_rate_generation,
            _rate_and_n(cache.hit_rate_generation, cache.generation_requests),
            width,
            Role.CACHED,
        ),
        *graph(
            "cached",
            history.cached_prefill_tokens_per_s,
            _lane(throughput.cached_prefill_tokens_per_s, cache.cached_tokens, Role.CACHED),
            width,
            Role.CACHED_GRAPH,
            lane_rows,
            peak=peak_of(history.cached_prefill_tokens_per_s, rate_number),
        ),
        *graph(
            "computed",
            history.computed_prefill_tokens_per_s,
            _lane(throughput.computed_prefill_tokens_per_s, cache.computed_tokens, Role.COMPUTED),
            width,
            Role.COMPUTED_GRAPH,
            lane_rows,
            peak=peak_of(history.computed_prefill_tokens_per_s, rate_number),
        ),
    )[: max(0, height)]


def _rate_and_n(fraction: float | None, n: int) -> str:
    return f"{percent(fraction)}  n {integer(n, 5)}"


def _lane(tokens_per_s: float | None, total_tokens: int, role: Role) -> tuple[Span, ...]:
    return (
        Span(rate(tokens_per_s), role),
        Span(f" {count(total_tokens)} tok", Role.TEXT),
    )
