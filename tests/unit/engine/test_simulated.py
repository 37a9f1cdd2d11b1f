from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentserve.domain.cache_event import BlocksRemoved, CacheEvents, CacheEventsLost, PrefixLookup
from agentserve.domain.errors import StartAbortedError
from agentserve.domain.lifecycle import PHASE_ORDER, EngineFacts, StartPhase
from agentserve.domain.preset import EngineOptions, Preset
from agentserve.domain.request import FirstToken, RequestOutcome, RequestStart
from agentserve.domain.sample import CacheFacts, StepSample
from agentserve.engine.backend import StartOrder
from agentserve.engine.engine_processes import EngineMark, end_processes, engine_pids
from agentserve.engine.phases import phase_of_line
from agentserve.engine.simulated import SimulatedBackend, SimulatedEngine, SimulationScript
from agentserve.engine.simulated_traffic import PREFILL_TOKENS_PER_S, SimulatedTraffic
from agentserve.engine.smoke import call_asgi
from agentserve.telemetry.sessions.monitor import SessionMonitor
from tests.harness.supervised import DEADLINE_S, Observer
from tests.unit.engine.cache_replay import replay

PRESET = Preset(
    name="p",
    engine=EngineOptions(
        model="m", served_model_name="served", speculative_config={"num_speculative_tokens": 2}
    ),
)
ALL_AT_ONCE = SimulationScript(phase_s=0.0)


def order(tmp_path: Path, observer: Observer | None = None) -> StartOrder:
    mark = EngineMark("simulated-test", 1, tmp_path)
    return StartOrder(preset=PRESET, mark=mark, observer=observer or Observer())


def facts(speculative_tokens: int) -> EngineFacts:
    return EngineFacts(
        vllm_version="0",
        device="none",
        model="m",
        served_model_name="m",
        tensor_parallel_size=2,
        max_model_len=100_000,
        speculative_tokens=speculative_tokens,
        block_tokens=16,
        blocks_total=2500,
        capacity_tokens=40_000,
    )


def test_every_phase_but_the_warm_up_is_told_by_a_call_or_by_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[StartPhase] = []
    SimulatedBackend(ALL_AT_ONCE).launch(order(tmp_path)).load(told.append)
    lines = capfd.readouterr().out.splitlines()
    told += [phase for line in lines if (phase := phase_of_line(line)) is not None]
    assert told == list(PHASE_ORDER[:-1])


def test_a_load_that_hangs_ends_with_the_abort(tmp_path: Path) -> None:
    script = SimulationScript(phase_s=0.0, hang_in=StartPhase.SPAWN)
    launch = SimulatedBackend(script).launch(order(tmp_path))
    hanging, errors = threading.Event(), list[Exception]()

    def load() -> None:
        try:
            launch.load(lambda phase: hanging.set() if phase is StartPhase.SPAWN else None)
        except StartAbortedError as error:
            errors.append(error)

    loading = threading.Thread(target=load, daemon=True)
    loading.start()
    assert hanging.wait(DEADLINE_S)
    assert loading.is_alive()
    launch.abort()
    launch.abort()
    loading.join(DEADLINE_S)
    assert len(errors) == 1


