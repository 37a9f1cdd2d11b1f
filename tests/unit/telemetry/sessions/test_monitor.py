from __future__ import annotations

import pytest

from agentserve.domain.cache_event import BlocksRemoved, CacheEvents, CacheEventsLost
from agentserve.domain.prompt import PartKind
from agentserve.domain.request import FirstToken, RequestOutcome, RequestStart
from agentserve.domain.session import SessionView, VerdictKind, VolatileKind
from agentserve.telemetry.engine_stats import RECENT_REQUESTS
from agentserve.telemetry.sessions.identity import SessionDirectory
from agentserve.telemetry.sessions.monitor import LATE_EVENTS_S, SessionMonitor
from agentserve.telemetry.sessions.prompt_memory import PromptMemory
from agentserve.telemetry.sessions.session_record import OLD_HISTORY_TURNS, SessionRecord
from tests.unit.telemetry.sessions.scripted_engine import BLOCK, Message, ScriptedEngine

SYSTEM = "You are a careful engineer. " * 20
TOOLS: list[Message] = [
    {"type": "function", "function": {"name": name, "description": f"{name} a file " * 10}}
    for name in ("read_file", "write_file", "run")
]


class World:
    """A monitor, an engine and a clock."""

    def __init__(
        self, blocks: int = 10_000, budget_bytes: int = 10_000_000, sessions: int = 1000
    ) -> None:
        self.now_s = 0.0
        self.monitor = SessionMonitor(
            memory=PromptMemory(budget_bytes),
            clock=lambda: self.now_s,
            unix_clock=lambda: self.now_s,
            most_sessions=sessions,
        )
        self.engine = ScriptedEngine(self.monitor, blocks)

    @property
    def sessions(self) -> tuple[SessionView, ...]:
        return self.monitor.view().sessions

    @property
    def newest(self) -> SessionView:
        return self.sessions[0]

    def waits(self) -> bool:
        return self.monitor.waiting

    def kind(self) -> VerdictKind | None:
        verdict = self.newest.verdict
        return None if verdict is None else verdict.kind


@pytest.fixture
def world() -> World:
    return World()


def messages(turns: int, prefix: str = "") -> list[Message]:
    """A conversation with `turns` questions."""
    result: list[Message] = []
    for turn in range(turns):
        result.append({"role": "user", "content": f"{prefix}Question {turn}: " + "why? " * 30})
        if turn + 1 < turns:
            result.append({"role": "assistant", "content": "ok"})
    return result


def test_a_conversation_is_one_session_that_reuses_what_it_sent_before(world: World) -> None:
    for turns in (1, 2, 3):
        world.engine.chat(SYSTEM, TOOLS, messages(turns))
    (session,) = world.sessions
    assert session.requests == 3
    assert session.verdict is not None
    assert session.verdict.kind is VerdictKind.FULL_REUSE
    assert [turn.verdict and turn.verdict.kind for turn in session.history] == [
        VerdictKind.FULL_REUSE,
        VerdictKind.FULL_REUSE,
        VerdictKind.FIRST_REQUEST,
    ]
    assert all(turn.expected_cached_tokens == turn.cached_tokens for turn in session.history)
    monitor = world.monitor.view().monitor
    assert (monitor.predictions, monitor.mispredictions) == (3, 0)


def test_a_clock_in_the_system_prompt_is_named(world: World) -> None:
    for turns, minute in ((1, 1), (2, 2)):
        world.engine.chat(f"{SYSTEM}Time: 14:0{minute}", TOOLS, messages(turns))
    verdict = world.newest.verdict
    assert verdict is not None
    assert verdict.kind is VerdictKind.VOLATILE_VALUE
    assert verdict.volatile_kind is VolatileKind.CLOCK
    assert verdict.part is not None
    assert verdict.part.kind is PartKind.SYSTEM
    assert verdict.token_index == len(f"<system>{SYSTEM}Time: 14:0")
    assert verdict.excerpt is not None
    assert "14:01" in verdict.excerpt.before
    assert "14:02" in verdict.excerpt.after
    assert verdict.lost_tokens
    assert verdict.cost_s


def test_moved_tools_are_named(world: World) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(1))
    world.engine.chat(SYSTEM, [TOOLS[1], TOOLS[0], TOOLS[2]], messages(2))
    assert world.kind() is VerdictKind.TOOLS_CHANGED


def test_an_edited_system_prompt_is_named(world: World) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(1))
    world.engine.chat(SYSTEM + "Be brief, please.", TOOLS, messages(2))
    assert world.kind() is VerdictKind.SYSTEM_CHANGED


