"""The text of a prompt in the order in which its author wrote it, out of decoded request bodies.

Owns the shapes of messages, content blocks and tools of four APIs, flattened to text: only what
reaches a model counts, so cache hints, ids of calls and signatures are left out. It must not know
sessions or tokens. It takes decoded JSON of any shape and leaves out what it cannot read.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from agentserve.domain.prompt import PartKind, PartText, PromptPart
from agentserve.domain.text import printable
from agentserve.telemetry.sessions.known_items import KnownItems

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


class Message(msgspec.Struct, weakref=True):
    """One message."""

    role: str
    text: str
    lasting: str | None
    """The text that agents send again unchanged: without reasoning; None when there is no other."""
    digest: bytes = b""
    """Of role and `lasting`, in this process only; empty where that is None."""
    opener_digest: bytes = b""
    """Room for what is worked out for an opener only, as is the next; empty before."""
    opener_shape_digest: bytes = b""


class Tool(msgspec.Struct, frozen=True, weakref=True):
    """One tool."""

    name: str
    text: str
    """Its JSON."""


class _ReadText(PartText, frozen=True, kw_only=True, gc=False):
    """A part that keeps alive what it was read from, so that a next body finds it known."""

    source: Message | Tool | tuple[Message, ...]


class Prompt(NamedTuple):
    """A prompt before the chat template."""

    system: str | None
    tools: Sequence[Tool]
    messages: Sequence[Message]
    system_messages: tuple[Message, ...] = ()
    """Those that the system prompt was joined from."""

    def parts(self) -> tuple[PartText, ...]:
        """Return system prompt, tools and messages; messages are counted from 1."""
        parts: list[PartText] = []
        if self.system is not None:
            part = PromptPart(kind=PartKind.SYSTEM)
            parts.append(_ReadText(part=part, text=self.system, source=self.system_messages))
        for tool in self.tools:
            part = PromptPart(kind=PartKind.TOOL, name=tool.name)
            parts.append(_ReadText(part=part, text=tool.text, source=tool))
        for index, message in enumerate(self.messages, 1):
            part = _message_part(index, message.role)
            parts.append(_ReadText(part=part, text=message.text, source=message))
        return tuple(parts)


@lru_cache(maxsize=4_096)
def _message_part(index: int, role: str) -> PromptPart:
    """Return one value for all prompts: each has hundreds of messages."""
    return PromptPart(kind=PartKind.MESSAGE, index=index, role=role)


def chat_prompt(messages: object, tools: object, known: KnownItems) -> Prompt:
    """Read `/v1/chat/completions`; leading system and developer messages are the system prompt."""
    read = known.read(messages, _chat_message)
    return _without_leading_system(read, known.read(tools, _tool))


def responses_prompt(
    instructions: object, items: object, tools: object, known: KnownItems
) -> Prompt:
    """Read `/v1/responses`; each input item is one message."""
    if isinstance(items, str):
        read = [_lasting_message("user", items)]
    else:
        read = known.read(items, _response_item)
    if isinstance(instructions, str) and instructions:
        return Prompt(instructions, known.read(tools, _tool), read)
    return _without_leading_system(read, known.read(tools, _tool))


def anthropic_prompt(system: object, messages: object, tools: object, known: KnownItems) -> Prompt:
    """Read `/v1/messages`, leaving out the billing line where vLLM does."""
    system_text = system if isinstance(system, str) else "".join(_system_blocks(system))
    read = known.read(messages, _anthropic_message)
    return Prompt(system_text or None, known.read(tools, _tool), read)


def completion_prompt(prompt: object) -> Prompt:
    """Read `/v1/completions`: one text; several texts, or tokens, have no parts."""
    if isinstance(prompt, str):
        return Prompt(None, (), (Message("prompt", prompt, None),))
    return Prompt(None, (), ())


def text_digest(*texts: str) -> bytes:
    """Return `DIGEST_BYTES` bytes that tell texts apart, the same after a restart."""
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
    # One text for all messages of a role.
    name = sys.intern(_name(role, _LONGEST_ROLE)) if isinstance(role, str) else "unknown"
    lasting = texts[0] if len(texts) == 1 else "\n".join(filter(None, texts))
    message = _lasting_message(name, lasting)
    if isinstance(reasoning, str) and reasoning:
        message.text = f"{reasoning}\n{lasting}" if lasting else reasoning
    return message


def _lasting_message(role: str, text: str) -> Message:
    # Python's own hash: it is kept with the text and asked for again to count changes.
    digest = hash((role, text)).to_bytes(DIGEST_BYTES, "big", signed=True)
    return Message(role, text, text, digest)


def _without_leading_system(messages: list[Message], tools: list[Tool]) -> Prompt:
    count = 0
    while count < len(messages) and messages[count].role in _SYSTEM_ROLES:
        count += 1
    leading = tuple(messages[:count])
    system = "\n".join(message.text for message in leading) if leading else None
    return Prompt(system, tools, messages[count:], leading)


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


def _tool(tool: dict[str, object]) -> Tool:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    if not isinstance(name, str):
        name = tool.get("type")
    if not _NOT_IN_PROMPT.isdisjoint(tool):
        tool = {key: value for key, value in tool.items() if key not in _NOT_IN_PROMPT}
    return Tool(_name(name, _LONGEST_NAME) if isinstance(name, str) else "unnamed", _json(tool))


def _name(text: str, limit: int) -> str:
    return printable(text[:_READ_OF_NAME], limit)


def _json(value: object) -> str:
    """Write JSON without spaces, keys in the order in which they came."""
    return msgspec.json.encode(value).decode()


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
