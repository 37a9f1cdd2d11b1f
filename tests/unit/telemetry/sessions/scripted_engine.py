"""An engine with a small prefix cache that reports to a monitor as vLLM does.

It owns a pool of blocks of its own with the rules of vLLM's (whole blocks, least recently used goes
first, at most all tokens but one are reused), so what the monitor expects can be compared with it.
"""

from __future__ import annotations

import itertools
import json
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence

from agentserve.domain.cache_event import (
    BLOCK_HASH_TYPECODE,
    BlocksAllocated,
    BlocksRemoved,
    BlocksStored,
    CacheContents,
    CacheEvent,
    CacheEvents,
    PrefixLookup,
)
from agentserve.domain.cache_layout import FULL_ATTENTION, CacheGroupLayout, CacheLayout
from agentserve.domain.request import (
    FirstToken,
    RequestOrigin,
    RequestOutcome,
    RequestRecord,
    RequestStart,
)
from agentserve.domain.sample import CacheFacts
from agentserve.telemetry.sessions.exchange import FinishedRequest
from agentserve.telemetry.sessions.monitor import SessionMonitor

BLOCK = 16
LAYOUT = CacheLayout(
    groups=(CacheGroupLayout(kind=FULL_ATTENTION, block_tokens=BLOCK),),
    hash_block_tokens=BLOCK,
    alignment_tokens=BLOCK,
)
Message = dict[str, object]


def text_tokens(text: str) -> list[int]:
    """One token per character."""
    return [ord(character) for character in text]


def chat_text(system: str, tools: Sequence[Message], messages: Sequence[Message]) -> str:
    """A chat template: system, tools, messages."""
    lines = [f"<system>{system}\n"]
    lines += [f"<tool>{json.dumps(tool)}\n" for tool in tools]
    lines += [f"<{message['role']}>{message['content']}\n" for message in messages]
    return "".join(lines) + "<assistant>"


