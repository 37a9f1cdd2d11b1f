"""The actions that exist in one view only: requests, log, agents, history, explanations."""

from __future__ import annotations

from agentserve.ui.action import Action

_GROUPS = {
    "requests": "In the requests",
    "log": "In the log",
    "agents": "Connecting an agent",
    "history": "In the history",
    "explain": "While figures are explained",
}


def _here(
    action_id: str, call: str, title: str, text: str, *keys: str, label: str = "", bar: bool = True
) -> Action:
    """Make an action of the view that its id begins with."""
    scope = action_id.partition(".")[0]
    return Action(
        action_id,
        f"screen.{call}",
        title,
        text,
        _GROUPS[scope],
        keys,
        label,
        in_bar=bar,
        bar_rank=0,
        scope=scope,
    )


VIEW_ACTIONS: tuple[Action, ...] = (
    _here("requests.detail", "toggle_detail", "detail", "Show or hide one request.", "enter"),
    _here("requests.sort", "cycle_sort", "sort", "Sort by the next column.", "o"),
    _here(
        "requests.filter",
        "start_filter",
        "filter",
        "Show the requests whose agent, session, route or outcome contains a text.",
        "slash",
        label="/",
    ),
    _here(
        *("requests.next", "move(1)", "next", "Go to the next request.", "down", "j"),
        label="↓",
        bar=False,
    ),
    _here(
        *("requests.previous", "move(-1)", "previous", "Go to the request before.", "up", "k"),
        label="↑",
        bar=False,
    ),
    _here("log.follow", "follow", "follow", "Follow the newest line again.", "f"),
    _here(
        *("log.search", "start_search", "search", "Mark the lines that contain a text.", "slash"),
        label="/",
    ),
    _here("log.next", "find(1)", "next", "Go to the next line found.", "n", bar=False),
    _here("log.previous", "find(-1)", "previous", "Go to the line found before.", "N", bar=False),
    _here("log.level", "cycle_level", "level", "Show all lines, warnings, or only errors.", "e"),
    _here("log.wrap", "toggle_wrap", "wrap", "Wrap long lines, or move along them.", "w"),
    _here("log.copy", "copy_view", "copy", "Copy the lines in view (OSC 52).", "y"),
    _here("agents.copy", "copy_settings", "copy", "Copy the settings (OSC 52).", "y"),
    _here("agents.next", "choose(1)", "next", "Go to the next agent.", "down", "j", label="↓"),
    _here(
        *("agents.previous", "choose(-1)", "previous", "Go to the agent before.", "up", "k"),
        label="↑",
        bar=False,
    ),
    _here(
        *("agents.page_down", "scroll_settings(1)", "page down", "Scroll the settings down."),
        *("pagedown", "space"),
        label="pgdn",
        bar=False,
    ),
    _here(
        *("agents.page_up", "scroll_settings(-1)", "page up", "Scroll the settings up.", "pageup"),
        label="pgup",
        bar=False,
    ),
    _here(
        *("history.more", "change_days(1)", "more days", "Show more days: 7, 30, 90."),
        *("right", "plus"),
        label="→",
    )._replace(bar_text=("←/→", "days")),
    _here(
        *("history.fewer", "change_days(-1)", "fewer days", "Show fewer days."),
        *("left", "minus"),
        label="←",
        bar=False,
    ),
    _here("history.reload", "read_again", "read again", "Read the history again.", "enter"),
    _here("explain.next", "explain_step(1)", "next", "Next figure.", "tab", "right", "down"),
    _here(
        *("explain.previous", "explain_step(-1)", "previous", "The figure before."),
        *("shift+tab", "left", "up"),
        bar=False,
    ),
)
