"""Marks between vLLM's KV events that say which request an event is about.

Runs inside EngineCore, on the scheduler's own path, so each mark costs next to nothing and a
mark that cannot be made is left out. The marks travel in vLLM's own event batches.

Owns what is wrapped and in which order marks and events lie; it must not import vLLM.

- A lookup (`get_computed_blocks`) is preceded by a `LookupMark`: everything before it in the stream
  happened before the lookup. A request that reads no cache (prompt log-probabilities, prefix
  caching off) gets none, because its lookup finds nothing whatever is resident.
- Events of an allocation (`allocate_slots`: evictions, then stored blocks) are preceded by an
  `AllocationMark`, and so are blocks that an asynchronous scheduler stores later (`cache_blocks`).
  Without events there is no mark.
- vLLM can be told by a client to report blocks that it reused as stored
  (`kv_cache_report_mode`). Nothing is stored then, so these events are taken out: nobody but the
  app listens to the engine's publisher.
- After a loss the app asks for a `ContentsMark`: all that is resident behind the events before it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from itertools import islice
from typing import Any

from agentserve.engine.kv_event_wire import (
    BLOCK_HASH_BYTES,
    AllocationMark,
    ContentsMark,
    LookupMark,
)

_GROUP_BYTES = 4
"""vLLM's cache has blocks by their hash with the number of the group behind it, big endian."""
_MARKED_ATTRIBUTE = "agentserve_hashes_sent"


def install(manager_class: Any) -> None:
    """Wrap the three methods of `vllm.v1.core.kv_cache_manager.KVCacheManager`.

    Raises:
        AttributeError: The class looks different.
    """
    lookup = manager_class.get_computed_blocks
    allocate, store = manager_class.allocate_slots, manager_class.cache_blocks
    for method in (lookup, allocate, store):
        if list(inspect.signature(method).parameters)[:2] != ["self", "request"]:
            raise AttributeError(f"{method.__qualname__} takes other arguments")
    manager_class.get_computed_blocks = _marked_lookup(lookup)
    manager_class.allocate_slots = _marked_events(allocate)
    manager_class.cache_blocks = _marked_events(store)


def mark_contents(manager: Any) -> bool:
    """List what a `KVCacheManager` holds behind the events that wait to be published.

    Returns:
        False where no events are collected.

    Raises:
        AttributeError, TypeError, IndexError: The manager looks different.
    """
    queue = _event_queue(manager)
    if queue is None:
        return False
    groups = [bytearray() for _ in manager.coordinator.single_type_managers]
    for key, held in manager.block_pool.cached_block_hash_to_block._cache.items():
        block_hash = key[-_GROUP_BYTES - BLOCK_HASH_BYTES : -_GROUP_BYTES]
        copies = len(held) if isinstance(held, dict) else 1
        groups[int.from_bytes(key[-_GROUP_BYTES:], "big")] += block_hash * copies
    queue.append(ContentsMark([bytes(group) for group in groups]))
    return True


def _marked_lookup(lookup: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(lookup)
    def get_computed_blocks(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        queue = _event_queue(self)
        if queue is None:
            return lookup(self, request, *args, **kwargs)
        if (mark := _lookup_mark(self, request)) is not None:
            queue.append(mark)
        before = len(queue)
        found = lookup(self, request, *args, **kwargs)
        # A lookup changes nothing: what it adds are reports of reuse.
        del queue[before:]
        return found

    return get_computed_blocks


def _marked_events(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def marked(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        queue = _event_queue(self)
        before = 0 if queue is None else len(queue)
        result = method(self, request, *args, **kwargs)
        if queue is not None and len(queue) > before:
            queue.insert(before, AllocationMark(request.request_id))
        return result

    return marked


def _event_queue(manager: Any) -> list[Any] | None:
    """The list that events are collected in; None where none are, or where it looks different."""
    pool = getattr(manager, "block_pool", None)
    if not getattr(pool, "enable_kv_cache_events", False):
        return None
    queue = getattr(pool, "kv_event_queue", None)
    return queue if isinstance(queue, list) else None


def _lookup_mark(manager: Any, request: Any) -> LookupMark | None:
    try:
        if not manager.prefix_cache_lookup_enabled(request):
            return None
        prompt_tokens = request.num_prompt_tokens
        hashes = None
        if not getattr(request, _MARKED_ATTRIBUTE, False):
            setattr(request, _MARKED_ATTRIBUTE, True)
            whole = prompt_tokens // manager.block_pool.hash_block_size
            hashes = b"".join(h[-BLOCK_HASH_BYTES:] for h in islice(request.block_hashes, whole))
        return LookupMark(request.request_id, prompt_tokens, request.num_preemptions, hashes)
    except (AttributeError, TypeError):
        return None
