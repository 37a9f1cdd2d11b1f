"""Accumulates what the engine reports, and makes views of it for any number of readers.

The engine's thread writes in O(1) a step; readers on other threads hold the lock only while they
copy references. Readers never change anything, so they cannot disturb each other. It must not know
vLLM, nor which state the engine is in: that is decided in `collector`.

Windows end now and begin at a whole second after the engine became ready: "the last 10 s" are 10.0
to 11.0 s, and less right after ready. Every view says its true `window_s`.

Sources, one for each figure:

* prefix cache (hit rates, cached and computed tokens of the generation) and the cached lane: cached
  and prompt tokens of each request, at its first token. Requests whose cached tokens are not
  reported do not count, in n neither. Requests that end before a first token are not in it.
* computed lane, decode rate, ITL, KV usage, queue, speculative decoding: deltas of the steps.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

from agentserve.domain.request import RequestRecord
from agentserve.domain.sample import SpecDecodeSample, StepSample
from agentserve.domain.snapshot import (
    HistoryView,
    LatencyView,
    PrefixCacheView,
    SpecDecodeView,
    ThroughputView,
)
from agentserve.domain.statistics import percentiles, rate_per_s, share
from agentserve.telemetry.windows import (
    LatencyWindow,
    SecondLatencies,
    SecondTotals,
    TotalsRing,
    add_positions,
    in_order,
)

RATE_WINDOW_S = 10
SPEC_DECODE_WINDOW_S = 60
HISTORY_POINTS = 120
RECENT_REQUESTS = 50
"""Finished requests kept for the list."""
PREFIX_REQUESTS = 100
"""Requests behind the recent hit rate."""
MIN_DRAFT_TOKENS = 20
"""Below this many draft tokens in the window an acceptance rate misleads and is withheld."""


class EngineStatsView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything measured in one generation, at one moment."""

    generation: int
    kv_usage_fraction: float | None
    preemptions: int
    prefix_cache: PrefixCacheView
    latency: LatencyView
    throughput: ThroughputView
    spec_decode: SpecDecodeView | None
    """None when no step of this generation reported speculative decoding."""
    history: HistoryView


class _Generation:
    """Everything that begins anew with an engine."""

    def __init__(self, number: int, ready_at_s: float) -> None:
        self.number = number
        self.ready_at_s = ready_at_s
        self.totals = TotalsRing()
        self.latencies = LatencyWindow()
        # No step has run since ready, so nothing can be running or waiting: 0 is known.
        self.running_requests: int | None = 0
        self.waiting_requests: int | None = 0
        self.kv_usage_fraction: float | None = 0.0
        self.computed_tokens_reported = True
        self.stepped = False
        self.preemptions = 0
        self.speculates = False
        self.prefix_requests = 0
        self.cached_tokens = 0
        self.computed_tokens = 0
        self.recent_prefixes: deque[tuple[int, int]] = deque(maxlen=PREFIX_REQUESTS)
        """Cached tokens and prompt tokens of the newest requests."""

    def first_step(self) -> None:
        """Forget what only held while nothing had run."""
        self.stepped = True
        self.running_requests = None
        self.waiting_requests = None
        self.kv_usage_fraction = None
        self.computed_tokens_reported = False