def test_a_rewritten_history_is_named(world: World) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(3))
    changed = messages(4)
    changed[2] = {"role": "user", "content": "Something else entirely. " * 6}
    world.engine.chat(SYSTEM, TOOLS, changed)
    assert world.kind() is VerdictKind.HISTORY_REWRITTEN
    assert len(world.sessions) == 1


def test_an_evicted_prefix_names_the_session_that_took_the_room() -> None:
    world = World(blocks=100)
    world.engine.chat(SYSTEM, TOOLS, messages(1))
    world.engine.chat("Another system. " * 60, (), messages(1, "other "), agent="opencode/1.0")
    world.engine.chat(SYSTEM, TOOLS, messages(2))
    opencode = next(one for one in world.sessions if one.agent != world.newest.agent)
    verdict = world.newest.verdict
    assert verdict is not None
    assert verdict.kind is VerdictKind.EVICTED
    assert verdict.evicted_by == opencode.id
    assert opencode.label in verdict.sentence
    evictions = world.monitor.view().monitor.evictions
    assert {(one.loser, one.winner) for one in evictions} >= {(world.newest.id, opencode.id)}


def test_another_engine_is_blamed_for_what_it_forgot(world: World) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(1))
    world.engine.restart()
    assert world.newest.resident_tokens == 0
    world.engine.chat(SYSTEM, TOOLS, messages(2))
    assert world.kind() is VerdictKind.ENGINE_RESTARTED
    assert world.newest.hit_rate_requests == 1, "rates begin anew with the engine"
    assert world.newest.requests == 2


def test_a_preempted_turn_says_so_once_it_is_known(world: World) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(1))
    world.engine.chat(SYSTEM, TOOLS, messages(2), preemptions=1)
    assert world.kind() is VerdictKind.PREEMPTED


def test_the_same_prompt_under_another_salt_shares_nothing(world: World) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(1), salt="one")
    world.engine.chat(SYSTEM, TOOLS, messages(1), salt="two")
    assert world.kind() is VerdictKind.DIFFERENT_SALT
    assert len({session.isolation for session in world.sessions}) == 2
    assert not any("one" in str(session.isolation) for session in world.sessions)


def test_a_prompt_below_one_block_cannot_be_reused(world: World) -> None:
    short = [1] * (BLOCK - 4)
    world.engine.run(short, header="x")
    world.engine.run(short, header="x")
    assert world.kind() is VerdictKind.BELOW_BLOCK


def test_what_vllm_says_against_the_expectation_is_counted(world: World) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(1))
    world.engine.chat(SYSTEM, TOOLS, messages(2), cached_says=0)
    monitor = world.monitor.view().monitor
    assert (monitor.predictions, monitor.mispredictions) == (2, 1)
    assert world.kind() is VerdictKind.UNKNOWN
    assert world.newest.expected_cached_tokens != world.newest.cached_tokens


def test_without_the_plugin_nothing_is_expected_and_a_change_is_still_named(world: World) -> None:
    world.engine.restart(layout=None)
    for turns, minute in ((1, 1), (2, 2)):
        world.engine.chat(f"{SYSTEM}Time: 14:0{minute}", TOOLS, messages(turns))
    session = world.newest
    assert session.expected_cached_tokens is None
    assert session.resident_tokens is None
    assert world.kind() is VerdictKind.VOLATILE_VALUE
    assert world.monitor.view().monitor.residency_problem is not None
    assert world.monitor.view().monitor.cached_blocks is None


def test_lost_events_make_residency_unknown_until_the_next_engine(world: World) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(1))
    known = world.newest
    world.monitor.handle(CacheEventsLost(generation=world.engine.generation, batches=3))
    lost = world.newest
    assert (known.resident_tokens or 0) > 0
    assert lost.resident_tokens is None
    world.engine.chat(SYSTEM, TOOLS, messages(2))
    unexpected = world.newest
    assert unexpected.expected_cached_tokens is None
    assert unexpected.cached_tokens
    world.engine.restart()
    world.engine.chat(SYSTEM, TOOLS, messages(3))
    expected = world.newest
    assert expected.expected_cached_tokens is not None
    assert world.monitor.view().monitor.residency_problem is None


