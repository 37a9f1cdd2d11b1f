"""The actions of the view of agent sessions: its list, and one session's turns."""

from __future__ import annotations

from agentserve.ui.action import Action

SCOPE = "sessions"
_GROUP = "In the sessions"


def _here(
    name: str, call: str, title: str, text: str, *keys: str, label: str = "", bar: bool = False
) -> Action:
    return Action(
        f"{SCOPE}.{name}",
        f"screen.{call}",
        title,
        text,
        _GROUP,
        keys,
        label,
        in_bar=bar,
        bar_rank=0,
        scope=SCOPE,
    )


SESSION_ACTIONS: tuple[Action, ...] = (
    _here(
        *("open", "toggle_session", "turns", "Show or hide the turns of the chosen session."),
        "enter",
        bar=True,
    ),
    _here(
        *("next", "go(1)", "next", "Go to the next session or turn.", "down", "j"),
        label="↓",
        bar=True,
    )._replace(bar_text=("↑/↓", "move")),
    _here(
        *("previous", "go(-1)", "previous", "Go to the session or turn before.", "up", "k"),
        label="↑",
    ),
    _here("first", "go(-100000)", "newest", "Go to the newest session or turn.", "home"),
    _here("last", "go(100000)", "oldest", "Go to the oldest session or turn.", "end"),
    _here(
        *("page_down", "page(1)", "page"),
        "Go on a page; in a session read on, or go on a page of turns.",
        *("pagedown", "space"),
        label="pgdn",
        bar=True,
    ),
    _here(
        *("page_up", "page(-1)", "page back"),
        "Go back a page; in a session read back, or go back a page of turns.",
        "pageup",
        label="pgup",
    ),
)
