"""What is said about turns of a scripted engine, from its reports to the sentence."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from agentserve.domain.prompt import PartKind
from agentserve.domain.request import FirstToken, RequestOutcome
from agentserve.domain.session import Verdict, VerdictKind
from agentserve.telemetry.sessions.exchange import MonitorInput
from agentserve.telemetry.sessions.monitor import SessionMonitor
from agentserve.telemetry.sessions.prompt_memory import PromptMemory
from tests.unit.telemetry.sessions.scripted_engine import (
    BLOCK,
    Message,
    ScriptedEngine,
    chat_text,
    text_tokens,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz "


class Agent:
    """An agent with one scripted engine; its words never repeat by chance.

    Args:
        blocks: Size of the engine's pool.
        budget_bytes: For texts that the monitor keeps.
        engine: Makes the engine.
    """

    def __init__(
        self,
        blocks: int = 10_000,
        budget_bytes: int = 10_000_000,
        engine: Callable[[SessionMonitor, int], ScriptedEngine] = ScriptedEngine,
    ) -> None:
        self.monitor = SessionMonitor(memory=PromptMemory(budget_bytes=budget_bytes))
        self.engine = engine(self.monitor, blocks)
        self._source = random.Random(3)

    def words(self, count: int) -> str:
        """Return so many random characters, which are as many tokens."""
        return "".join(self._source.choices(LETTERS, k=count))

    def verdict(self, label: str | None = None) -> Verdict:
        """The newest verdict, or that of a named session."""
        sessions = self.monitor.view().sessions
        found = next(one for one in sessions if label in (None, one.label))
        assert found.verdict is not None
        return found.verdict

    def others_need_room(self, tokens: int = 25_000) -> None:
        """Another agent fills the pool and the monitor's memory."""
        self.engine.chat("other", (), [user(self.words(tokens))], agent="curl/8")


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def test_a_summary_that_never_existed_was_not_computed_again() -> None:
    agent = Agent()
    system, opener = agent.words(200), user("do it")
    history = [
        one for _ in range(4) for one in (assistant(agent.words(500)), user(agent.words(5_000)))
    ]
    agent.engine.chat(system, (), [opener, *history])
    summary = assistant("Summary: " + agent.words(3_000))
    agent.engine.chat(system, (), [opener, summary, user("go on")])
    verdict = agent.verdict()
    assert verdict.kind is VerdictKind.HISTORY_REWRITTEN
    assert verdict.lost_tokens == 0
    assert verdict.sentence.endswith("tokens behind it were computed.")


def test_a_history_that_was_cut_is_computed_again_as_far_as_it_is_the_same() -> None:
    agent = Agent()
    system, cut, kept = agent.words(200), user(agent.words(4_000)), user(agent.words(6_000))
    agent.engine.chat(system, (), [cut, assistant("a"), kept], header="h")
    later = [kept, assistant("b"), user(agent.words(2_000))]
    agent.engine.chat(system, (), later, header="h")
    verdict = agent.verdict()
    assert verdict.kind is VerdictKind.HISTORY_REWRITTEN
    assert verdict.lost_tokens is not None
    assert 6_000 <= verdict.lost_tokens < 6_050
    assert f"{verdict.lost_tokens:,} tokens behind it were computed again" in verdict.sentence


def test_a_clock_in_front_costs_all_that_stands_behind_it() -> None:
    agent = Agent()
    system, opener = agent.words(3_000), user("hi")
    agent.engine.chat(f"Time: 10:00 {system}", (), [opener])
    agent.engine.chat(f"Time: 10:01 {system}", (), [opener, assistant("ok"), user("go")])
    verdict = agent.verdict()
    assert verdict.kind is VerdictKind.VOLATILE_VALUE
    assert verdict.lost_tokens is not None
    assert verdict.lost_tokens >= 3_000


def test_conversations_that_take_turns_under_one_id_are_not_rewritten() -> None:
    agent = Agent()
    system = agent.words(400)
    talks = [system + agent.words(3_000) for _ in range(2)]
    verdicts: list[Verdict] = []
    for _ in range(3):
        for number in range(len(talks)):
            agent.engine.run(text_tokens(talks[number]), header="one-for-all")
            verdicts.append(agent.verdict())
            talks[number] += agent.words(1_000)
    assert [one.kind for one in verdicts[2:]] == [VerdictKind.FULL_REUSE] * 4
    assert all("continues another conversation" in one.sentence for one in verdicts[2:])


def test_blocks_of_another_conversation_under_the_id_can_be_evicted() -> None:
    agent = Agent(blocks=450)
    first, second = agent.words(3_000), agent.words(1_000)
    agent.engine.run(text_tokens(first), header="h")
    agent.engine.run(text_tokens(second), header="h")
    agent.others_need_room(4_500)
    agent.engine.run(text_tokens(first), header="h")
    verdict = agent.verdict()
    assert verdict.kind is VerdictKind.EVICTED
    assert verdict.lost_tokens == 0, "of the turn before nothing was lost"


def test_a_turn_whose_text_was_given_up_while_it_waited_blames_the_cache_only() -> None:
    agent = Agent(budget_bytes=10_000)
    system, opener = agent.words(200), user(agent.words(1_000))
    agent.engine.chat(system, (), [opener])
    agent.engine.blocks = 10
    longer = [opener, assistant("ok"), user("more")]
    agent.engine.chat(system, (), longer, before_lookup=lambda: agent.others_need_room(9_000))
    verdict = agent.verdict("Claude Code 1")
    assert verdict.kind is VerdictKind.EVICTED
    assert verdict.token_index is None


