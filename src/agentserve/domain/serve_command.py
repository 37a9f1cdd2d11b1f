"""A preset as people see it outside: its options one by one, and the command line for plain vLLM.

Owns these two forms and that no secret appears in them. It runs nothing.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from agentserve.domain.control import OptionDifference
from agentserve.domain.preset import Preset, vllm_arguments
from agentserve.domain.text import printable

_SECRET_VARIABLE = re.compile(r"TOKEN|SECRET|PASSWORD|API_?KEY", re.IGNORECASE)
_HIDDEN = "***"
_VALUE_CHARACTERS = 500
_COMMAND_CHARACTERS = 20_000


def serve_command(preset: Preset) -> str:
    """Write the `vllm serve` command that does what the preset says.

    Values of variables that look like secrets are hidden. A demo model has no name for vLLM, so its
    folder stands as `<demo:NAME>`.

    Args:
        preset: The preset; its overlay counts.

    Returns:
        One line for a POSIX shell: variables, command, arguments.
    """
    model = f"<{preset.engine.model}>" if preset.demo_model is not None else None
    arguments = vllm_arguments(preset, model)
    if arguments[0] == "--model":
        # vLLM takes the name without its option, unless it begins with a dash.
        del arguments[0]
    words = [f"{variable}={shlex.quote(value)}" for variable, value in shown_env(preset).items()]
    words.append(shlex.join(["vllm", "serve", *arguments]))
    return printable(" ".join(words), _COMMAND_CHARACTERS)


def shown_env(preset: Preset) -> dict[str, str]:
    """The environment variables of a preset, with the values of secrets hidden."""
    return {
        name: _HIDDEN if _SECRET_VARIABLE.search(name) else value
        for name, value in preset.env.items()
    }


def shown_options(preset: Preset) -> dict[str, str]:
    """Everything that a preset sets, by dotted key as in its file.

    Args:
        preset: The preset; its overlay counts.

    Returns:
        Keys such as `engine.max_num_seqs` with their values as text, in the order of the file form.
    """
    shown: dict[str, str] = {"device": preset.device}
    for table, options in (("engine", preset.engine), ("server", preset.server)):
        values = {
            name: getattr(options, name) for name in options.__struct_fields__ if name != "extra"
        }
        if not values.get("trust_remote_code"):
            values.pop("trust_remote_code", None)
        values["extra"] = options.extra
        _flatten(table, values, shown)
    _flatten("env", shown_env(preset), shown)
    return shown


def differences(left: Preset, right: Preset) -> tuple[OptionDifference, ...]:
    """Compare two presets option by option.

    Args:
        left: One preset.
        right: The other one.

    Returns:
        What differs; an empty text where one of them does not give the option.
    """
    ours, theirs = shown_options(left), shown_options(right)
    return tuple(
        OptionDifference(key, ours.get(key, ""), theirs.get(key, ""))
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key)
    )


def _flatten(prefix: str, value: Any, into: dict[str, str]) -> None:
    if value is None:
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _flatten(f"{prefix}.{key}", inner, into)
        return
    text = value if isinstance(value, str) else json.dumps(msgspec.to_builtins(value), default=str)
    into[printable(prefix)] = printable(text, _VALUE_CHARACTERS)
