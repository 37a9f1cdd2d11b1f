"""vLLM's own block pool as a child process: plays a scenario, tells the events and the truth.

Run as `python -m tests.e2e.vllm_block_pool`: one JSON scenario per line of input, one JSON trace
per line of output. A process of its own, so that vLLM is not imported into the tests.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    get_block_hash,
    get_group_id,
    get_request_block_hasher,
    init_none_hash,
    maybe_convert_block_hash,
)
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    get_mamba_prefill_checkpoint_position,
)
from vllm.v1.request import Request

from agentserve.domain.cache_event import CacheContents
from agentserve.engine.kv_event_wire import decode_events
from agentserve.engine.vllm import cache_marks
from agentserve.engine.vllm.block_census import BlockCensus

MAX_TOKENS = 4096
FRESH_TOKEN = 1_000_000
"""Tokens from here on occur in no scenario."""


class Pool:
    """One scenario's cache manager, with the marks that our plugin makes around its calls."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.hash_block = scenario["hash_block_tokens"]
        groups = [
            KVCacheGroupSpec(
                [f"layer{index}"],
                _spec(group, scenario["state_mode"]),
                is_eagle_group=group["drops"],
            )
            for index, group in enumerate(scenario["groups"])
        ]
        self.draft = any(group["drops"] for group in scenario["groups"])
        retention = scenario["retention"] if self.has_states(scenario) else None
        self.manager = KVCacheManager(
            KVCacheConfig(
                scenario["blocks"], [], groups, prefix_cache_retention_interval=retention
            ),
            max_model_len=MAX_TOKENS,
            scheduler_block_size=scenario["scheduler_block_tokens"],
            hash_block_size=self.hash_block,
            enable_caching=True,
            use_eagle=self.draft,
            enable_kv_cache_events=True,
        )
        self.chunk_tokens = scenario["scheduler_block_tokens"]
        self.align = self.has_states(scenario)
        self.hasher = get_request_block_hasher(self.hash_block, sha256)
        self.trace: list[dict[str, Any]] = []
        self.running: dict[str, Request] = {}
        self.counts: list[tuple[dict[str, int], dict[str, int]]] = []
        """After each step: by the census, and one by one."""

    @staticmethod
    def has_states(scenario: dict[str, Any]) -> bool:
        return any(group["kind"] == "mamba" for group in scenario["groups"])

    def layout(self) -> dict[str, Any]:
        coordinator = self.manager.coordinator
        alignment = getattr(coordinator, "_cache_hit_alignment_tokens", None)
        return {
            "groups": [
                {
                    "kind": "mamba"
                    if isinstance(each.kv_cache_spec, MambaSpec)
                    else "full_attention",
                    "block_tokens": each.block_size,
                    "drops_last_block": bool(each.use_eagle),
                }
                for each in coordinator.single_type_managers
            ],
            "hash_block_tokens": self.hash_block,
            "alignment_tokens": alignment or coordinator.single_type_managers[0].block_size,
        }

    def play(self, step: dict[str, Any]) -> None:
        request_id: str = step["id"]
        match step["do"]:
            case "start":
                self.start(request_id, step["tokens"])
            case "decode" if request_id in self.running:
                self.decode(self.running[request_id], step["tokens"])
            case "free" if request_id in self.running:
                self.free(self.running[request_id])
            case "clear":
                for request in list(self.running.values()):
                    self.free(request)
                self.manager.reset_prefix_cache()
        self.take_events()
        self.counts.append((BlockCensus(self.manager.block_pool).counts(), self.counted()))

    def counted(self) -> dict[str, int]:
        blocks = [block for block in self.manager.block_pool.blocks if not block.is_null]
        states = [(block.ref_cnt > 0, block.block_hash is not None) for block in blocks]
        return {
            "blocks_in_use": states.count((True, True)) + states.count((True, False)),
            "blocks_warm": states.count((False, True)),
            "blocks_free": states.count((False, False)),
            "blocks_cached": states.count((True, True)) + states.count((False, True)),
        }

    def start(self, request_id: str, tokens: list[int]) -> None:
        request = self.request(request_id, tokens)
        self.manager.new_step_starts()
        hit, hit_tokens, request.shared_prefix_boundary = self.look_up(request)
        while request.num_computed_tokens + hit_tokens < request.num_tokens:
            start = request.num_computed_tokens + hit_tokens
            new = self.chunk_end(request, start) - start
            if not self.allocate(request, new, hit_tokens, hit):
                return
            request.num_computed_tokens = start + new
            hit, hit_tokens = None, 0
        self.running[request_id] = request

    def request(self, request_id: str, tokens: list[int]) -> Request:
        return Request(
            request_id=request_id,
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=MAX_TOKENS),
            pooling_params=None,
            block_hasher=self.hasher,
        )

    def look_up(self, request: Request) -> tuple[Any, int, int]:
        self.take_events()
        hashes = [maybe_convert_block_hash(each) for each in request.block_hashes]
        found: tuple[Any, int, int] = self.manager.get_computed_blocks(request)
        fresh = range(FRESH_TOKEN, FRESH_TOKEN + 2 * self.chunk_tokens)
        longer = self.request("longer", [*request.all_token_ids, *fresh])
        self.trace.append(
            {
                "mark": "lookup",
                "id": request.request_id,
                "prompt_tokens": request.num_tokens,
                "hashes": hashes,
                "hit_tokens": found[1],
                "continued_hit_tokens": self.manager.get_computed_blocks(longer)[1],
            }
        )
        return found

    def chunk_end(self, request: Request, start: int) -> int:
        """Where a prefill chunk ends: states are stored at block edges and at the tail only."""
        end: int = request.num_tokens
        if not self.align:
            return end
        last: int = get_mamba_prefill_checkpoint_position(end, self.hash_block, self.draft)
        edge = (start // self.chunk_tokens + 1) * self.chunk_tokens
        return min([each for each in (edge, last, end) if each > start])

    def allocate(self, request: Request, new: int, hit_tokens: int, hit: Any) -> bool:
        self.manager.new_step_starts()
        self.take_events()
        self.trace.append({"mark": "allocated", "id": request.request_id})
        done = self.manager.allocate_slots(request, new, hit_tokens, hit)
        _, retained = self.manager.take_kv_cache_block_copies()
        self.manager.block_pool.free_blocks(retained)
        self.take_events()
        if done is None:
            self.free(request)
        return done is not None

    def decode(self, request: Request, tokens: list[int]) -> None:
        for token in tokens:
            request.append_output_token_ids(token)
            if not self.allocate(request, 1, 0, None):
                return
            request.num_computed_tokens += 1

    def free(self, request: Request) -> None:
        self.manager.free(request)
        self.running.pop(request.request_id, None)

    def take_events(self) -> None:
        for event in self.manager.take_events():
            kind = type(event).__name__
            if kind == "AllBlocksCleared":
                self.trace.append({"event": kind})
            else:
                self.trace.append(
                    {"event": kind, "group": event.group_idx, "hashes": event.block_hashes}
                )

    def listed(self) -> list[list[int]]:
        """Hashes of each group, as a listing brings them to the app."""
        assert cache_marks.mark_contents(self.manager)
        mark = self.manager.block_pool.kv_event_queue.pop()
        (listing,) = decode_events(msgspec.msgpack.encode([0.0, [mark]]))
        assert isinstance(listing, CacheContents)
        return [list(hashes) for hashes in listing.groups]

    def resident(self) -> list[tuple[int, int, int]]:
        """Group, hash and number of copies of everything that is cached."""
        cache = self.manager.block_pool.cached_block_hash_to_block._cache
        return [
            (
                get_group_id(key),
                maybe_convert_block_hash(get_block_hash(key)),
                len(blocks) if isinstance(blocks, dict) else 1,
            )
            for key, blocks in cache.items()
        ]


def _spec(group: dict[str, Any], state_mode: str) -> Any:
    if group["kind"] == "mamba":
        return MambaSpec(
            block_size=group["block_tokens"],
            shapes=((1,),),
            dtypes=(torch.float32,),
            mamba_cache_mode=state_mode,
        )
    return FullAttentionSpec(
        block_size=group["block_tokens"],
        num_kv_heads=1,
        head_size=group["head_size"],
        dtype=torch.float32,
    )


def main() -> None:
    init_none_hash(sha256)
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        scenario = json.loads(line)
        pool = Pool(scenario)
        for step in scenario["steps"]:
            pool.play(step)
        answer = {
            "layout": pool.layout(),
            "trace": pool.trace,
            "resident": pool.resident(),
            "listed": pool.listed(),
            "counts": pool.counts,
        }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
