"""How many blocks of vLLM's KV pool are in use, warm and free.

Owns the counting and its cost. It runs inside EngineCore between two steps, so it must not import
vLLM, and what it spends is time in which no request gets a token.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

WALK_SHARE = 0.005
"""Most of EngineCore's time that walks over the pool may take."""


class BlockCensus:
    """Counts the blocks of one pool.

    vLLM keeps no count of cached blocks (a hash can have several blocks and a block several
    hashes), so all blocks are looked at. The next walk waits until the last one is no more than
    `WALK_SHARE` of the time since: 1 ms of walking makes counts up to 0.2 s old.

    Args:
        pool: vLLM's `BlockPool`.
        clock: Monotonic clock, seconds.
        work_clock: What a walk costs is read here: time of this thread's own, seconds, so a busy
            machine does not make counts older.
    """

    def __init__(
        self,
        pool: Any,
        clock: Callable[[], float] = time.monotonic,
        work_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._work_clock = work_clock
        self._due_s: float | None = None
        self._counts: dict[str, int] = {}

    def counts(self) -> dict[str, int]:
        """The counts of `SchedulerFacts`, all of one moment.

        Raises:
            AttributeError: The pool looks different.
        """
        now_s = self._clock()
        if self._due_s is None or now_s >= self._due_s:
            began_s = self._work_clock()
            self._counts = _walk(self._pool)
            self._due_s = now_s + (self._work_clock() - began_s) / WALK_SHARE
        return self._counts


def _walk(pool: Any) -> dict[str, int]:
    cached = [block for block in pool.blocks if block.block_hash is not None]
    warm = [block for block in cached if block.ref_cnt == 0]
    idle = pool.get_num_free_blocks()
    return {
        # The null block is a placeholder: it is in no queue and never cached.
        "blocks_in_use": pool.num_gpu_blocks - 1 - idle,
        "blocks_warm": len(warm),
        "blocks_free": idle - len(warm),
        "blocks_cached": len(cached),
    }
