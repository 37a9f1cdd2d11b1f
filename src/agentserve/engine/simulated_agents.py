"""Three invented coding agents, and what they send.

Owns their texts, their habits and the shape of their requests. Each turn repeats the conversation
so far; now and then a habit breaks that: a clock in the system prompt, a list of tools in another
order, a tool result that is cut out of the past. Everything is made up from a few words.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import msgspec

CONTEXT_LIMIT_TOKENS = 20_000
"""A task whose prompt is longer than this is given up for a fresh one."""

_TASKS_PER_AGENT = 2
_OTHER_TASK = 0.15
_HABIT = 0.2
_TITLE = 0.5
_RULES_WORDS = 700
_TOOL_WORDS = 60
_TEXT = (
    "the of a to in is and for with test file value index parser buffer queue token block cache "
    "request module import return class async error line path config option header client server "
    "session prefix state event update check read write build branch commit review stream result"
)
_WORDS = _TEXT.split()
_TOOLS = ("read_file", "write_file", "edit_file", "list_files", "search", "run_command", "fetch")
_PIECES = re.compile(r"<\|\w+\|>|\s*[A-Za-z_]+|\s*[^\sA-Za-z_]|\s+")


class Habit(Enum):
    """What an agent does that costs it its prefix."""

    CLOCK = "clock"
    TOOL_ORDER = "tool order"
    REWRITING = "rewriting"


class AgentProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of agent."""

    user_agent: str
    route: str
    habit: Habit


PROFILES = (
    AgentProfile(user_agent="claude-cli/2.1.0", route="/v1/messages", habit=Habit.TOOL_ORDER),
    AgentProfile(user_agent="opencode/0.9", route="/v1/chat/completions", habit=Habit.CLOCK),
    AgentProfile(user_agent="qwen-code/0.4", route="/v1/chat/completions", habit=Habit.REWRITING),
)


class SimulatedTokenizer:
    """Words and signs as tokens, numbered in the order in which they first occur."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """Cut a text into tokens; each digit is one, so the vocabulary stays small."""
        return [self._id(piece) for piece in _PIECES.findall(text)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text again; from any thread."""
        return "".join(self._pieces[token_id] for token_id in token_ids)

    def _id(self, piece: str) -> int:
        known = self._ids.setdefault(piece, len(self._pieces))
        if known == len(self._pieces):
            self._pieces.append(piece)
        return known


class SimulatedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of an agent, and the answer that it will get."""

    prompt: list[int]
    """Token ids."""
    answer: list[int]
    """Token ids."""
    answer_text: str
    body: bytes
    """As the agent would post it."""


class _Message(msgspec.Struct):
    role: str
    text: str
    tokens: list[int]


class _Task(msgspec.Struct):
    """One conversation."""

    session: str
    system: list[str]
    """Lines; the second one is the clock's, where there is one."""
    tools: list[dict[str, Any]]
    messages: list[_Message]
    prompt_tokens: int = 0


