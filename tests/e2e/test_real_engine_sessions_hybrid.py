"""The session monitor at tensor parallel 2: the hybrid model, and drafts by MTP."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentserve.domain.lifecycle import EngineState
from agentserve.domain.prompt import PartKind
from agentserve.domain.session import TurnView, VerdictKind, VolatileKind
from tests.harness.agents import ScriptedAgent, tools, verdict_of
from tests.harness.instance import PtyInstance, pty_instance
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.pty, pytest.mark.timeout(400)]

TURNS = 5
SYSTEM = "Work with care and answer in short sentences. " * 60


@pytest.fixture(scope="module")
def hybrid(home: Path) -> Iterator[PtyInstance]:
    with pty_instance(home, "--preset", "cpu-tiny") as app:
        app.wait_for_state(EngineState.READY)
        yield app


def test_three_agents_at_once_are_told_apart_and_each_cause_is_named(hybrid: PtyInstance) -> None:
    stable = ScriptedAgent(hybrid, "stable", system=lambda _: SYSTEM)
    clock = ScriptedAgent(hybrid, "clock", system=lambda turn: f"{SYSTEM}\nTime: 14:{turn:02d}")
    orders = {3: ("write", "read", "run")}
    moving = ScriptedAgent(
        hybrid,
        "moving",
        system=lambda _: SYSTEM,
        tools=lambda turn: tools(*orders.get(min(turn, 3), ("read", "write", "run"))),
    )
    agents = (stable, clock, moving)
    judged: dict[str, list[TurnView]] = {agent.name: [] for agent in agents}
    faults: list[BaseException] = []

    def work(agent: ScriptedAgent) -> None:
        try:
            for _ in range(TURNS):
                agent.turn()
                judged[agent.name].append(agent.judged_turn())
        except BaseException as error:  # noqa: BLE001 - reported by the test's own thread
            faults.append(error)

    threads = [threading.Thread(target=work, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults

    harmless = {VerdictKind.FULL_REUSE, VerdictKind.BLOCK_ROUNDING, VerdictKind.CHECKPOINT_GAP}
    kinds = {name: [verdict_of(turn).kind for turn in turns] for name, turns in judged.items()}
    assert kinds["stable"][0] is VerdictKind.FIRST_REQUEST
    assert set(kinds["stable"][1:]) <= harmless, kinds
    assert set(kinds["clock"][1:]) == {VerdictKind.VOLATILE_VALUE}, kinds
    assert kinds["moving"][2] is VerdictKind.TOOLS_CHANGED, kinds
    assert set(kinds["moving"][1:2] + kinds["moving"][3:]) <= harmless, kinds
    for turn in judged["clock"][1:]:
        verdict = verdict_of(turn)
        assert verdict.volatile_kind is VolatileKind.CLOCK
        assert verdict.part is not None
        assert verdict.part.kind is PartKind.SYSTEM
    advice = clock.session.layout_advice
    assert advice is not None
    assert "system" in advice
    assert stable.session.layout_advice is None

    turns = [turn for turns in judged.values() for turn in turns]
    right = [turn for turn in turns if turn.expected_cached_tokens == turn.cached_tokens]
    assert len(right) == len(turns), [turn for turn in turns if turn not in right]
    unknown = [turn for turn in turns if verdict_of(turn).kind is VerdictKind.UNKNOWN]
    assert not unknown
    waited_s = [waited for agent in agents for waited in agent.judged_after_s]
    assert statistics.median(waited_s) < 1.0, waited_s


def test_a_branch_before_any_kept_state_is_a_checkpoint_gap(hybrid: PtyInstance) -> None:
    agent = ScriptedAgent(
        hybrid, "branching", system=lambda _: SYSTEM * 4, sentences=100, session="branching"
    )
    agent.turn()
    first = agent.judged_turn()
    agent.messages = [{"role": "user", "content": "Another question. " * 150}]
    agent.send()
    turn = agent.judged_turn(2)
    verdict = verdict_of(turn)
    assert first.prompt_tokens > 640
    assert verdict.kind is VerdictKind.CHECKPOINT_GAP, (first, turn)
    assert turn.expected_cached_tokens == turn.cached_tokens


def test_the_bar_of_the_pool_adds_up_to_what_the_scheduler_says(hybrid: PtyInstance) -> None:
    def agrees() -> bool:
        snapshot = hybrid.snapshot()
        monitor, kv = snapshot.cache_monitor, snapshot.kv
        return kv.blocks_in_use == 0 and monitor.cached_blocks == kv.blocks_warm

    wait_until(
        agrees,
        5,
        "as many cached blocks as the scheduler has",
        describe=lambda: str((hybrid.snapshot().cache_monitor, hybrid.snapshot().kv)),
    )
    monitor = hybrid.snapshot().cache_monitor
    assert sum(share.blocks for share in monitor.shares) == monitor.cached_blocks


def test_drafts_by_mtp_cost_one_block_which_is_named(hybrid: PtyInstance) -> None:
    """Also: another preset is another engine, and no agent is blamed for it."""
    survivor = ScriptedAgent(hybrid, "survivor", system=lambda turn: f"{SYSTEM} 15:{turn:02d}")
    survivor.turn()
    survivor.judged_turn()
    hybrid.press("2")
    wait_until(lambda: hybrid.snapshot().engine.generation == 2, 60, "a second generation")
    hybrid.wait_for_state(EngineState.READY)
    survivor.turn()
    assert verdict_of(survivor.judged_turn()).kind is VerdictKind.ENGINE_RESTARTED
    agent = ScriptedAgent(hybrid, "drafting", system=lambda _: SYSTEM)
    for _ in range(3):
        agent.turn()
        turn = agent.judged_turn()
        assert turn.expected_cached_tokens == turn.cached_tokens
    assert verdict_of(turn).kind is VerdictKind.SPECULATIVE_BLOCK_DROP
    assert (turn.cached_tokens or 0) > 0
    assert hybrid.snapshot().cache_monitor.mispredictions == 0
