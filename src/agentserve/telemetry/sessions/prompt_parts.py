"""The text of a prompt in the order in which its author wrote it, out of decoded request bodies.

Owns the shapes of messages, content blocks and tools of four APIs, flattened to text: only what
reaches a model counts, so cache hints, ids of calls and signatures are left out. It must not know
sessions or tokens. It takes decoded JSON of any shape and leaves out what it cannot read.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

from agentserve.domain.prompt import PartKind, PartText, PromptPart
from agentserve.domain.text import printable

DIGEST_BYTES = 8

_BILLING_LINE = "x-anthropic-billing-header"
"""vLLM leaves out system blocks of `/v1/messages` that begin so; they change with each request."""
_NOT_IN_PROMPT = frozenset({"cache_control"})
_SYSTEM_ROLES = frozenset({"system", "developer"})
_TEXT_BLOCKS = frozenset({None, "text", "input_text", "output_text", "refusal", "reasoning_text"})
_IMAGE_BLOCKS = frozenset({"image", "image_url", "input_image"})
_CALLS = frozenset({"function_call", "custom_tool_call"})
_LONGEST_NAME = 64
_LONGEST_ROLE = 20
_READ_OF_NAME = 512
"""Characters of a name that are cleaned: a hostile one is as long as the body."""


class Message(NamedTuple):
    """One message."""

    role: str
    text: str
    lasting: str | None
    """The text that agents send again unchanged: without reasoning; None when there is no other."""


class Prompt(NamedTuple):
    """A prompt before the chat template."""

    system: str | None
    tools: tuple[tuple[str, str], ...]
    """Name and JSON text of each tool."""
    messages: tuple[Message, ...]

    def parts(self) -> tuple[PartText, ...]:
        """Return system prompt, tools and messages; messages are counted from 1."""
        parts = []
        if self.system is not None:
            parts.append(PartText(part=PromptPart(kind=PartKind.SYSTEM), text=self.system))
        for name, text in self.tools:
            parts.append(PartText(part=PromptPart(kind=PartKind.TOOL, name=name), text=text))
        for index, message in enumerate(self.messages, 1):
            part = PromptPart(kind=PartKind.MESSAGE, index=index, role=message.role)
            parts.append(PartText(part=part, text=message.text))
        return tuple(parts)


def chat_prompt(messages: object, tools: object) -> Prompt:
    """Read `/v1/chat/completions`; leading system and developer messages are the system prompt."""
    system, read = _without_leading_system(
        [_chat_message(message) for message in _list(messages) if isinstance(message, dict)]
    )
    return Prompt(system, _tools(tools), read)


def responses_prompt(instructions: object, items: object, tools: object) -> Prompt:
    """Read `/v1/responses`; each input item is one message."""
    if isinstance(items, str):
        read = [Message("user", items, items)]
    else:
        read = [_response_item(item) for item in _list(items) if isinstance(item, dict)]
    if isinstance(instructions, str) and instructions:
        return Prompt(instructions, _tools(tools), tuple(read))
    system, rest = _without_leading_system(read)
    return Prompt(system, _tools(tools), rest)


def anthropic_prompt(system: object, messages: object, tools: object) -> Prompt:
    """Read `/v1/messages`, leaving out the billing line where vLLM does."""
    system_text = system if isinstance(system, str) else "".join(_system_blocks(system))
    read = [_anthropic_message(message) for message in _list(messages) if isinstance(message, dict)]
    return Prompt(system_text or None, _tools(tools), tuple(read))


def completion_prompt(prompt: object) -> Prompt:
    """Read `/v1/completions`: one text; several texts, or tokens, have no parts."""
    if isinstance(prompt, str):
        return Prompt(None, (), (Message("prompt", prompt, None),))
    return Prompt(None, (), ())


def text_digest(*texts: str) -> bytes:
    """Return `DIGEST_BYTES` bytes that tell texts apart."""
    # SHA-256 has instructions of its own on most machines: twice as fast as BLAKE2 there.
    return hashlib.sha256("\0".join(texts).encode()).digest()[:DIGEST_BYTES]


def _chat_message(message: dict[str, object]) -> Message:
    # As vLLM does: `reasoning_content` is the older name, and loses.
    reasoning = message.get("reasoning")
    if not isinstance(reasoning, str):
        reasoning = message.get("reasoning_content")
    texts = [_content(message.get("content"))]
    for call in _list(message.get("tool_calls")):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            texts.append(_call(function.get("name"), function.get("arguments")))
    return _message(message.get("role"), reasoning, texts)


def _anthropic_message(message: dict[str, object]) -> Message:
    role, content = message.get("role"), message.get("content")
    if role == "system":
        kept = [content] if isinstance(content, str) else _system_blocks(content)
        return _message(role, None, [text for text in kept if not text.startswith(_BILLING_LINE)])
    if not isinstance(content, list):
        return _message(role, None, [_content(content)])
    reasoning, texts = [], []
    for block in content:
        thinking = block.get("thinking") if isinstance(block, dict) else None
        if isinstance(thinking, str):
            reasoning.append(thinking)
        else:
            texts.append(_block(block))
    return _message(role, "".join(reasoning), texts)


def _response_item(item: dict[str, object]) -> Message:
    kind = item.get("type")
    if kind == "reasoning":
        text = _content(item.get("content")) or _content(item.get("summary"))
        return Message("assistant", text, None)
    if isinstance(kind, str) and kind in _CALLS:
        arguments = item.get("arguments" if kind == "function_call" else "input")
        return _message("assistant", None, [_call(item.get("name"), arguments)])
    if isinstance(kind, str) and kind.endswith("_output"):
        return _message("tool", None, [_content(item.get("output"))])
    if "role" in item:
        return _message(item.get("role"), None, [_content(item.get("content"))])
    return _message(kind, None, [_block(item)])


def _message(role: object, reasoning: object, texts: list[str]) -> Message:
    name = _name(role, _LONGEST_ROLE) if isinstance(role, str) else "unknown"
    lasting = texts[0] if len(texts) == 1 else "\n".join(filter(None, texts))
    if isinstance(reasoning, str) and reasoning:
        return Message(name, f"{reasoning}\n{lasting}" if lasting else reasoning, lasting)
    return Message(name, lasting, lasting)


def _without_leading_system(messages: list[Message]) -> tuple[str | None, tuple[Message, ...]]:
    count = 0
    while count < len(messages) and messages[count].role in _SYSTEM_ROLES:
        count += 1
    texts = [message.text for message in messages[:count]]
    return "\n".join(texts) if texts else None, tuple(messages[count:])


def _system_blocks(blocks: object) -> list[str]:
    return [
        text
        for block in _list(blocks)
        if isinstance(block, dict)
        and isinstance(text := block.get("text"), str)
        and not text.startswith(_BILLING_LINE)
    ]


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text for block in content if (text := _block(block)))
    return "" if content is None else _json(content)


def _block(block: object) -> str:
    if not isinstance(block, dict):
        return block if isinstance(block, str) else _json(block)
    kind, text = block.get("type"), block.get("text")
    if not (kind is None or isinstance(kind, str)):
        return _json(block)
    if isinstance(text, str) and (kind in _TEXT_BLOCKS or kind == "summary_text"):
        return text
    if kind in _IMAGE_BLOCKS:
        return _placeholder("image", block.get("source") or block.get("image_url"))
    match kind:
        case "tool_use":
            return _call(block.get("name"), block.get("input"))
        case "tool_result":
            return _content(block.get("content"))
        case "redacted_thinking":
            return ""
        case _:
            seen = {key: value for key, value in block.items() if key not in _NOT_IN_PROMPT}
            return _placeholder(kind or "block", seen)


def _placeholder(kind: str, value: object) -> str:
    """Stand for what is no text, so that a change of it can be seen."""
    return f"[{_name(kind, _LONGEST_ROLE)} {text_digest(_json(value)).hex()}]"


def _call(name: object, arguments: object) -> str:
    given = arguments if isinstance(arguments, str) else _json(arguments)
    return f"{name if isinstance(name, str) else ''}({given})"


def _tools(tools: object) -> tuple[tuple[str, str], ...]:
    return tuple(_tool(tool) for tool in _list(tools) if isinstance(tool, dict))


def _tool(tool: dict[str, object]) -> tuple[str, str]:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    if not isinstance(name, str):
        name = tool.get("type")
    if not _NOT_IN_PROMPT.isdisjoint(tool):
        tool = {key: value for key, value in tool.items() if key not in _NOT_IN_PROMPT}
    return _name(name, _LONGEST_NAME) if isinstance(name, str) else "unnamed", _json(tool)


def _name(text: str, limit: int) -> str:
    return printable(text[:_READ_OF_NAME], limit)


def _json(value: object) -> str:
    """Write JSON without spaces, keys in the order in which they came."""
    return msgspec.json.encode(value).decode()


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
