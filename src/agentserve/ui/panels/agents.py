"""How to connect an agent: which ones were seen here, and the settings of the chosen one."""

from __future__ import annotations

from agentserve.domain.snapshot import Snapshot
from agentserve.ui.agent_settings import AGENTS, Agent, facts_of, last_seen_unix_s
from agentserve.ui.formatting import about_seconds, clock
from agentserve.ui.lines import BLANK, Line, Lines, Role, Span, clip, fit, wrap

_NAME = 14


def draw_list(
    seen: tuple[tuple[Agent, str, Role], ...], chosen: int, width: int, height: int
) -> Lines:
    """Draw one line an agent: its name, and whether a request of it was here.

    Args:
        seen: The agents, with what is known about their requests.
        chosen: Index of the agent whose settings are shown.
        width: Cells per line.
        height: Rows to use at most.
    """
    lines: list[Line] = []
    for index, (agent, text, role) in enumerate(seen):
        mark = "▸ " if index == chosen else "  "
        name_role = Role.STRONG if index == chosen else Role.TEXT
        line: Line = (
            Span(mark, Role.ACCENT),
            Span(fit(agent.name, _NAME), name_role),
            Span(text, role),
        )
        lines.append(clip(line, width))
    return tuple(lines[:height])


def seen_here(snapshot: Snapshot) -> tuple[tuple[Agent, str, Role], ...]:
    """Say for each agent whether, and when, its newest request was here."""
    return tuple((agent, *_seen(agent, snapshot)) for agent in AGENTS)


def draw_settings(
    snapshot: Snapshot,
    chosen: int,
    api_key_needed: bool,
    width: int,
    height: int,
) -> Lines:
    """Draw where the settings go, the text itself, and what to know about it.

    Args:
        snapshot: The server as it is now.
        chosen: Index of the agent.
        api_key_needed: Whether clients must send a key.
        width: Cells per line.
        height: Rows to use at most.
    """
    agent = AGENTS[chosen]
    text = agent.settings(facts_of(snapshot, key_needed=api_key_needed))
    lines: list[Line] = [
        *((Span(row, Role.LABEL),) for row in wrap(agent.where, width)),
        BLANK,
    ]
    # The text is copied whole; here a long line only loses its end.
    lines += [clip((Span("  "), Span(source)), width) for source in text.splitlines()]
    lines.append(BLANK)
    key = (
        "A key is needed: the one in AGENTSERVE_API_KEY, or in config.toml."
        if api_key_needed
        else "No key is needed; agents that insist on one take any text."
    )
    for note in (*agent.notes, key):
        rows = wrap(note, max(2, width - 2))
        lines += [
            (Span("· " if index == 0 else "  ", Role.MUTED), Span(row, Role.MUTED))
            for index, row in enumerate(rows)
        ]
    return tuple(lines[:height])


def settings_title(chosen: int) -> str:
    """Name the panel with the settings."""
    return f"Settings for {AGENTS[chosen].name}"


def _seen(agent: Agent, snapshot: Snapshot) -> tuple[str, Role]:
    at = last_seen_unix_s(agent, snapshot)
    if at is None:
        return "no request seen", Role.MUTED
    ago = snapshot.time - at
    if ago < 1:
        return "✓ here now", Role.READY
    when = f"{about_seconds(ago)} ago" if ago < 3_600 else f"at {clock(at)}"
    return f"✓ request {when}", Role.READY
