from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentserve.domain.prompt import PartKind, PromptPart
from agentserve.domain.request import RequestOutcome
from agentserve.domain.session import Verdict, VerdictKind, VolatileKind
from agentserve.domain.text import printable
from agentserve.telemetry.sessions.difference import LocatedChange, ToolChange
from agentserve.telemetry.sessions.excerpt import make_excerpt
from agentserve.telemetry.sessions.turn_facts import (
    Evictor,
    ExpectedReuse,
    PreviousTurn,
    TurnFacts,
)
from agentserve.telemetry.sessions.verdict import judge
from agentserve.telemetry.sessions.verdict_sentences import duration

BLOCK = 16
HYBRID_BLOCK = 1_568


def change(kind: PartKind = PartKind.SYSTEM, **fields: Any) -> LocatedChange:
    part = PromptPart(
        kind=kind,
        name="read_file" if kind is PartKind.TOOL else None,
        index=3 if kind is PartKind.MESSAGE else None,
        role="user" if kind is PartKind.MESSAGE else None,
    )
    values: dict[str, Any] = {
        "part": part,
        "confirmed": True,
        "excerpt": make_excerpt("at 14:03 now", "at 14:04 now"),
    }
    return LocatedChange(**(values | fields))


def previous(**fields: Any) -> PreviousTurn:
    values: dict[str, Any] = {
        "prompt_tokens": 40_000,
        "sequence_tokens": 42_000,
        "common_tokens": 42_000,
        "generation": 1,
    }
    return PreviousTurn(**(values | fields))


def resident(tokens: int, **fields: Any) -> ExpectedReuse:
    values: dict[str, Any] = {"expected_tokens": tokens, "attention_tokens": tokens}
    return ExpectedReuse(**(values | fields))


def facts(cached_tokens: int | None = 41_984, **fields: Any) -> TurnFacts:
    """A turn that goes on and reuses all but the rest of a block."""
    values: dict[str, Any] = {
        "prompt_tokens": 42_500,
        "cached_tokens": cached_tokens,
        "expected": resident(cached_tokens or 0),
        "block_tokens": BLOCK,
        "previous": previous(),
        "generation": 1,
        "outcome": RequestOutcome.STOP,
        "prefill_tokens_per_s": 950.0,
    }
    return TurnFacts(**(values | fields))


def at_812(located: LocatedChange | None, **fields: Any) -> TurnFacts:
    """A turn whose prompt parts from the one before at token 812, and repeats all behind it."""
    values: dict[str, Any] = {"change": located, "repeated_tokens": 41_188}
    return facts(800, previous=previous(common_tokens=812), **(values | fields))


def unknown_common(cached_tokens: int = 0, **fields: Any) -> TurnFacts:
    """A turn of which it is not known how much it shares with the one before."""
    return facts(cached_tokens, previous=previous(common_tokens=None), **fields)


def after_hashes(cached_tokens: int = 0, **fields: Any) -> TurnFacts:
    """A turn of which all hashes of the earlier prompt are equal, and nothing else was kept."""
    before = previous(prompt_tokens=640, sequence_tokens=1_540, common_tokens=640, common_step=128)
    return facts(cached_tokens, prompt_tokens=1_562, previous=before, **fields)


