"""What a preset says: engine and server options as typed, frozen values, and vLLM's arguments.

Owns the names of the options we know and how an option is spelled on vLLM's command line. It knows
neither files nor vLLM: `agentserve.config.presets` reads files, the engine hands the argument list
to vLLM's own parser.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec

from agentserve.domain.control import PresetSummary

DEMO_MODEL_PREFIX = "demo:"
"""A model name with this prefix names a demo model that is made on first use."""

OptionValue = bool | int | float | str | list[Any] | dict[str, Any]
"""A value of an option we do not type; lists become repeated values, tables become JSON."""

_Count = Annotated[int, msgspec.Meta(ge=1)]
_CountOrZero = Annotated[int, msgspec.Meta(ge=0)]
_Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]
Slot = Annotated[int, msgspec.Meta(ge=1, le=9)]
"""A digit key."""
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_OptionName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]*$")]
_VariableName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_VariableValue = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]
Environment = dict[_VariableName, _VariableValue]
"""Environment variables by name."""

Device = Literal["cpu", "cuda", "any"]
Source = Literal["shipped", "user"]


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Engine arguments, named as the fields of vLLM's `AsyncEngineArgs`.

    None means "not given": vLLM's own default applies.
    """

    model: _Text
    """Hub name, folder, or `demo:hybrid` / `demo:mtp`."""
    served_model_name: _Text | None = None
    tokenizer: _Text | None = None
    revision: _Text | None = None
    load_format: _Text | None = None
    dtype: _Text | None = None
    quantization: _Text | None = None
    seed: int | None = None
    trust_remote_code: bool = False
    """Runs code that comes with the model; only a user's own file may switch it on."""

    tensor_parallel_size: _Count | None = None
    disable_custom_all_reduce: bool | None = None

    max_model_len: _Count | None = None
    """Longest sequence in tokens, prompt and answer together."""
    max_num_batched_tokens: _Count | None = None
    """Token budget of one engine step: bounds a prefill chunk."""
    max_num_seqs: _Count | None = None
    long_prefill_token_threshold: _CountOrZero | None = None

    gpu_memory_utilization: _Fraction | None = None
    kv_cache_dtype: _Text | None = None
    kv_cache_memory_bytes: _Count | None = None
    """KV pool per GPU; replaces `gpu_memory_utilization`."""
    num_gpu_blocks_override: _Count | None = None
    block_size: _Count | None = None
    """Tokens per KV block."""
    enable_prefix_caching: bool | None = None
    prefix_cache_retention_interval: _CountOrZero | None = None

    mamba_cache_mode: _Text | None = None
    mamba_cache_dtype: _Text | None = None
    mamba_block_size: _Count | None = None

    enforce_eager: bool | None = None
    max_cudagraph_capture_size: _CountOrZero | None = None
    language_model_only: bool | None = None
    reasoning_parser: _Text | None = None
    speculative_config: dict[str, Any] | None = None
    """Speculative decoding, for example `{method = "mtp", num_speculative_tokens = 2}`."""

    extra: dict[_OptionName, OptionValue] = msgspec.field(default_factory=dict)
    """Any other engine argument of vLLM, passed through."""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of vLLM's API server. None means "not given"."""

    enable_auto_tool_choice: bool | None = None
    tool_call_parser: _Text | None = None
    chat_template: _Text | None = None
    """Path of a Jinja file, or the template itself."""
    chat_template_content_format: Literal["auto", "string", "openai"] | None = None
    default_chat_template_kwargs: dict[str, Any] | None = None
    enable_prompt_tokens_details: bool | None = None
    enable_force_include_usage: bool | None = None

    extra: dict[_OptionName, OptionValue] = msgspec.field(default_factory=dict)
    """Any other server argument of vLLM, passed through."""