def test_a_listing_after_lost_events_makes_residency_known_again(world: World) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(1))
    known = world.newest
    generation = world.engine.generation
    world.monitor.handle(CacheEventsLost(generation=generation, batches=3))
    world.monitor.handle(CacheEvents(generation=generation, events=(world.engine.listing(),)))
    assert world.monitor.view().monitor.residency_problem is None
    assert world.newest.resident_tokens == known.resident_tokens
    world.engine.chat(SYSTEM, TOOLS, messages(2))
    turn = world.newest
    assert turn.expected_cached_tokens == turn.cached_tokens
    assert turn.cached_tokens


def test_when_no_more_events_come_nothing_is_promised(world: World) -> None:
    world.monitor.handle(CacheEventsLost(generation=world.engine.generation, batches=3))
    world.monitor.handle(CacheEventsLost(generation=world.engine.generation, batches=0))
    problem = world.monitor.view().monitor.residency_problem
    assert problem is not None
    assert "until the next start" in problem


def test_a_block_that_leaves_without_having_come_makes_residency_doubtful(world: World) -> None:
    world.monitor.handle(CacheEvents(generation=1, events=(BlocksRemoved(group=0, hashes=(77,)),)))
    problem = world.monitor.view().monitor.residency_problem
    assert problem is not None
    assert "(1)" in problem


def test_a_verdict_does_not_wait_for_ever_for_events(world: World) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(1))

    def next_engine_is_not_heard() -> None:
        world.engine.generation += 1

    world.engine.chat(SYSTEM, TOOLS, messages(2), before_lookup=next_engine_is_not_heard)
    assert world.kind() is VerdictKind.FIRST_REQUEST
    assert world.waits()
    world.now_s += LATE_EVENTS_S
    assert world.kind() is not VerdictKind.FIRST_REQUEST
    assert not world.waits()


def test_a_turn_in_flight_is_running_and_has_its_verdict_with_the_first_token(
    world: World,
) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(1), end=False)
    view = world.monitor.view()
    assert view.sessions[0].running_requests == 1
    assert view.sessions[0].history[0].running
    assert view.sessions[0].verdict is not None
    assert set(view.session_of_request.values()) == {view.sessions[0].id}


def test_an_aborted_turn_has_no_figures_and_no_verdict(world: World) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(1))
    prompt = [5] * 100
    world.engine.run(prompt, end=False, header="h", cached_says=None)
    world.engine.finish(2, prompt, (), None, outcome=RequestOutcome.ABORTED)
    turn = world.newest.history[0]
    assert turn.outcome is RequestOutcome.ABORTED
    assert turn.cached_tokens is None
    assert turn.computed_tokens is None


def test_the_newest_ended_requests_keep_their_session_and_no_more_than_are_listed(
    world: World,
) -> None:
    for number in range(RECENT_REQUESTS + 5):
        world.engine.run([number] * 100, header=f"h{number % 2}")
    world.engine.run([7] * 100, header="h1", end=False)
    view = world.monitor.view()
    first, second = sorted(each.id for each in view.sessions)
    known = view.session_of_request
    assert sorted(known) == list(range(6, RECENT_REQUESTS + 7))
    for number, session in known.items():
        assert session == (first if number % 2 and number <= RECENT_REQUESTS + 5 else second)


def test_a_session_that_is_forgotten_is_still_the_session_of_its_requests() -> None:
    world = World(sessions=1)
    world.engine.run([1] * 100, header="a")
    world.engine.run([2] * 100, header="b")
    view = world.monitor.view()
    (kept,) = view.sessions
    assert view.session_of_request[2] == kept.id != view.session_of_request[1]


def test_the_history_gets_an_id_that_is_the_session_s(world: World) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(1), header="abc")
    world.engine.chat(SYSTEM, TOOLS, messages(2), header="abc")
    world.engine.chat(SYSTEM, TOOLS, messages(1, "other "), header="def")
    first, second, third = world.engine.kept
    assert first == second != third


def test_the_pool_is_divided_by_who_computed_what(world: World) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(1), header="a")
    world.engine.chat("x" * 160, (), messages(1), header="b", agent="opencode/1")
    monitor = world.monitor.view().monitor
    assert monitor.cached_blocks == sum(share.blocks for share in monitor.shares)
    assert {share.session for share in monitor.shares} == {one.id for one in world.sessions}