CASES: list[tuple[VerdictKind, TurnFacts]] = [
    (VerdictKind.PREEMPTED, facts(preemptions=1)),
    (VerdictKind.PREEMPTED, facts(None, preemptions=2, previous=None)),
    (VerdictKind.FIRST_REQUEST, facts(0, previous=None)),
    (VerdictKind.FIRST_REQUEST, facts(None, previous=None)),
    (VerdictKind.FIRST_REQUEST, facts(42_496, previous=None)),
    (VerdictKind.FULL_REUSE, facts()),
    (VerdictKind.FULL_REUSE, facts(preemptions=0, expected=None)),
    (VerdictKind.FULL_REUSE, facts(42_480)),
    # The template changed only the end of the last block.
    (
        VerdictKind.FULL_REUSE,
        facts(41_984, previous=previous(common_tokens=41_990), change=change(PartKind.TEMPLATE)),
    ),
    # The history was rewritten, but the new one is known from an earlier turn.
    (
        VerdictKind.FULL_REUSE,
        facts(42_480, previous=previous(common_tokens=812), change=change(PartKind.MESSAGE)),
    ),
    (
        VerdictKind.BLOCK_ROUNDING,
        facts(
            1_568,
            block_tokens=HYBRID_BLOCK,
            prompt_tokens=3_100,
            previous=previous(prompt_tokens=2_900, sequence_tokens=3_000, common_tokens=3_000),
        ),
    ),
    (
        VerdictKind.BELOW_BLOCK,
        facts(
            0,
            block_tokens=HYBRID_BLOCK,
            prompt_tokens=1_500,
            previous=previous(prompt_tokens=900, sequence_tokens=1_000, common_tokens=1_000),
        ),
    ),
    (VerdictKind.BELOW_BLOCK, facts(0, previous=previous(common_tokens=15))),
    (VerdictKind.SYSTEM_CHANGED, at_812(change())),
    (VerdictKind.SYSTEM_CHANGED, facts(0, previous=previous(common_tokens=3), change=change())),
    (VerdictKind.TOOLS_CHANGED, at_812(change(PartKind.TOOL, tool_change=ToolChange.EDITED))),
    (
        VerdictKind.TOOLS_CHANGED,
        at_812(change(PartKind.TOOLS, tool_change=ToolChange.MOVED, tool_names=("a", "b"))),
    ),
    (VerdictKind.HISTORY_REWRITTEN, at_812(change(PartKind.MESSAGE))),
    (VerdictKind.HISTORY_REWRITTEN, at_812(change(PartKind.TEMPLATE))),
    (VerdictKind.HISTORY_REWRITTEN, facts(40_000, previous=previous(common_tokens=40_002))),
    (VerdictKind.VOLATILE_VALUE, at_812(change(volatile_kind=VolatileKind.CLOCK))),
    # Under one block on a hybrid: what changed still tells more than rounding.
    (
        VerdictKind.VOLATILE_VALUE,
        facts(
            0,
            block_tokens=HYBRID_BLOCK,
            previous=previous(common_tokens=812),
            change=change(volatile_kind=VolatileKind.DATE),
        ),
    ),
    (
        VerdictKind.EVICTED,
        facts(1_024, missing_were_stored=True, evicted_by=Evictor(session="s2", label="amber")),
    ),
    (VerdictKind.EVICTED, facts(0, missing_were_stored=True)),
    # The change cost 2,000 tokens, the eviction 39,000.
    (
        VerdictKind.EVICTED,
        facts(
            1_024,
            previous=previous(common_tokens=40_000),
            change=change(PartKind.MESSAGE),
            missing_were_stored=True,
        ),
    ),
    (
        VerdictKind.EVICTED,
        facts(
            1_568,
            block_tokens=HYBRID_BLOCK,
            expected=resident(1_568, attention_tokens=40_768, state_tokens=1_568),
            state_was_removed=True,
        ),
    ),
    (
        VerdictKind.CHECKPOINT_GAP,
        facts(
            1_568,
            block_tokens=HYBRID_BLOCK,
            expected=resident(1_568, attention_tokens=40_768, state_tokens=1_568),
        ),
    ),
    # Some attention blocks are gone, but the missing state costs more.
    (
        VerdictKind.CHECKPOINT_GAP,
        facts(
            1_568,
            block_tokens=HYBRID_BLOCK,
            expected=resident(1_568, attention_tokens=29_792, state_tokens=1_568),
            missing_were_stored=True,
        ),
    ),
    (
        VerdictKind.SPECULATIVE_BLOCK_DROP,
        facts(
            1_792,
            block_tokens=128,
            prompt_tokens=2_100,
            previous=previous(prompt_tokens=1_990, sequence_tokens=2_000, common_tokens=2_000),
            expected=resident(1_792, attention_tokens=1_920, dropped_tokens=128),
        ),
    ),
    (VerdictKind.DIFFERENT_SALT, facts(0, cache_salt="blue")),
    (
        VerdictKind.DIFFERENT_SALT,
        facts(0, previous=None, other_session_same_tokens_other_salt=True),
    ),
    (VerdictKind.ENGINE_RESTARTED, facts(0, generation=2)),
    (VerdictKind.ENGINE_RESTARTED, facts(None, generation=2)),
    (
        VerdictKind.ENGINE_RESTARTED,
        facts(0, generation=2, previous=previous(common_tokens=812), change=change()),
    ),
    # Another session with the same prompt was there first.
    (VerdictKind.FULL_REUSE, facts(41_984, generation=2)),
    # The turn before was of another conversation that has the same id.
    (VerdictKind.FULL_REUSE, facts(20_000, previous=previous(common_tokens=812), change=change())),
    (VerdictKind.UNKNOWN, facts(20_000, previous=previous(common_tokens=812), expected=None)),
    (
        VerdictKind.UNKNOWN,
        facts(20_000, previous=previous(common_tokens=812), expected=resident(30_000)),
    ),
    (
        VerdictKind.EVICTED,
        facts(20_000, previous=previous(common_tokens=812), missing_were_stored=True),
    ),
    (
        VerdictKind.CHECKPOINT_GAP,
        facts(
            20_000,
            previous=previous(common_tokens=812),
            expected=resident(20_000, attention_tokens=30_000, state_tokens=20_000),
        ),
    ),
    # One block more than is common is no other conversation.
    (
        VerdictKind.SYSTEM_CHANGED,
        facts(816, previous=previous(common_tokens=812), change=change()),
    ),
    # It is not known how much is common: only the cache can explain what was lost.
    (VerdictKind.UNKNOWN, unknown_common()),
    (VerdictKind.UNKNOWN, unknown_common(change=change())),
    (VerdictKind.UNKNOWN, unknown_common(20_000, expected=None)),
    (VerdictKind.EVICTED, unknown_common(missing_were_stored=True)),
    (VerdictKind.FULL_REUSE, unknown_common(41_984)),
    (VerdictKind.EVICTED, after_hashes(missing_were_stored=True)),
    (VerdictKind.UNKNOWN, after_hashes()),
    (VerdictKind.FULL_REUSE, after_hashes(1_536)),
    # Hashes at a coarse step part within the first: up to 127 tokens may be common.
    (
        VerdictKind.UNKNOWN,
        facts(0, previous=previous(common_tokens=0, common_step=128)),
    ),
    (VerdictKind.UNKNOWN, facts(None)),
    (VerdictKind.UNKNOWN, facts(None, outcome=RequestOutcome.ABORTED)),
    (VerdictKind.UNKNOWN, facts(0, expected=None)),
    (VerdictKind.UNKNOWN, at_812(None)),
    (VerdictKind.UNKNOWN, facts(0, missing_were_stored=False)),
    # The map says that all is there, vLLM reused nothing.
    (VerdictKind.UNKNOWN, facts(0, expected=resident(41_984), missing_were_stored=True)),
    # Less than half of what vLLM did not reuse was missing.
    (VerdictKind.UNKNOWN, facts(0, expected=resident(30_000), missing_were_stored=True)),
    (VerdictKind.UNKNOWN, facts(0, previous=previous(still_running=True))),
]