def test_a_flood_of_lines_is_written_while_loading(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = SimulationScript(phase_s=0.0, flood_lines=500)
    SimulatedBackend(script).launch(order(tmp_path)).load(lambda _: None)
    assert capfd.readouterr().out.count("simulated line") == 500


def test_facts_come_from_the_preset(tmp_path: Path) -> None:
    engine = SimulatedBackend(ALL_AT_ONCE).launch(order(tmp_path)).load(lambda _: None)
    assert engine.facts.served_model_name == "served"
    assert engine.facts.speculative_tokens == 2
    assert engine.facts.device == "simulated"
    assert engine.death() is None


async def test_it_answers_completions_and_models(tmp_path: Path) -> None:
    engine = SimulatedBackend(ALL_AT_ONCE).launch(order(tmp_path)).load(lambda _: None)
    status, body = await call_asgi(engine.app, "/v1/completions", b"{}")
    assert (status, msgspec.json.decode(body)["usage"]["completion_tokens"]) == (200, 4)
    status, body = await call_asgi(engine.app, "/v1/models", b"")
    assert (status, msgspec.json.decode(body)["data"][0]["id"]) == (200, "served")


async def test_traffic_plays_from_open_to_close(tmp_path: Path) -> None:
    stepped = asyncio.Event()

    class Signalling(Observer):
        def step(self, sample: StepSample) -> None:
            stepped.set()

    script = SimulationScript(phase_s=0.0, traffic=True)
    engine = SimulatedBackend(script).launch(order(tmp_path, Signalling())).load(lambda _: None)
    await engine.open()
    await asyncio.wait_for(stepped.wait(), DEADLINE_S)
    await engine.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others


async def test_requests_of_one_backend_never_share_a_number(tmp_path: Path) -> None:
    backend = SimulatedBackend(SimulationScript(phase_s=0.0, traffic=True))
    observer = Observer()
    for _ in range(2):
        engine = backend.launch(order(tmp_path, observer)).load(lambda _: None)
        assert isinstance(engine, SimulatedEngine)
        await engine.open()
        for _ in range(200):
            engine.traffic.step()
        await engine.close()
    numbers = [start.number for start in observer.starts]
    assert len(numbers) == len(set(numbers)) > 1
    assert {record.number for record in observer.records} == set(numbers)


async def test_the_cache_is_described_once_and_before_anything_happens(tmp_path: Path) -> None:
    observer = Observer()
    engine = SimulatedBackend(ALL_AT_ONCE).launch(order(tmp_path, observer)).load(lambda _: None)
    assert observer.facts == []
    await engine.open()
    (told,) = observer.facts
    assert told.generation == 1
    assert told.layout is not None
    assert told.layout.predictable
    assert told.layout.block_tokens == engine.facts.block_tokens
    assert observer.cache == []
    await engine.close()


def test_an_engine_that_ignores_stops_blocks_until_its_process_is_killed(tmp_path: Path) -> None:
    backend = SimulatedBackend(SimulationScript(phase_s=0.0, ignore_stop=True))
    the_order = order(tmp_path)
    engine = backend.launch(the_order).load(lambda _: None)
    assert backend.engine is not None
    child = backend.engine.process
    assert isinstance(child, subprocess.Popen)
    try:
        assert engine_pids(the_order.mark) == [child.pid]
        stopping = threading.Thread(target=engine.shut_down, daemon=True)
        stopping.start()
        assert end_processes(the_order.mark, grace_s=0.2)
        stopping.join(DEADLINE_S)
        assert not stopping.is_alive()
    finally:
        child.kill()
        child.wait()


def traffic_for(
    observer: Observer, the_facts: EngineFacts, seed: int, generation: int = 1
) -> SimulatedTraffic:
    dice = random.Random(seed)
    return SimulatedTraffic(observer, the_facts, generation, dice, itertools.count(1))


def test_the_same_seed_plays_the_same() -> None:
    def play() -> Observer:
        observer = Observer()
        traffic = traffic_for(observer, facts(2), 7)
        for _ in range(500):
            traffic.step()
        return observer

    first, second = play(), play()
    assert first.steps == second.steps
    assert first.cache == second.cache
    assert [start.body for start in first.starts] == [start.body for start in second.starts]
    assert first.records


def test_a_lookup_is_reported_after_the_request_and_before_its_first_token() -> None:
    class Watching(Observer):
        def first_token(self, first: FirstToken) -> None:
            (start,) = [each for each in self.starts if each.number == first.number]
            assert start.engine_request_id in replay(self.cache, 16)
            super().first_token(first)

        def cache_events(self, events: CacheEvents | CacheEventsLost) -> None:
            assert isinstance(events, CacheEvents)
            started = {start.engine_request_id for start in self.starts}
            looked_up = {e.request_id for e in events.events if isinstance(e, PrefixLookup)}
            assert looked_up <= started
            super().cache_events(events)

    observer = Watching()
    traffic = traffic_for(observer, facts(0), 5)
    while len(observer.first_tokens) < 5:
        traffic.step()


def test_an_end_aborts_what_runs_and_leaves_no_block_in_use() -> None:
    observer = Observer()
    traffic = traffic_for(observer, facts(0), 3)
    while len(traffic.in_flight()) < 3:
        traffic.step()
    finished = len(observer.records)
    running = {request.number for request in traffic.in_flight()}
    phases = {request.phase for request in traffic.in_flight()}
    traffic.end()
    aborted = observer.records[finished:]
    assert {record.number for record in aborted} == running
    assert {record.outcome for record in aborted} == {RequestOutcome.ABORTED}
    assert phases >= {"queued"} or phases >= {"prefill"}
    unknown = [record for record in aborted if record.ttft_s is None]
    assert unknown
    assert {(record.cached_tokens, record.computed_tokens) for record in unknown} == {(None, None)}
    assert traffic.in_flight() == ()
    assert traffic.scheduler_facts().blocks_in_use == 0


def test_a_broken_prefix_an_eviction_and_a_title_occur_within_a_few_minutes() -> None:
    observer = Observer()
    traffic = traffic_for(observer, facts(2), 1)
    for _ in range(6000):
        traffic.step()
    known = [record for record in observer.records if record.cached_tokens is not None]
    cached = sum(record.cached_tokens or 0 for record in known)
    assert 0.6 < cached / sum(record.prompt_tokens for record in known) < 0.95
    later = known[20:]
    assert any((record.cached_tokens or 0) < record.prompt_tokens / 4 for record in later)
    assert any(record.prompt_tokens < 300 for record in known)
    assert any(
        isinstance(event, BlocksRemoved)
        for batch in observer.cache
        if isinstance(batch, CacheEvents)
        for event in batch.events
    )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), speculative_tokens=st.integers(0, 4))
