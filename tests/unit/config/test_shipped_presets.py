"""The presets that come with the product."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentserve.config.paths import app_paths, shipped_dir
from agentserve.config.presets import PresetLibrary
from agentserve.config.serve_command_import import SERVER_ARGUMENTS
from agentserve.domain.preset import (
    OWNED_OPTIONS,
    EngineOptions,
    EvidenceLevel,
    Preset,
    ServerOptions,
    vllm_arguments,
)
from agentserve.domain.serve_command import serve_command

ARGUMENTS: dict[str, dict[str, list[str]]] = json.loads(
    (Path(__file__).parents[2] / "data" / "vllm_arguments.json").read_text()
)
"""Options of vLLM's own parser by version; `tools/list_vllm_arguments.py` makes the list."""

NAMES = sorted(path.stem for path in shipped_dir("presets").glob("*.toml"))


@pytest.fixture
def library(tmp_path: Path) -> PresetLibrary:
    return PresetLibrary.load(app_paths({"AGENTSERVE_HOME": str(tmp_path)}))


def test_every_shipped_preset_is_valid_and_has_a_digit(library: PresetLibrary) -> None:
    assert library.problems == ()
    assert [(preset.slot, preset.name) for preset in library.presets] == [
        (1, "cpu-tiny"),
        (2, "cpu-tiny-mtp"),
        (3, "qwen38-100k"),
        (4, "qwen38-100k-mtp"),
        (5, "qwen38-122k-solo"),
        (6, "qwen38-131k-8seat"),
    ]
    assert [preset.name for preset in library.presets] == NAMES


def option_names(preset: Preset) -> set[str]:
    model = "folder" if preset.demo_model else None
    words = [word for word in vllm_arguments(preset, model) if word.startswith("--")]
    return {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words}


@pytest.mark.parametrize("version", ["0.32", "0.33"])
@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_an_argument_of_vllm(library: PresetLibrary, name: str, version: str) -> None:
    known = {*ARGUMENTS[version]["engine"], *ARGUMENTS[version]["server"]}
    names = {each.removeprefix("no_") for each in option_names(library.get(name))}
    assert len(names) > 5
    assert names <= known


@pytest.mark.parametrize("version", ["0.32", "0.33"])
def test_every_option_that_we_type_is_in_the_table_where_vllm_has_it(version: str) -> None:
    engine, server = (set(ARGUMENTS[version][table]) for table in ("engine", "server"))
    assert set(EngineOptions.__struct_fields__) - {"extra"} <= engine
    assert set(ServerOptions.__struct_fields__) - {"extra"} <= server


def test_an_imported_argument_of_the_server_is_recognised_in_both_versions() -> None:
    known = {*ServerOptions.__struct_fields__, *SERVER_ARGUMENTS, *OWNED_OPTIONS}
    for version, arguments in ARGUMENTS.items():
        assert set(arguments["server"]) <= known, version
        assert not set(arguments["engine"]) & SERVER_ARGUMENTS


def test_every_preset_says_who_measured_what(library: PresetLibrary) -> None:
    levels = {}
    for preset in library.presets:
        assert preset.evidence is not None, preset.name
        levels[preset.name] = preset.evidence.level
        owner_report = preset.evidence.level is EvidenceLevel.OWNER_REPORT
        assert owner_report == ("not measured by us" in preset.evidence.sentence)
    assert levels["cpu-tiny"] is EvidenceLevel.CPU_ENGINE
    assert levels["qwen38-100k"] is EvidenceLevel.OWNER_REPORT
    assert levels["qwen38-100k-mtp"] is EvidenceLevel.NOT_MEASURED


def test_drafts_with_a_prefix_cache_on_the_hybrid_come_with_a_warning(
    library: PresetLibrary,
) -> None:
    for preset in library.presets:
        cached = preset.engine.enable_prefix_caching is not False
        if preset.device == "cuda" and preset.engine.speculative_config and cached:
            assert "wrong output when MTP and the prefix cache" in preset.description


def test_the_hybrid_demo_states_what_keeps_its_cache_right(library: PresetLibrary) -> None:
    engine = library.get("cpu-tiny").engine
    assert (engine.tensor_parallel_size, engine.block_size) == (2, 640)
    assert (engine.enable_prefix_caching, engine.mamba_cache_mode) == (True, "align")


def test_the_100k_preset_is_the_final_configuration_of_the_series(library: PresetLibrary) -> None:
    engine = library.get("qwen38-100k").engine
    assert engine.tensor_parallel_size == 2
    assert engine.kv_cache_dtype == "fp8"
    assert engine.gpu_memory_utilization == 0.97
    assert engine.max_model_len == 100_000
    assert engine.max_num_batched_tokens == 2048
    assert engine.enforce_eager is False
    assert (engine.enable_prefix_caching, engine.mamba_cache_mode) == (True, "align")
    assert engine.speculative_config is None


def test_the_mtp_variant_differs_in_seats_and_drafts_only(library: PresetLibrary) -> None:
    base, variant = library.get("qwen38-100k"), library.get("qwen38-100k-mtp")
    changed = {
        name
        for name in EngineOptions.__struct_fields__
        if getattr(base.engine, name) != getattr(variant.engine, name)
    }
    assert changed == {"max_num_seqs", "speculative_config"}
    assert variant.speculative_tokens == 2
    assert (variant.device, variant.server, variant.env) == (base.device, base.server, base.env)


def test_the_measured_presets_hold_the_settings_of_their_reports(library: PresetLibrary) -> None:
    assert serve_command(library.get("qwen38-122k-solo")) == (
        "vllm serve unsloth/Qwen3.8-27B-NVFP4 --served-model-name qwen3.8-27b"
        " --tensor-parallel-size 2 --max-model-len 122880 --max-num-batched-tokens 2048"
        " --max-num-seqs 1 --kv-cache-dtype fp8 --kv-cache-memory-bytes 2500000000"
        " --no-enable-prefix-caching --no-enforce-eager --max-cudagraph-capture-size 4"
        " --reasoning-parser qwen3"
        """ --speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'"""
        " --enable-auto-tool-choice --tool-call-parser qwen3_xml --enable-prompt-tokens-details"
    )
    assert serve_command(library.get("qwen38-131k-8seat")) == (
        "NCCL_P2P_DISABLE=1 vllm serve unsloth/Qwen3.8-27B-NVFP4"
        " --served-model-name qwen3.8-27b --tensor-parallel-size 2 --disable-custom-all-reduce"
        " --max-model-len 131072 --max-num-batched-tokens 2048 --max-num-seqs 8"
        " --gpu-memory-utilization 0.95 --kv-cache-dtype fp8 --kv-cache-memory-bytes 3221225472"
        " --enable-prefix-caching --mamba-cache-mode align --mamba-cache-dtype bfloat16"
        " --no-enforce-eager --max-cudagraph-capture-size 4 --reasoning-parser qwen3"
        """ --speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'"""
        " --enable-auto-tool-choice --tool-call-parser qwen3_xml --enable-prompt-tokens-details"
    )
