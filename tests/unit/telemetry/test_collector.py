from __future__ import annotations

import msgspec
import pytest

from agentserve.domain.failure import Failure
from agentserve.domain.gpu import GpuReport, GpuSample, ProcessSample
from agentserve.domain.lifecycle import EngineFacts, EngineState, EngineStatus, StartPhase
from agentserve.domain.request import InFlightRequest, RequestOutcome, RequestRecord
from agentserve.domain.sample import SchedulerFacts, SpecDecodeSample, StepSample
from agentserve.domain.snapshot import (
    HistoryView,
    KvView,
    LatencyView,
    PrefixCacheView,
    SpecDecodeView,
    ThroughputView,
    decode_snapshot,
    encode_snapshot,
)
from agentserve.telemetry.collector import SnapshotCollector
from agentserve.telemetry.engine_stats import EngineStats
from agentserve.telemetry.sessions.exchange import NO_SESSIONS

FACTS = EngineFacts(
    vllm_version="0.32.0",
    device="cpu",
    model="/models/tiny",
    served_model_name="tiny",
    tensor_parallel_size=2,
    max_model_len=8192,
    max_num_batched_tokens=2048,
    max_num_seqs=4,
    block_tokens=640,
    blocks_total=100,
    capacity_tokens=40_960,
    max_concurrency=5.0,
)
NOT_READY = [state for state in EngineState if state is not EngineState.READY]


SCHEDULER = SchedulerFacts(
    blocks_in_use=40,
    blocks_warm=50,
    blocks_free=10,
    live_token_budget=1024,
    computed_prompt_tokens={},
)


