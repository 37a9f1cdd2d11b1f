from __future__ import annotations

import shlex
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.config.serve_command_import import parse_serve_command
from agentserve.domain.errors import ConfigError
from agentserve.domain.preset import EngineOptions, Preset, ServerOptions
from agentserve.domain.serve_command import serve_command


def engine_of(arguments: str) -> dict[str, Any]:
    return parse_serve_command(f"vllm serve m {arguments}").engine


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve org/m --max-num-seqs 4",
        "$ vllm serve org/m --max-num-seqs=4",
        "/opt/venv/bin/vllm serve --model org/m --max_num_seqs 4",
        "python -m vllm.entrypoints.openai.api_server --model=org/m --max-num-seqs 4",
        "python3.11 -m vllm.entrypoints.openai.api_server --max-num-seqs 4 --model org/m",
        "vllm serve org/m \\\n  --max-num-seqs 4 \\\n",
        "vllm serve org/m \\\r\n  --max-num-seqs 4 \\\r\n",
        "# starts it\nnohup vllm serve org/m --max-num-seqs 4 > server.log 2>&1 &\n",
        "vllm serve --max-num-seqs 4 org/m | tee log",
        "uv run vllm serve 'org/m' --max-num-seqs '4'",
    ],
)
def test_the_ways_to_write_a_command_mean_the_same(command: str) -> None:
    imported = parse_serve_command(command)
    assert imported.engine == {"model": "org/m", "max_num_seqs": 4}
    assert (imported.server, imported.env, imported.left_out) == ({}, {}, ())


@pytest.mark.parametrize(
    "command",
    [
        "A=1 B='0|1' vllm serve m",
        "export A=1 B='0|1'\nvllm serve m",
        "export A=1; export B='0|1' && vllm serve m",
        "env A=1 B='0|1' vllm serve m",
    ],
)
def test_variables_in_front_are_kept(command: str) -> None:
    assert parse_serve_command(command).env == {"A": "1", "B": "0|1"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--gpu-memory-utilization 0.97", {"gpu_memory_utilization": 0.97}),
        ("--enforce-eager", {"enforce_eager": True}),
        ("--no-enforce-eager", {"enforce_eager": False}),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("--disable-prefix-caching", {"enable_prefix_caching": False}),
        ("--disable-custom-all-reduce", {"disable_custom_all_reduce": True}),
        ("--enable-custom-all-reduce", {"disable_custom_all_reduce": False}),
        ("-tp 2", {"tensor_parallel_size": 2}),
        ("-tp=2", {"tensor_parallel_size": 2}),
        ("--max-model-len 100k", {"max_model_len": 100_000}),
        ("--max-model-len 128K", {"max_model_len": 131_072}),
        ("--kv-cache-memory-bytes 2.5g", {"kv_cache_memory_bytes": 2_500_000_000}),
        ("--seed -1", {"seed": -1}),
        (
            """--speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'""",
            {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}},
        ),
        (
            "--speculative-config.method mtp --speculative-config.num_speculative_tokens 2",
            {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}},
        ),
        (
            "--compilation-config.pass_config.fuse_norm true",
            {"extra": {"compilation_config": {"pass_config": {"fuse_norm": True}}}},
        ),
        ("--async-scheduling", {"extra": {"async_scheduling": True}}),
        ("--no-async-scheduling", {"extra": {"async_scheduling": False}}),
        ("--cudagraph-capture-sizes 1 2 4", {"extra": {"cudagraph_capture_sizes": [1, 2, 4]}}),
        ("--generation-config vllm", {"extra": {"generation_config": "vllm"}}),
        ("--load-format dummy", {"load_format": "dummy"}),
        ("--trust-remote-code", {"trust_remote_code": True}),
    ],
)
def test_arguments_get_the_type_of_their_option(arguments: str, expected: dict[str, Any]) -> None:
    assert engine_of(arguments) == {"model": "m", **expected}


def test_arguments_of_the_server_have_their_own_table() -> None:
    imported = parse_serve_command(
        "vllm serve m --enable-auto-tool-choice --tool-call-parser qwen3_xml"
        " --response-role assistant"
    )
    assert imported.server == {
        "enable_auto_tool_choice": True,
        "tool_call_parser": "qwen3_xml",
        "extra": {"response_role": "assistant"},
    }


