from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.preset import (
    OWNED_OPTIONS,
    EngineOptions,
    Evidence,
    EvidenceLevel,
    Preset,
    ServerOptions,
    option_problem,
    summarize,
    vllm_arguments,
)


def preset(**engine: Any) -> Preset:
    return Preset(name="p", engine=msgspec.convert({"model": "org/m", **engine}, EngineOptions))


def test_options_that_are_not_given_are_left_to_vllm() -> None:
    assert vllm_arguments(preset()) == ["--model", "org/m"]


def test_booleans_are_spelled_both_ways() -> None:
    arguments = vllm_arguments(preset(enable_prefix_caching=True, enforce_eager=False))
    assert arguments[2:] == ["--enable-prefix-caching", "--no-enforce-eager"]


def test_values_lists_and_tables_are_spelled_for_vllms_parser() -> None:
    arguments = vllm_arguments(
        preset(
            max_num_batched_tokens=2048,
            gpu_memory_utilization=0.97,
            speculative_config={"method": "mtp", "num_speculative_tokens": 2},
            extra={"cudagraph_capture_sizes": [1, 2], "generation_config": "-x"},
        )
    )
    assert arguments[2:] == [
        "--max-num-batched-tokens",
        "2048",
        "--gpu-memory-utilization",
        "0.97",
        "--speculative-config",
        '{"method": "mtp", "num_speculative_tokens": 2}',
        "--cudagraph-capture-sizes",
        "1",
        "2",
        "--generation-config=-x",
    ]


def test_server_options_follow() -> None:
    with_tools = msgspec.structs.replace(
        preset(),
        server=ServerOptions(enable_auto_tool_choice=True, extra={"response_role": "assistant"}),
    )
    assert vllm_arguments(with_tools)[2:] == [
        "--enable-auto-tool-choice",
        "--response-role",
        "assistant",
    ]


def test_a_demo_model_needs_its_folder_and_is_served_under_its_own_name() -> None:
    demo = preset(model="demo:hybrid")
    assert demo.demo_model == "hybrid"
    assert preset().demo_model is None
    with pytest.raises(ValueError, match="demo:hybrid"):
        vllm_arguments(demo)
    assert vllm_arguments(demo, model_path="/cache/hybrid") == [
        "--model",
        "/cache/hybrid",
        "--served-model-name",
        "demo-hybrid",
    ]


def test_code_from_a_model_is_trusted_only_when_it_is_written() -> None:
    assert "--trust-remote-code" in vllm_arguments(preset(trust_remote_code=True))
    assert vllm_arguments(preset(trust_remote_code=False)) == vllm_arguments(preset())


@pytest.mark.parametrize("name", sorted(OWNED_OPTIONS))
def test_what_the_app_owns_cannot_be_smuggled_in(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be set in a preset"):
        vllm_arguments(preset(extra={name: "x"}))


@pytest.mark.parametrize("name", ["host", "port", "api_key"])
def test_the_socket_and_the_key_are_refused_with_a_reason_in_every_table(name: str) -> None:
    for table in ("engine", "server", "engine.extra", "server.extra"):
        assert option_problem(table, name)
        assert option_problem(table, name.replace("_", "-"))


def test_a_known_option_is_sent_home_from_extra() -> None:
    reason = option_problem("engine.extra", "tool_call_parser")
    assert reason is not None
    assert "[server]" in reason
    assert option_problem("engine.extra", "async_scheduling") is None
    assert option_problem("env", "NCCL_P2P_DISABLE") is None
    assert option_problem("env", "VLLM_API_KEY") is not None
    assert option_problem("env", "AGENTSERVE_X") is not None


_values = (
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10)
    | st.dictionaries(st.text(max_size=5), st.integers(), max_size=3)
)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True), _values, max_size=6))
def test_every_extra_option_becomes_exactly_one_option_of_the_command_line(
    extra: dict[str, Any],
) -> None:
    extra = {key: value for key, value in extra.items() if not option_problem("engine.extra", key)}
    arguments = vllm_arguments(preset(extra=extra))[2:]
    options = [word for word in arguments if word.startswith("--")]
    assert len(options) == len(extra)
    for name, value in extra.items():
        dashed = name.replace("_", "-")
        if isinstance(value, bool):
            assert f"--{dashed}" in options or f"--no-{dashed}" in options
        elif isinstance(value, dict):
            assert json.loads(arguments[arguments.index(f"--{dashed}") + 1]) == value


def test_a_summary_says_who_measured_what() -> None:
    evidence = Evidence(
        level=EvidenceLevel.OWNER_REPORT, source="An owner.", measured="67 tok/s", vllm="0.27"
    )
    measured = msgspec.structs.replace(preset(), title="T", slot=2, evidence=evidence)
    summary = summarize(measured)
    assert (summary.title, summary.slot) == ("T", 2)
    assert summary.evidence == "67 tok/s. An owner (vLLM 0.27)."
    assert summarize(preset()).title == "p"
    assert summarize(preset()).evidence == ""


def test_a_summary_holds_what_decides_between_presets() -> None:
    described = preset(
        max_model_len=8192,
        max_num_seqs=4,
        max_num_batched_tokens=2048,
        speculative_config={"method": "mtp", "num_speculative_tokens": 2},
    )
    evidence = Evidence(level=EvidenceLevel.NOT_MEASURED, source="Nobody")
    summary = summarize(msgspec.structs.replace(described, device="cuda", evidence=evidence))
    assert (summary.max_model_len, summary.max_num_seqs) == (8192, 4)
    assert (summary.max_num_batched_tokens, summary.speculative_tokens) == (2048, 2)
    assert (summary.device, summary.evidence_level) == ("cuda", "not measured")
    assert summary.has_overlay is False
    kept = msgspec.structs.replace(
        described, overlay={"max_num_seqs": 4}, written_engine=EngineOptions(model="org/m")
    )
    assert summarize(kept).has_overlay is True
    assert kept.as_written.engine == EngineOptions(model="org/m")


def test_draft_tokens_are_unknown_where_vllm_chooses_them() -> None:
    assert preset().speculative_tokens == 0
    assert preset(speculative_config={}).speculative_tokens == 0
    assert preset(speculative_config={"method": "mtp"}).speculative_tokens is None
