"""The one registry of what a person can do: keys, bar, palette, help and documentation read it.

An action names the method of the app that performs it; it does not know the app. Its id is part of
the public keymap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from textual.binding import Binding

from agentserve.domain.lifecycle import EngineState
from agentserve.domain.text import printable
from agentserve.ui.frame import RUNNING_STATES, Frame

SLOTS = range(1, 10)
"""Digit keys, one preset slot each."""


def _possible(_frame: Frame) -> str | None:
    return None


class Action(NamedTuple):
    """One command."""

    id: str
    """Public name, `group.verb`."""
    call: str
    """The app's action in Textual's notation, without namespace."""
    title: str | Callable[[Frame], str]
    """A verb; it may follow the engine's state."""
    help: str
    """One sentence."""
    group: str
    keys: tuple[str, ...] = ()
    """Key names of Textual, the shown one first; none: the palette only."""
    label: str = ""
    """How the first key is written, where its name is not the character."""
    in_bar: bool = False
    """Whether the bar at the bottom offers it."""
    bar_text: tuple[str, str] | None = None
    """Key and title in the bar where they differ, for an action that stands for several."""
    against: Callable[[Frame], str | None] = _possible
    """Why the action is impossible now, in one sentence; None when it is possible."""

    def title_at(self, frame: Frame) -> str:
        """Return the title that fits `frame`."""
        return self.title if isinstance(self.title, str) else self.title(frame)

    @property
    def key_label(self) -> str:
        """How the key is written for people; empty without a key."""
        return self.label or (self.keys[0] if self.keys else "")


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
    return _against_start(frame)


def _against_start(frame: Frame) -> str | None:
    if frame.engine_missing:
        return frame.engine_missing
    if not frame.presets:
        return "There is no usable preset to start."
    return None


def _against_restart(frame: Frame) -> str | None:
    if frame.state in (EngineState.STARTING, EngineState.WARMING, EngineState.READY):
        return None
    if frame.state is EngineState.STOPPING:
        return "The engine is stopping; press s when it has stopped."
    return "Nothing is running; press s to start."


def _against_slot(slot: int) -> Callable[[Frame], str | None]:
    def against(frame: Frame) -> str | None:
        if frame.preset_in_slot(slot) is None:
            return f"There is no preset in slot {slot}."
        if frame.state in RUNNING_STATES:
            return f"Stop the engine first (s), then press {slot}."
        return _against_start(frame)

    return against


def _slot_title(slot: int) -> Callable[[Frame], str]:
    def title(frame: Frame) -> str:
        preset = frame.preset_in_slot(slot)
        return f"start {printable(preset.name, 40)}" if preset else f"start preset {slot}"

    return title


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
        against=_against_toggle,
    ),
    Action(
        "engine.restart",
        "restart_engine",
        "restart",
        "Stop the engine and start the same preset again.",
        "Engine",
        ("r",),
        in_bar=True,
        against=_against_restart,
    ),
    *(
        Action(
            f"preset.{slot}",
            f"start_slot({slot})",
            _slot_title(slot),
            f"Start the preset in slot {slot} when nothing runs.",
            "Presets",
            (str(slot),),
            in_bar=slot == SLOTS[0],
            bar_text=("1-9", "preset") if slot == SLOTS[0] else None,
            against=_against_slot(slot),
        )
        for slot in SLOTS
    ),
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
    ),
    Action("view.back", "go_back", "back", "Go back to the dashboard.", "View", ("escape",), "esc"),
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
        "Leave; a running engine is stopped.",
        "App",
        ("q", "ctrl+c"),
        in_bar=True,
    ),
)

BY_CALL: dict[str, Action] = {action.call: action for action in ACTIONS}


def call_text(name: str, parameters: tuple[object, ...]) -> str:
    """Write an action's name and parameters as `Action.call` has them."""
    return f"{name}({', '.join(map(repr, parameters))})" if parameters else name


def bindings() -> list[Binding]:
    """Make the app's key bindings."""
    return [
        Binding(
            ",".join(action.keys),
            action.call,
            action.title if isinstance(action.title, str) else action.help,
            show=action.in_bar,
            key_display=action.key_label,
            tooltip=action.help,
            id=action.id,
        )
        for action in ACTIONS
        if action.keys
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