def test_what_it_plays_adds_up(seed: int, speculative_tokens: int) -> None:
    observer = Observer()
    the_facts = facts(speculative_tokens)
    traffic = traffic_for(observer, the_facts, seed, 3)
    for _ in range(800):
        traffic.step()
        in_flight = traffic.in_flight()
        assert len({request.request_id for request in in_flight}) == len(in_flight) <= 3
        for request in in_flight:
            assert request.computed_tokens is not None
            # What waits has not been looked up yet.
            assert (request.cached_tokens is None) == (request.phase == "queued")
            done = (request.cached_tokens or 0) + request.computed_tokens
            assert done <= request.prompt_tokens
        scheduler = traffic.scheduler_facts()
        blocks = (scheduler.blocks_in_use, scheduler.blocks_warm, scheduler.blocks_free)
        assert min(blocks) >= 0
        assert sum(blocks) == the_facts.blocks_total
    check_steps(observer, speculative_tokens)
    check_records(observer, traffic)
    check_requests(observer)


def test_times_follow_from_computed_tokens_the_wait_and_one_prefill_speed() -> None:
    observer = Observer()
    traffic = traffic_for(observer, facts(2), 1)
    while not any(record.queued_s for record in observer.records):
        traffic.step()
    for first in observer.first_tokens:
        assert first.queued_s is not None
        assert first.cached_tokens is not None
        computed_tokens = first.prompt_tokens - first.cached_tokens
        prefill_s = computed_tokens / PREFILL_TOKENS_PER_S
        assert first.ttft_s == pytest.approx(first.queued_s + prefill_s)
    first_tokens = {first.number: first for first in observer.first_tokens}
    for record in observer.records:
        first = first_tokens[record.number]
        assert (record.ttft_s, record.queued_s) == (first.ttft_s, first.queued_s)
        assert record.ttft_s is not None
        assert record.decode_s is not None
        assert record.elapsed_s == pytest.approx(record.ttft_s + record.decode_s)


def test_a_session_monitor_measures_the_prefill_speed_that_is_played() -> None:
    monitor = SessionMonitor()

    class Reporting(Observer):
        def request_started(self, start: RequestStart) -> None:
            monitor.handle(start)

        def first_token(self, first: FirstToken) -> None:
            super().first_token(first)
            monitor.handle(first)

        def cache_facts(self, facts: CacheFacts) -> None:
            monitor.handle(facts)

        def cache_events(self, events: CacheEvents | CacheEventsLost) -> None:
            monitor.handle(events)

    observer = Reporting()
    traffic = traffic_for(observer, facts(2), 1)
    traffic.begin()
    while len(observer.first_tokens) < 40:
        traffic.step()
    view = monitor.view()
    assert view.monitor.prefill_tokens_per_s == pytest.approx(PREFILL_TOKENS_PER_S)
    verdicts = [turn.verdict for each in view.sessions for turn in each.history if turn.verdict]
    costs = {each.lost_tokens: each.cost_s for each in verdicts if each.cost_s}
    assert costs
    for lost_tokens, cost_s in costs.items():
        assert cost_s == pytest.approx((lost_tokens or 0) / PREFILL_TOKENS_PER_S)


def check_requests(observer: Observer) -> None:
    starts = {start.number: start for start in observer.starts}
    assert len(starts) == len(observer.starts)
    expected = replay(observer.cache, 16)
    for first in observer.first_tokens:
        start = starts[first.number]
        assert len(start.prompt_token_ids) == first.prompt_tokens
        assert first.cached_tokens == expected[start.engine_request_id]
    for record, answer in zip(observer.records, observer.answers, strict=True):
        assert record.request_id == starts[record.number].engine_request_id
        assert len(answer) == record.generated_tokens


def check_steps(observer: Observer, speculative_tokens: int) -> None:
    for step in observer.steps:
        assert step.kv_usage_fraction is not None
        assert 0.0 <= step.kv_usage_fraction <= 1.0
        assert all(latency_s >= 0 for latency_s in step.itl_s)
        assert len(step.itl_s) <= step.generated_tokens
        if (drafted := step.spec_decode) is None:
            assert speculative_tokens == 0
            continue
        assert len(drafted.accepted_per_position) == speculative_tokens
        assert sum(drafted.accepted_per_position) == drafted.accepted_tokens
        assert drafted.draft_tokens == drafted.drafts * speculative_tokens
        accepted = [drafted.drafts, *drafted.accepted_per_position]
        assert accepted == sorted(accepted, reverse=True)


def check_records(observer: Observer, traffic: SimulatedTraffic) -> None:
    for record in observer.records:
        assert record.generation == 3
        assert record.cached_tokens is not None
        assert record.ttft_s is not None
        assert record.computed_tokens == record.prompt_tokens - record.cached_tokens
        assert record.outcome in {RequestOutcome.STOP, RequestOutcome.ABORTED}
    computed = sum(step.computed_prompt_tokens or 0 for step in observer.steps)
    done = sum(record.computed_tokens or 0 for record in observer.records)
    running = sum(request.computed_tokens or 0 for request in traffic.in_flight())
    assert computed == done + running
    generated = sum(step.generated_tokens for step in observer.steps)
    done = sum(record.generated_tokens for record in observer.records)
    assert generated == done + sum(request.generated_tokens for request in traffic.in_flight())
