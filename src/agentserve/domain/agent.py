"""The coding agents that are known by name, and how a client is named.

Owns their names and how their User-Agent begins. It must not know their settings or requests.
"""

from __future__ import annotations

from typing import NamedTuple

from agentserve.domain.history import agent_name, agent_product


class KnownAgent(NamedTuple):
    """A product that is recognised by the beginning of its User-Agent."""

    id: str
    name: str
    user_agents: tuple[str, ...]
    """Beginnings of the header, in small letters."""

    def sent(self, user_agent: str | None) -> bool:
        """Whether a request with this User-Agent is from this product."""
        return user_agent is not None and user_agent.casefold().startswith(self.user_agents)


CLAUDE_CODE = KnownAgent("claude-code", "Claude Code", ("claude-cli", "claude-code"))
OPENCODE = KnownAgent("opencode", "OpenCode", ("opencode",))
QWEN_CODE = KnownAgent("qwen-code", "Qwen Code", ("qwencode", "qwen-code"))
CODEX = KnownAgent("codex", "Codex", ("codex",))
CLINE = KnownAgent("cline", "Cline", ("cline",))
CONTINUE = KnownAgent("continue", "Continue", ("continue",))

KNOWN_AGENTS: tuple[KnownAgent, ...] = (CLAUDE_CODE, OPENCODE, QWEN_CODE, CODEX, CLINE, CONTINUE)


def client_name(user_agent: str | None) -> str | None:
    """Name a client for a person.

    Args:
        user_agent: The header as the client sent it.

    Returns:
        The name of a known agent, else the first product without its version, safe to show; None
        when there is nothing to show.
    """
    for agent in KNOWN_AGENTS:
        if agent.sent(user_agent):
            return agent.name
    return agent_name(agent_product(user_agent))