class World:
    """All sources of a collector, with values that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.status = EngineStatus()
        self.stats = EngineStats(self.clock)
        self.gpu_report = GpuReport(gpus=(GpuSample(index=0, name="card"),))
        self.scheduler: SchedulerFacts | None = None
        self.in_flight = (
            InFlightRequest(
                request_id="a",
                route=None,
                phase="decode",
                prompt_tokens=1,
                cached_tokens=None,
                computed_tokens=None,
                generated_tokens=1,
                elapsed_s=0.1,
            ),
        )
        self.sessions = NO_SESSIONS
        self.collector = SnapshotCollector(
            endpoint="http://127.0.0.1:8000",
            status=lambda: self.status,
            stats=self.stats,
            gpu_report=lambda: self.gpu_report,
            processes=lambda: (ProcessSample(pid=1, role="app", resident_bytes=5),),
            in_flight=lambda: self.in_flight,
            log_dropped_lines=lambda: 7,
            scheduler_facts=lambda: self.scheduler,
            sessions=lambda: self.sessions,
            clock=self.clock,
            unix_clock=lambda: 1_700_000_000.0,
        )

    def clock(self) -> float:
        return self.now_s

    def become_ready(self, generation: int = 1, facts: EngineFacts = FACTS) -> None:
        self.stats.generation_ready(generation)
        self.status = EngineStatus(
            state=EngineState.READY,
            generation=generation,
            preset="cpu-tiny",
            started_at_s=self.now_s - 20,
            ready_at_s=self.now_s,
            expected_start_s=18.0,
            facts=facts,
        )

    def run_a_step(self, spec_decode: SpecDecodeSample | None = None) -> None:
        self.stats.step(
            StepSample(
                running_requests=2,
                waiting_requests=1,
                kv_usage_fraction=0.4,
                prefix_requests=0,
                prefix_query_tokens=0,
                prefix_hit_tokens=0,
                computed_prompt_tokens=5,
                generated_tokens=20,
                preemptions=3,
                itl_s=(0.02,),
                spec_decode=spec_decode,
            )
        )
        self.stats.first_token(0.3, 10, 40)


@pytest.fixture
def world() -> World:
    return World()


def finished(generation: int, number: int = 0) -> RequestRecord:
    return RequestRecord(
        number=number,
        request_id="r",
        generation=generation,
        route=None,
        agent=None,
        finished_at_unix_s=1.0,
        outcome=RequestOutcome.ABORTED,
        choices=1,
        prompt_tokens=1,
        cached_tokens=None,
        computed_tokens=None,
        generated_tokens=0,
        queued_s=None,
        ttft_s=None,
        decode_s=None,
        elapsed_s=1.0,
        preemptions=None,
    )


def test_a_ready_engine_is_shown_with_everything_that_it_reports(world: World) -> None:
    world.become_ready()
    world.run_a_step()
    world.scheduler = SCHEDULER
    world.now_s += 5.0
    snapshot = world.collector.snapshot()
    engine = snapshot.engine
    assert engine.state is EngineState.READY
    assert engine.uptime_s == pytest.approx(5.0)
    assert engine.start_elapsed_s == pytest.approx(20.0)
    assert engine.remaining_start_s is None
    assert (engine.model, engine.device, engine.tensor_parallel_size) == ("tiny", "cpu", 2)
    assert engine.endpoint == "http://127.0.0.1:8000"
    assert engine.settings.max_num_batched_tokens == 2048
    assert engine.settings.live_token_budget == 1024
    assert snapshot.kv == KvView(
        usage_fraction=0.4,
        block_tokens=640,
        blocks_total=100,
        blocks_in_use=40,
        blocks_warm=50,
        blocks_free=10,
        capacity_tokens=40_960,
        max_concurrency=5.0,
        preemptions=3,
    )
    assert snapshot.throughput.decode_tokens_per_s == pytest.approx(4.0)
    assert snapshot.prefix_cache.hit_rate_recent == pytest.approx(0.25)
    assert snapshot.latency.ttft_s.n == 1
    assert snapshot.in_flight == world.in_flight
    assert snapshot.processes[0].role == "app"
    assert snapshot.log_dropped_lines == 7
    assert snapshot.time == 1_700_000_000.0


@pytest.mark.parametrize("state", NOT_READY)
def test_nothing_measured_is_shown_as_live_unless_the_engine_is_ready(
    world: World, state: EngineState
) -> None:
    world.become_ready()
    world.run_a_step(SpecDecodeSample(20, 20, 10, (10,)))
    world.scheduler = SCHEDULER
    world.stats.request_finished(finished(1))
    world.status = msgspec.structs.replace(world.status, state=state)
    snapshot = world.collector.snapshot()
    assert snapshot.kv == KvView()
    assert snapshot.prefix_cache == PrefixCacheView()
    assert snapshot.latency == LatencyView()
    assert snapshot.throughput == ThroughputView()
    assert snapshot.throughput.decode_tokens_per_s is None
    assert snapshot.history == HistoryView()
    assert snapshot.spec_decode is None
    assert snapshot.in_flight == ()
    assert snapshot.engine.uptime_s is None
    assert snapshot.engine.settings.live_token_budget is None
    assert [request.request_id for request in snapshot.recent_requests] == ["r"]
    assert snapshot.gpus == world.gpu_report.gpus


def test_figures_of_an_earlier_engine_are_not_shown_under_the_new_one(world: World) -> None:
    world.become_ready(generation=1)
    world.run_a_step()
    world.status = msgspec.structs.replace(world.status, generation=2)
    snapshot = world.collector.snapshot()
    assert snapshot.throughput == ThroughputView()
    assert snapshot.kv.usage_fraction is None
    assert snapshot.kv.capacity_tokens == 40_960


def test_a_start_shows_its_phase_and_the_time_that_is_left(world: World) -> None:
    world.status = EngineStatus(
        state=EngineState.STARTING,
        generation=2,
        phase=StartPhase.LOAD,
        started_at_s=90.0,
        phase_started_at_s=96.0,
        expected_start_s=25.0,
    )
    engine = world.collector.snapshot().engine
    assert engine.phase is StartPhase.LOAD
    assert engine.phase_elapsed_s == pytest.approx(4.0)
    assert engine.start_elapsed_s == pytest.approx(10.0)
    assert engine.remaining_start_s == pytest.approx(15.0)


def test_a_start_that_takes_longer_than_expected_has_nothing_left(world: World) -> None:
    world.status = EngineStatus(state=EngineState.WARMING, started_at_s=10.0, expected_start_s=25.0)
    assert world.collector.snapshot().engine.remaining_start_s == 0.0


def test_the_time_left_of_a_first_start_is_unknown(world: World) -> None:
    world.status = EngineStatus(state=EngineState.STARTING, started_at_s=90.0)
    assert world.collector.snapshot().engine.remaining_start_s is None


def test_a_failed_engine_keeps_its_failure_and_its_name(world: World) -> None:
    failure = Failure(kind="worker_died", title="t", cause="c", hint="h", phase="ready")
    world.status = EngineStatus(
        state=EngineState.FAILED, generation=1, facts=FACTS, failure=failure, ready_at_s=50.0
    )
    engine = world.collector.snapshot().engine
    assert engine.failure == failure
    assert engine.model == "tiny"
    assert engine.uptime_s is None
    assert engine.phase is None


def test_a_stopped_engine_has_no_model(world: World) -> None:
    world.status = EngineStatus(state=EngineState.STOPPED, facts=FACTS)
    assert world.collector.snapshot().engine.model is None


def test_an_engine_without_speculative_decoding_has_no_view_of_it(world: World) -> None:
    world.become_ready()
    world.run_a_step()
    assert world.collector.snapshot().spec_decode is None


def test_an_engine_that_may_speculate_has_an_empty_view_until_it_does(world: World) -> None:
    world.become_ready(facts=msgspec.structs.replace(FACTS, speculative_tokens=2))
    assert world.collector.snapshot().spec_decode == SpecDecodeView()
    world.run_a_step(SpecDecodeSample(20, 40, 10, (8, 2)))
    spec = world.collector.snapshot().spec_decode
    assert spec is not None
    assert spec.acceptance_rate == pytest.approx(0.25)


def test_the_reason_for_missing_gpus_is_passed_on(world: World) -> None:
    world.gpu_report = GpuReport(unavailable_reason="no driver")
    snapshot = world.collector.snapshot()
    assert snapshot.gpus == ()
    assert snapshot.gpus_unavailable == "no driver"


@pytest.mark.parametrize("state", [EngineState.READY, EngineState.STOPPED])
def test_finished_requests_have_their_session_with_and_without_an_engine(
    world: World, state: EngineState
) -> None:
    world.become_ready()
    for number in (1, 2, 3):
        world.stats.request_finished(finished(1, number))
    world.in_flight = (msgspec.structs.replace(world.in_flight[0], number=4),)
    world.sessions = NO_SESSIONS._replace(session_of_request={1: "s1", 3: "s2", 4: "s1"})
    world.status = msgspec.structs.replace(world.status, state=state)
    snapshot = world.collector.snapshot()
    assert [each.session for each in snapshot.recent_requests] == ["s2", None, "s1"]
    ready = state is EngineState.READY
    assert [each.session for each in snapshot.in_flight] == (["s1"] if ready else [])


def test_a_full_snapshot_survives_its_json_form(world: World) -> None:
    world.become_ready()
    world.run_a_step()
    world.stats.request_finished(finished(1))
    world.now_s += 30.0
    snapshot = world.collector.snapshot()
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot
