"""What one vLLM engine tells the observer about its prefix cache.

Owns the endpoints of the engine's events, the stream that reads them, and the facts that are asked
for once. What the events say is for others to judge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentserve.domain.cache_event import CacheEvents, CacheEventsLost
from agentserve.domain.cache_layout import CacheLayout
from agentserve.domain.sample import CacheFacts
from agentserve.engine.app_log import log_line
from agentserve.engine.backend import StartOrder
from agentserve.engine.kv_event_stream import KvEventStream
from agentserve.engine.vllm.plugin import CONTENTS_METHOD, LAYOUT_METHOD, plugin_loaded

_LISTING_PAUSE_S = 60.0
"""After a listing, which takes EngineCore some milliseconds for 10,000 blocks."""


def kv_events_endpoint(runtime_dir: Path) -> str:
    """Where the engine publishes its KV events; in a folder that only we can enter."""
    return f"ipc://{runtime_dir}/kv-events"


def kv_replay_endpoint(runtime_dir: Path) -> str:
    """Where the engine sends past KV events again."""
    return f"ipc://{runtime_dir}/kv-replay"


class CacheReports:
    """Reports the cache of one engine from `open` to `close`.

    Args:
        llm: The engine client.
        order: Names the observer, the generation and the folder for sockets.
    """

    def __init__(self, llm: Any, order: StartOrder) -> None:
        self._llm = llm
        self._observer = order.observer
        self._generation = order.mark.generation
        runtime_dir = order.mark.runtime_dir
        self._stream = KvEventStream(
            kv_events_endpoint(runtime_dir),
            kv_replay_endpoint(runtime_dir),
            self._generation,
            self._deliver,
        )
        self._lost = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Report the facts, then receive events; to be called before the first request."""
        facts = CacheFacts(
            generation=self._generation, layout=await self._layout(), decode=_decoder(self._llm)
        )
        self._observer.cache_facts(facts)
        if facts.layout is not None:
            self._loop = asyncio.get_running_loop()
            self._listing = asyncio.create_task(self._list_after_losses())
        self._stream.start()

    def end(self) -> None:
        """Let the stream end, without waiting for it; on the loop of `open`."""
        if self._listing is not None:
            self._listing.cancel()
        self._stream.close(timeout_s=0.0)

    def close(self) -> None:
        """End the stream; blocks for a moment; any number of times, from any thread."""
        self._stream.close()

    def _deliver(self, events: CacheEvents | CacheEventsLost) -> None:
        """Hand on, on the stream's thread."""
        self._observer.cache_events(events)
        if isinstance(events, CacheEventsLost) and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._lost.set)

    async def _list_after_losses(self) -> None:
        """Ask the engine to list what is resident, since a gap cannot be repaired otherwise."""
        while True:
            await self._lost.wait()
            self._lost.clear()
            try:
                listed = await self._llm.engine_core.call_utility_async(CONTENTS_METHOD)
            except Exception as error:  # noqa: BLE001 - vLLM looks different, or is dead
                log_line(f"The prefix cache cannot be listed: {error}")
                return
            if not listed:
                return
            await asyncio.sleep(_LISTING_PAUSE_S)

    async def _layout(self) -> CacheLayout | None:
        if not plugin_loaded():
            return None
        try:
            answer = await self._llm.engine_core.call_utility_async(LAYOUT_METHOD)
            return None if answer is None else msgspec.convert(answer, CacheLayout)
        except Exception as error:  # noqa: BLE001 - vLLM looks different: nothing can be expected
            log_line(f"The layout of the prefix cache is not known: {error}")
            return None


def _decoder(llm: Any) -> Callable[[Sequence[int]], str] | None:
    """Token ids to text; None for a model without a tokenizer.

    Decoding changes nothing in a tokenizer, so it may run beside vLLM's own use of it.
    """
    tokenizer = getattr(getattr(llm, "renderer", None), "tokenizer", None)
    if tokenizer is None:
        return None

    def decode(token_ids: Sequence[int]) -> str:
        try:
            return str(tokenizer.decode(list(token_ids), skip_special_tokens=False))
        except Exception:  # noqa: BLE001 - a tokenizer may raise anything, on ids out of its range
            return ""

    return decode
