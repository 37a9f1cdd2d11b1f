from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentserve.domain.adviser import (
    HOLD_S,
    LINGER_S,
    PREEMPTION_WINDOW_S,
    Advice,
    AdviceKind,
    AdviserState,
    Direction,
    advise,
)
from agentserve.domain.gpu import GpuSample
from agentserve.domain.lifecycle import EngineState
from agentserve.domain.pending import ToggleOption
from agentserve.domain.request import InFlightRequest, RequestOutcome, RequestRecord
from agentserve.domain.snapshot import (
    EngineView,
    HistoryView,
    KvView,
    PrefixCacheView,
    SettingsView,
    Snapshot,
    SpecDecodeView,
    ThroughputView,
)

NOW_S = 1_700_000_000.0
GIB = 2**30


def snapshot(at_s: float = 0.0, **changes: Any) -> Snapshot:
    fields: dict[str, Any] = {
        "time": NOW_S + at_s,
        "engine": EngineView(
            state=EngineState.READY,
            generation=1,
            settings=SettingsView(max_model_len=100_000, max_num_seqs=2),
        ),
        "kv": KvView(usage_fraction=0.4, preemptions=0),
        **changes,
    }
    return Snapshot(**fields)


def told(*snapshots: Snapshot) -> Advice | None:
    advice, state = None, AdviserState()
    for each in snapshots:
        advice, state = advise(each, state)
    return advice


def held(**changes: Any) -> Advice | None:
    """What is said when a condition lasts."""
    return told(snapshot(0, **changes), snapshot(HOLD_S, **changes))


def gpu(index: int, used_gib: float, *, lost: bool = False) -> GpuSample:
    return GpuSample(
        index=index,
        memory_used_bytes=int(used_gib * GIB),
        memory_total_bytes=16 * GIB,
        lost=lost,
    )


def in_flight(phase: str, prompt_tokens: int = 1_000) -> InFlightRequest:
    return InFlightRequest(
        request_id=phase,
        route="/v1/messages",
        phase=phase,
        prompt_tokens=prompt_tokens,
        cached_tokens=None,
        computed_tokens=None,
        generated_tokens=0,
        elapsed_s=1.0,
    )


def finished(prompt_tokens: int, ago_s: float, generation: int = 1) -> RequestRecord:
    return RequestRecord(
        request_id="r",
        generation=generation,
        route=None,
        agent=None,
        finished_at_unix_s=NOW_S - ago_s,
        outcome=RequestOutcome.STOP,
        choices=1,
        prompt_tokens=prompt_tokens,
        cached_tokens=0,
        computed_tokens=0,
        generated_tokens=1,
        queued_s=None,
        ttft_s=None,
        decode_s=None,
        elapsed_s=1.0,
        preemptions=None,
    )


SPEED = HistoryView(decode_tokens_per_s=(None, *(60.0 for _ in range(40))))
BOTH = (in_flight("prefill"), in_flight("decode"))

TROUBLES: dict[AdviceKind, dict[str, Any]] = {
    AdviceKind.GPU_LOST: {"gpus": (gpu(0, 14), gpu(1, 14, lost=True))},
    AdviceKind.KV_FULL: {"kv": KvView(usage_fraction=0.97)},
    AdviceKind.DECODE_STALLED: {
        "in_flight": BOTH,
        "history": SPEED,
        "throughput": ThroughputView(decode_tokens_per_s=9.0),
    },
    AdviceKind.CEILING: {"in_flight": (in_flight("decode", 95_000),)},
    AdviceKind.SEATS_FULL: {
        "throughput": ThroughputView(running_requests=2, waiting_requests=1),
    },
    AdviceKind.HIT_RATE: {
        "prefix_cache": PrefixCacheView(
            hit_rate_recent=0.2,
            recent_requests=50,
            hit_rate_generation=0.9,
            generation_requests=200,
        )
    },
    AdviceKind.ACCEPTANCE: {"spec_decode": SpecDecodeView(acceptance_rate=0.2, drafts=900)},
    AdviceKind.GPU_SKEW: {"gpus": (gpu(0, 14), gpu(1, 11))},
}


def test_an_idle_healthy_engine_is_met_with_silence() -> None:
    assert held(gpus=(gpu(0, 14.2), gpu(1, 13.9))) is None


@pytest.mark.parametrize("kind", TROUBLES)
def test_each_trouble_is_named_with_a_remedy(kind: AdviceKind) -> None:
    advice = held(**TROUBLES[kind])
    assert advice is not None
    assert advice.kind is kind
    assert advice.remedy
    # What was seen, with its number, stands before the colon and is short enough for 80 columns.
    seen = advice.text.partition(": ")[0]
    assert any(character.isdigit() for character in seen)
    assert len(seen) <= 48
    assert (advice.option is None) is (advice.direction is None)


@pytest.mark.parametrize(
    ("kind", "option", "direction"),
    [
        (AdviceKind.KV_FULL, ToggleOption.SEATS, Direction.DOWN),
        (AdviceKind.SEATS_FULL, ToggleOption.SEATS, Direction.UP),
        (AdviceKind.DECODE_STALLED, ToggleOption.TOKEN_BUDGET, Direction.DOWN),
        (AdviceKind.CEILING, ToggleOption.CONTEXT, Direction.UP),
        (AdviceKind.ACCEPTANCE, ToggleOption.DRAFT_TOKENS, Direction.DOWN),
    ],
)
def test_the_option_to_change_is_named(
    kind: AdviceKind, option: ToggleOption, direction: Direction
) -> None:
    advice = held(**TROUBLES[kind])
    assert advice is not None
    assert (advice.option, advice.direction) == (option, direction)


