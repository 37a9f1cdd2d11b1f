"""Scripted coding agents: each turn sends everything again, and one question more."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from agentserve.domain.session import SessionView, TurnView, Verdict
from tests.harness.instance import Instance
from tests.harness.waiting import wait_until

JUDGED_S = 10.0
"""Limit for a verdict on a busy machine."""
_ANSWER_TOKENS = 12

Tool = dict[str, Any]
Message = dict[str, Any]


def tools(*names: str) -> list[Tool]:
    """Tool definitions of some hundred characters each."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"Use {name} on a file of the repository. " * 6,
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
            },
        }
        for name in names
    ]


def verdict_of(turn: TurnView) -> Verdict:
    """The verdict of a turn that has one."""
    assert turn.verdict is not None
    return turn.verdict


class ScriptedAgent:
    """One conversation over chat completions.

    Args:
        app: The instance to ask.
        name: Product in the User-Agent, unique among the agents of a test run.
        system: System prompt of a turn, which begins with `name` so that agents share nothing.
        tools: Tool definitions of a turn.
        sentences: Length of each question.
        session: Id that it sends in `X-Session-ID`; None sends none.
    """

    def __init__(
        self,
        app: Instance,
        name: str,
        *,
        system: Callable[[int], str] = lambda _turn: "",
        tools: Callable[[int], Sequence[Tool]] = lambda _turn: tools("read", "write", "run"),
        sentences: int = 10,
        session: str | None = None,
    ) -> None:
        self.app = app
        self.name = name
        self.system = system
        self.tools = tools
        self.sentences = sentences
        self.messages: list[Message] = []
        self.session_id = session
        self.turns = 0
        self.judged_after_s: list[float] = []
        """How long after the end of a turn its verdict could be seen."""

    def turn(self, **options: Any) -> dict[str, Any]:
        """Ask the next question; the answer becomes part of the conversation.

        Returns:
            The `usage` of the answer.
        """
        self.turns += 1
        question = (
            f"Question {self.turns} of {self.name}. " + "Why is it so long? " * self.sentences
        )
        self.messages.append({"role": "user", "content": question})
        answer = self.send(**options)
        self.messages.append({"role": "assistant", "content": _text_of(answer)})
        usage: dict[str, Any] = answer["usage"]
        return usage

    def send(self, **options: Any) -> dict[str, Any]:
        """Send the conversation as it is and return the answer's body."""
        system = f"{self.name} works on one repository. {self.system(self.turns)}"
        body = {
            "model": self.app.snapshot().engine.model,
            "messages": [{"role": "system", "content": system}, *self.messages],
            "max_tokens": _ANSWER_TOKENS,
            "temperature": 0,
            **options,
        }
        if given := list(self.tools(self.turns)):
            body |= {"tools": given, "tool_choice": "none"}
        headers = {"user-agent": f"{self.name}/1.0"}
        if self.session_id is not None:
            headers["x-session-id"] = self.session_id
        answer = self.app.client.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    @property
    def sessions(self) -> tuple[SessionView, ...]:
        """All sessions of this agent, newest first."""
        return tuple(one for one in self.app.snapshot().sessions if one.agent == self.name)

    @property
    def session(self) -> SessionView:
        """Its only session."""
        (session,) = self.sessions
        return session

    def judged_turn(self, number: int | None = None) -> TurnView:
        """The newest turn of its newest session, once it ended and has a verdict.

        Args:
            number: The number that the turn must have; the number of turns by default.
        """
        wanted = self.turns if number is None else number

        def judged() -> TurnView | None:
            for session in self.sessions[:1]:
                turn = session.history[0]
                if turn.number == wanted and not turn.running and turn.verdict is not None:
                    return turn
            return None

        began_s = time.monotonic()
        turn = wait_until(judged, JUDGED_S, f"a verdict on turn {wanted} of {self.name}")
        self.judged_after_s.append(time.monotonic() - began_s)
        return turn


def _text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"] or "")
