"""The parts of a prompt as its author sees them.

Owns the names of parts. It must not know request formats, nor tokens.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class PartKind(StrEnum):
    """What a part of a prompt is."""

    SYSTEM = "system"
    TOOLS = "tools"
    """The list of tools as such: a tool was added, removed or moved."""
    TOOL = "tool"
    """One tool definition."""
    MESSAGE = "message"
    TEMPLATE = "template"
    """What the chat template writes around the other parts."""


class PromptPart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Names one part of a prompt."""

    kind: PartKind
    name: str | None = None
    """Name of the tool."""
    index: int | None = None
    """Number of the message, from 1; None is all messages, or those not named one by one."""
    role: str | None = None
    """Role of the message."""

    @property
    def label(self) -> str:
        """The part in words: `system prompt`, `tool read_file`, `message 3 (user)`."""
        match self.kind:
            case PartKind.SYSTEM:
                return "system prompt"
            case PartKind.TOOLS:
                return "list of tools"
            case PartKind.TOOL:
                return f"tool {self.name}"
            case PartKind.MESSAGE if self.index is None:
                return "messages"
            case PartKind.MESSAGE:
                return f"message {self.index} ({self.role})"
            case _:
                return "chat template"


class PartText(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One part with its text; lives in memory only."""

    part: PromptPart
    text: str
