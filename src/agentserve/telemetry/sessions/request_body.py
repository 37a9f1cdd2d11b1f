"""What an HTTP body says about the prompt and the session of a request.

Owns the fields of the four APIs, the ids in which agents hide a session, and the digests by which
conversations are recognised. It must not know which sessions there are. What it returns holds
prompt text: it lives in memory only.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from agentserve.domain.prompt import PartText
from agentserve.telemetry.sessions.known_items import KnownItems
from agentserve.telemetry.sessions.prompt_parts import (
    Prompt,
    anthropic_prompt,
    chat_prompt,
    completion_prompt,
    responses_prompt,
    text_digest,
)

_LONGEST_ID = 512
_SESSION_KEYS = ("sessionid", "session", "conversationid", "threadid", "chatid")
"""Keys of `metadata` that name a session, the best first, without case, `_` and `-`."""
_NUMBERED_WORD = re.compile(r"(?<![\w:.+-])[\w:.+-]*\d[\w:.+-]*")
"""Tried at the start of a word only: at each of its letters it would take quadratic time."""
_SHAPE_CHARACTERS = 2_048
"""At each end of an opener: files stand in the middle, a task and clocks at the ends."""
_SESSION_SUFFIX = re.compile(r"_session_([0-9a-fA-F][0-9a-fA-F-]{7,63})$")


class RequestBodyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one request says about itself. Holds prompt text: never to be written or logged."""

    prompt_cache_key: str | None = None
    metadata_session: str | None = None
    """A session's id in `metadata`, or in the part of a user's id that names a session."""
    user: str | None = None
    """`user`, or Anthropic's `metadata.user_id`, where it names no session."""
    parts: tuple[PartText, ...] = ()
    """System prompt, tools, messages."""
    has_tools: bool = False
    has_answers: bool = False
    """Whether there is an assistant's message among the messages."""
    system_digest: bytes = b""
    """Empty without a system prompt."""
    tools_digest: bytes = b""
    """Of the tools in their order; empty without tools."""
    message_digests: bytes = b""
    """`DIGEST_BYTES` for each message, reasoning left out; empty where there is no structure."""
    opener_digest: bytes = b""
    """Of the first message of a user; empty without one."""
    opener_shape_digest: bytes = b""
    """Of its beginning and its end, without words that hold a digit: clocks, dates, counters and
    most random ids."""


_Items = list[msgspec.Raw] | dict[str, object] | str | int | float | bool | None
"""Any shape, with the items of a list left as they came: most were read before."""


class _Body(msgspec.Struct):
    # Any shape is taken: what one client does oddly must not hide the rest.
    messages: _Items = None
    system: object = None
    instructions: object = None
    input: _Items = None
    prompt: object = None
    tools: _Items = None
    metadata: object = None
    user: object = None
    prompt_cache_key: object = None


_decode = msgspec.json.Decoder(_Body).decode

_PROMPTS: dict[str, Callable[[_Body, KnownItems], Prompt]] = {
    "/v1/chat/completions": lambda body, known: chat_prompt(body.messages, body.tools, known),
    "/v1/responses": lambda body, known: responses_prompt(
        body.instructions, body.input, body.tools, known
    ),
    "/v1/messages": lambda body, known: anthropic_prompt(
        body.system, body.messages, body.tools, known
    ),
    "/v1/completions": lambda body, _known: completion_prompt(body.prompt),
}


def read_body(route: str, body: bytes, known: KnownItems | None = None) -> RequestBodyFacts | None:
    """Read a request's body; never raises.

    Args:
        route: Path of the request.
        body: Its JSON.
        known: Spares reading again what is in prompts that are kept.

    Returns:
        What could be read, or None when the route is none of the four or the body is no object.
    """
    read_prompt = _PROMPTS.get(route)
    if read_prompt is None:
        return None
    try:
        decoded = _decode(body)
        return _facts(decoded, read_prompt(decoded, KnownItems() if known is None else known))
    except (ValueError, RecursionError):
        return None


def _facts(body: _Body, prompt: Prompt) -> RequestBodyFacts:
    metadata = body.metadata if isinstance(body.metadata, dict) else {}
    user = _id(body.user)
    metadata_user = _id(metadata.get("user_id"))
    session = _metadata_session(metadata) or _session_of(metadata_user) or _session_of(user)
    opener, shape = _opener_digests(prompt)
    return RequestBodyFacts(
        prompt_cache_key=_id(body.prompt_cache_key),
        metadata_session=session,
        user=None if session else user or metadata_user,
        parts=prompt.parts(),
        has_tools=bool(prompt.tools),
        has_answers=any(message.role == "assistant" for message in prompt.messages),
        system_digest=text_digest(prompt.system) if prompt.system else b"",
        tools_digest=text_digest(*(tool.text for tool in prompt.tools)) if prompt.tools else b"",
        message_digests=b"".join([message.digest for message in prompt.messages]),
        opener_digest=opener,
        opener_shape_digest=shape,
    )


def _opener_digests(prompt: Prompt) -> tuple[bytes, bytes]:
    for message in prompt.messages:
        if message.role == "user" and message.lasting is not None:
            if not message.opener_digest:
                message.opener_digest = text_digest(message.role, message.lasting)
                message.opener_shape_digest = _shape_digest(message.lasting)
            return message.opener_digest, message.opener_shape_digest
    return b"", b""


def _shape_digest(opener: str) -> bytes:
    if len(opener) > 2 * _SHAPE_CHARACTERS:
        opener = f"{opener[:_SHAPE_CHARACTERS]} {opener[-_SHAPE_CHARACTERS:]}"
    return text_digest(_NUMBERED_WORD.sub("", opener))


def _metadata_session(metadata: dict[str, object]) -> str | None:
    by_key = {key.lower().replace("_", "").replace("-", ""): key for key in metadata}
    for key in _SESSION_KEYS:
        if key in by_key and (session := _id(metadata[by_key[key]])) is not None:
            return session
    return None


def _session_of(user: str | None) -> str | None:
    """Return the part of a user's id that names a session.

    Claude Code sends `user_<hex>_account_<uuid>_session_<uuid>`, since 2.1.78 a JSON text with
    `device_id`, `account_uuid` and `session_id`.
    """
    if user is None:
        return None
    if user.startswith("{"):
        try:
            ids = msgspec.json.decode(user)
        except (ValueError, RecursionError):
            return None
        return _metadata_session(ids) if isinstance(ids, dict) else None
    match = _SESSION_SUFFIX.search(user)
    return match[1] if match else None


def _id(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str) and 0 < len(value) <= _LONGEST_ID:
        return value
    return None
