"""Request bodies of five coding agents, written for these tests; no agent was run.

Field names are those of the APIs. What an agent does with them comes from its documentation or its
public source, and each module says what was not checked. Texts are invented.
"""

from __future__ import annotations

from tests.client_shapes import claude_code, cline, codex, opencode, qwen_code
from tests.client_shapes.shape import ClientShape, Conversation

CLIENT_SHAPES: tuple[ClientShape, ...] = (
    claude_code.SHAPE,
    opencode.SHAPE,
    qwen_code.SHAPE,
    codex.SHAPE,
    cline.SHAPE,
)

__all__ = ["CLIENT_SHAPES", "ClientShape", "Conversation"]
