"""The replay of cache events and the prediction of reuse, against vLLM's own cache manager."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentserve.domain.cache_event import (
    BlocksAllocated,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    PrefixLookup,
)
from agentserve.domain.cache_layout import CacheGroupLayout, CacheLayout
from agentserve.engine.vllm.torchvision_ops import child_python_path
from agentserve.telemetry.prefix_cache.residency import ResidencyMap
from agentserve.telemetry.prefix_cache.reuse import find_reuse, resident_tokens

pytest.importorskip("tokenizers", reason="comes with the engine extras")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
Scenario = dict[str, Any]
Play = Callable[[Scenario], dict[str, Any]]


def attention(block: int, *, drops: bool = False, head_size: int = 1) -> dict[str, Any]:
    return {
        "kind": "full_attention",
        "block_tokens": block,
        "drops": drops,
        "head_size": head_size,
    }


def state(block: int) -> dict[str, Any]:
    return {"kind": "mamba", "block_tokens": block, "drops": False}


def model(
    *groups: dict[str, Any], hashes: int, scheduler: int, state_mode: str = "align"
) -> Scenario:
    return {
        "groups": list(groups),
        "hash_block_tokens": hashes,
        "scheduler_block_tokens": scheduler,
        "state_mode": state_mode,
    }


MODELS = {
    "dense": model(attention(4), hashes=4, scheduler=4),
    "dense with a draft": model(attention(4, drops=True), hashes=4, scheduler=4),
    "draft in a group of its own": model(
        attention(4), attention(4, drops=True, head_size=2), hashes=4, scheduler=4
    ),
    "two attention block sizes": model(
        attention(8), attention(4, head_size=2), hashes=4, scheduler=8
    ),
    "hybrid": model(attention(8), state(8), hashes=8, scheduler=8),
    "hybrid with three state groups": model(
        attention(4), state(4), state(4), state(4), hashes=4, scheduler=4
    ),
    "hybrid with a draft": model(attention(4, drops=True), state(4), hashes=4, scheduler=4),
    "hybrid with larger attention blocks": model(attention(8), state(4), hashes=4, scheduler=8),
    "hybrid with larger attention blocks and a draft": model(
        attention(8, drops=True), state(4), hashes=4, scheduler=8
    ),
    "hybrid with larger states": model(
        attention(2), state(8), hashes=2, scheduler=8, state_mode="all"
    ),
    "hybrid with larger states and a draft": model(
        attention(2, drops=True), state(8), hashes=2, scheduler=8, state_mode="all"
    ),
    "hits inside a state": model(attention(2), state(8), hashes=2, scheduler=8),
    "hits inside a block": model(attention(8), state(8), hashes=2, scheduler=8),
    "hits inside a block, two state groups": model(
        attention(8), state(8), state(8), hashes=2, scheduler=8
    ),
    "hits inside a block with a draft": model(
        attention(8, drops=True), state(8), hashes=2, scheduler=8
    ),
}


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    """Plays scenarios in a process that has imported vLLM."""
    environment = {**os.environ, "PYTHONPATH": child_python_path(os.environ.get("PYTHONPATH"))}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.vllm_block_pool"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=environment,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        source, sink = child.stdout, child.stdin

        def ask(scenario: Scenario) -> dict[str, Any]:
            sink.write(json.dumps(scenario) + "\n")
            sink.flush()
            answer: dict[str, Any] = json.loads(source.readline())
            return answer

        yield ask
        sink.close()


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Requests that share prefixes, one after the other and at once, in a pool that is too small.

    A turn is a whole request: its prompt continues, repeats or leaves a sequence known before.
    """
    sequences: list[list[int]] = [[]]
    running: list[str] = []
    steps: list[dict[str, Any]] = []
    fresh = iter(range(100_000))

    def new_tokens(most: int, least: int = 0) -> list[int]:
        return [next(fresh) for _ in range(draw(st.integers(least, most)))]

    def add(kind: str, request_id: str, tokens: list[int]) -> None:
        steps.append({"do": kind, "id": request_id, "tokens": tokens})

    for number in range(draw(st.integers(4, 20))):
        kind = draw(st.sampled_from(["turn"] * 10 + ["start", "start", "end", "end", "clear"]))
        request_id = f"r{number}"
        if kind in ("turn", "start"):
            known = draw(st.sampled_from(sequences))
            shared = len(known) if draw(st.booleans()) else draw(st.integers(0, len(known)))
            prompt = known[:shared] + new_tokens(24, least=0 if shared else 1)
            add("start", request_id, prompt)
            answer = new_tokens(9)
            add("decode", request_id, answer)
            sequences.append(prompt + answer)
            if kind == "turn":
                add("free", request_id, [])
            else:
                running.append(request_id)
        elif kind == "end" and running:
            add("free", running.pop(draw(st.integers(0, len(running) - 1))), [])
        elif kind == "clear":
            add(kind, request_id, [])
    return {
        "steps": steps,
        "blocks": draw(st.integers(12, 48)),
        "retention": draw(st.sampled_from([0, None])),
    }


