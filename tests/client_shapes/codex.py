"""Codex: the responses API.

From descriptions of its public source: `instructions`, `prompt_cache_key` is the conversation's id,
`store` is false, the User-Agent. Not checked: whether reasoning comes back as text from a server of
one's own, and texts. No side query is known.
"""

from __future__ import annotations

import json

from tests.client_shapes.shape import Body, ClientShape, Conversation, json_schema


def turn(conversation: Conversation, number: int) -> Body:
    """Return the body of one turn."""
    items: list[Body] = [
        _message("developer", "<permissions>read only</permissions>"),
        _message("user", "<environment_context>\n  <cwd>/p</cwd>\n</environment_context>"),
        _message("user", conversation.task),
    ]
    for past in range(1, number):
        items += [
            {
                "type": "reasoning",
                "id": f"rs_{past}",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": f"I need file {past}."}],
            },
            {
                "type": "function_call",
                "call_id": f"call_{past}",
                "name": "shell",
                "arguments": json.dumps({"command": f"cat file_{past}.py"}),
            },
            {
                "type": "function_call_output",
                "call_id": f"call_{past}",
                "output": conversation.file(past),
            },
        ]
    return {
        "model": conversation.model,
        "max_output_tokens": 64,
        "instructions": "You are Codex, a coding agent in a terminal.",
        "input": items,
        "tools": [
            {
                "type": "function",
                "name": "shell",
                "description": "Runs a command.",
                "strict": False,
                "parameters": json_schema(command="The command"),
            }
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "store": False,
        "stream": True,
        "prompt_cache_key": conversation.session_id,
    }


def _message(role: str, text: str) -> Body:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


SHAPE = ClientShape(
    name="Codex",
    route="/v1/responses",
    user_agent="codex_cli_rs/0.72.0 (Ubuntu 24.4.0; x86_64) xterm-256color",
    turn=turn,
    side_query=None,
    first_role="developer",
)
