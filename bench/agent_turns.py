"""Turns of agents with large prompts, and what an engine reports about them.

Owns invented prompts and a pool of blocks that forgets the oldest ones; turns are made when they
are asked for, so a thousand of them never exist at once. It must not know what is measured.
"""

from __future__ import annotations

import functools
import random
import time
from array import array
from collections import deque
from typing import NamedTuple

import msgspec

from agentserve.domain.cache_event import (
    BLOCK_HASH_TYPECODE,
    BlocksAllocated,
    BlocksRemoved,
    BlocksStored,
    CacheEvent,
    CacheEvents,
    PrefixLookup,
)
from agentserve.domain.cache_layout import FULL_ATTENTION, MAMBA, CacheGroupLayout, CacheLayout
from agentserve.domain.request import (
    FirstToken,
    RequestOrigin,
    RequestOutcome,
    RequestRecord,
    RequestStart,
)
from agentserve.domain.sample import CacheFacts
from tests.client_shapes import claude_code
from tests.client_shapes.shape import Conversation

GENERATION = 1
POOL_TOKENS = 2_000_000
"""What fits into the KV pool: of the order of a server with one large GPU."""
ANSWER_TOKENS = 200
STEP_TOKENS = 2_048
"""Tokens that are computed, and so stored, in one step of the engine."""

_TOKEN_TYPECODE = "I"
_TOKENS_PER_CALL = 1_000
_FILE_COPIES = 17
"""Makes a file that a tool has read about 4.6 KB long: a call then has about 1,000 tokens."""
_NAME = "SESSION-NAME"
_CONVERSATION = Conversation(f"Fix the bug. {_NAME}", name="large")
_SYSTEM = "You are a coding agent in a terminal."

DENSE_16 = CacheLayout(
    groups=(CacheGroupLayout(kind=FULL_ATTENTION, block_tokens=16),),
    hash_block_tokens=16,
    alignment_tokens=16,
)
HYBRID_784 = CacheLayout(
    groups=(
        *(CacheGroupLayout(kind=MAMBA, block_tokens=784) for _ in range(3)),
        CacheGroupLayout(kind=FULL_ATTENTION, block_tokens=784),
    ),
    hash_block_tokens=784,
    alignment_tokens=784,
)
"""As vLLM cuts the cache of a hybrid model: one state for each block that is kept."""


class Prompt(NamedTuple):
    """One prompt, as a client sends it and as the engine sees it."""

    body: bytes
    token_ids: list[int]
    sequence_hashes: array[int]
    """Of each whole block of prompt and answer."""
    answer_token_ids: array[int]
    """What a longer prompt of the same name goes on with."""


class Turn(NamedTuple):
    """What an engine reports about one request."""

    start: RequestStart
    events: tuple[CacheEvents, ...]
    """The lookup with the first step's stores, then those of each further step."""
    first: FirstToken
    record: RequestRecord
    answer_token_ids: array[int]


