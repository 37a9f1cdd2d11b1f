"""The session monitor on real engines: every verdict, and expected against actual reuse."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentserve.domain.lifecycle import EngineState
from agentserve.domain.prompt import PartKind
from agentserve.domain.session import VerdictKind, VolatileKind
from tests.client_shapes import CLIENT_SHAPES, ClientShape, Conversation
from tests.harness.agents import ScriptedAgent, tools, verdict_of
from tests.harness.instance import PtyInstance, pty_instance
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.pty, pytest.mark.timeout(400)]

BLOCK_TOKENS = 32
POOL_BLOCKS = 200
DENSE = f"""
title = "Dense on one CPU core"
device = "cpu"

[engine]
model = "demo:mtp"
tensor_parallel_size = 1
max_model_len = 6144
max_num_batched_tokens = 2048
max_num_seqs = 4
enforce_eager = true
enable_prefix_caching = true
block_size = {BLOCK_TOKENS}
num_gpu_blocks_override = {POOL_BLOCKS}

[server]
enable_prompt_tokens_details = true
enable_auto_tool_choice = true
tool_call_parser = "hermes"

[env]
VLLM_CPU_KVCACHE_SPACE = "1"
"""
LONG = "Work with care and answer in short sentences. " * 30


@pytest.fixture(scope="module")
def dense(home: Path) -> Iterator[PtyInstance]:
    """Full attention on one core, with a pool of 6,400 tokens."""
    folder = home / "config" / "presets"
    folder.mkdir(parents=True)
    (folder / "dense.toml").write_text(DENSE)
    with pty_instance(home, "--preset", "dense") as app:
        app.wait_for_state(EngineState.READY)
        yield app


def assert_expected(agent: ScriptedAgent) -> None:
    """What was expected is what vLLM reused, on every turn of an agent."""
    for session in agent.sessions:
        for turn in session.history:
            if turn.cached_tokens is not None:
                assert turn.expected_cached_tokens == turn.cached_tokens, (session.label, turn)


def test_a_stable_agent_reuses_all_whole_blocks(dense: PtyInstance) -> None:
    agent = ScriptedAgent(dense, "stable", system=lambda _: LONG)
    kinds = []
    for _ in range(4):
        usage = agent.turn()
        turn = agent.judged_turn()
        kinds.append(verdict_of(turn).kind)
        assert turn.cached_tokens == usage["prompt_tokens_details"]["cached_tokens"]
        assert turn.prompt_tokens == usage["prompt_tokens"]
    assert kinds[0] is VerdictKind.FIRST_REQUEST
    assert set(kinds[1:]) <= {VerdictKind.FULL_REUSE, VerdictKind.BLOCK_ROUNDING}
    assert_expected(agent)
    session = agent.session
    assert session.resident_tokens is not None
    assert session.prompt_tokens - BLOCK_TOKENS < session.resident_tokens <= session.prompt_tokens


def test_what_does_not_fill_a_block_is_rounding(dense: PtyInstance) -> None:
    agent = ScriptedAgent(dense, "rounded", tools=lambda _: (), sentences=18, session="rounded")
    before = {"prompt_tokens": 0}
    # More than 16 tokens and 2 % of the prompt are to be lost: grow it until they are.
    while before["prompt_tokens"] % BLOCK_TOKENS < 20:
        agent.messages, agent.sentences = [], agent.sentences + 1
        before = agent.turn(max_tokens=1)
    agent.judged_turn()
    agent.messages[-1]["content"] = ""
    agent.turn()
    turn = agent.judged_turn()
    assert verdict_of(turn).kind is VerdictKind.BLOCK_ROUNDING
    assert turn.cached_tokens == before["prompt_tokens"] // BLOCK_TOKENS * BLOCK_TOKENS
    assert_expected(agent)


def test_a_prompt_below_a_block_is_no_fault(dense: PtyInstance) -> None:
    body = {
        "model": dense.snapshot().engine.model,
        "prompt": "Short.",
        "max_tokens": 2,
    }
    headers = {"user-agent": "short/1.0", "x-session-id": "short"}
    agent = ScriptedAgent(dense, "short")
    for _ in range(2):
        dense.client.post("/v1/completions", json=body, headers=headers).raise_for_status()
    assert verdict_of(agent.judged_turn(2)).kind is VerdictKind.BELOW_BLOCK


def test_a_clock_in_the_system_prompt_is_found(dense: PtyInstance) -> None:
    agent = ScriptedAgent(dense, "clock", system=lambda turn: f"{LONG} It is 14:{turn:02d}.")
    agent.turn()
    agent.turn()
    verdict = verdict_of(agent.judged_turn())
    assert verdict.kind is VerdictKind.VOLATILE_VALUE
    assert verdict.volatile_kind is VolatileKind.CLOCK
    assert verdict.part is not None
    assert verdict.part.kind is PartKind.SYSTEM
    assert verdict.excerpt is not None
    assert "14:01" in verdict.excerpt.before
    assert "14:02" in verdict.excerpt.after
    assert (verdict.lost_tokens or 0) > 2 * BLOCK_TOKENS
    assert (verdict.cost_s or 0) > 0
    assert_expected(agent)


def test_an_edited_system_prompt_is_found(dense: PtyInstance) -> None:
    agent = ScriptedAgent(
        dense, "edited", system=lambda turn: LONG + ("Be brief." if turn > 1 else "Be polite.")
    )
    agent.turn()
    agent.turn()
    verdict = verdict_of(agent.judged_turn())
    assert verdict.kind is VerdictKind.SYSTEM_CHANGED
    assert_expected(agent)


def test_reordered_tools_are_found_by_name(dense: PtyInstance) -> None:
    orders = {1: ("read", "write", "run"), 2: ("read", "run", "write")}
    agent = ScriptedAgent(
        dense, "reordering", system=lambda _: LONG, tools=lambda turn: tools(*orders[turn])
    )
    agent.turn()
    agent.turn()
    verdict = verdict_of(agent.judged_turn())
    assert verdict.kind is VerdictKind.TOOLS_CHANGED
    assert "run" in verdict.sentence
    assert_expected(agent)


def test_a_rewritten_message_is_found_by_number(dense: PtyInstance) -> None:
    agent = ScriptedAgent(dense, "rewriting", system=lambda _: LONG)
    agent.turn()
    agent.turn()
    agent.messages[2]["content"] = "Something else was asked here. " * 10
    agent.turn()
    verdict = verdict_of(agent.judged_turn())
    assert verdict.kind is VerdictKind.HISTORY_REWRITTEN
    assert verdict.part is not None
    assert (verdict.part.index, verdict.part.role) == (3, "user")
    assert_expected(agent)


def test_dropped_reasoning_is_a_rewritten_history(dense: PtyInstance) -> None:
    agent = ScriptedAgent(dense, "reasoning", system=lambda _: LONG)
    agent.turn()
    agent.messages[-1]["reasoning_content"] = "I think about it for a while. " * 20
    agent.turn()
    del agent.messages[1]["reasoning_content"]
    agent.turn()
    verdict = verdict_of(agent.judged_turn())
    assert verdict.kind is VerdictKind.HISTORY_REWRITTEN
    assert_expected(agent)


def test_a_turn_that_may_not_read_the_cache_is_unknown_and_blames_nobody(
    dense: PtyInstance,
) -> None:
    agent = ScriptedAgent(dense, "logprobs", system=lambda _: LONG)
    agent.turn()
    agent.judged_turn()
    # For log-probabilities of the prompt vLLM computes all of it.
    agent.turn(prompt_logprobs=1)
    turn = agent.judged_turn()
    assert not turn.cached_tokens
    assert turn.expected_cached_tokens is None
    assert verdict_of(turn).kind is VerdictKind.UNKNOWN


def test_another_salt_shares_nothing(dense: PtyInstance) -> None:
    agent = ScriptedAgent(dense, "salted", system=lambda _: LONG)
    agent.turn(cache_salt="first")
    agent.judged_turn(1)
    agent.send(cache_salt="second")
    turn = agent.judged_turn(1)
    assert turn.cached_tokens == 0
    assert verdict_of(turn).kind is VerdictKind.DIFFERENT_SALT
    assert len({session.isolation for session in agent.sessions}) == 2
    assert_expected(agent)


def test_an_evicted_prefix_names_who_needed_the_room(dense: PtyInstance) -> None:
    loser = ScriptedAgent(dense, "loser", system=lambda _: LONG * 4)
    winner = ScriptedAgent(dense, "winner", system=lambda _: LONG * 12)
    loser.turn()
    loser.judged_turn()
    winner.turn()
    winner.judged_turn()
    wait_until(
        lambda: any(
            (one.loser, one.winner) == (loser.session.id, winner.session.id)
            for one in dense.snapshot().cache_monitor.evictions
        ),
        2,
        "the eviction as an event",
    )
    assert (loser.session.resident_tokens or 0) < loser.session.prompt_tokens / 2
    loser.turn()
    verdict = verdict_of(loser.judged_turn())
    assert verdict.kind is VerdictKind.EVICTED
    assert verdict.evicted_by == winner.session.id
    assert winner.session.label in verdict.sentence
    assert_expected(loser)
    assert_expected(winner)


def test_two_that_grow_beyond_the_pool_are_preempted(dense: PtyInstance) -> None:
    agents = [
        ScriptedAgent(dense, f"growing{number}", system=lambda _: LONG * 5) for number in (1, 2)
    ]
    for agent in agents:
        agent.turn()
    threads = [
        threading.Thread(target=agent.turn, kwargs={"max_tokens": 1200, "ignore_eos": True})
        for agent in agents
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kinds = {verdict_of(agent.judged_turn()).kind for agent in agents}
    assert VerdictKind.PREEMPTED in kinds
    for agent in agents:
        assert_expected(agent)


def test_several_answers_and_a_broken_off_one_are_counted_right(dense: PtyInstance) -> None:
    agent = ScriptedAgent(dense, "several", system=lambda _: LONG)
    agent.turn(n=2, temperature=1.0)
    assert agent.judged_turn().cached_tokens == 0
    agent.turn(n=2, temperature=1.0)
    turn = agent.judged_turn()
    assert (turn.cached_tokens or 0) > 0
    assert_expected(agent)
    with dense.client.stream(
        "POST",
        "/v1/chat/completions",
        json={
            "model": dense.snapshot().engine.model,
            "messages": [{"role": "user", "content": "Breaking off. " * 50}],
            "max_tokens": 4000,
            "ignore_eos": True,
            "stream": True,
        },
        headers={"user-agent": "breaking/1.0"},
    ) as answer:
        next(answer.iter_lines())
    breaking = ScriptedAgent(dense, "breaking")
    turn = breaking.judged_turn(1)
    assert turn.outcome == "aborted"
    assert (turn.generated_tokens or 0) < 4000


@pytest.mark.parametrize("route", ["/v1/messages", "/v1/responses"])
def test_the_other_apis_are_followed_as_well(dense: PtyInstance, route: str) -> None:
    name = route.rpartition("/")[2]
    model = dense.snapshot().engine.model
    said: list[dict[str, Any]] = []
    agent = ScriptedAgent(dense, name)
    for turn in (1, 2):
        said.append({"role": "user", "content": f"{name} question {turn}. " + "Why? " * 40})
        if route == "/v1/messages":
            body: dict[str, Any] = {
                "model": model,
                "system": LONG + f" Request id: {turn:08x}-77aa-4e21-9d42-0123456789ab.",
                "messages": said,
                "max_tokens": 8,
                "metadata": {"user_id": "user_ab12_account__session_0a0b0c0d-1111-2222"},
            }
        else:
            body = {
                "model": model,
                "instructions": LONG + f" Today is 2026-11-{turn:02d}.",
                "input": said,
                "max_output_tokens": 8,
                "prompt_cache_key": "task-1",
            }
        headers = {"user-agent": f"{name}/1.0"}
        answer = dense.client.post(route, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        agent.judged_turn(turn)
        said.append({"role": "assistant", "content": "ok"})
    verdict = verdict_of(agent.judged_turn(2))
    assert verdict.kind is VerdictKind.VOLATILE_VALUE
    assert verdict.part is not None
    assert verdict.part.kind is PartKind.SYSTEM
    assert_expected(agent)


@pytest.mark.parametrize("shape", CLIENT_SHAPES, ids=lambda shape: shape.name)
def test_each_client_s_way_of_asking_is_one_session(dense: PtyInstance, shape: ClientShape) -> None:
    """Streaming, tool calls, tool results and reasoning, as the five agents send them."""
    task = f"{shape.name}: find out why the test fails. " + "Read the files first. " * 20
    conversation = Conversation(task, shape.name, str(dense.snapshot().engine.model))
    agent = ScriptedAgent(dense, shape.name)
    headers = {"user-agent": shape.user_agent}
    kinds = []
    for number in (1, 2, 3):
        answer = dense.client.post(
            shape.route, json=shape.turn(conversation, number), headers=headers
        )
        assert answer.status_code == 200, answer.text
        kinds.append(verdict_of(agent.judged_turn(number)).kind)
    assert len(agent.sessions) == 1
    assert kinds[0] is VerdictKind.FIRST_REQUEST
    assert VerdictKind.UNKNOWN not in kinds
    assert (agent.session.cached_tokens or 0) > 0
    assert_expected(agent)


def test_the_pool_is_what_the_scheduler_says(dense: PtyInstance) -> None:
    def agrees() -> bool:
        snapshot = dense.snapshot()
        monitor, kv = snapshot.cache_monitor, snapshot.kv
        idle = not snapshot.in_flight and kv.blocks_in_use == 0
        return idle and monitor.cached_blocks == kv.blocks_warm

    wait_until(
        agrees,
        5,
        "as many cached blocks as the scheduler has",
        describe=lambda: str((dense.snapshot().cache_monitor, dense.snapshot().kv)),
    )
    snapshot = dense.snapshot()
    monitor, kv = snapshot.cache_monitor, snapshot.kv
    assert sum(share.blocks for share in monitor.shares) == monitor.cached_blocks
    assert (kv.blocks_free or 0) + (kv.blocks_warm or 0) == kv.blocks_total == POOL_BLOCKS - 1


def test_the_monitor_was_right_about_every_turn_so_far(dense: PtyInstance) -> None:
    snapshot = dense.snapshot()
    turns = [turn for session in snapshot.sessions for turn in session.history]
    judged = [turn for turn in turns if turn.verdict is not None]
    unknown = [turn for turn in judged if verdict_of(turn).kind is VerdictKind.UNKNOWN]
    assert snapshot.cache_monitor.predictions >= 30
    assert snapshot.cache_monitor.mispredictions == 0
    assert len(unknown) <= 0.05 * len(judged), unknown
    assert snapshot.cache_monitor.residency_problem is None
