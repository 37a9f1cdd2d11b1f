"""Which known conversation a request continues, told by the digests of its messages.

Owns the conversations of clients that may not be mixed up with others, and the rules of descent. It
must not know ids that clients give, nor names for people.

A request descends from

1. the conversation whose whole message list begins the new one, the longest first. System prompt
   and tools may have changed. An equal list is a retry, unless the first try is still in flight:
   then it is another conversation with the same opener.
2. else the conversation with the same first user message, for its history may have been rewritten
   (dropped reasoning, compaction, another answer). One in flight is another conversation, and one
   message alone after a longer conversation begins another.
3. else the conversation whose message list it would continue but for words with a digit in the
   first user message: agents put clocks and dates there.
4. without messages, the conversation whose tokens it shares: at least one block, and at least half
   of what was known.

Requests with and without tools are apart when their system prompts differ as well: side queries
repeat the messages of the main conversation. Where several conversations fit equally well, the one
with the longest common tokens is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeVar

from agentserve.telemetry.sessions.prompt_parts import DIGEST_BYTES
from agentserve.telemetry.sessions.request_body import RequestBodyFacts

_MOST_CANDIDATES = 16
"""The most recent ones are compared where many conversations fit equally well."""


class TokenMatch(NamedTuple):
    """How far a prompt follows the newest sequence of a conversation."""

    session_id: str
    common_tokens: int
    sequence_tokens: int
    """Length of that sequence, its answer included."""
    block_tokens: int
    """Tokens of one block of the prefix cache."""

    @property
    def continues(self) -> bool:
        """Whether so much is common that it is no coincidence."""
        return (
            self.common_tokens >= max(1, self.block_tokens)
            and 2 * self.common_tokens >= self.sequence_tokens
        )


TokenLookup = Callable[[Collection[str]], TokenMatch | None]
"""Returns which of the sessions with these ids shares the longest beginning with the prompt."""


@dataclass(slots=True, eq=False)
class Conversation:
    """What is known of one conversation; its newest request counts."""

    id: str
    has_tools: bool = False
    """Whether any of its requests had tools."""
    has_answers: bool = False
    system: bytes = b""
    tools: bytes = b""
    messages: bytes = b""
    opener: bytes = b""
    opener_shape: bytes = b""
    in_flight: int = 0

    def may_be(self, facts: RequestBodyFacts) -> bool:
        """Whether a request can belong to it, by tools and system prompt."""
        return (
            not self.messages
            or self.has_tools == facts.has_tools
            or self.system == facts.system_digest
        )


class Lineage:
    """Conversations by how they begin and end; the one seen last is the last one."""

    def __init__(self) -> None:
        self._conversations: dict[str, Conversation] = {}
        self._by_end: dict[tuple[int, bytes], dict[str, Conversation]] = {}
        self._by_opener: dict[bytes, dict[str, Conversation]] = {}
        self._by_shape: dict[bytes, dict[str, Conversation]] = {}

    def __len__(self) -> int:
        return len(self._conversations)

    def latest(self, most: int = _MOST_CANDIDATES) -> list[Conversation]:
        """Return some conversations, the one seen last first."""
        return list(islice(reversed(self._conversations.values()), most))

    def latest_with_opener(self, opener: bytes) -> list[Conversation]:
        """Return some conversations that begin with a message, the one seen last first."""
        found = self._by_opener.get(opener, {})
        return list(islice(reversed(found.values()), _MOST_CANDIDATES))

    def note(self, conversation: Conversation, facts: RequestBodyFacts | None) -> None:
        """Take in a request of a conversation, which may be one that was not known."""
        self.remove(conversation)
        if facts is not None and facts.message_digests:
            conversation.has_tools |= facts.has_tools
            conversation.has_answers |= facts.has_answers
            conversation.system = facts.system_digest
            conversation.tools = facts.tools_digest
            conversation.messages = facts.message_digests
            conversation.opener = facts.opener_digest
            conversation.opener_shape = facts.opener_shape_digest
        self._conversations[conversation.id] = conversation
        if conversation.messages:
            self._by_end.setdefault(_end(conversation), {})[conversation.id] = conversation
        if conversation.opener:
            self._by_opener.setdefault(conversation.opener, {})[conversation.id] = conversation
            self._by_shape.setdefault(conversation.opener_shape, {})[conversation.id] = conversation

    def remove(self, conversation: Conversation) -> None:
        """Forget a conversation."""
        if self._conversations.pop(conversation.id, None) is None:
            return
        if conversation.messages:
            _drop(self._by_end, _end(conversation), conversation.id)
        if conversation.opener:
            _drop(self._by_opener, conversation.opener, conversation.id)
            _drop(self._by_shape, conversation.opener_shape, conversation.id)

    def descent(
        self, facts: RequestBodyFacts | None, by_tokens: TokenLookup
    ) -> Conversation | None:
        """Return the conversation that a request continues, by the rules above."""
        if facts is None or not facts.message_digests:
            return self._by_tokens(by_tokens)
        return self._continued(facts, by_tokens) or self._rewritten(facts, by_tokens)

    def _continued(self, facts: RequestBodyFacts, by_tokens: TokenLookup) -> Conversation | None:
        """Apply rule 1."""
        digests = facts.message_digests
        count = len(digests) // DIGEST_BYTES
        for length in range(count, 0, -1):
            end = digests[(length - 1) * DIGEST_BYTES : length * DIGEST_BYTES]
            found = self._by_end.get((length, end))
            if found is None:
                continue
            fitting = [
                conversation
                for conversation in reversed(found.values())
                if digests.startswith(conversation.messages) and conversation.may_be(facts)
            ]
            idle = [conversation for conversation in fitting if not conversation.in_flight]
            # A client that gave up can go on before we know that it did.
            if idle or (fitting and length < count):
                latest = (idle or fitting)[:_MOST_CANDIDATES]
                # Conversations that began together go on in the order in which they began.
                return _closest(latest[::-1], digests, by_tokens)
        return None

    def _rewritten(self, facts: RequestBodyFacts, by_tokens: TokenLookup) -> Conversation | None:
        """Apply rule 2."""
        digests = facts.message_digests
        same_opener = self._by_opener.get(facts.opener_digest)
        if same_opener is None:
            return self._with_clock_in_opener(facts, by_tokens)
        fitting = [
            conversation
            for conversation in reversed(same_opener.values())
            if not conversation.in_flight
            and conversation.may_be(facts)
            and not len(digests) == DIGEST_BYTES < len(conversation.messages)
        ]
        return _closest(fitting[:_MOST_CANDIDATES], digests, by_tokens) if fitting else None

    def _with_clock_in_opener(
        self, facts: RequestBodyFacts, by_tokens: TokenLookup
    ) -> Conversation | None:
        """Apply rule 3."""
        digests = facts.message_digests
        fitting = [
            conversation
            for conversation in reversed(self._by_shape.get(facts.opener_shape_digest, {}).values())
            if not conversation.in_flight
            and conversation.may_be(facts)
            and len(conversation.messages) < len(digests)
            and digests[DIGEST_BYTES:].startswith(conversation.messages[DIGEST_BYTES:])
        ]
        return _closest(fitting[:_MOST_CANDIDATES], digests, by_tokens) if fitting else None

    def _by_tokens(self, by_tokens: TokenLookup) -> Conversation | None:
        """Apply rule 4."""
        idle = [known.id for known in self._conversations.values() if not known.in_flight]
        match = by_tokens(idle) if idle else None
        if match is None or not match.continues:
            return None
        return self._conversations.get(match.session_id)


def _closest(fitting: list[Conversation], digests: bytes, by_tokens: TokenLookup) -> Conversation:
    """Return the one with the longest common tokens, else messages, else the first."""
    if len(fitting) == 1:
        return fitting[0]
    match = by_tokens([conversation.id for conversation in fitting])
    if match is not None and match.common_tokens > 0:
        for conversation in fitting:
            if conversation.id == match.session_id:
                return conversation
    return max(fitting, key=lambda known: _common_messages(known.messages, digests))


def _common_messages(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other)) // DIGEST_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * DIGEST_BYTES] == other[: middle * DIGEST_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low


def _end(conversation: Conversation) -> tuple[int, bytes]:
    messages = conversation.messages
    return len(messages) // DIGEST_BYTES, messages[-DIGEST_BYTES:]


_Key = TypeVar("_Key")


def _drop(index: dict[_Key, dict[str, Conversation]], key: _Key, conversation_id: str) -> None:
    found = index[key]
    del found[conversation_id]
    if not found:
        del index[key]
