from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.lifecycle import PHASE_ORDER, StartPhase
from agentserve.engine.phases import PhaseTracker, phase_of_line

CORE = "(EngineCore pid=10) INFO 11-29 19:25:49 [x.py:133] "
WORKER = "(Worker_TP0 pid=11) INFO 11-29 19:25:57 [x.py:68] "

CPU_START: list[tuple[str, StartPhase | None]] = [
    ("(APIServer pid=9) INFO 11-29 19:25:42 [model.py:2152] Using max model len 8192", None),
    (CORE + "Initializing a V1 LLM engine (v0.32.0) with config: model='/m'", StartPhase.SPAWN),
    (CORE + "DP group leader: node_rank=0, node_rank_within_dp=0", StartPhase.SPAWN),
    (WORKER + "world_size=2 rank=0 local_rank=0 backend=gloo", StartPhase.SPAWN),
    (WORKER + "rank 0 in world size 2 is assigned as DP rank 0", StartPhase.SPAWN),
    (WORKER + "Starting to load model /m...", StartPhase.LOAD),
    (WORKER + "Initializing model took 0.212092 seconds", StartPhase.LOAD),
    (WORKER + "Warming up model for the compilation...", StartPhase.PROFILE),
    (WORKER + "Initial profiling/warmup run took 0.15 s", StartPhase.PROFILE),
    (WORKER + "Explicitly set (1.0/8.21) GiB for KV cache on node 0.", StartPhase.KV_CACHE),
    (
        CORE + "CPU KV cache size: 1,412,473 tokens, Maximum concurrency for 8,192 tokens: 172.42x",
        StartPhase.KV_CACHE,
    ),
    (CORE + "init engine (profile, create kv cache, warmup model) took 3.02 s", None),
]

GPU_LINES: list[tuple[str, StartPhase | None]] = [
    (WORKER + "vLLM is using nccl==2.28.9", StartPhase.SPAWN),
    (WORKER + "Starting to load model org/m...", StartPhase.LOAD),
    ("Loading safetensors checkpoint shards:   0% Completed | 0/8", StartPhase.LOAD),
    (WORKER + "Loading weights took 9.41 seconds", StartPhase.LOAD),
    (WORKER + "Model loading took 9.77 GiB memory and 11.020000 seconds", StartPhase.PROFILE),
    (WORKER + "Dynamo bytecode transform time: 6.93 s", StartPhase.PROFILE),
    (WORKER + "Profiling CUDA graph memory: PIECEWISE=3", StartPhase.PROFILE),
    (WORKER + "Available KV cache memory: 2.97 GiB", StartPhase.KV_CACHE),
    (CORE + "GPU KV cache size: 107,000 tokens", StartPhase.KV_CACHE),
    (WORKER + "JIT kernel warmup starting.", StartPhase.GRAPHS),
    ("Capturing CUDA graphs (decode, FULL):  33%|###   | 1/3", StartPhase.GRAPHS),
    (WORKER + "Graph capturing finished in 5 secs, took 0.31 GiB", StartPhase.GRAPHS),
]


@pytest.mark.parametrize(("line", "phase"), CPU_START + GPU_LINES)
def test_a_line_of_vllm_belongs_to_its_phase(line: str, phase: StartPhase | None) -> None:
    assert phase_of_line(line) is phase


@pytest.mark.parametrize("lines", [CPU_START, GPU_LINES])
def test_a_real_start_only_moves_forward(lines: list[tuple[str, StartPhase | None]]) -> None:
    tracker = PhaseTracker()
    reached = [phase for line, _ in lines if (phase := tracker.observe(line)) is not None]
    assert reached == sorted(set(reached), key=PHASE_ORDER.index)
    assert reached[0] is StartPhase.SPAWN
    assert reached[-1] is tracker.phase


def test_a_late_line_of_a_slower_rank_is_ignored() -> None:
    tracker = PhaseTracker()
    assert tracker.observe("Available KV cache memory: 1 GiB") is StartPhase.KV_CACHE
    assert tracker.observe("Starting to load model m...") is None
    assert tracker.phase is StartPhase.KV_CACHE


@given(st.lists(st.sampled_from(StartPhase), max_size=30))
def test_the_phase_is_always_the_furthest_one(phases: list[StartPhase]) -> None:
    tracker = PhaseTracker()
    for phase in phases:
        before = tracker.phase
        assert tracker.enter(phase) is (PHASE_ORDER.index(phase) > PHASE_ORDER.index(before))
    assert tracker.phase is max([StartPhase.IMPORT, *phases], key=PHASE_ORDER.index)


@given(st.text(max_size=300))
def test_any_text_is_a_phase_or_nothing(text: str) -> None:
    assert phase_of_line(text) in (None, *StartPhase)