@pytest.mark.parametrize(("kind", "turn"), CASES)
def test_each_kind_of_turn_gets_its_verdict(kind: VerdictKind, turn: TurnFacts) -> None:
    assert judge(turn).kind is kind


def test_every_verdict_of_the_closed_list_is_reachable() -> None:
    assert {kind for kind, _ in CASES} == set(VerdictKind)


def test_a_clock_is_named_with_its_place_cost_and_a_way_out() -> None:
    turn = at_812(change(volatile_kind=VolatileKind.CLOCK))
    verdict = judge(turn)
    assert verdict.sentence == (
        "A clock in the system prompt changed at token 812: 41,188 tokens behind it were computed "
        "again (about 43 s)."
    )
    assert verdict.advice == "Move the clock behind the history, or out of the prompt."
    assert (verdict.token_index, verdict.lost_tokens) == (812, 41_188)
    assert verdict.cost_s == pytest.approx(41_188 / 950)
    assert turn.change is not None
    assert verdict.excerpt == turn.change.excerpt
    assert verdict.part == turn.change.part


def test_a_coarse_place_and_an_unconfirmed_part_are_said_to_be_so() -> None:
    turn = facts(
        768, previous=previous(common_tokens=768, common_step=64), change=change(confirmed=False)
    )
    verdict = judge(turn)
    assert verdict.sentence.startswith("Probably: the system prompt changed near token 768")
    assert verdict.token_index_step == 64


def test_tokens_that_never_existed_are_not_said_to_be_computed_again() -> None:
    verdict = judge(at_812(change(PartKind.MESSAGE), prompt_tokens=3_812, repeated_tokens=0))
    assert verdict.sentence.endswith("at token 812: 3,000 tokens behind it were computed.")
    assert verdict.lost_tokens == 0
    assert verdict.advice is None, "nothing was lost"
    partly = judge(at_812(change(PartKind.MESSAGE), repeated_tokens=2_000))
    assert "2,000 tokens behind it were computed again" in partly.sentence
    assert partly.cost_s == pytest.approx(2_000 / 950)


