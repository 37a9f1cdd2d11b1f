"""What the request bodies of all agents have in common."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

Body = dict[str, Any]


class Conversation(NamedTuple):
    """One conversation of an agent; the same conversation always makes the same bodies."""

    task: str
    """What the person asked first."""
    name: str = "one"
    """Tells conversations with the same task apart."""
    model: str = "demo"

    @property
    def session_id(self) -> str:
        """The id that the agent gave the conversation."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, self.name))

    def file(self, turn: int) -> str:
        """Return what a tool read in one turn."""
        seed = hashlib.sha256(f"{self.name} {turn}".encode()).hexdigest()
        return "\n".join(f"{line}: value_{seed[line : line + 6]} = {line}" for line in range(12))


class ClientShape(NamedTuple):
    """How one agent asks."""

    name: str
    route: str
    user_agent: str
    turn: Callable[[Conversation, int], Body]
    """The body of a turn, counted from 1; each turn after the first answers one tool call."""
    side_query: Callable[[Conversation, int], Body] | None
    """The body of a query beside the conversation, after so many turns; None: none is known."""
    first_role: str = "user"
    """Role of the first message after the system prompt."""


def json_schema(**properties: str) -> Body:
    """Return the schema of a tool's arguments."""
    return {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": text} for name, text in properties.items()
        },
        "required": list(properties),
    }


def function_tool(name: str, description: str, **properties: str) -> Body:
    """Return a tool definition of chat completions."""
    function = {
        "name": name,
        "description": description,
        "parameters": json_schema(**properties),
    }
    return {"type": "function", "function": function}
