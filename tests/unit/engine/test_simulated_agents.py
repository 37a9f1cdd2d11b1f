from __future__ import annotations

import random
from os.path import commonprefix
from typing import Any

import msgspec
import pytest

from agentserve.engine.simulated_agents import (
    PROFILES,
    AgentProfile,
    SimulatedAgent,
    SimulatedRequest,
    SimulatedTokenizer,
)

CLAUDE, OPENCODE, QWEN = PROFILES


class Desk:
    """One agent, and what it asked."""

    def __init__(self, profile: AgentProfile, seed: int, max_prompt_tokens: int = 10_000) -> None:
        self.tokenizer = SimulatedTokenizer()
        self.agent = SimulatedAgent(
            profile, "m", max_prompt_tokens, self.tokenizer, random.Random(seed)
        )

    def ask(self, turns: int) -> list[SimulatedRequest]:
        requests = []
        for _ in range(turns):
            requests.append(self.agent.next_request())
            self.agent.take_answer(requests[-1])
        return requests

    def text(self, request: SimulatedRequest) -> str:
        return self.tokenizer.decode(request.prompt)


def body_of(request: SimulatedRequest) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(request.body)
    return body


def system_of(body: dict[str, Any]) -> str:
    text: str = body["system"][0]["text"] if "system" in body else body["messages"][0]["content"]
    return text


@pytest.mark.parametrize("profile", PROFILES)
def test_the_prompt_is_the_body_as_a_template_writes_it(profile: AgentProfile) -> None:
    desk = Desk(profile, 1)
    for request in desk.ask(12):
        body, text = body_of(request), desk.text(request)
        place = text.index(system_of(body))
        for tool in body.get("tools", ()):
            place = text.index(tool.get("function", tool)["name"], place)
        for message in body["messages"]:
            if message["role"] != "system":
                place = text.index(f"<|im_start|>{message['role']}\n{message['content']}", place)
        assert text.endswith("<|im_start|>assistant\n")
        assert desk.tokenizer.decode(request.answer) == request.answer_text
        assert (body["model"], body["stream"]) == ("m", True)


def test_the_bodies_have_the_shape_of_their_api() -> None:
    (chat,) = Desk(OPENCODE, 1).ask(1)
    body = body_of(chat)
    assert body.keys() == {"model", "stream", "messages", "tools"}
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["tools"][0]["type"] == "function"
    assert body["tools"][0]["function"].keys() == {"name", "description", "parameters"}
    body = body_of(Desk(CLAUDE, 1).ask(5)[-1])
    assert body.keys() == {"model", "stream", "system", "messages", "metadata", "tools"}
    assert "_session_" in body["metadata"]["user_id"]
    assert body["tools"][0].keys() == {"name", "description", "input_schema"}


def continuations(desk: Desk, turns: int) -> list[tuple[str, str]]:
    """Of each later turn of a task: the turn before with its answer, and the turn."""
    pairs = []
    by_answer: dict[str, SimulatedRequest] = {}
    for request in desk.ask(turns):
        told = [each for each in body_of(request)["messages"] if each["role"] == "assistant"]
        if told:
            before = by_answer[told[-1]["content"]]
            pairs.append((desk.text(before) + before.answer_text, desk.text(request)))
        by_answer[request.answer_text] = request
    return pairs


@pytest.mark.parametrize("profile", PROFILES)
def test_most_turns_repeat_the_turn_before_and_its_answer(profile: AgentProfile) -> None:
    pairs = continuations(Desk(profile, 2), 40)
    kept = sum(text.startswith(before) for before, text in pairs)
    assert 0.6 < kept / len(pairs) < 0.95


@pytest.mark.parametrize(
    ("profile", "start_of_line"),
    [
        pytest.param(CLAUDE, '{"name":"', id="tool order"),
        pytest.param(OPENCODE, "The time is ", id="clock"),
        pytest.param(QWEN, "", id="rewriting"),
    ],
)
def test_a_habit_breaks_the_prompt_where_it_says(profile: AgentProfile, start_of_line: str) -> None:
    pairs = [
        pair for pair in continuations(Desk(profile, 3), 60) if not pair[1].startswith(pair[0])
    ]
    shared = [commonprefix(pair) for pair in pairs]
    assert shared
    for (_, text), start in zip(pairs, shared, strict=True):
        assert start.rpartition("\n")[2].startswith(start_of_line)
        if profile is QWEN:
            assert start.endswith("<|im_start|>user\n")
            assert text.startswith("[old result removed]<|im_end|>", len(start))


def test_a_title_is_asked_for_aside_with_the_same_session_and_is_not_remembered() -> None:
    requests = Desk(CLAUDE, 1, max_prompt_tokens=3000).ask(40)
    bodies = [body_of(request) for request in requests]
    titles = [body for body in bodies if "tools" not in body]
    others = [body for body in bodies if "tools" in body]
    assert titles
    assert {system_of(body) for body in titles}.isdisjoint(system_of(body) for body in others)
    sessions = {body["metadata"]["user_id"] for body in others}
    assert any(body["metadata"]["user_id"] in sessions for body in titles)
    asked = {body["messages"][0]["content"] for body in titles}
    told = {message["content"] for body in others for message in body["messages"]}
    assert asked.isdisjoint(told)


def test_a_long_task_is_given_up_for_a_fresh_one() -> None:
    requests = Desk(QWEN, 1, max_prompt_tokens=4000).ask(60)
    lengths = [len(body_of(request)["messages"]) for request in requests]
    assert lengths.count(2) > 4
    longest = max(len(request.prompt) for request in requests)
    assert 4000 < longest < 6000


def test_an_answer_that_was_aborted_is_not_repeated() -> None:
    desk = Desk(OPENCODE, 1)
    first = desk.agent.next_request()
    second = desk.agent.next_request()
    assert first.answer_text not in desk.text(second)


def test_tokens_give_the_text_again_and_are_few_kinds() -> None:
    tokenizer = SimulatedTokenizer()
    texts = [
        "<|im_start|>system\n{a}",
        "  10:31 o'clock\n\n",
        "12345678901234567890",
        "\u00fc\u4e2d",
    ]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(set(tokenizer.encode("12345678901234567890"))) == 10
    assert len(tokenizer.encode("<|im_end|>")) == 1