def test_what_is_not_known_to_be_repeated_has_no_number() -> None:
    verdict = judge(at_812(change(), repeated_tokens=None))
    assert verdict.sentence.endswith("at token 812: what stands behind it was computed.")
    assert (verdict.lost_tokens, verdict.cost_s) == (None, None)


def test_another_conversation_under_one_id_is_no_rewritten_history() -> None:
    verdict = judge(facts(20_000, previous=previous(common_tokens=812), change=change()))
    assert verdict.sentence == (
        "This turn continues another conversation of the session: 20,000 tokens of it were reused."
    )
    assert verdict.part is None


def test_without_the_earlier_text_nothing_is_said_about_a_change() -> None:
    verdict = judge(unknown_common(change=change()))
    assert "is not known what this one repeats" in verdict.sentence
    assert (verdict.part, verdict.token_index, verdict.lost_tokens) == (None, None, None)


def test_equal_hashes_of_the_earlier_prompt_say_nothing_about_its_answer() -> None:
    verdict = judge(after_hashes(missing_were_stored=True))
    assert "at least 640 tokens were computed again" in verdict.sentence
    assert verdict.lost_tokens == 640
    assert "answer" not in judge(after_hashes()).sentence


def test_a_session_that_took_its_own_blocks_is_told_so() -> None:
    by = Evictor(session="s1", label="amber", itself=True)
    verdict = judge(facts(1_024, missing_were_stored=True, evicted_by=by))
    assert verdict.sentence.startswith("Another turn of this session needed the room")
    assert verdict.evicted_by == "s1"
    assert "amber" not in verdict.sentence


@pytest.mark.parametrize(
    ("cached_tokens", "says", "hides"),
    [(0, "its cache was empty: 42,000 tokens were computed again", "reused"),
     (2_384, "only 2,384 tokens that had been computed since could be reused", "empty"),
     (None, "since the last turn. The agent", "empty")],
)  # fmt: skip
def test_a_restarted_engine_may_have_computed_the_same_already(
    cached_tokens: int | None, says: str, hides: str
) -> None:
    verdict = judge(facts(cached_tokens, generation=2))
    assert verdict.kind is VerdictKind.ENGINE_RESTARTED
    assert says in verdict.sentence
    assert hides not in verdict.sentence


def test_moved_tools_are_named() -> None:
    moved = change(PartKind.TOOLS, tool_change=ToolChange.MOVED, tool_names=("a", "b"))
    sentence = judge(at_812(moved)).sentence
    assert sentence.startswith("Tools a and b changed places, first seen at token 812: ")


def test_many_names_are_counted() -> None:
    names = tuple(f"tool_{number}" for number in range(9))
    added = change(PartKind.TOOLS, tool_change=ToolChange.ADDED, tool_names=names)
    sentence = judge(at_812(added)).sentence
    assert sentence.startswith("Tools tool_0, tool_1, tool_2 and 6 more were added at token 812")


def test_dropped_reasoning_is_told_from_a_rewritten_message() -> None:
    verdict = judge(facts(40_000, previous=previous(common_tokens=40_002)))
    assert "reasoning" in verdict.sentence
    assert verdict.token_index == 40_002


def test_the_session_that_took_the_blocks_is_named() -> None:
    by = Evictor(session="s2", label="amber\x1b[31m" + "x" * 500)
    verdict = judge(facts(1_024, missing_were_stored=True, evicted_by=by))
    assert verdict.evicted_by == "s2"
    assert verdict.sentence.startswith("Session amberx")
    assert len(verdict.sentence) < 250


def test_a_restart_never_blames_the_agent() -> None:
    turn = facts(0, generation=2, previous=previous(common_tokens=812), change=change())
    verdict = judge(turn)
    assert "The agent did nothing wrong" in verdict.sentence
    assert verdict.advice is None
    assert verdict.part is None


def test_the_own_speed_of_a_turn_counts_when_it_computed_enough() -> None:
    slow = facts(0, missing_were_stored=True, prefill_s=100.0, computed_tokens=42_500)
    assert judge(slow).cost_s == pytest.approx(42_000 / 425)
    short = facts(0, missing_were_stored=True, prefill_s=100.0, computed_tokens=255)
    assert judge(short).cost_s == pytest.approx(42_000 / 950)
    unknown = facts(0, missing_were_stored=True, prefill_tokens_per_s=None)
    assert judge(unknown).cost_s is None