class EvidenceLevel(StrEnum):
    """How a preset's claims came about."""

    CPU_ENGINE = "cpu engine"
    """We ran it, on the CPU engine."""
    STUB = "stub"
    """We ran it against a stub of the hardware."""
    OWNER_REPORT = "owner report"
    """Owners of such cards published it; we have not measured it."""
    NOT_MEASURED = "not measured"
    """Nobody has published a run of exactly these settings."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who measured what. It speaks about exactly this preset, so it is never inherited."""

    level: EvidenceLevel
    source: _Text
    """Who says so, in words."""
    measured: str = ""
    """What was measured, with units."""
    vllm: str = ""
    """The version it was measured on."""

    @property
    def sentence(self) -> str:
        """The evidence as one sentence."""
        measured = f"{self.measured.rstrip('. ')}. " if self.measured else ""
        version = f" (vLLM {self.vllm})" if self.vllm else ""
        return f"{measured}{self.source.rstrip('. ')}{version}."


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """One complete, valid configuration of an engine."""

    name: str
    """The file's name without suffix; unique in a library."""
    engine: EngineOptions
    server: ServerOptions = ServerOptions()
    env: Environment = msgspec.field(default_factory=dict)
    """Environment variables of the engine's processes."""
    title: str = ""
    description: str = ""
    device: Device = "any"
    slot: Slot | None = None
    """The digit key that selects it."""
    evidence: Evidence | None = None
    source: Source = "user"
    path: str = ""
    """The file that it was read from."""
    overlay: dict[str, int] = msgspec.field(default_factory=dict)
    """What toggles from the screen keep on top of the file, by the name of the toggle."""
    written_engine: EngineOptions | None = None
    """The file's own engine options while an overlay changes them, else None."""

    @property
    def as_written(self) -> Preset:
        """The preset as its file says, without the overlay."""
        if self.written_engine is None:
            return self
        return msgspec.structs.replace(
            self, engine=self.written_engine, overlay={}, written_engine=None
        )

    @property
    def speculative_tokens(self) -> int | None:
        """Draft tokens a step; 0 without speculative decoding, None when vLLM chooses."""
        config = self.engine.speculative_config
        if not config:
            return 0
        tokens = config.get("num_speculative_tokens")
        return tokens if type(tokens) is int else None

    @property
    def demo_model(self) -> str | None:
        """The demo model's name without prefix, or None for a model that exists already."""
        if not self.engine.model.startswith(DEMO_MODEL_PREFIX):
            return None
        return self.engine.model.removeprefix(DEMO_MODEL_PREFIX)


OWNED_OPTIONS: dict[str, str] = {
    **dict.fromkeys(
        ("host", "port", "uds", "grpc", "grpc_port", "headless", "api_server_count", "root_path"),
        "the app owns the socket; set host and port under [server] in config.toml",
    ),
    **dict.fromkeys(
        ("api_key", "hf_token"),
        "a secret does not belong in a preset; use the environment variable AGENTSERVE_API_KEY,"
        " or HF_TOKEN for the hub",
    ),
    **dict.fromkeys(
        (
            "ssl_keyfile",
            "ssl_certfile",
            "ssl_ca_certs",
            "ssl_cert_reqs",
            "ssl_ciphers",
            "enable_ssl_refresh",
            "middleware",
            "h11_max_header_count",
            "h11_max_incomplete_event_size",
            "uvicorn_log_level",
            "disable_uvicorn_access_log",
        ),
        "the app serves the API itself",
    ),
    **dict.fromkeys(
        (
            "disable_log_stats",
            "aggregate_engine_logging",
            "kv_events_config",
            "enable_logging_iteration_details",
        ),
        "the app sets it, because everything on the screen comes from there",
    ),
    **dict.fromkeys(("config", "model_tag"), "a preset is the only source of arguments"),
}
"""Options of vLLM that a preset may not set, with the reason for people."""

OWNED_VARIABLES: dict[str, str] = {
    "VLLM_API_KEY": "a secret does not belong in a preset; use AGENTSERVE_API_KEY",
    "VLLM_WORKER_MULTIPROC_METHOD": "the app needs `spawn`, because it has threads",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "the app needs the engine in its own process",
    "VLLM_RPC_BASE_PATH": "the app keeps the engine's sockets in its own folder",
    "VLLM_LOGGING_STREAM": "the app collects the engine's log",
    "VLLM_LOGGING_CONFIG_PATH": "the app collects the engine's log",
    "VLLM_CONFIGURE_LOGGING": "the app collects the engine's log",
}
"""Environment variables that a preset may not set, with the reason for people."""

