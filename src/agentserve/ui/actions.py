"""The one registry of what a person can do: keys, bar, palette, help and documentation read it.

An action names the method of the app that performs it; it does not know the app. Its id is part of
the public keymap.
"""

from __future__ import annotations

from collections.abc import Callable

from textual.binding import Binding

from agentserve.domain.lifecycle import EngineState
from agentserve.domain.pending import CheckState
from agentserve.domain.text import printable
from agentserve.ui.action import Action as Action
from agentserve.ui.action import key_for
from agentserve.ui.change_actions import CHANGE_ACTIONS
from agentserve.ui.conditions import against_start, against_switch, switch_verb
from agentserve.ui.frame import RUNNING_STATES, Frame
from agentserve.ui.preset_actions import PRESET_ACTIONS
from agentserve.ui.session_actions import SESSION_ACTIONS
from agentserve.ui.view_actions import VIEW_ACTIONS

SLOTS = range(1, 10)
"""Digit keys, one preset slot each."""


def _toggle_title(frame: Frame) -> str:
    match frame.state:
        case EngineState.STARTING | EngineState.WARMING:
            return "abort"
        case EngineState.READY | EngineState.STOPPING:
            return "stop"
        case _:
            return "start"


def _against_toggle(frame: Frame) -> str | None:
    if frame.state is EngineState.STOPPING:
        return "The engine is stopping already."
    if frame.state in RUNNING_STATES:
        return None
    if frame.engine.pending is not None:
        return _against_restart(frame)
    return against_start(frame)


def _against_restart(frame: Frame) -> str | None:
    if frame.engine.pending is not None and frame.engine.pending.check is CheckState.REFUSED:
        drops = key_for("view.back", frame.keys_of)
        return (
            frame.engine.pending.refusal or f"The pending changes cannot work; {drops} drops them."
        )
    if frame.state in (EngineState.STARTING, EngineState.WARMING, EngineState.READY):
        return None
    starts = key_for("engine.toggle", frame.keys_of)
    if frame.state is EngineState.STOPPING:
        return f"The engine is stopping; press {starts} when it has stopped."
    if frame.engine.pending is not None:
        return against_start(frame)
    return f"Nothing is running; press {starts} to start."


def _restart_title(frame: Frame) -> str:
    return "apply" if frame.engine.pending is not None else "restart"


def _against_slot(slot: int) -> Callable[[Frame], str | None]:
    def against(frame: Frame) -> str | None:
        preset = frame.preset_in_slot(slot)
        if preset is None:
            return f"There is no preset in slot {slot}."
        return against_switch(frame, preset.name)

    return against


def _against_previous(frame: Frame) -> str | None:
    if frame.engine.previous_preset is None:
        return "No other preset was ready since the app started."
    return against_switch(frame, frame.engine.previous_preset)


def _slot_title(slot: int) -> Callable[[Frame], str]:
    def title(frame: Frame) -> str:
        preset = frame.preset_in_slot(slot)
        name = printable(preset.name, 40) if preset else f"preset {slot}"
        return f"{switch_verb(frame)} {name}"

    return title


def _offers_previous(frame: Frame) -> bool:
    return frame.state is EngineState.FAILED and _against_previous(frame) is None


def _back_title(frame: Frame) -> str:
    if frame.engine.drain is not None:
        return "stay"
    return "drop changes" if frame.engine.pending is not None else "back"


def _against_copy(frame: Frame) -> str | None:
    return None if frame.engine.endpoint else "There is no address yet."


