"""A `vllm serve` command line, read into the tables of a preset file.

Owns the ways in which people write such a command: variables in front, line continuations,
`--name=value`, negations, JSON, dotted keys, short names. It does not ask vLLM: what it does not
know stands under `extra`, and whoever uses the result checks it as a preset file.
"""

from __future__ import annotations

import json
import re
import shlex
import typing
from pathlib import PurePath
from typing import Any

import msgspec

from agentserve.domain.errors import ConfigError
from agentserve.domain.preset import (
    DEMO_MODEL_PREFIX,
    OWNED_OPTIONS,
    EngineOptions,
    ServerOptions,
    option_problem,
)
from agentserve.domain.text import printable

_REMEDY = "Give a line such as: vllm serve MODEL --max-model-len 32768"
_BEFORE_THE_PROGRAM = frozenset({"export", "env", "exec", "nohup", "sudo", "time", "$", "&&", ";"})
_SHELL_OPERATORS = frozenset({"|", "||", "&&", "&", ";", "2>&1"})
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)", re.DOTALL)
_SHELL_VALUE = re.compile(r"\$\{?[A-Za-z_(]|`")
_REDIRECTION = re.compile(r"[012&]?>")
_PLACEHOLDER = re.compile(rf"<({DEMO_MODEL_PREFIX}[\w-]+)>")
_HUMAN_COUNT = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[kKmMgGtT])")
_UNITS = {
    **{unit: 1000**power for power, unit in enumerate("kmgt", 1)},
    **{unit: 1024**power for power, unit in enumerate("KMGT", 1)},
}
"""vLLM's own reading of `32k` and `32K`."""

_SHORT_NAMES = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-dcp": "decode_context_parallel_size",
    "-ep": "enable_expert_parallel",
    "-q": "quantization",
    "-sc": "speculative_config",
    "-cc": "compilation_config",
    "-ac": "attention_config",
}
_OTHER_NAMES = {"device_memory_utilization": "gpu_memory_utilization"}
_GONE = {
    "disable_log_requests": "vLLM logs no requests by default",
    "swap_space": "vLLM has no swap space any more",
}
_SECRET_VARIABLES = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN"})

SERVER_ARGUMENTS = frozenset(
    {
        "allow_credentials",
        "allowed_headers",
        "allowed_methods",
        "allowed_origins",
        "anthropic_disabled_thinking_effort",
        "cohere_format",
        "cohere_is_reasoning_model",
        "data_parallel_supervisor_port",
        "disable_access_log_for_endpoints",
        "disable_fastapi_docs",
        "dp_supervisor_probe_failure_threshold",
        "dp_supervisor_probe_interval_s",
        "dp_supervisor_probe_timeout_s",
        "enable_flash_late_interaction",
        "enable_log_deltas",
        "enable_log_outputs",
        "enable_offline_docs",
        "enable_per_request_metrics",
        "enable_request_id_headers",
        "enable_scale_out",
        "enable_server_load_tracking",
        "enable_tokenizer_info_endpoint",
        "exclude_tools_when_tool_choice_none",
        "fingerprint_mode",
        "fingerprint_value",
        "log_error_stack",
        "lora_modules",
        "max_log_len",
        "reasoning_effort_map",
        "response_role",
        "return_tokens_as_token_ids",
        "sse_keep_alive_interval",
        "tokens_only",
        "tool_parser_plugin",
        "tool_server",
        "tool_strict_level",
        "trust_request_chat_template",
        "trust_request_mm_kwargs",
    }
)
"""Arguments of vLLM's API server that a preset may set and that we do not type."""


class ImportedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of a preset, not checked yet."""

    engine: dict[str, Any]
    server: dict[str, Any]
    env: dict[str, str]
    left_out: tuple[str, ...]
    """What a preset does not hold, each with the reason; no secret is repeated."""


def parse_serve_command(command: str) -> ImportedCommand:
    """Read a command line.

    Args:
        command: The command as in a shell or a script; several lines are fine.

    Returns:
        What it says.

    Raises:
        ConfigError: It is no such command, or its meaning depends on something that is not in it.
    """
    reader = _CommandReader(_split(command))
    reader.read()
    return ImportedCommand(
        engine=reader.tables["engine"],
        server=reader.tables["server"],
        env=reader.env,
        left_out=tuple(reader.left_out),
    )


def _split(command: str) -> list[str]:
    lines = re.sub(r"\\\r?\n", " ", command).splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            "A quote in the command is not closed.", "Copy the whole line."
        ) from error


class _CommandReader:
    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._at = 0
        self.tables: dict[str, dict[str, Any]] = {"engine": {}, "server": {}}
        self.env: dict[str, str] = {}
        self.left_out: list[str] = []

    def read(self) -> None:
        self._read_program()
        while self._at < len(self._words):
            word = self._words[self._at]
            if word in _SHELL_OPERATORS or _REDIRECTION.match(word):
                break
            self._at += 1
            if word.startswith("--"):
                name, separator, value = word[2:].partition("=")
                self._option(name, [value] if separator else None)
            elif _is_option(word):
                short, separator, value = word.partition("=")
                if short not in _SHORT_NAMES:
                    raise _refused(f"The short option {short} is not known here", "Write it out.")
                self._option(_SHORT_NAMES[short], [value] if separator else None)
            elif "model" in self.tables["engine"]:
                raise _refused(f"The word {word!r} belongs to no option", "Check the command.")
            else:
                self._put("model", [word])
        model = self.tables["engine"].get("model")
        if not model:
            raise ConfigError("The command names no model.", _REMEDY)
        if placeholder := _PLACEHOLDER.fullmatch(model):
            # The name by which a demo model is served is the app's.
            self.tables["engine"].pop("served_model_name", None)
            self.tables["engine"]["model"] = placeholder[1]

    def _read_program(self) -> None:
        """Go past everything up to the arguments, and keep the variables."""
        while self._at < len(self._words):
            word = self._words[self._at]
            following = self._words[self._at + 1 : self._at + 3]
            program = PurePath(word).name
            if program == "vllm" and following[:1] == ["serve"]:
                self._at += 2
                return
            is_module = program.startswith("python") and following[:1] == ["-m"]
            if is_module and following[-1].startswith("vllm.entrypoints."):
                self._at += 3
                return
            if assignment := _ASSIGNMENT.fullmatch(word):
                self._variable(assignment["name"], assignment["value"].removesuffix(";"))
            elif word == "uv" and following[:1] == ["run"]:
                self._at += 1
            elif word not in _BEFORE_THE_PROGRAM:
                break
            self._at += 1
        raise ConfigError("This is not a `vllm serve` command.", _REMEDY)

    def _variable(self, name: str, value: str) -> None:
        if name in _SECRET_VARIABLES:
            self.left_out.append(f"{name} (a secret: keep it in your environment)")
        elif reason := option_problem("env", name):
            self.left_out.append(f"{name} ({reason})")
        else:
            self.env[name] = _known_here(name, value)

    def _option(self, written: str, values: list[str] | None) -> None:
        if not written:
            raise _refused("The command has a lone `--`", "Remove it.")
        name, *path = written.split(".")
        name = name.replace("-", "_")
        name = _OTHER_NAMES.get(name, name)
        value: bool | None = None
        if not path:
            name, value = _without_negation(name)
        kind = _kind(name)
        if values is None:
            values = []
            most: int | None = 1
            if value is not None or kind is bool:
                most = 0
            elif kind is None or name == "served_model_name":
                most = None
            while (most is None or len(values) < most) and self._at < len(self._words):
                word = self._words[self._at]
                if _is_option(word) or word in _SHELL_OPERATORS or _REDIRECTION.match(word):
                    break
                values.append(word)
                self._at += 1
        self._put(name, values, path, value)

    def _put(
        self, name: str, values: list[str], path: list[str] | None = None, flag: bool | None = None
    ) -> None:
        if name == "config":
            raise ConfigError(
                "The command reads more arguments from the file after --config.",
                "Write them into the command.",
            )
        if reason := OWNED_OPTIONS.get(name) or _GONE.get(name):
            self.left_out.append(f"--{name.replace('_', '-')} ({reason})")
            return
        for text in values:
            _known_here(f"--{name.replace('_', '-')}", text)
        table, kind = self._table_of(name), _kind(name)
        if path:
            for step in (name, *path[:-1]):
                table = table.setdefault(step, {})
                if not isinstance(table, dict):
                    raise _refused(f"--{name} is given both whole and in parts", "Give it once.")
            table[path[-1]] = _guessed(values[0]) if values else True
        elif flag is not None:
            table[name] = flag
        elif not values:
            table[name] = True
        elif kind is None:
            guessed = [_guessed(text) for text in values]
            table[name] = guessed[0] if len(guessed) == 1 else guessed
        else:
            table[name] = _typed(values[0], kind)
            # Only of `served_model_name`: vLLM accepts several, a preset has one.
            self.left_out += [f"the further name {text}" for text in values[1:]]

    def _table_of(self, name: str) -> dict[str, Any]:
        if name in EngineOptions.__struct_fields__:
            return self.tables["engine"]
        if name in ServerOptions.__struct_fields__:
            return self.tables["server"]
        home = "server" if name in SERVER_ARGUMENTS else "engine"
        extra: dict[str, Any] = self.tables[home].setdefault("extra", {})
        return extra


def _is_option(word: str) -> bool:
    """Tell an option from a value; a negative number is a value."""
    return bool(re.match(r"--?[A-Za-z]", word))


def _without_negation(name: str) -> tuple[str, bool | None]:
    """Return the positive name and False for a negation; vLLM 0.33 has `--disable-x` as well."""
    if name.startswith("no_"):
        return name.removeprefix("no_"), False
    for prefix, opposite in (("disable_", "enable_"), ("enable_", "disable_")):
        positive = opposite + name.removeprefix(prefix)
        if name.startswith(prefix) and _kind(name) is None and _kind(positive) is bool:
            return positive, False
    return name, None


def _kind(name: str) -> type | None:
    """Type of a known option's value, None for an unknown option."""
    return _KINDS.get(name)