def test_what_the_app_owns_is_left_out_with_the_reason_and_without_secrets() -> None:
    imported = parse_serve_command(
        "HF_TOKEN=hf_hush VLLM_LOGGING_CONFIG_PATH=x vllm serve m --host 0.0.0.0 --port=8001"
        " --api-key sk-hush sk-more --disable-log-requests --served-model-name one two"
    )
    assert imported.engine == {"model": "m", "served_model_name": "one"}
    assert imported.env == {}
    told = "; ".join(imported.left_out)
    for name in ("HF_TOKEN", "VLLM_LOGGING_CONFIG_PATH", "--host", "--port", "--api-key", "two"):
        assert name in told
    assert "hush" not in told
    assert "sk-more" not in told
    assert "the app owns the socket" in told


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", "not a `vllm serve` command"),
        ("llama-server -m x", "not a `vllm serve` command"),
        ("docker run vllm/vllm-openai --model m", "not a `vllm serve` command"),
        ("python -m", "not a `vllm serve` command"),
        ("vllm serve --max-num-seqs 4", "names no model"),
        ("vllm serve 'm", "not closed"),
        ("vllm serve m extra", "'extra' belongs to no option"),
        ("vllm serve $MODEL", "depends on a shell variable"),
        ("vllm serve m --max-num-seqs ${SEATS}", "--max-num-seqs depends on a shell variable"),
        ("A=$(nproc) vllm serve m", "value of A depends on"),
        ("vllm serve m --config args.yaml", "more arguments from the file"),
        ("vllm serve m -zz 3", "-zz is not known"),
        ("vllm serve m -- x", "lone"),
        (
            "vllm serve m --speculative-config mtp --speculative-config.method mtp",
            "both whole and in parts",
        ),
    ],
)
def test_a_command_that_cannot_be_understood_is_refused_with_a_remedy(
    command: str, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_serve_command(command)
    assert words in refused.value.message
    assert refused.value.hint


_words = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)


@given(st.lists(st.one_of(_words, st.sampled_from(["--x", "-tp", "m", "--a.b", "="]))))
def test_any_words_give_tables_or_one_sentence(words: list[str]) -> None:
    told = ""
    model = None
    try:
        model = parse_serve_command("vllm serve " + shlex.join(words)).engine["model"]
    except ConfigError as error:
        told = error.message
    assert told.isprintable()
    assert bool(told) != bool(model)


# A quoted shell operator looks like a bare one once quotes are gone.
_text = st.text("abcXYZ019-_./:{}'\" |é", min_size=1, max_size=10).filter(
    lambda text: text not in ("|", "||")
)
_integers = st.integers(-(2**60), 2**60)
_extra = st.one_of(
    st.booleans(),
    _integers,
    st.floats(allow_nan=False, allow_infinity=False),
    st.dictionaries(st.from_regex("[a-z]{1,5}", fullmatch=True), _integers, min_size=1),
    st.lists(_integers, min_size=2, max_size=3),
    st.from_regex("[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(
        lambda text: text not in ("true", "false", "null")
    ),
)
_engines = st.builds(
    EngineOptions,
    model=_text,
    tokenizer=st.none() | _text,
    served_model_name=st.none() | _text,
    seed=st.none() | _integers,
    max_model_len=st.none() | st.integers(1),
    gpu_memory_utilization=st.none() | st.floats(0.1, 1),
    enforce_eager=st.none() | st.booleans(),
    disable_custom_all_reduce=st.none() | st.booleans(),
    speculative_config=st.none()
    | st.fixed_dictionaries({"method": _text, "num_speculative_tokens": st.integers(1, 4)}),
    extra=st.dictionaries(st.sampled_from(["async_x", "capture_y", "enable_z"]), _extra),
)
_servers = st.builds(
    ServerOptions,
    enable_auto_tool_choice=st.none() | st.booleans(),
    tool_call_parser=st.none() | _text,
    extra=st.dictionaries(st.just("response_role"), _extra),
)
_env = st.dictionaries(st.from_regex("[A-Z]{1,6}", fullmatch=True).map("X_".__add__), _text)


@given(_engines, _servers, _env)
def test_the_command_of_any_preset_reads_back_as_that_preset(
    engine: EngineOptions, server: ServerOptions, env: dict[str, str]
) -> None:
    preset = Preset(name="p", engine=engine, server=server, env=env)
    imported = parse_serve_command(serve_command(preset))
    assert msgspec.convert(imported.engine, EngineOptions) == engine
    assert msgspec.convert(imported.server, ServerOptions) == server
    assert imported.env == env
    assert imported.left_out == ()