def test_an_aborted_prompt_counts_as_stored_to_its_last_token() -> None:
    # 1,600 tokens fill 100 blocks; an answer's last token would never be stored.
    aborted = previous(prompt_tokens=1_600, sequence_tokens=1_600, common_tokens=1_600)
    assert judge(facts(1_600, previous=aborted)).kind is VerdictKind.FULL_REUSE
    assert judge(facts(1_584, previous=aborted)).kind is VerdictKind.UNKNOWN
    answered = previous(prompt_tokens=1_500, sequence_tokens=1_600, common_tokens=1_600)
    assert judge(facts(1_584, previous=answered)).kind is VerdictKind.FULL_REUSE


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.01, "under 0.1 s"), (0.42, "about 0.4 s"), (9.49, "about 9.5 s"), (43.4, "about 43 s"),
     (119, "about 119 s"), (185, "about 3 min")],
)  # fmt: skip
def test_durations_have_two_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


counts = st.integers(0, 400)


@st.composite
def changes(draw: st.DrawFn) -> LocatedChange:
    return change(
        draw(st.sampled_from(PartKind)),
        confirmed=draw(st.booleans()),
        volatile_kind=draw(st.none() | st.sampled_from(VolatileKind)),
        tool_change=draw(st.none() | st.sampled_from(ToolChange)),
        tool_names=draw(st.lists(st.text(max_size=5), max_size=5).map(tuple)),
    )


@st.composite
def turns(draw: st.DrawFn) -> TurnFacts:
    prompt_tokens = draw(st.integers(1, 400))
    before = None
    if draw(st.integers(0, 5)):
        earlier = draw(st.integers(1, 400))
        sequence_tokens = earlier + draw(st.integers(0, 60))
        before = PreviousTurn(
            prompt_tokens=earlier,
            sequence_tokens=sequence_tokens,
            common_tokens=draw(st.none() | st.integers(0, min(sequence_tokens, prompt_tokens))),
            common_step=draw(st.sampled_from([1, 16])),
            generation=draw(st.integers(1, 2)),
            cache_salt=draw(st.sampled_from([None, "a"])),
            still_running=draw(st.booleans()),
        )
    attention_tokens = draw(counts)
    expected = ExpectedReuse(
        expected_tokens=draw(st.integers(0, attention_tokens)),
        attention_tokens=attention_tokens,
        state_tokens=draw(st.none() | st.integers(0, attention_tokens)),
        dropped_tokens=draw(st.sampled_from([0, 8, 16])),
    )
    return TurnFacts(
        prompt_tokens=prompt_tokens,
        cached_tokens=draw(st.none() | st.integers(0, prompt_tokens - 1)),
        expected=draw(st.none() | st.just(expected)),
        block_tokens=draw(st.sampled_from([1, 8, 16, 128])),
        previous=before,
        generation=2,
        cache_salt=draw(st.sampled_from([None, "a"])),
        preemptions=draw(st.none() | st.sampled_from([0, 0, 0, 1])),
        outcome=draw(st.none() | st.sampled_from(RequestOutcome)),
        change=draw(st.none() | changes()),
        repeated_tokens=draw(st.none() | counts),
        missing_were_stored=draw(st.none() | st.booleans()),
        evicted_by=draw(
            st.none()
            | st.builds(Evictor, label=st.none() | st.text(max_size=5), itself=st.booleans())
        ),
        state_was_removed=draw(st.booleans()),
        other_session_same_tokens_other_salt=draw(st.booleans()),
        prefill_tokens_per_s=draw(st.none() | st.floats(1, 1e4)),
        prefill_s=draw(st.none() | st.floats(0, 100)),
        computed_tokens=draw(st.none() | counts),
    )


LOSSES = {
    VerdictKind.SYSTEM_CHANGED,
    VerdictKind.TOOLS_CHANGED,
    VerdictKind.HISTORY_REWRITTEN,
    VerdictKind.VOLATILE_VALUE,
    VerdictKind.EVICTED,
    VerdictKind.CHECKPOINT_GAP,
    VerdictKind.SPECULATIVE_BLOCK_DROP,
}
FOR_EVERY_FIGURE = {
    VerdictKind.PREEMPTED,
    VerdictKind.FIRST_REQUEST,
    VerdictKind.ENGINE_RESTARTED,
    VerdictKind.UNKNOWN,
}