def large_prompt(
    name: str, tokens: int, layout: CacheLayout, *, shared_tokens: int | None = None
) -> Prompt:
    """Make the prompt of an agent that has read one file for each 1,000 tokens.

    Args:
        name: Of the conversation: a longer prompt of the same name begins with the shorter one.
        tokens: Length; the body has about 4.7 bytes for each.
        layout: How the engine's cache is cut.
        shared_tokens: Where it parts from other prompts of this name, in its system prompt; None
            for nowhere.
    """
    body = _body(tokens // _TOKENS_PER_CALL).replace(_NAME, name)
    body = body.replace(_CONVERSATION.session_id, Conversation("", name).session_id)
    # Below 256: such numbers exist once in Python, and so need no memory of their own.
    token_ids = _numbers(name, "B", 1, tokens + ANSWER_TOKENS)
    answer_token_ids = array(_TOKEN_TYPECODE, token_ids[tokens:])
    del token_ids[tokens:]
    blocks = (tokens + ANSWER_TOKENS) // layout.hash_block_tokens
    hashes = _numbers(f"{name} hash", BLOCK_HASH_TYPECODE, 8, blocks)
    if shared_tokens is not None:
        body = body.replace(_SYSTEM, f"{_SYSTEM} Rules of {tokens}.", 1)
        other = _numbers(f"{name} {tokens}", "B", 1, tokens)
        token_ids[shared_tokens:] = other[shared_tokens:]
        kept = shared_tokens // layout.hash_block_tokens
        hashes[kept:] = _numbers(f"{name} hash {tokens}", BLOCK_HASH_TYPECODE, 8, blocks)[kept:]
    return Prompt(body.encode(), token_ids.tolist(), hashes, answer_token_ids)


@functools.lru_cache(maxsize=8)
def _body(calls: int) -> str:
    body = claude_code.turn(_CONVERSATION, calls + 1)
    body["metadata"]["user_id"] = claude_code.old_user_id(_CONVERSATION)
    for call, message in enumerate(body["messages"][2::2], 1):
        (result,) = message["content"]
        file = [_CONVERSATION.file(call)] * _FILE_COPIES
        result["content"][0]["text"] = "\n".join([_NAME, *file])
    return msgspec.json.encode(body).decode()


def _numbers(seed: str, typecode: str, item_bytes: int, count: int) -> array[int]:
    """Random numbers; more of the same seed begin with the same ones."""
    # Whole 32 bit words: only then is a longer draw the continuation of a shorter one.
    drawn = random.Random(seed).randbytes(-(-count * item_bytes // 4) * 4)
    return array(typecode, drawn)[:count]


class InventedEngine:
    """Reports turns as an engine does whose pool makes room by forgetting what was stored first.

    Args:
        layout: How its cache is cut.
        pool_tokens: Size of its pool, in tokens of each group.
    """

    def __init__(self, layout: CacheLayout, pool_tokens: int = POOL_TOKENS) -> None:
        self.layout = layout
        self._free_blocks = pool_tokens // layout.hash_block_tokens
        # Of arrays: it must add next to nothing to what a monitor's memory is measured in.
        self._stored: deque[array[int]] = deque()
        self._requests = 0

    def facts(self) -> CacheFacts:
        """What it says before its first request."""
        return CacheFacts(generation=GENERATION, layout=self.layout, decode=_decode)

    def run(self, prompt: Prompt, resident_tokens: int = 0) -> Turn:
        """Serve one request.

        Args:
            prompt: What is asked.
            resident_tokens: How much of it is in the pool since an earlier turn.
        """
        self._requests += 1
        number, request_id = self._requests, f"request-{self._requests}"
        tokens = len(prompt.token_ids)
        hashes = prompt.sequence_hashes[: tokens // self.layout.hash_block_tokens]
        cached_blocks = resident_tokens // self.layout.hash_block_tokens
        cached = cached_blocks * self.layout.hash_block_tokens
        lookup = PrefixLookup(
            request_id=request_id, prompt_tokens=tokens, preemptions=0, block_hashes=hashes
        )
        new = self._chunks(prompt.sequence_hashes[cached_blocks:])
        steps = [self._step(request_id, chunk) for chunk in new] or [()]
        return Turn(
            start=RequestStart(
                number=number,
                generation=GENERATION,
                engine_request_id=request_id,
                origin=RequestOrigin(
                    number=number,
                    route=claude_code.SHAPE.route,
                    user_agent=claude_code.SHAPE.user_agent,
                ),
                at_unix_s=time.time(),
                choices=1,
                prompt_token_ids=prompt.token_ids,
                cache_salt=None,
                body=prompt.body,
            ),
            events=tuple(
                CacheEvents(generation=GENERATION, events=events)
                for events in ((lookup, *steps[0]), *steps[1:])
            ),
            first=FirstToken(
                number=number, ttft_s=0.5, queued_s=0.0, cached_tokens=cached, prompt_tokens=tokens
            ),
            record=RequestRecord(
                number=number,
                request_id=request_id,
                generation=GENERATION,
                route=claude_code.SHAPE.route,
                agent=claude_code.SHAPE.user_agent,
                finished_at_unix_s=time.time(),
                outcome=RequestOutcome.STOP,
                choices=1,
                prompt_tokens=tokens,
                cached_tokens=cached,
                computed_tokens=tokens - cached,
                generated_tokens=ANSWER_TOKENS,
                queued_s=0.0,
                ttft_s=0.5,
                decode_s=1.0,
                elapsed_s=1.5,
                preemptions=0,
            ),
            answer_token_ids=prompt.answer_token_ids,
        )

    def _chunks(self, hashes: array[int]) -> list[array[int]]:
        blocks = max(1, STEP_TOKENS // self.layout.hash_block_tokens)
        return [hashes[start : start + blocks] for start in range(0, len(hashes), blocks)]

    def _step(self, request_id: str, hashes: array[int]) -> tuple[CacheEvent, ...]:
        """Make room, then store the same blocks in each group."""
        groups = range(len(self.layout.groups))
        self._stored.append(hashes)
        self._free_blocks -= len(hashes)
        evicted: list[int] = []
        while self._free_blocks < 0:
            oldest = self._stored.popleft()
            self._free_blocks += len(oldest)
            # The end of a sequence goes first.
            evicted += reversed(oldest)
        return (
            BlocksAllocated(request_id),
            # vLLM sends one event for each block that leaves, one for all that are stored.
            *(
                BlocksRemoved(group=group, hashes=(block_hash,))
                for block_hash in evicted
                for group in groups
            ),
            *(BlocksStored(group=group, hashes=tuple(hashes)) for group in groups),
        )


def _decode(token_ids: object) -> str:
    """Stand for a tokenizer: 64 tokens on each side of a difference cost next to nothing."""
    return "".join(chr(97 + token % 26) for token in token_ids)  # type: ignore[attr-defined]
