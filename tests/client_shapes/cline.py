"""Cline: chat completions without native tools, which stand in the system prompt as XML.

From its public source: the User-Agent. Not checked: that each message keeps the time at which it
was sent, and texts. No side query is known.
"""

from __future__ import annotations

from tests.client_shapes.shape import Body, ClientShape, Conversation

_SYSTEM = "\n".join(
    (
        "You are Cline, a software engineer.",
        "# Tools",
        "## read_file",
        "<read_file><path>File path here</path></read_file>",
        "## execute_command",
        "<execute_command><command>Your command here</command></execute_command>",
    )
)


def turn(conversation: Conversation, number: int) -> Body:
    """Return the body of one turn."""
    messages: list[Body] = [
        {"role": "system", "content": _SYSTEM},
        _user(f"<task>\n{conversation.task}\n</task>", 1),
    ]
    for past in range(1, number):
        path = f"src/file_{past}.py"
        call = f"<read_file>\n<path>{path}</path>\n</read_file>"
        messages += [
            {"role": "assistant", "content": [{"type": "text", "text": call}]},
            _user(f"[read_file for '{path}'] Result:\n{conversation.file(past)}", past + 1),
        ]
    return {
        "model": conversation.model,
        "max_tokens": 64,
        "messages": messages,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _user(text: str, turn_number: int) -> Body:
    details = f"# Current Time\n11/29/2026, 10:{turn_number:02d}:07 AM (UTC, UTC+0:00)"
    return {
        "role": "user",
        "content": [
            {"type": "text", "text": text},
            {
                "type": "text",
                "text": f"<environment_details>\n{details}\n</environment_details>",
            },
        ],
    }


SHAPE = ClientShape(
    name="Cline",
    route="/v1/chat/completions",
    user_agent="Cline/3.74.0",
    turn=turn,
    side_query=None,
)