CHANGES = {
    VerdictKind.SYSTEM_CHANGED,
    VerdictKind.TOOLS_CHANGED,
    VerdictKind.HISTORY_REWRITTEN,
    VerdictKind.VOLATILE_VALUE,
}


def most_common(turn: TurnFacts, before: PreviousTurn) -> int:
    """The most that can be common, by what is known."""
    common, step = before.common_tokens, before.common_step
    reusable = min(before.sequence_tokens, turn.prompt_tokens - 1)
    if common is None:
        return reusable
    if step > 1 and common + step > min(before.prompt_tokens, turn.prompt_tokens):
        return reusable
    return min(common + step - 1, reusable)


def of_another_conversation(turn: TurnFacts, before: PreviousTurn) -> bool:
    common = most_common(turn, before)
    reusable = min(before.sequence_tokens, turn.prompt_tokens - 1)
    return common < reusable and (turn.cached_tokens or 0) > common + turn.block_tokens


@settings(max_examples=200)
@given(turns())
def test_no_verdict_contradicts_what_vllm_reused(turn: TurnFacts) -> None:
    verdict = judge(turn)
    check_figures(turn, verdict)
    before, cached_tokens = turn.previous, turn.cached_tokens
    if cached_tokens is None:
        assert verdict.kind in FOR_EVERY_FIGURE
        return
    if before is None:
        return
    reusable = min(before.sequence_tokens, turn.prompt_tokens - 1)
    lost_tokens = max(0, reusable - cached_tokens)
    if of_another_conversation(turn, before):
        assert verdict.kind not in CHANGES
        return
    match verdict.kind:
        case VerdictKind.FULL_REUSE:
            assert cached_tokens > 0
            assert lost_tokens <= max(16, 0.02 * reusable)
        case VerdictKind.BLOCK_ROUNDING:
            assert cached_tokens > 0
            assert 16 < lost_tokens <= turn.block_tokens
        case VerdictKind.BELOW_BLOCK:
            assert cached_tokens < turn.block_tokens
            assert min(most_common(turn, before), reusable) <= turn.block_tokens
        case VerdictKind.SPECULATIVE_BLOCK_DROP:
            assert turn.expected is not None
            assert lost_tokens >= turn.expected.dropped_tokens > 0
        case VerdictKind.EVICTED:
            assert turn.missing_were_stored or turn.state_was_removed
            assert cached_tokens < most_common(turn, before)
        case VerdictKind.CHECKPOINT_GAP | VerdictKind.DIFFERENT_SALT:
            assert cached_tokens < most_common(turn, before)
        case VerdictKind.ENGINE_RESTARTED:
            assert before.generation != turn.generation
        case VerdictKind.PREEMPTED:
            assert turn.preemptions
        case _:
            assert verdict.kind is not VerdictKind.FIRST_REQUEST
    if verdict.kind in LOSSES:
        assert lost_tokens > 0


def check_figures(turn: TurnFacts, verdict: Verdict) -> None:
    assert printable(verdict.sentence) == verdict.sentence
    assert verdict.advice is None or printable(verdict.advice) == verdict.advice
    if verdict.lost_tokens is None:
        assert verdict.cost_s is None
    else:
        assert turn.previous is not None
        assert turn.cached_tokens is not None
        assert turn.previous.common_tokens is not None
        known = turn.previous.common_tokens + (turn.repeated_tokens or 0)
        assert 0 <= verdict.lost_tokens <= turn.previous.sequence_tokens
        assert verdict.lost_tokens <= max(0, known - turn.cached_tokens)
        assert verdict.lost_tokens <= turn.prompt_tokens - turn.cached_tokens
    if verdict.part is not None:
        assert turn.change is not None
        assert verdict.token_index == (turn.previous and turn.previous.common_tokens)
    msgspec.json.encode(verdict)


@given(turns())
def test_a_turn_that_lost_no_block_is_never_called_a_loss(turn: TurnFacts) -> None:
    before = turn.previous
    if before is None:
        return
    reusable = min(before.sequence_tokens, turn.prompt_tokens - 1)
    calm = msgspec.structs.replace(turn, cached_tokens=reusable, preemptions=0)
    if of_another_conversation(calm, before):
        return
    assert judge(calm).kind not in {*LOSSES, VerdictKind.UNKNOWN}