def test_preemptions_are_spoken_about_while_they_rise_and_forgotten_after_a_minute() -> None:
    def at(second: float, count: int) -> Snapshot:
        return snapshot(second, kv=KvView(usage_fraction=0.5, preemptions=count))

    assert told(at(0, 3), at(1, 3)) is None
    advice = told(at(0, 3), at(1, 5))
    assert advice is not None
    assert advice.kind is AdviceKind.PREEMPTIONS
    assert advice.text.startswith("2 preemptions")
    later = 1 + PREEMPTION_WINDOW_S + 1
    assert told(at(0, 3), at(1, 5), at(later, 5), at(later + LINGER_S, 5)) is None


def test_old_preemptions_of_an_engine_that_we_joined_late_are_no_news() -> None:
    assert held(kv=KvView(usage_fraction=0.5, preemptions=41)) is None


@pytest.mark.parametrize(
    "kind", [AdviceKind.KV_FULL, AdviceKind.DECODE_STALLED, AdviceKind.SEATS_FULL]
)
def test_a_momentary_condition_must_last_and_its_hint_stays_long_enough_to_read(
    kind: AdviceKind,
) -> None:
    trouble = TROUBLES[kind]
    assert told(snapshot(0, **trouble)) is None
    assert told(snapshot(0, **trouble), snapshot(3), snapshot(HOLD_S, **trouble)) is None
    shown = [snapshot(0, **trouble), snapshot(HOLD_S, **trouble)]
    assert told(*shown, snapshot(HOLD_S + LINGER_S - 1)) is not None
    assert told(*shown, snapshot(HOLD_S + LINGER_S)) is None


def test_the_more_important_hint_wins() -> None:
    advice = held(**TROUBLES[AdviceKind.ACCEPTANCE], **TROUBLES[AdviceKind.GPU_LOST])
    assert advice is not None
    assert advice.kind is AdviceKind.GPU_LOST


def test_more_seats_are_not_offered_while_the_pool_is_busy() -> None:
    waiting = ThroughputView(running_requests=2, waiting_requests=1)
    assert held(throughput=waiting, kv=KvView(usage_fraction=0.8)) is None


def test_a_slow_decode_without_a_prefill_is_not_blamed_on_the_budget() -> None:
    slow = ThroughputView(decode_tokens_per_s=9.0)
    assert held(in_flight=(in_flight("decode"),), history=SPEED, throughput=slow) is None


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (finished(95_000, 10), True),
        (finished(95_000, 900), False),
        (finished(95_000, 10, 7), False),
    ],
)
def test_only_recent_prompts_of_this_engine_count_against_the_ceiling(
    record: RequestRecord, said: bool
) -> None:
    assert (held(recent_requests=(record,)) is not None) is said


def test_a_few_drafts_say_nothing_about_acceptance() -> None:
    assert held(spec_decode=SpecDecodeView(acceptance_rate=0.0, drafts=12)) is None


def test_a_new_engine_starts_without_old_hints() -> None:
    trouble = snapshot(0, **TROUBLES[AdviceKind.ACCEPTANCE])
    fresh = msgspec.structs.replace(
        snapshot(1), engine=EngineView(state=EngineState.READY, generation=2)
    )
    assert told(trouble, fresh) is None


def test_only_a_lost_gpu_is_spoken_about_while_nothing_serves() -> None:
    stopped = EngineView(state=EngineState.STOPPED)
    assert held(engine=stopped, **TROUBLES[AdviceKind.ACCEPTANCE]) is None
    assert held(engine=stopped, **TROUBLES[AdviceKind.GPU_LOST]) is not None


NUMBER = st.none() | st.floats() | st.floats(0, 1) | st.floats(0, 200)
COUNT = st.none() | st.integers(0, 300)

SNAPSHOTS = st.builds(
    Snapshot,
    time=st.floats(0, 1e10) | st.floats(0, 400),
    engine=st.builds(
        EngineView,
        state=st.sampled_from(EngineState),
        generation=st.integers(0, 2),
        settings=st.builds(SettingsView, max_model_len=COUNT, max_num_seqs=COUNT),
    ),
    kv=st.builds(KvView, usage_fraction=NUMBER, preemptions=COUNT),
    prefix_cache=st.builds(
        PrefixCacheView,
        hit_rate_recent=NUMBER,
        recent_requests=st.integers(0, 99),
        hit_rate_generation=NUMBER,
        generation_requests=st.integers(0, 99),
    ),
    throughput=st.builds(
        ThroughputView, decode_tokens_per_s=NUMBER, running_requests=COUNT, waiting_requests=COUNT
    ),
    spec_decode=st.none()
    | st.builds(SpecDecodeView, acceptance_rate=NUMBER, drafts=st.integers(0, 999)),
    history=st.builds(HistoryView, decode_tokens_per_s=st.lists(NUMBER, max_size=30).map(tuple)),
    gpus=st.lists(
        st.builds(
            GpuSample,
            index=st.integers(0, 3),
            memory_used_bytes=COUNT,
            memory_total_bytes=COUNT,
            lost=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    in_flight=st.lists(
        st.builds(in_flight, st.sampled_from(["prefill", "decode", "x"]), st.integers(0, 400)),
        max_size=3,
    ).map(tuple),
)


@settings(max_examples=200, deadline=None)
@given(seen=st.lists(SNAPSHOTS, max_size=6))
def test_nothing_that_is_measured_makes_it_fail(seen: list[Snapshot]) -> None:
    state = AdviserState()
    for each in seen:
        advice, state = advise(each, state)
        assert state.shown == advice
        assert len(state.preemptions) <= 64
        assert advice is None or not {"nan", "inf"} & set(advice.text.split())