class SimulatedAgent:
    """Works on two tasks in turn.

    Args:
        profile: What it is.
        model: Name of the model that it asks for.
        max_prompt_tokens: It begins a task anew above this.
        tokenizer: The engine's.
        dice: Source of all choices.
    """

    def __init__(
        self,
        profile: AgentProfile,
        model: str,
        max_prompt_tokens: int,
        tokenizer: SimulatedTokenizer,
        dice: random.Random,
    ) -> None:
        self.profile = profile
        self._model = model
        self._max_prompt_tokens = min(max_prompt_tokens, CONTEXT_LIMIT_TOKENS)
        self._tokenizer = tokenizer
        self._dice = dice
        self._minute = 0
        self._rules = self._text(_RULES_WORDS)
        self._tools = [self._tool(name) for name in _TOOLS]
        self._tasks = [self._new_task() for _ in range(_TASKS_PER_AGENT)]
        self._current = 0
        self._answered: _Task | None = None

    def next_request(self) -> SimulatedRequest:
        """Decide what to ask next."""
        if self._dice.random() < _OTHER_TASK:
            self._current = (self._current + 1) % _TASKS_PER_AGENT
        task = self._tasks[self._current]
        if task.prompt_tokens > self._max_prompt_tokens:
            task = self._tasks[self._current] = self._new_task()
        if not task.messages and self._writes_titles and self._dice.random() < _TITLE:
            return self._title_request(task)
        if task.messages and self._dice.random() < _HABIT:
            self._indulge(task)
        words = self._dice.randint(150, 1100)
        task.messages.append(self._message("user", self._text(words)))
        self._answered = task
        return self._request(task, self._text(self._dice.randint(60, 400)))

    def take_answer(self, request: SimulatedRequest) -> None:
        """Keep a complete answer for the next turn; one that was aborted is simply not given."""
        if self._answered is not None:
            message = _Message("assistant", request.answer_text, request.answer)
            self._answered.messages.append(message)
        self._answered = None

    @property
    def _writes_titles(self) -> bool:
        return self.profile.route == "/v1/messages"

    def _title_request(self, task: _Task) -> SimulatedRequest:
        """Ask for a title, as a side query: another system prompt, no tools, no memory of it."""
        question = self._message("user", self._text(80))
        side = _Task(task.session, ["Write a title of five words.", self._text(60)], [], [question])
        self._answered = None
        return self._request(side, self._text(8))

    def _indulge(self, task: _Task) -> None:
        match self.profile.habit:
            case Habit.CLOCK:
                self._minute += self._dice.randint(1, 9)
                task.system[1] = self._clock()
            case Habit.TOOL_ORDER:
                first, second = self._dice.sample(range(len(task.tools)), 2)
                tools = task.tools
                tools[first], tools[second] = tools[second], tools[first]
            case Habit.REWRITING:
                # Somewhere in the first half of what it was told.
                told = [n for n, message in enumerate(task.messages) if message.role == "user"]
                place = self._dice.choice(told[: len(told) // 2 + 1])
                task.messages[place] = self._message("user", "[old result removed]")

    def _new_task(self) -> _Task:
        name = self.profile.user_agent.partition("/")[0]
        clock = [self._clock()] if self.profile.habit is Habit.CLOCK else []
        session = f"{self._dice.getrandbits(128):032x}"
        system = [f"You are {name}, a coding agent.", *clock, self._rules]
        return _Task(session, system, list(self._tools), [])

    def _clock(self) -> str:
        hour, minute = divmod(9 * 60 + self._minute, 60)
        return f"The time is {hour % 24:02}:{minute:02}."

    def _tool(self, name: str) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
        return {"name": name, "description": self._text(_TOOL_WORDS), "parameters": parameters}

    def _text(self, words: int) -> str:
        return " ".join(self._dice.choices(_WORDS, k=words))

    def _message(self, role: str, text: str) -> _Message:
        return _Message(role, text, self._tokenizer.encode(text))

    def _request(self, task: _Task, answer: str) -> SimulatedRequest:
        prompt = list(self._prompt(task))
        task.prompt_tokens = len(prompt)
        return SimulatedRequest(
            prompt=prompt,
            answer=self._tokenizer.encode(answer),
            answer_text=answer,
            body=msgspec.json.encode(self._body(task)),
        )

    def _prompt(self, task: _Task) -> Iterator[int]:
        """Write the conversation as a chat template in the manner of Qwen's does."""
        encode = self._tokenizer.encode
        yield from encode("<|im_start|>system\n")
        yield from encode("\n".join(task.system))
        if task.tools:
            yield from encode("\n\n# Tools\n")
        for tool in task.tools:
            yield from encode("\n" + msgspec.json.encode(tool).decode())
        yield from encode("<|im_end|>\n")
        for message in task.messages:
            yield from encode(f"<|im_start|>{message.role}\n")
            yield from message.tokens
            yield from encode("<|im_end|>\n")
        yield from encode("<|im_start|>assistant\n")

    def _body(self, task: _Task) -> dict[str, Any]:
        system = "\n".join(task.system)
        messages = [{"role": each.role, "content": each.text} for each in task.messages]
        if self.profile.route == "/v1/messages":
            tools = [_with_input_schema(tool) for tool in task.tools]
            given: dict[str, Any] = {
                "system": [{"type": "text", "text": system}],
                "messages": messages,
                "metadata": {"user_id": f"user_0_account__session_{task.session}"},
            }
        else:
            tools = [{"type": "function", "function": tool} for tool in task.tools]
            given = {"messages": [{"role": "system", "content": system}, *messages]}
        return {
            "model": self._model,
            "stream": True,
            **given,
            **({"tools": tools} if tools else {}),
        }


def _with_input_schema(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as the messages API spells it."""
    name, description, parameters = tool["name"], tool["description"], tool["parameters"]
    return {"name": name, "description": description, "input_schema": parameters}