OWNED_VARIABLE_PREFIX = "AGENTSERVE_"


def option_problem(table: str, name: str) -> str | None:
    """Say why an option may not stand in a table of a preset.

    Args:
        table: `engine`, `server`, `engine.extra`, `server.extra` or `env`.
        name: The key as it was written.

    Returns:
        The reason as the end of a sentence, or None when nothing speaks against it.
    """
    if table == "env":
        if name.startswith(OWNED_VARIABLE_PREFIX):
            return "variables of that name belong to the app"
        return OWNED_VARIABLES.get(name)
    option = name.replace("-", "_")
    if option in OWNED_OPTIONS:
        return OWNED_OPTIONS[option]
    if not table.endswith(".extra"):
        return None
    for options, home in ((EngineOptions, "engine"), (ServerOptions, "server")):
        if option in options.__struct_fields__:
            return f"it is a known option: write it under [{home}]"
    return None


def vllm_arguments(preset: Preset, model_path: str | None = None) -> list[str]:
    """Build the command line for vLLM's own argument parser.

    Booleans become `--name` or `--no-name`, lists repeated values, tables JSON. Options that are
    not given are left out, so that vLLM's defaults apply.

    Args:
        preset: The preset.
        model_path: Folder of the model; needed for a demo model, otherwise it replaces the name.

    Returns:
        The arguments, without a program name.

    Raises:
        ValueError: The preset names a demo model and no folder is given, or an option is one that
            a preset may not set.
    """
    if preset.demo_model is not None and model_path is None:
        raise ValueError(f"{preset.engine.model} needs the folder of the demo model")
    options: dict[str, Any] = {"model": model_path or preset.engine.model}
    if preset.demo_model is not None:
        options["served_model_name"] = f"demo-{preset.demo_model}"
    for table in (preset.engine, preset.server):
        for name in table.__struct_fields__:
            value = getattr(table, name)
            if name not in ("model", "extra") and value is not None:
                options[name] = value
    for home, extra in (("engine", preset.engine.extra), ("server", preset.server.extra)):
        for name, value in extra.items():
            if reason := option_problem(f"{home}.extra", name):
                raise ValueError(f"`{name}` cannot be set in a preset: {reason}")
            options[name] = value
    if not options["trust_remote_code"]:
        del options["trust_remote_code"]
    if not options.get("speculative_config", True):
        del options["speculative_config"]
    arguments: list[str] = []
    for name, value in options.items():
        arguments += _spelled(name, value)
    return arguments


def _spelled(name: str, value: OptionValue) -> list[str]:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    if isinstance(value, dict):
        return [f"--{dashed}", json.dumps(value, default=str)]
    if isinstance(value, list):
        return [f"--{dashed}", *(_word(each) for each in value)]
    word = _word(value)
    # A value that starts with a dash would be taken for the next option.
    return [f"--{dashed}={word}"] if word.startswith("-") else [f"--{dashed}", word]


def _word(value: Any) -> str:
    if isinstance(value, bool | dict | list):
        return json.dumps(value, default=str)
    return str(value)


def summarize(preset: Preset) -> PresetSummary:
    """Reduce a preset to what a list of presets shows."""
    return PresetSummary(
        name=preset.name,
        title=preset.title or preset.name,
        source=preset.source,
        slot=preset.slot,
        evidence=preset.evidence.sentence if preset.evidence else "",
        evidence_level=preset.evidence.level.value if preset.evidence else None,
        device=preset.device,
        max_model_len=preset.engine.max_model_len,
        max_num_seqs=preset.engine.max_num_seqs,
        max_num_batched_tokens=preset.engine.max_num_batched_tokens,
        speculative_tokens=preset.speculative_tokens or 0,
        has_overlay=bool(preset.overlay),
    )
