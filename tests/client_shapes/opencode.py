"""OpenCode: chat completions through the AI SDK.

From its public source: the User-Agent, the header `X-Session-Id` of newer versions, the query for a
title without tools. Not checked: texts, order of fields.
"""

from __future__ import annotations

import json

from tests.client_shapes.shape import Body, ClientShape, Conversation, function_tool


def turn(conversation: Conversation, number: int) -> Body:
    """Return the body of one turn."""
    messages: list[Body] = [
        {"role": "system", "content": "You are opencode, a coding agent."},
        {"role": "system", "content": "<env>\n  Working directory: /home/me/project\n</env>"},
        {"role": "user", "content": conversation.task},
    ]
    for past in range(1, number):
        arguments = json.dumps({"filePath": f"src/file_{past}.py"})
        messages += [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "id": f"call_{past}",
                        "type": "function",
                        "function": {"name": "read", "arguments": arguments},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": f"call_{past}", "content": conversation.file(past)},
        ]
    return {
        "model": conversation.model,
        "max_tokens": 64,
        "messages": messages,
        "tools": [
            function_tool("read", "Reads a file.", filePath="The path"),
            function_tool("bash", "Runs a command.", command="The command"),
        ],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def side_query(conversation: Conversation, number: int) -> Body:
    """Return the query for a title."""
    return {
        "model": conversation.model,
        "max_tokens": 32,
        "messages": [
            {"role": "system", "content": "You are a title generator."},
            {"role": "user", "content": "Generate a title for this conversation:\n"},
            {"role": "user", "content": f"{conversation.task} ({number})"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


SHAPE = ClientShape(
    name="OpenCode",
    route="/v1/chat/completions",
    user_agent="opencode/1.2.3 ai-sdk/openai-compatible/1.0.0",
    turn=turn,
    side_query=side_query,
)
