"""The settings that connect each known agent to this server. Pure data and text.

Names of settings are those of the agents' own documentation. A value that is not known yet, such as
the model while nothing runs, stands as `<model>`, so that it can be seen to be missing.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import NamedTuple

from agentserve.domain.agent import (
    CLAUDE_CODE,
    CLINE,
    CODEX,
    CONTINUE,
    OPENCODE,
    QWEN_CODE,
    KnownAgent,
)
from agentserve.domain.snapshot import Snapshot
from agentserve.domain.text import printable

TIMEOUT_S = 1_200
"""A cold prompt of 100,000 tokens takes minutes on two small cards: agents must wait for it."""
_KEY_VARIABLE = "AGENTSERVE_API_KEY"
_NO_KEY = "no-key-needed"
_PROVIDER = "agentserve"
_OUTPUT_SHARE = 8
"""One part in eight of the context is left for the answer where an agent asks for a limit."""
_MOST_OUTPUT_TOKENS = 16_384


class ServerFacts(NamedTuple):
    """What an agent must know about this server."""

    url: str
    """Base URL without a path."""
    model: str
    context_tokens: int | None
    key_needed: bool

    @property
    def openai_url(self) -> str:
        """Base URL for OpenAI clients."""
        return self.url + "/v1"

    @property
    def shell_key(self) -> str:
        """The key as a word of a shell."""
        return f'"${_KEY_VARIABLE}"' if self.key_needed else _NO_KEY

    @property
    def output_tokens(self) -> int | None:
        """How long an answer may be, so that prompt and answer fit."""
        if self.context_tokens is None:
            return None
        return max(1, min(_MOST_OUTPUT_TOKENS, self.context_tokens // _OUTPUT_SHARE))


class Agent(NamedTuple):
    """One agent and how it is told about a server."""

    product: KnownAgent
    where: str
    """Where the settings go."""
    settings: Callable[[ServerFacts], str]
    """The text to copy."""
    notes: tuple[str, ...]
    """What a person should know beside it, one sentence each."""

    @property
    def id(self) -> str:
        """Short name for programs."""
        return self.product.id

    @property
    def name(self) -> str:
        """Name for a person."""
        return self.product.name


def facts_of(snapshot: Snapshot, *, key_needed: bool) -> ServerFacts:
    """Collect what agents must know from a snapshot."""
    engine = snapshot.engine
    return ServerFacts(
        url=printable(engine.endpoint, 200).rstrip("/") or "<address>",
        model=printable(engine.model, 200) if engine.model else "<model>",
        context_tokens=engine.settings.max_model_len,
        key_needed=key_needed,
    )


def last_seen_unix_s(agent: Agent, snapshot: Snapshot) -> float | None:
    """Return when the newest request of an agent was here, or None.

    Args:
        agent: The agent to look for.
        snapshot: Its requests in flight count as now.
    """
    if any(agent.product.sent(request.agent) for request in snapshot.in_flight):
        return snapshot.time
    return max(
        (
            record.finished_at_unix_s
            for record in snapshot.recent_requests
            if agent.product.sent(record.agent)
        ),
        default=None,
    )


def _claude_code(facts: ServerFacts) -> str:
    model = shlex.quote(facts.model)
    lines = [
        f"export ANTHROPIC_BASE_URL={shlex.quote(facts.url)}",
        f"export ANTHROPIC_AUTH_TOKEN={facts.shell_key}",
        f"export ANTHROPIC_MODEL={model}",
        f"export ANTHROPIC_DEFAULT_OPUS_MODEL={model}",
        f"export ANTHROPIC_DEFAULT_SONNET_MODEL={model}",
        f"export ANTHROPIC_DEFAULT_HAIKU_MODEL={model}",
        f"export API_TIMEOUT_MS={TIMEOUT_S * 1000}",
        "export CLAUDE_CODE_ATTRIBUTION_HEADER=0",
        "export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
    ]
    if facts.context_tokens is not None:
        lines.append(f"export CLAUDE_CODE_AUTO_COMPACT_WINDOW={facts.context_tokens}")
        lines.append(f"export CLAUDE_CODE_MAX_OUTPUT_TOKENS={facts.output_tokens}")
    return "\n".join(lines)


def _opencode(facts: ServerFacts) -> str:
    model: dict[str, object] = {"name": facts.model}
    if facts.context_tokens is not None:
        model["limit"] = {"context": facts.context_tokens, "output": facts.output_tokens}
    options = {
        "baseURL": facts.openai_url,
        "apiKey": f"{{env:{_KEY_VARIABLE}}}" if facts.key_needed else _NO_KEY,
        "timeout": TIMEOUT_S * 1000,
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "AgentServe",
        "options": options,
        "models": {facts.model: model},
    }
    return _json(
        {
            "$schema": "https://opencode.ai/config.json",
            "model": f"{_PROVIDER}/{facts.model}",
            "provider": {_PROVIDER: provider},
        }
    )


def _qwen_code(facts: ServerFacts) -> str:
    generation: dict[str, object] = {"timeout": TIMEOUT_S * 1000, "maxRetries": 1}
    if facts.context_tokens is not None:
        generation["contextWindowSize"] = facts.context_tokens
    entry = {
        "id": facts.model,
        "name": "AgentServe",
        "envKey": _KEY_VARIABLE,
        "baseUrl": facts.openai_url,
        "generationConfig": generation,
    }
    settings: dict[str, object] = {"modelProviders": {"openai": [entry]}}
    if not facts.key_needed:
        settings = {"env": {_KEY_VARIABLE: _NO_KEY}, **settings}
    return _json(settings)


def _codex(facts: ServerFacts) -> str:
    lines = [
        f"model = {json.dumps(facts.model)}",
        f'model_provider = "{_PROVIDER}"',
    ]
    if facts.context_tokens is not None:
        lines.append(f"model_context_window = {facts.context_tokens}")
        lines.append(f"model_auto_compact_token_limit = {facts.context_tokens * 4 // 5}")
    lines += [
        "",
        f"[model_providers.{_PROVIDER}]",
        'name = "AgentServe"',
        f"base_url = {json.dumps(facts.openai_url)}",
        'wire_api = "responses"',
        f"stream_idle_timeout_ms = {TIMEOUT_S * 1000}",
    ]
    if facts.key_needed:
        lines.append(f'env_key = "{_KEY_VARIABLE}"')
    return "\n".join(lines)


def _cline(facts: ServerFacts) -> str:
    context = "<context>" if facts.context_tokens is None else str(facts.context_tokens)
    output = "<output>" if facts.output_tokens is None else str(facts.output_tokens)
    return "\n".join(
        (
            "API Provider: OpenAI Compatible",
            f"Base URL: {facts.openai_url}",
            f"API Key: {f'the value of {_KEY_VARIABLE}' if facts.key_needed else _NO_KEY}",
            f"Model ID: {facts.model}",
            f"Context Window Size: {context}",
            f"Max Output Tokens: {output}",
        )
    )


def _continue(facts: ServerFacts) -> str:
    lines = [
        "name: AgentServe",
        "version: 1.0.0",
        "schema: v1",
        "models:",
        "  - name: AgentServe",
        "    provider: openai",
        f"    model: {json.dumps(facts.model)}",
        f"    apiBase: {facts.openai_url}",
        f"    apiKey: {_continue_key(facts)}",
        "    roles: [chat, edit, apply]",
        "    capabilities: [tool_use]",
        "    requestOptions:",
        f"      timeout: {TIMEOUT_S}",
    ]
    if facts.context_tokens is not None:
        lines += [
            "    defaultCompletionOptions:",
            f"      contextLength: {facts.context_tokens}",
            f"      maxTokens: {facts.output_tokens}",
        ]
    return "\n".join(lines)


def _continue_key(facts: ServerFacts) -> str:
    return f"${{{{ secrets.{_KEY_VARIABLE} }}}}" if facts.key_needed else _NO_KEY


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


AGENTS: tuple[Agent, ...] = (
    Agent(
        CLAUDE_CODE,
        "in the shell that starts claude, or under env in ~/.claude/settings.json",
        _claude_code,
        (
            "The address has no /v1: Claude Code speaks the Anthropic API.",
            "CLAUDE_CODE_ATTRIBUTION_HEADER=0 leaves out a line that changes with every request"
            " near the start of the prompt, which would make the prefix cache useless.",
            "All model names are set, because side tasks use the small ones.",
        ),
    ),
    Agent(
        OPENCODE,
        "opencode.json in the project, or ~/.config/opencode/opencode.json",
        _opencode,
        ("`limit.context` tells OpenCode when to compact: it must not be larger than ours.",),
    ),
    Agent(
        QWEN_CODE,
        "~/.qwen/settings.json; then choose the model with /model",
        _qwen_code,
        ("After a turn it may send a side query with another prefix: that one cannot hit.",),
    ),
    Agent(
        CODEX,
        "~/.codex/config.toml",
        _codex,
        ("Codex speaks the Responses API only.",),
    ),
    Agent(
        CLINE,
        "the settings panel of the extension",
        _cline,
        ("Switch image support off when the model has no vision part.",),
    ),
    Agent(
        CONTINUE,
        "~/.continue/config.yaml",
        _continue,
        ("Here the timeout counts seconds, elsewhere milliseconds.",),
    ),
)
