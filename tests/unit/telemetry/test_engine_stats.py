from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.request import RequestOutcome, RequestRecord
from agentserve.domain.sample import SpecDecodeSample, StepSample
from agentserve.telemetry.engine_stats import (
    HISTORY_POINTS,
    MIN_DRAFT_TOKENS,
    PREFIX_REQUESTS,
    RECENT_REQUESTS,
    EngineStats,
    EngineStatsView,
)
from agentserve.telemetry.windows import MAX_ITL_SAMPLES

READY_AT_S = 1000.0


class ManualClock:
    """A monotonic clock that the test moves."""

    def __init__(self, now_s: float = READY_AT_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def at(self, elapsed_s: float) -> None:
        """Move to `elapsed_s` after ready."""
        self.now_s = READY_AT_S + elapsed_s


def step(
    *,
    running_requests: int | None = 1,
    waiting_requests: int | None = 0,
    kv_usage_fraction: float | None = 0.5,
    computed_prompt_tokens: int | None = 0,
    generated_tokens: int = 0,
    preemptions: int = 0,
    itl_s: tuple[float, ...] = (),
    spec_decode: SpecDecodeSample | None = None,
) -> StepSample:
    return StepSample(
        running_requests=running_requests,
        waiting_requests=waiting_requests,
        kv_usage_fraction=kv_usage_fraction,
        prefix_requests=0,
        prefix_query_tokens=0,
        prefix_hit_tokens=0,
        computed_prompt_tokens=computed_prompt_tokens,
        generated_tokens=generated_tokens,
        preemptions=preemptions,
        itl_s=itl_s,
        spec_decode=spec_decode,
    )


def record(number: int, generation: int = 1) -> RequestRecord:
    return RequestRecord(
        request_id=f"request-{number}",
        generation=generation,
        route="/v1/completions",
        agent=None,
        finished_at_unix_s=float(number),
        outcome=RequestOutcome.STOP,
        choices=1,
        prompt_tokens=10,
        cached_tokens=0,
        computed_tokens=10,
        generated_tokens=2,
        queued_s=None,
        ttft_s=0.1,
        decode_s=0.1,
        elapsed_s=0.2,
        preemptions=0,
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stats(clock: ManualClock) -> EngineStats:
    ready = EngineStats(clock)
    ready.generation_ready(1)
    return ready


def view_of(stats: EngineStats) -> EngineStatsView:
    view = stats.view()
    assert view is not None
    return view


def test_nothing_is_known_before_an_engine_is_ready() -> None:
    stats = EngineStats(ManualClock())
    stats.step(step(generated_tokens=5))
    stats.first_token(0.1, 5, 10)
    assert stats.view() is None


def test_an_idle_engine_has_rates_of_zero_and_no_latencies(
    clock: ManualClock, stats: EngineStats
) -> None:
    clock.at(4.0)
    view = view_of(stats)
    assert view.throughput.decode_tokens_per_s == 0.0
    assert view.throughput.computed_prefill_tokens_per_s == 0.0
    assert view.throughput.cached_prefill_tokens_per_s == 0.0
    assert view.throughput.running_requests == 0
    assert view.kv_usage_fraction == 0.0
    assert view.latency.ttft_s.p50 is None
    assert view.latency.itl_s.n == 0
    assert view.prefix_cache.hit_rate_recent is None
    assert view.spec_decode is None


def test_a_rate_right_after_ready_is_divided_by_the_time_that_really_passed(
    clock: ManualClock, stats: EngineStats
) -> None:
    clock.at(1.5)
    stats.step(step(generated_tokens=30, computed_prompt_tokens=200))
    clock.at(2.5)
    throughput = view_of(stats).throughput
    assert throughput.window_s == pytest.approx(2.5)
    assert throughput.decode_tokens_per_s == pytest.approx(30 / 2.5)
    assert throughput.computed_prefill_tokens_per_s == pytest.approx(200 / 2.5)


def test_an_event_leaves_the_rate_after_the_window(clock: ManualClock, stats: EngineStats) -> None:
    clock.at(20.2)
    stats.step(step(generated_tokens=100))
    clock.at(30.9)
    inside = view_of(stats).throughput
    assert inside.window_s == pytest.approx(10.9)
    assert inside.decode_tokens_per_s == pytest.approx(100 / 10.9)
    clock.at(31.0)
    assert view_of(stats).throughput.decode_tokens_per_s == 0.0


@given(
    st.lists(
        st.tuples(st.floats(min_value=0, max_value=3.0), st.integers(0, 50)),
        min_size=1,
        max_size=60,
    )
)
def test_the_decode_rate_counts_exactly_the_steps_of_its_window(
    steps: list[tuple[float, int]],
) -> None:
    clock = ManualClock(0.0)
    stats = EngineStats(clock)
    stats.generation_ready(1)
    events = []
    for pause_s, tokens in steps:
        clock.now_s += pause_s
        stats.step(step(generated_tokens=tokens))
        events.append((clock.now_s, tokens))
    clock.now_s += 0.25
    throughput = view_of(stats).throughput
    begin_s = round(clock.now_s - throughput.window_s)
    expected = sum(tokens for at_s, tokens in events if at_s >= begin_s)
    assert throughput.decode_tokens_per_s is not None
    assert throughput.decode_tokens_per_s * throughput.window_s == pytest.approx(expected)


def test_readers_do_not_disturb_each_other(clock: ManualClock, stats: EngineStats) -> None:
    clock.at(3.0)
    stats.step(step(generated_tokens=30, itl_s=(0.02,)))
    clock.at(5.0)
    assert view_of(stats) == view_of(stats)


def test_latency_percentiles_carry_their_n_and_window(
    clock: ManualClock, stats: EngineStats
) -> None:
    for number in range(1, 101):
        clock.at(number * 0.1)
        stats.step(step(itl_s=(number / 1000,)))
    stats.first_token(1.5, 0, 10)
    clock.at(12.0)
    latency = view_of(stats).latency
    assert (latency.itl_s.p50, latency.itl_s.p95, latency.itl_s.p99) == (0.050, 0.095, 0.099)
    assert latency.itl_s.n == 100
    assert (latency.ttft_s.p50, latency.ttft_s.p95, latency.ttft_s.n) == (1.5, 1.5, 1)
    assert latency.window_s == pytest.approx(12.0)


def test_old_latencies_leave_the_window(clock: ManualClock, stats: EngineStats) -> None:
    clock.at(0.5)
    stats.step(step(itl_s=(9.0,)))
    clock.at(40.0)
    stats.step(step(itl_s=(0.02,)))
    clock.at(61.5)
    latency = view_of(stats).latency
    assert latency.itl_s.n == 1
    assert latency.itl_s.p99 == 0.02
    assert latency.window_s == pytest.approx(60.5)


def test_the_latency_window_is_true_when_samples_were_too_many(
    clock: ManualClock, stats: EngineStats
) -> None:
    per_step = (0.01,) * (MAX_ITL_SAMPLES // 16)
    for second in range(40):
        clock.at(second + 0.5)
        stats.step(step(itl_s=per_step))
    latency = view_of(stats).latency
    assert latency.itl_s.n == MAX_ITL_SAMPLES
    assert latency.window_s == pytest.approx(39.5 - 24)


def test_gauges_are_those_of_the_last_step_that_reported_them(stats: EngineStats) -> None:
    stats.step(step(running_requests=3, waiting_requests=2, kv_usage_fraction=0.7))
    stats.step(step(running_requests=None, waiting_requests=None, kv_usage_fraction=None))
    view = view_of(stats)
    assert view.throughput.running_requests == 3
    assert view.throughput.waiting_requests == 2
    assert view.kv_usage_fraction == 0.7


def test_what_no_step_reports_is_unknown(clock: ManualClock, stats: EngineStats) -> None:
    clock.at(1.0)
    stats.step(
        step(
            running_requests=None,
            waiting_requests=None,
            kv_usage_fraction=None,
            computed_prompt_tokens=None,
        )
    )
    clock.at(2.0)
    view = view_of(stats)
    assert view.throughput.running_requests is None
    assert view.throughput.waiting_requests is None
    assert view.throughput.computed_prefill_tokens_per_s is None
    assert view.kv_usage_fraction is None
    assert view.history.kv_usage_fraction == (0.0, None)
    assert view.history.computed_prefill_tokens_per_s == (None, None)


def test_hit_rates_and_totals_come_from_the_requests_first_tokens(
    clock: ManualClock, stats: EngineStats
) -> None:
    clock.at(1.0)
    stats.first_token(0.5, 600, 1000)
    stats.first_token(0.5, 0, 200)
    clock.at(4.0)
    view = view_of(stats)
    cache = view.prefix_cache
    assert cache.hit_rate_recent == pytest.approx(0.5)
    assert cache.hit_rate_generation == pytest.approx(0.5)
    assert (cache.recent_requests, cache.generation_requests) == (2, 2)
    assert (cache.cached_tokens, cache.computed_tokens) == (600, 600)
    assert view.throughput.cached_prefill_tokens_per_s == pytest.approx(150)


def test_a_request_without_reported_cached_tokens_counts_for_latency_only(
    stats: EngineStats,
) -> None:
    stats.first_token(0.5, None, 1000)
    view = view_of(stats)
    assert view.prefix_cache.hit_rate_recent is None
    assert view.prefix_cache.generation_requests == 0
    assert view.latency.ttft_s.n == 1


def test_the_recent_hit_rate_forgets_old_requests_and_that_of_the_generation_does_not(
    stats: EngineStats,
) -> None:
    stats.first_token(0.5, 0, 100)
    for _ in range(PREFIX_REQUESTS):
        stats.first_token(0.5, 100, 100)
    cache = view_of(stats).prefix_cache
    assert cache.hit_rate_recent == 1.0
    assert cache.recent_requests == PREFIX_REQUESTS
    assert cache.hit_rate_generation == pytest.approx(PREFIX_REQUESTS / (PREFIX_REQUESTS + 1))
    assert cache.generation_requests == PREFIX_REQUESTS + 1


def test_speculative_decoding_is_summed_over_its_window(
    clock: ManualClock, stats: EngineStats
) -> None:
    clock.at(0.5)
    stats.step(step(spec_decode=SpecDecodeSample(90, 180, 180, (90, 90))))
    clock.at(50.0)
    stats.step(step(spec_decode=SpecDecodeSample(10, 20, 9, (7, 2))))
    clock.at(52.0)
    stats.step(step(spec_decode=SpecDecodeSample(10, 20, 6, (5, 1))))
    clock.at(70.5)
    spec = view_of(stats).spec_decode
    assert spec is not None
    assert spec.drafts == 20
    assert spec.acceptance_rate == pytest.approx(15 / 40)
    assert spec.mean_accepted_tokens == pytest.approx(15 / 20)
    assert spec.per_position == pytest.approx((12 / 20, 3 / 20))
    assert spec.window_s == pytest.approx(60.5)


def test_acceptance_of_a_handful_of_tokens_is_withheld(stats: EngineStats) -> None:
    few = MIN_DRAFT_TOKENS - 1
    stats.step(step(spec_decode=SpecDecodeSample(few, few, few, (few,))))
    spec = view_of(stats).spec_decode
    assert spec is not None
    assert spec.drafts == few
    assert spec.acceptance_rate is None
    assert spec.mean_accepted_tokens is None
    assert spec.per_position == ()
    stats.step(step(spec_decode=SpecDecodeSample(1, 1, 0, (0,))))
    enough = view_of(stats).spec_decode
    assert enough is not None
    assert enough.acceptance_rate == pytest.approx(few / MIN_DRAFT_TOKENS)


def test_history_has_zero_rates_and_gaps_in_latencies(
    clock: ManualClock, stats: EngineStats
) -> None:
    clock.at(1.2)
    stats.step(step(generated_tokens=4, kv_usage_fraction=0.25, itl_s=(0.02, 0.04)))
    stats.first_token(0.5, 64, 100)
    clock.at(3.1)
    stats.step(step(generated_tokens=2, kv_usage_fraction=0.0, computed_prompt_tokens=9))
    clock.at(4.9)
    stats.step(step(generated_tokens=50))
    history = view_of(stats).history
    assert history.interval_s == 1.0
    assert history.decode_tokens_per_s == (0.0, 4.0, 0.0, 2.0)
    assert history.computed_prefill_tokens_per_s == (0.0, 0.0, 0.0, 9.0)
    assert history.cached_prefill_tokens_per_s == (0.0, 64.0, 0.0, 0.0)
    assert history.kv_usage_fraction == (0.0, 0.25, 0.25, 0.0)
    assert history.ttft_s == (None, 0.5, None, None)
    assert history.itl_s == (None, (0.02 + 0.04) / 2, None, None)


def test_history_is_bounded_and_ends_now(clock: ManualClock, stats: EngineStats) -> None:
    clock.at(500.5)
    stats.step(step(generated_tokens=7, kv_usage_fraction=0.5))
    clock.at(503.0)
    history = view_of(stats).history
    assert len(history.decode_tokens_per_s) == HISTORY_POINTS
    assert history.decode_tokens_per_s[-3:] == (7.0, 0.0, 0.0)
    assert history.kv_usage_fraction[-4:] == (0.0, 0.5, 0.5, 0.5)
    clock.at(900.0)
    assert view_of(stats).history.kv_usage_fraction == (0.5,) * HISTORY_POINTS


def test_a_new_engine_begins_everything_anew_and_keeps_the_recent_list(
    clock: ManualClock, stats: EngineStats
) -> None:
    clock.at(1.0)
    stats.step(
        step(
            generated_tokens=9,
            preemptions=2,
            itl_s=(0.1,),
            spec_decode=SpecDecodeSample(30, 30, 30, (30,)),
        )
    )
    stats.first_token(0.5, 10, 10)
    stats.request_finished(record(1))
    assert view_of(stats).preemptions == 2
    clock.at(5.0)
    stats.generation_ready(2)
    clock.at(6.0)
    view = view_of(stats)
    assert view.generation == 2
    assert view.preemptions == 0
    assert view.throughput.decode_tokens_per_s == 0.0
    assert view.throughput.window_s == pytest.approx(1.0)
    assert (view.latency.itl_s.n, view.latency.ttft_s.n) == (0, 0)
    assert view.prefix_cache.generation_requests == 0
    assert view.prefix_cache.cached_tokens == 0
    assert view.kv_usage_fraction == 0.0
    assert view.spec_decode is None
    assert view.history.decode_tokens_per_s == (0.0,)
    assert [request.request_id for request in stats.recent_requests()] == ["request-1"]


def test_recent_requests_are_newest_first_and_bounded() -> None:
    stats = EngineStats(ManualClock())
    for number in range(RECENT_REQUESTS + 5):
        stats.request_finished(record(number))
    ids = [request.request_id for request in stats.recent_requests()]
    assert len(ids) == RECENT_REQUESTS
    assert ids[0] == f"request-{RECENT_REQUESTS + 4}"
    assert ids[-1] == "request-5"


def test_readers_on_other_threads_see_whole_steps() -> None:
    clock = ManualClock(0.0)
    stats = EngineStats(clock)
    stats.generation_ready(1)
    done = threading.Event()
    torn: list[EngineStatsView] = []

    def read() -> None:
        while not done.is_set():
            view = view_of(stats)
            # Each step brings one token and one latency, so a torn view would show two counts.
            tokens = round((view.throughput.decode_tokens_per_s or 0.0) * view.throughput.window_s)
            if view.throughput.window_s < 9 and tokens != view.latency.itl_s.n:
                torn.append(view)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(4000):
        clock.now_s += 0.002
        stats.step(step(generated_tokens=1, itl_s=(0.002,)))
    done.set()
    for reader in readers:
        reader.join()
    assert torn == []
    assert view_of(stats).latency.itl_s.n == 4000