def layout_of(answer: dict[str, Any]) -> CacheLayout:
    told = answer["layout"]
    return CacheLayout(
        groups=tuple(CacheGroupLayout(**group) for group in told["groups"]),
        hash_block_tokens=told["hash_block_tokens"],
        alignment_tokens=told["alignment_tokens"],
    )


def replay(residency: ResidencyMap, entry: dict[str, Any]) -> None:
    match entry:
        case {"event": "BlockStored"}:
            hashes = tuple(entry["hashes"])
            residency.apply(BlocksStored(group=entry["group"], hashes=hashes))
        case {"event": "BlockRemoved"}:
            hashes = tuple(entry["hashes"])
            residency.apply(BlocksRemoved(group=entry["group"], hashes=hashes))
        case {"event": "AllBlocksCleared"}:
            residency.apply(CacheCleared())
        case {"mark": "allocated"}:
            residency.apply(BlocksAllocated(entry["id"]))
        case {"mark": "lookup"}:
            residency.apply(
                PrefixLookup(
                    request_id=entry["id"],
                    prompt_tokens=entry["prompt_tokens"],
                    preemptions=0,
                    block_hashes=array("Q", entry["hashes"]),
                )
            )


@pytest.mark.parametrize("name", MODELS)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(scenario=scenarios())
def test_reuse_is_what_vllm_finds(name: str, play: Play, scenario: Scenario) -> None:
    answer = play({**MODELS[name], **scenario})
    residency = ResidencyMap(layout_of(answer))
    for entry in answer["trace"]:
        replay(residency, entry)
        if entry.get("mark") == "lookup":
            hashes = array("Q", entry["hashes"])
            reuse = find_reuse(residency, hashes, entry["prompt_tokens"])
            assert reuse is not None
            assert reuse.expected_tokens == entry["hit_tokens"]
            assert resident_tokens(residency, hashes) == entry["continued_hit_tokens"]
    resident = {(group, each): count for group, each, count in answer["resident"]}
    assert residency.cached_blocks == sum(resident.values())
    assert residency.unmatched_removals == 0
    assert all(residency.copies(*key) == count for key, count in resident.items())
    listed = Counter(
        (group, each) for group, hashes in enumerate(answer["listed"]) for each in hashes
    )
    assert listed == resident


@pytest.mark.parametrize("name", MODELS)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(scenario=scenarios())
def test_the_census_of_blocks_is_what_counting_them_one_by_one_gives(
    name: str, play: Play, scenario: Scenario
) -> None:
    answer = play({**MODELS[name], **scenario})
    assert len(answer["counts"]) == len(scenario["steps"])
    for census, counted in answer["counts"]:
        assert census == counted
