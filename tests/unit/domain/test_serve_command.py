from __future__ import annotations

import shlex
from typing import Any

import msgspec

from agentserve.domain.control import OptionDifference
from agentserve.domain.preset import EngineOptions, Preset, ServerOptions
from agentserve.domain.serve_command import differences, serve_command, shown_options


def preset(env: dict[str, str] | None = None, **engine: Any) -> Preset:
    return Preset(
        name="p",
        engine=msgspec.convert({"model": "org/m", **engine}, EngineOptions),
        server=ServerOptions(enable_auto_tool_choice=True, extra={"response_role": "a b"}),
        env=env or {},
    )


def test_the_command_is_one_line_that_a_shell_takes_apart_again() -> None:
    command = serve_command(
        preset({"A": "0|1"}, speculative_config={"method": "mtp"}, enforce_eager=False)
    )
    assert "\n" not in command
    assert shlex.split(command) == [
        "A=0|1",
        "vllm",
        "serve",
        "org/m",
        "--no-enforce-eager",
        "--speculative-config",
        '{"method": "mtp"}',
        "--enable-auto-tool-choice",
        "--response-role",
        "a b",
    ]


def test_a_demo_model_stands_as_a_placeholder() -> None:
    assert shlex.split(serve_command(preset(model="demo:hybrid")))[2] == "<demo:hybrid>"


def test_a_model_that_begins_with_a_dash_stays_an_option() -> None:
    assert shlex.split(serve_command(preset(model="-odd")))[2] == "--model=-odd"


def test_secrets_and_escape_sequences_do_not_appear() -> None:
    secret = preset({"MY_API_KEY": "hush", "B": "\x1b[31mx"}, tokenizer="\x1b]0;t\x07x")
    for text in (serve_command(secret), *shown_options(secret).values()):
        assert "hush" not in text
        assert text.isprintable()


def test_options_are_shown_one_by_one_as_in_the_file() -> None:
    shown = shown_options(
        preset(
            {"A": "1"},
            max_num_seqs=4,
            enforce_eager=True,
            speculative_config={"method": "mtp", "num_speculative_tokens": 2},
            extra={"cudagraph_capture_sizes": [1, 2]},
        )
    )
    assert shown == {
        "device": "any",
        "engine.model": "org/m",
        "engine.max_num_seqs": "4",
        "engine.enforce_eager": "true",
        "engine.speculative_config.method": "mtp",
        "engine.speculative_config.num_speculative_tokens": "2",
        "engine.extra.cudagraph_capture_sizes": "[1, 2]",
        "server.enable_auto_tool_choice": "true",
        "server.extra.response_role": "a b",
        "env.A": "1",
    }


def test_differences_name_each_option_once_and_leave_out_what_agrees() -> None:
    left = preset({"A": "1"}, max_num_seqs=4, max_model_len=100)
    right = preset(max_num_seqs=8, max_model_len=100, enforce_eager=True)
    assert differences(left, right) == (
        OptionDifference("engine.max_num_seqs", "4", "8"),
        OptionDifference("env.A", "1", ""),
        OptionDifference("engine.enforce_eager", "", "true"),
    )
    assert differences(left, left) == ()