def test_sessions_beyond_the_budget_keep_hashes_only_and_say_so() -> None:
    world = World(budget_bytes=1)
    for turns, minute in ((1, 1), (2, 2)):
        world.engine.chat(f"{SYSTEM}Time: 14:0{minute}", TOOLS, messages(turns), header="a")
        world.engine.chat("y" * 200, (), messages(1), header=f"b{turns}")
    session = next(one for one in world.sessions if one.requests == 2)
    verdict = session.verdict
    assert verdict is not None
    assert verdict.kind is VerdictKind.UNKNOWN
    assert verdict.token_index_step == 128
    exact = len(f"<system>{SYSTEM}Time: 14:0")
    assert verdict.token_index is not None
    assert verdict.token_index <= exact < verdict.token_index + 128
    assert verdict.excerpt is None
    assert session.resident_tokens


def test_the_least_recent_session_is_forgotten_beyond_the_limit() -> None:
    world = World(sessions=3)
    for number in range(5):
        world.engine.chat(SYSTEM, (), messages(1), header=f"id-{number}")
    view = world.monitor.view()
    assert len(view.sessions) == 3
    assert view.monitor.sessions_forgotten == 2
    assert view.sessions[0].verdict is not None
    assert all(session.history for session in view.sessions)


def test_a_turn_that_was_never_computed_is_no_base_for_the_next(world: World) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(1))
    world.engine.chat(SYSTEM, TOOLS, messages(2), computed=False)
    world.engine.chat(SYSTEM, TOOLS, messages(2))
    assert world.kind() is VerdictKind.FULL_REUSE
    assert [turn.cached_tokens is None for turn in world.newest.history] == [False, True, False]


def test_a_preemption_while_decoding_hides_no_other_cause(world: World) -> None:
    for turns, minute in ((1, 1), (2, 2)):
        system = f"{SYSTEM}Time: 14:0{minute}"
        world.engine.chat(system, TOOLS, messages(turns), preemptions=turns - 1)
    assert world.kind() is VerdictKind.VOLATILE_VALUE


def test_lookups_of_all_choices_are_forgotten_with_their_request(world: World) -> None:
    for number in range(3):
        world.engine.run([number] * 100, choices=4)
    assert world.monitor._cache._lookups == {}
    assert world.monitor._open_by_engine_id == {}
    shares = world.monitor.view().monitor.shares
    assert all(share.session is not None for share in shares)


def test_a_request_whose_end_never_comes_ends_with_its_engine(world: World) -> None:
    world.engine.chat(SYSTEM, TOOLS, messages(1), end=False)
    world.engine.restart()
    view = world.monitor.view()
    assert view.session_of_request == {}
    assert view.sessions[0].running_requests == 0
    assert not view.sessions[0].history[0].running


def test_a_directory_that_is_given_is_used() -> None:
    directory = SessionDirectory()
    ScriptedEngine(SessionMonitor(directory=directory)).chat(SYSTEM, TOOLS, messages(1))
    assert len(directory) == 1


def test_a_prompt_that_is_not_tokens_is_as_long_as_the_engine_says(world: World) -> None:
    number = 1
    world.engine.run([], cached_says=0)
    assert world.newest.prompt_tokens == 0
    world.monitor.handle(
        RequestStart(
            number=number + 1,
            generation=1,
            engine_request_id="embeds",
            origin=None,
            at_unix_s=0.0,
            choices=1,
            prompt_token_ids=(),
            cache_salt=None,
            body=None,
        )
    )
    world.monitor.handle(
        FirstToken(number=number + 1, ttft_s=1, queued_s=0, cached_tokens=48, prompt_tokens=100)
    )
    assert (world.newest.prompt_tokens, world.newest.computed_tokens) == (100, 52)


def test_a_fault_while_a_turn_begins_leaves_no_session_busy(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError

    with monkeypatch.context() as broken:
        broken.setattr(SessionRecord, "begin", fail)
        with pytest.raises(ValueError):  # noqa: PT011 - made above
            world.engine.chat(SYSTEM, TOOLS, messages(1), header="a")
    assert world.sessions == ()
    world.engine.chat(SYSTEM, TOOLS, messages(1), header="a")
    assert world.newest.requests == 1
    assert world.monitor._directory.least_recently_seen() is not None


def test_sessions_that_are_not_among_the_newest_keep_a_few_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentserve.telemetry.sessions.session_roster.LONG_HISTORIES", 2)
    world = World()
    for number in (1, 2, 3):
        for turns in range(1, 8):
            header = f"id-{number}"
            world.engine.chat(SYSTEM, (), messages(turns, header), header=header)
    assert [len(session.history) for session in world.sessions] == [7, 7, OLD_HISTORY_TURNS]
    assert all(session.requests == 7 for session in world.sessions)