class ScriptedEngine:
    """Runs one request at a time.

    Args:
        monitor: Gets all reports.
        blocks: Size of the pool.
    """

    def __init__(self, monitor: SessionMonitor, blocks: int = 10_000) -> None:
        self.monitor = monitor
        self.blocks = blocks
        self.now_s = 1_000.0
        self.kept: list[str | None] = []
        """Session ids that were given to the history."""
        self._numbers = itertools.count(1)
        self.generation = 0
        self.restart()

    def restart(self, layout: CacheLayout | None = LAYOUT) -> None:
        """Begin with an empty cache."""
        self.generation += 1
        self._pool: OrderedDict[int, None] = OrderedDict()
        self.layout = layout
        self.monitor.handle(
            CacheFacts(
                generation=self.generation,
                layout=layout,
                decode=lambda ids: "".join(map(chr, ids)),
            )
        )

    def chat(
        self,
        system: str = "You help.",
        tools: Sequence[Message] = (),
        messages: Sequence[Message] = (),
        *,
        answer: str = "ok",
        **how: object,
    ) -> int:
        """Run a chat completion; see `run`."""
        body = {"messages": [{"role": "system", "content": system}, *messages], "tools": tools}
        prompt = text_tokens(chat_text(system, tools, messages))
        return self.run(prompt, answer=text_tokens(answer), body=body, **how)  # type: ignore[arg-type]

    def run(
        self,
        prompt: list[int],
        *,
        answer: Sequence[int] = (),
        body: object = None,
        agent: str = "claude-cli/2.1.0",
        header: str | None = None,
        salt: str | None = None,
        preemptions: int = 0,
        before_lookup: Callable[[], None] = lambda: None,
        cached_says: int | None = None,
        choices: int = 1,
        computed: bool = True,
        end: bool = True,
    ) -> int:
        """Run a request and return the cached tokens that were reported.

        Args:
            prompt: Token ids.
            answer: Token ids.
            body: Of the HTTP request; None asks for a completion without one.
            agent: User-Agent.
            header: `X-Session-ID`.
            salt: Of the cache.
            preemptions: That the record reports at the end.
            before_lookup: Called when the request waits.
            cached_says: What is reported instead of the truth.
            choices: Answers asked for.
            computed: False gives the request up while it waits.
            end: False leaves it in flight.
        """
        number = next(self._numbers)
        request_id = f"engine-{self.generation}-{number}"
        ids = [request_id] if choices == 1 else [f"{n}_{request_id}" for n in range(choices)]
        self.now_s += 10.0
        self.monitor.handle(
            RequestStart(
                number=number,
                generation=self.generation,
                engine_request_id=ids[0],
                origin=RequestOrigin(
                    number=number,
                    route="/v1/chat/completions" if body is not None else "/v1/completions",
                    user_agent=agent,
                    session_header=header,
                ),
                at_unix_s=self.now_s,
                choices=choices,
                prompt_token_ids=prompt,
                cache_salt=salt,
                body=None if body is None else json.dumps(body).encode(),
            )
        )
        before_lookup()
        if not computed:
            self.finish(number, prompt, (), None, outcome=RequestOutcome.ABORTED)
            return 0
        hashes = self._hashes([*prompt], salt)
        cached = self._hit(hashes, len(prompt))
        events: list[CacheEvent] = [
            *(
                PrefixLookup(
                    request_id=one,
                    prompt_tokens=len(prompt),
                    preemptions=0,
                    block_hashes=array("Q", hashes),
                )
                for one in reversed(ids)
            ),
            BlocksAllocated(ids[0]),
            *self._allocate(self._hashes([*prompt, *answer], salt)),
        ]
        self.monitor.handle(CacheEvents(generation=self.generation, events=tuple(events)))
        reported = cached if cached_says is None else cached_says
        self.monitor.handle(
            FirstToken(
                number=number,
                ttft_s=1.0,
                queued_s=0.0,
                cached_tokens=reported,
                prompt_tokens=len(prompt),
            )
        )
        if end:
            self.finish(number, prompt, answer, reported, preemptions)
        return reported

    def finish(
        self,
        number: int,
        prompt: Sequence[int],
        answer: Sequence[int],
        cached: int | None,
        preemptions: int = 0,
        outcome: RequestOutcome = RequestOutcome.STOP,
    ) -> None:
        """Report the end of a request."""
        self.monitor.handle(
            FinishedRequest(
                RequestRecord(
                    number=number,
                    request_id=f"client-{number}",
                    generation=self.generation,
                    route=None,
                    agent=None,
                    finished_at_unix_s=self.now_s,
                    outcome=outcome,
                    choices=1,
                    prompt_tokens=len(prompt),
                    cached_tokens=cached,
                    computed_tokens=None if cached is None else len(prompt) - cached,
                    generated_tokens=len(answer),
                    queued_s=0.0,
                    ttft_s=1.0,
                    decode_s=0.1,
                    elapsed_s=1.1,
                    preemptions=preemptions,
                ),
                answer,
                self.kept.append,
            )
        )

    def listing(self) -> CacheContents:
        """All that is in the pool."""
        return CacheContents((array(BLOCK_HASH_TYPECODE, self._pool),))

    def _hashes(self, tokens: list[int], salt: str | None) -> list[int]:
        ends = range(BLOCK, len(tokens) + 1, BLOCK)
        seed = (self.generation, salt)
        return [hash((seed, tuple(tokens[:end]))) & (2**64 - 1) for end in ends]

    def _hit(self, hashes: list[int], prompt_tokens: int) -> int:
        found = list(itertools.takewhile(self._pool.__contains__, hashes))
        return min(len(found), (prompt_tokens - 1) // BLOCK) * BLOCK

    def _allocate(self, hashes: list[int]) -> list[CacheEvent]:
        wanted = set(hashes)
        stored = tuple(one for one in hashes if one not in self._pool)
        room = max(0, len(self._pool) + len(stored) - self.blocks)
        gone = tuple(itertools.islice((one for one in self._pool if one not in wanted), room))
        for one in gone:
            del self._pool[one]
        # The end of a sequence is freed first.
        for one in reversed(hashes):
            self._pool[one] = None
            self._pool.move_to_end(one)
        events: list[CacheEvent] = []
        if gone:
            events.append(BlocksRemoved(group=0, hashes=gone))
        if stored:
            events.append(BlocksStored(group=0, hashes=stored))
        return events
