"""Qwen Code: chat completions.

From its public source: `metadata.sessionId` goes to Alibaba's own addresses only, so that a local
server gets no id; reasoning goes back as `reasoning_content` and `reasoning`, and the newest one
stands in the visible content as well, so that each turn rewrites the message before. From a public
issue: a side query without system prompt and tools after a turn. Not checked: how the visible
reasoning is marked, and texts.
"""

from __future__ import annotations

import json

from tests.client_shapes.shape import Body, ClientShape, Conversation, function_tool


def turn(conversation: Conversation, number: int) -> Body:
    """Return the body of one turn."""
    return {
        "model": conversation.model,
        "max_tokens": 64,
        "messages": [
            {"role": "system", "content": "You are Qwen Code, an interactive agent."},
            *_messages(conversation, number),
        ],
        "tools": [
            function_tool("read_file", "Reads a file.", absolute_path="The path"),
            function_tool("run_shell_command", "Runs a command.", command="The command"),
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def side_query(conversation: Conversation, number: int) -> Body:
    """Return the query for what the person may type next."""
    question = {"role": "user", "content": "Suggest what the user could ask next."}
    return {
        "model": conversation.model,
        "max_tokens": 32,
        "messages": [*_messages(conversation, number), question],
        "stream": False,
    }


def with_metadata(conversation: Conversation, number: int) -> Body:
    """Return a turn as it goes to Alibaba's addresses."""
    ids = {"sessionId": conversation.session_id, "promptId": f"{conversation.session_id}{number}"}
    return {**turn(conversation, number), "metadata": ids}


def _messages(conversation: Conversation, number: int) -> list[Body]:
    messages: list[Body] = [{"role": "user", "content": conversation.task}]
    for past in range(1, number):
        arguments = json.dumps({"absolute_path": f"/home/me/project/file_{past}.py"})
        reasoning = f"I need file {past}."
        is_newest = past == number - 1
        messages += [
            {
                "role": "assistant",
                "content": f"<think>{reasoning}</think>" if is_newest else None,
                "reasoning_content": reasoning,
                "reasoning": reasoning,
                "tool_calls": [
                    {
                        "id": f"call_{past}",
                        "type": "function",
                        "function": {"name": "read_file", "arguments": arguments},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": f"call_{past}", "content": conversation.file(past)},
        ]
    return messages


SHAPE = ClientShape(
    name="Qwen Code",
    route="/v1/chat/completions",
    user_agent="QwenCode/0.12.3 (linux; x64)",
    turn=turn,
    side_query=side_query,
)