def _kinds() -> dict[str, type]:
    kinds: dict[str, type] = {}
    for table in (EngineOptions, ServerOptions):
        for field in msgspec.structs.fields(table):
            if field.name == "extra":
                continue
            kind = field.type
            while (inner := typing.get_args(kind)) and typing.get_origin(kind) is not dict:
                # The first of `X | None`, of `Annotated[X, ...]`, and of `Literal["x", ...]`.
                kind = inner[0]
            origin = typing.get_origin(kind) or kind
            kinds[field.name] = origin if isinstance(origin, type) else type(origin)
    return kinds


_KINDS = _kinds()


def _typed(text: str, kind: type) -> Any:
    """Convert a value of a known option; what does not fit is left for the check of the file."""
    if kind is str:
        return text
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind is int and (human := _HUMAN_COUNT.fullmatch(text)):
        return round(float(human["number"]) * _UNITS[human["unit"]])
    try:
        return json.loads(text) if kind is dict else kind(text)
    except ValueError:
        return text


def _guessed(text: str) -> Any:
    """Read a value of an unknown type as vLLM would: numbers, true, false and JSON, else text."""
    try:
        value = json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text
    # TOML has no null, and a number outside its range stays text.
    fits = value is not None and not (isinstance(value, int) and abs(value) >= 2**63)
    return value if fits else text


def _known_here(name: str, value: str) -> str:
    if _SHELL_VALUE.search(value):
        raise _refused(
            f"The value of {name} depends on a shell variable or command", "Write the value itself."
        )
    return value


def _refused(message: str, remedy: str) -> ConfigError:
    return ConfigError(printable(f"{message}."), remedy)