class EngineStats:
    """An `EngineObserver` that remembers; see the module for windows and sources.

    Args:
        clock: Monotonic clock, seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._generation: _Generation | None = None
        self._recent: deque[RequestRecord] = deque(maxlen=RECENT_REQUESTS)

    def generation_ready(self, generation: int) -> None:
        """Begin all windows and totals anew; the list of recent requests goes on."""
        with self._lock:
            self._generation = _Generation(generation, self._clock())

    def step(self, sample: StepSample) -> None:
        """Count one engine step; ignored before an engine is ready."""
        with self._lock:
            current = self._generation
            if current is None:
                return
            second = int(self._clock() - current.ready_at_s)
            totals = current.totals.at(second, current.kv_usage_fraction)
            if not current.stepped:
                current.first_step()
            if sample.running_requests is not None:
                current.running_requests = sample.running_requests
            if sample.waiting_requests is not None:
                current.waiting_requests = sample.waiting_requests
            if sample.kv_usage_fraction is not None:
                current.kv_usage_fraction = sample.kv_usage_fraction
            totals.kv_usage_fraction = current.kv_usage_fraction
            if sample.computed_prompt_tokens is not None:
                current.computed_tokens_reported = True
                totals.computed_prompt_tokens += sample.computed_prompt_tokens
            totals.generated_tokens += sample.generated_tokens
            current.preemptions += sample.preemptions
            if sample.itl_s:
                totals.itl_sum_s += sum(sample.itl_s)
                totals.itl_count += len(sample.itl_s)
                current.latencies.add_itl(second, sample.itl_s)
            if sample.spec_decode is not None:
                current.speculates = True
                _count_drafts(totals, sample.spec_decode)

    def first_token(self, ttft_s: float, cached_tokens: int | None, prompt_tokens: int) -> None:
        """Count a request at its first output; ignored before an engine is ready.

        Args:
            ttft_s: Time to first token.
            cached_tokens: Prompt tokens taken from the cache; None when not reported.
            prompt_tokens: All tokens of the prompt.
        """
        with self._lock:
            current = self._generation
            if current is None:
                return
            second = int(self._clock() - current.ready_at_s)
            totals = current.totals.at(second, current.kv_usage_fraction)
            totals.ttft_sum_s += ttft_s
            totals.ttft_count += 1
            current.latencies.add_ttft(second, ttft_s)
            if cached_tokens is None:
                return
            totals.cached_prompt_tokens += cached_tokens
            current.prefix_requests += 1
            current.cached_tokens += cached_tokens
            current.computed_tokens += prompt_tokens - cached_tokens
            current.recent_prefixes.append((cached_tokens, prompt_tokens))

    def request_finished(self, record: RequestRecord) -> None:
        """Put an ended request on top of the recent list."""
        with self._lock:
            self._recent.appendleft(record)

    def recent_requests(self) -> tuple[RequestRecord, ...]:
        """The last ended requests of all generations, newest first."""
        with self._lock:
            return tuple(self._recent)

    def view(self) -> EngineStatsView | None:
        """What was measured in the newest generation; None before any engine was ready."""
        with self._lock:
            current = self._generation
            if current is None:
                return None
            elapsed_s = self._clock() - current.ready_at_s
            second = int(elapsed_s)
            totals = current.totals.copy()
            first_latency_second, latencies = current.latencies.copy(second)
            recent_prefixes = tuple(current.recent_prefixes)
            queue = (current.running_requests, current.waiting_requests)
            computed_tokens_reported = current.computed_tokens_reported
            kv_usage_fraction = current.kv_usage_fraction
            preemptions = current.preemptions
            speculates = current.speculates
            prefix_cache = PrefixCacheView(
                hit_rate_recent=share(
                    sum(cached for cached, _ in recent_prefixes),
                    sum(prompt for _, prompt in recent_prefixes),
                ),
                recent_requests=len(recent_prefixes),
                hit_rate_generation=share(
                    current.cached_tokens, current.cached_tokens + current.computed_tokens
                ),
                generation_requests=current.prefix_requests,
                cached_tokens=current.cached_tokens,
                computed_tokens=current.computed_tokens,
            )
        return EngineStatsView(
            generation=current.number,
            kv_usage_fraction=kv_usage_fraction,
            preemptions=preemptions,
            prefix_cache=prefix_cache,
            latency=_latency_view(latencies, elapsed_s - first_latency_second),
            throughput=_throughput_view(totals, elapsed_s, queue, computed_tokens_reported),
            spec_decode=_spec_decode_view(totals, elapsed_s) if speculates else None,
            history=_history_view(totals, second, kv_usage_fraction, computed_tokens_reported),
        )


def _count_drafts(totals: SecondTotals, sample: SpecDecodeSample) -> None:
    totals.drafts += sample.drafts
    totals.draft_tokens += sample.draft_tokens
    totals.accepted_tokens += sample.accepted_tokens
    add_positions(totals.accepted_per_position, sample.accepted_per_position)


def _window(
    totals: dict[int, SecondTotals], elapsed_s: float, length_s: int
) -> tuple[list[SecondTotals], float]:
    """Return the totals of the last `length_s` seconds and the true length of that window."""
    last = int(elapsed_s)
    first = max(0, last - length_s)
    kept = [totals[second] for second in range(first, last + 1) if second in totals]
    return kept, elapsed_s - first


def _latency_view(latencies: list[SecondLatencies], window_s: float) -> LatencyView:
    return LatencyView(
        ttft_s=percentiles(in_order(kept.ttft_s for kept in latencies)),
        itl_s=percentiles(in_order(kept.itl_s for kept in latencies)),
        window_s=window_s,
    )


def _throughput_view(
    totals: dict[int, SecondTotals],
    elapsed_s: float,
    queue: tuple[int | None, int | None],
    computed_tokens_reported: bool,
) -> ThroughputView:
    kept, window_s = _window(totals, elapsed_s, RATE_WINDOW_S)
    computed_tokens = sum(second.computed_prompt_tokens for second in kept)
    running_requests, waiting_requests = queue
    return ThroughputView(
        computed_prefill_tokens_per_s=(
            rate_per_s(computed_tokens, window_s) if computed_tokens_reported else None
        ),
        cached_prefill_tokens_per_s=rate_per_s(
            sum(second.cached_prompt_tokens for second in kept), window_s
        ),
        decode_tokens_per_s=rate_per_s(sum(second.generated_tokens for second in kept), window_s),
        running_requests=running_requests,
        waiting_requests=waiting_requests,
        window_s=window_s,
    )


def _spec_decode_view(totals: dict[int, SecondTotals], elapsed_s: float) -> SpecDecodeView:
    kept, window_s = _window(totals, elapsed_s, SPEC_DECODE_WINDOW_S)
    drafts = sum(second.drafts for second in kept)
    draft_tokens = sum(second.draft_tokens for second in kept)
    if draft_tokens < MIN_DRAFT_TOKENS or drafts == 0:
        return SpecDecodeView(drafts=drafts, window_s=window_s)
    accepted_tokens = sum(second.accepted_tokens for second in kept)
    per_position: list[int] = []
    for second in kept:
        add_positions(per_position, second.accepted_per_position)
    return SpecDecodeView(
        acceptance_rate=accepted_tokens / draft_tokens,
        mean_accepted_tokens=accepted_tokens / drafts,
        per_position=tuple(count / drafts for count in per_position),
        drafts=drafts,
        window_s=window_s,
    )


def _history_view(
    totals: dict[int, SecondTotals],
    last: int,
    kv_usage_now: float | None,
    computed_tokens_reported: bool,
) -> HistoryView:
    """Draw the finished seconds; the running one would always look like a fall."""
    seconds = range(max(0, last - HISTORY_POINTS), last)
    decode: list[float | None] = []
    computed: list[float | None] = []
    cached: list[float | None] = []
    kv_usage: list[float | None] = []
    ttft: list[float | None] = []
    itl: list[float | None] = []
    # KV usage stays what it was while no step runs.
    later = (
        totals[second].kv_usage_before
        for second in range(seconds.start, last + 1)
        if second in totals
    )
    usage = next(later, kv_usage_now)
    for second in seconds:
        kept = totals.get(second)
        if kept is None:
            decode.append(0.0)
            computed.append(0.0 if computed_tokens_reported else None)
            cached.append(0.0)
            kv_usage.append(usage)
            ttft.append(None)
            itl.append(None)
            continue
        usage = kept.kv_usage_fraction
        decode.append(float(kept.generated_tokens))
        computed.append(float(kept.computed_prompt_tokens) if computed_tokens_reported else None)
        cached.append(float(kept.cached_prompt_tokens))
        kv_usage.append(usage)
        ttft.append(share(kept.ttft_sum_s, kept.ttft_count))
        itl.append(share(kept.itl_sum_s, kept.itl_count))
    return HistoryView(
        interval_s=1.0,
        decode_tokens_per_s=tuple(decode),
        computed_prefill_tokens_per_s=tuple(computed),
        cached_prefill_tokens_per_s=tuple(cached),
        kv_usage_fraction=tuple(kv_usage),
        ttft_s=tuple(ttft),
        itl_s=tuple(itl),
    )
