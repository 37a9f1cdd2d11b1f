"""Claude Code: Anthropic's messages API.

From public issues: the session in `metadata.user_id`, a text up to 2.1.77 and JSON since 2.1.78;
the billing line as first system block. Not checked: texts and number of blocks, whether queries for
a title have tools in the newest versions.
"""

from __future__ import annotations

import json

from tests.client_shapes.shape import Body, ClientShape, Conversation, json_schema

_CACHED = {"cache_control": {"type": "ephemeral"}}


def turn(conversation: Conversation, number: int) -> Body:
    """Return the body of one turn."""
    messages: list[Body] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>Follow CLAUDE.md.</system-reminder>"},
                {"type": "text", "text": conversation.task},
            ],
        }
    ]
    for past in range(1, number):
        call = f"toolu_{past}"
        arguments = {"file_path": f"src/file_{past}.py"}
        messages += [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": f"I need file {past}.", "signature": "c2ln"},
                    {"type": "text", "text": f"Reading file {past}."},
                    {"type": "tool_use", "id": call, "name": "Read", "input": arguments},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": call,
                        "content": [{"type": "text", "text": conversation.file(past)}],
                    }
                ],
            },
        ]
    # The mark of what to cache moves with the newest message.
    messages[-1]["content"][-1] |= _CACHED
    return {
        "model": conversation.model,
        "max_tokens": 64,
        "stream": True,
        "system": [
            _billing_line(number),
            {"type": "text", "text": "You are a coding agent in a terminal.", **_CACHED},
            {"type": "text", "text": "Read before you write. Keep answers short.", **_CACHED},
        ],
        "tools": [
            {
                "name": "Read",
                "description": "Reads a file.",
                "input_schema": json_schema(file_path="Absolute path"),
            },
            {
                "name": "Task",
                "description": "Starts a sub-agent.",
                "input_schema": json_schema(prompt="What to do"),
                **_CACHED,
            },
        ],
        "messages": messages,
        "metadata": {"user_id": user_id(conversation)},
    }


def user_id(conversation: Conversation) -> str:
    """Return `metadata.user_id` as versions since 2.1.78 send it."""
    ids = {"device_id": "d" * 64, "account_uuid": "", "session_id": conversation.session_id}
    return json.dumps(ids, separators=(",", ":"))


def old_user_id(conversation: Conversation) -> str:
    """Return `metadata.user_id` as versions up to 2.1.77 send it."""
    return f"user_{'d' * 64}_account__session_{conversation.session_id}"


def side_query(conversation: Conversation, number: int) -> Body:
    """Return the query for a title."""
    text = "Give the conversation a title of five words."
    return {
        "model": conversation.model,
        "max_tokens": 32,
        "stream": True,
        "system": [_billing_line(number), {"type": "text", "text": text}],
        "messages": [{"role": "user", "content": f"{conversation.task} ({number})"}],
        "metadata": {"user_id": user_id(conversation)},
    }


def sub_agent(conversation: Conversation, number: int) -> Body:
    """Return a turn of a sub-agent, which has the same id and nothing else in common."""
    body = turn(conversation._replace(task=f"Explore: {conversation.task}"), number)
    body["system"] = [{"type": "text", "text": "You explore a repository."}]
    body["tools"] = body["tools"][:1]
    body["metadata"] = {"user_id": user_id(conversation)}
    return body


def _billing_line(number: int) -> Body:
    line = f"x-anthropic-billing-header: cc_version=2.1.90; cch={number:05x};"
    return {"type": "text", "text": line}


SHAPE = ClientShape(
    name="Claude Code",
    route="/v1/messages",
    user_agent="claude-cli/2.1.90 (external, cli)",
    turn=turn,
    side_query=side_query,
)