ACTIONS: tuple[Action, ...] = (
    Action(
        "engine.toggle",
        "toggle_engine",
        _toggle_title,
        "Start the chosen preset; stop a running engine; abort a start in any phase.",
        "Engine",
        ("s",),
        in_bar=True,
        bar_rank=0,
        against=_against_toggle,
    ),
    Action(
        "engine.restart",
        "restart_engine",
        _restart_title,
        "Apply and keep what is pending by a restart; without changes, restart the same preset.",
        "Engine",
        ("r",),
        in_bar=True,
        bar_rank=0,
        against=_against_restart,
    ),
    *(
        Action(
            f"preset.{slot}",
            f"start_slot({slot})",
            _slot_title(slot),
            f"Start the preset in slot {slot}, or switch to it.",
            "Presets",
            (str(slot),),
            in_bar=slot == SLOTS[0],
            bar_rank=1,
            bar_text=("1-9", "switch") if slot == SLOTS[0] else None,
            against=_against_slot(slot),
        )
        for slot in SLOTS
    ),
    Action(
        "engine.previous",
        "start_previous",
        "previous preset",
        "Go back to the preset that was ready before this one.",
        "Presets",
        ("0",),
        in_bar=_offers_previous,
        bar_rank=0,
        against=_against_previous,
    ),
    Action(
        "view.presets",
        "show_presets",
        "presets",
        "Compare presets, switch, copy, edit and import them.",
        "Presets",
        ("p",),
        in_bar=True,
        bar_rank=0,
    ),
    *CHANGE_ACTIONS,
    *PRESET_ACTIONS,
    Action(
        "view.log",
        "show_log",
        "log",
        "Show the whole log, and go back with the same key.",
        "View",
        ("l",),
        in_bar=True,
    ),
    Action(
        "view.gpus",
        "show_gpus",
        "gpus",
        "Show everything that the GPUs report, and why a reading is missing.",
        "View",
        ("g",),
        in_bar=True,
        bar_rank=3,
    ),
    Action(
        "view.requests",
        "show_requests",
        "requests",
        "Show all requests: sort, filter, and the timeline of each.",
        "View",
        ("v",),
        in_bar=True,
        bar_rank=2,
    ),
    Action(
        "view.history",
        "show_history",
        "history",
        "Show what past requests reused, computed and waited for, by day, preset and session.",
        "View",
        ("h",),
        in_bar=True,
        bar_rank=3,
    ),
    Action(
        "view.sessions",
        "show_sessions",
        "sessions",
        "Show the agent sessions: what each keeps in the cache, loses, and why.",
        "View",
        ("c",),
        in_bar=True,
        bar_rank=1,
    ),
    Action(
        "view.agents",
        "show_agents",
        "connect",
        "Show the settings that connect an agent to this server, and copy them.",
        "View",
        ("a",),
        in_bar=True,
        bar_rank=3,
    ),
    Action(
        "view.explain",
        "explain",
        "explain",
        "Explain the figures of the dashboard or of the sessions, one after the other.",
        "View",
        ("x",),
        in_bar=True,
        bar_rank=2,
    ),
    Action(
        "view.help",
        "show_help",
        "help",
        "Show all keys and what the numbers mean.",
        "View",
        ("question_mark",),
        "?",
        in_bar=True,
        bar_rank=0,
    ),
    Action(
        "view.back",
        "go_back",
        _back_title,
        "Go back to the dashboard; there, cancel a waiting switch, else drop pending changes.",
        "View",
        ("escape",),
        "esc",
    ),
    Action(
        "app.palette",
        "command_palette",
        "palette",
        "Search everything that is possible now.",
        "App",
        ("colon", "ctrl+p"),
        ":",
        in_bar=True,
    ),
    Action(
        "app.copy_address",
        "copy_address",
        "copy address",
        "Copy the API's address to the clipboard of your terminal (OSC 52).",
        "App",
        ("u",),
        against=_against_copy,
    ),
    Action("app.theme", "change_theme", "theme", "Choose the colours.", "App", ("t",)),
    Action(
        "app.screenshot", "screenshot", "save picture", "Save the screen as an SVG file.", "App"
    ),
    Action(
        "app.quit",
        "quit",
        "quit",
        "Leave; a running engine is stopped, after asking while requests run.",
        "App",
        ("q", "ctrl+c"),
        in_bar=True,
        bar_rank=0,
    ),
    *SESSION_ACTIONS,
    *VIEW_ACTIONS,
)

BY_ID: dict[str, Action] = {action.id: action for action in ACTIONS}
BY_CALL: dict[str, Action] = {action.call: action for action in ACTIONS}


def call_text(name: str, parameters: tuple[object, ...]) -> str:
    """Write an action's name and parameters as `Action.call` has them."""
    return f"{name}({', '.join(map(repr, parameters))})" if parameters else name


_NO_KEY = "no-key"
"""Stands for the keys of an action that has none built in: Textual gives the user's own keys to
existing bindings only."""


def bindings(scope: str = "") -> list[Binding]:
    """Make the key bindings of the app, or of the view named `scope`."""
    return [
        Binding(
            ",".join(action.keys) or _NO_KEY,
            action.call,
            action.title if isinstance(action.title, str) else action.help,
            show=bool(action.in_bar),
            key_display=action.key_label,
            tooltip=action.help,
            id=action.id,
        )
        for action in ACTIONS
        if action.scope == scope
    ]


def documentation_table() -> str:
    """Write the registry as a Markdown table: id, keys, what it does."""
    rows = [
        f"| `{action.id}` | {', '.join(f'`{key}`' for key in _shown_keys(action)) or 'palette'} "
        f"| {action.help} |"
        for action in ACTIONS
    ]
    return "\n".join(["| Action | Keys | What it does |", "| :- | :- | :- |", *rows])


def _shown_keys(action: Action) -> tuple[str, ...]:
    return (action.key_label, *action.keys[1:]) if action.keys else ()