def test_an_evicted_answer_is_not_said_to_be_left_out() -> None:
    agent = Agent(budget_bytes=30_000)
    prompt, answer = text_tokens(agent.words(640)), text_tokens(agent.words(900))
    agent.engine.run(prompt, answer=answer, header="h")
    agent.engine.blocks = 60
    agent.others_need_room()
    agent.engine.blocks = 10_000
    agent.engine.run([*prompt, *answer, *text_tokens("more")], header="h")
    verdict = agent.verdict("Claude Code 1")
    assert verdict.kind is VerdictKind.EVICTED
    assert "at least 640 tokens were computed again" in verdict.sentence


class EngineWithImages(ScriptedEngine):
    """Its hashes from token 200 on depend on the image too."""

    image = 0

    def _hashes(self, tokens: list[int], salt: str | None) -> list[int]:
        plain = super()._hashes(tokens, salt)
        return [
            one ^ self.image if index * BLOCK + BLOCK > 200 else one
            for index, one in enumerate(plain)
        ]


def test_a_changed_image_is_found_though_its_tokens_are_the_same() -> None:
    agent = Agent(engine=EngineWithImages)
    engine = agent.engine
    assert isinstance(engine, EngineWithImages)
    later: list[Message] = []
    for image, data in ((0, "AAAA"), (1, "BBBB")):
        engine.image = image
        picture = {"type": "image_url", "image_url": {"url": f"data:{data}"}}
        look = {"role": "user", "content": [picture, {"type": "text", "text": "look"}]}
        body = {"messages": [{"role": "system", "content": "sys"}, look, *later]}
        shown = [user("I" * 300 + "look"), *later]
        engine.run(text_tokens(chat_text("sys", (), shown)), answer=text_tokens("ok"), body=body)
        later = [assistant("ok"), user("more")]
    verdict = agent.verdict()
    assert verdict.kind is VerdictKind.HISTORY_REWRITTEN
    assert verdict.part is not None
    assert verdict.part.index == 1
    assert (verdict.token_index, verdict.token_index_step) == (192, BLOCK)
    assert verdict.volatile_kind is None
    assert verdict.lost_tokens is None


def test_after_a_restart_what_others_computed_since_is_not_denied() -> None:
    agent = Agent()
    system = agent.words(2_000)
    agent.engine.chat(system, (), [user("a" * 500)], header="a")
    agent.engine.restart()
    agent.engine.chat(system, (), [user("b" * 500)], header="b")
    longer = [user("a" * 500), assistant("ok"), user("x")]
    cached = agent.engine.chat(system, (), longer, header="a")
    verdict = agent.verdict()
    assert verdict.kind is VerdictKind.ENGINE_RESTARTED
    assert f"only {cached:,} tokens that had been computed since" in verdict.sentence
    assert "empty" not in verdict.sentence


def test_a_session_can_take_its_own_blocks() -> None:
    agent = Agent(blocks=100)
    first = agent.words(1_000)
    agent.engine.run(text_tokens(first), header="h")
    agent.engine.run(text_tokens(agent.words(1_200)), header="h")
    agent.engine.run(text_tokens(first), header="h")
    own = agent.monitor.view().sessions[0]
    verdict = agent.verdict()
    assert verdict.evicted_by == own.id
    assert verdict.sentence.startswith("Another turn of this session needed the room")


@pytest.mark.parametrize("more", [[], [user("do this instead")]])
def test_a_turn_that_ended_in_the_queue_is_not_what_the_next_one_is_compared_with(
    more: list[Message],
) -> None:
    agent = Agent()
    system, messages = agent.words(1_000), [user(agent.words(2_000))]
    agent.engine.chat(system, (), messages, answer="ok", header="h")
    messages += [assistant("ok"), user(agent.words(5_000))]

    def stop() -> None:
        raise RuntimeError("stopped in the queue")

    with pytest.raises(RuntimeError, match="in the queue"):
        agent.engine.chat(system, (), messages, header="h", before_lookup=stop)
    agent.engine.finish(
        2, text_tokens(chat_text(system, (), messages)), (), None, outcome=RequestOutcome.ABORTED
    )
    agent.engine.chat(system, (), [*messages, *more], header="h")
    assert agent.verdict().kind is VerdictKind.FULL_REUSE


class _WithoutFirstTokens(SessionMonitor):
    """Does not hear of first tokens, as when a client leaves in the step that brings one."""

    def handle(self, value: MonitorInput) -> None:
        if not isinstance(value, FirstToken) or value.number == 1:
            super().handle(value)


def test_a_turn_whose_end_is_heard_of_first_is_compared_by_its_tokens() -> None:
    monitor = _WithoutFirstTokens()
    engine = ScriptedEngine(monitor)
    engine.chat("You help.", (), [user("a" * 500)], header="h")
    engine.chat("You do not help.", (), [user("a" * 500)], header="h")
    verdict = monitor.view().sessions[0].verdict
    assert verdict is not None
    assert verdict.part is not None
    assert verdict.part.kind is PartKind.SYSTEM


def test_a_message_that_is_sent_again_is_kept_once() -> None:
    memory = PromptMemory()
    engine = ScriptedEngine(SessionMonitor(memory))
    texts: list[str] = []
    for messages in ([user("a" * 500)], [user("a" * 500), assistant("ok"), user("b" * 500)]):
        engine.chat("You help.", (), messages, header="h")
        ((_, prompt),) = memory.newest_first()
        texts.append(next(one.text for one in prompt.parts if one.part.kind is PartKind.MESSAGE))
    assert texts[0] is texts[1]
