"""The actions of the presets page; they work on the row that is highlighted there."""

from __future__ import annotations

from collections.abc import Callable

from agentserve.domain.text import printable
from agentserve.ui.action import Action, key_for
from agentserve.ui.conditions import against_switch
from agentserve.ui.frame import RUNNING_STATES, Frame


def _against_highlighted(frame: Frame) -> str | None:
    if frame.highlighted is None:
        return "There is no preset in the list."
    if frame.highlighted.problem is not None:
        name = printable(frame.highlighted.name, 40)
        return f"{name} cannot be used; press {key_for('presets.edit', frame.keys_of)} to edit it."
    return None


def _against_use(frame: Frame) -> str | None:
    reason = _against_highlighted(frame)
    if reason is not None or frame.highlighted is None:
        return reason
    return against_switch(frame, frame.highlighted.name)


def _against_edit(frame: Frame) -> str | None:
    return None if frame.highlighted is not None else "There is no preset in the list."


def _against_owned(verb: str, *, broken_too: bool) -> Callable[[Frame], str | None]:
    def against(frame: Frame) -> str | None:
        preset = frame.highlighted
        if preset is None or (preset.problem is not None and not broken_too):
            return _against_highlighted(frame)
        if preset.source == "shipped":
            copies = key_for("presets.duplicate", frame.keys_of)
            return f"A shipped preset cannot be {verb}; press {copies} to make a copy of your own."
        return None

    return against


def _against_reset(frame: Frame) -> str | None:
    reason = _against_highlighted(frame)
    if reason is not None or frame.highlighted is None:
        return reason
    if not frame.highlighted.has_overlay:
        return f"No changes are kept for {printable(frame.highlighted.name, 40)}."
    return None


def _use_title(frame: Frame) -> str:
    return "switch" if frame.state in RUNNING_STATES else "start"


PRESET_ACTIONS: tuple[Action, ...] = (
    Action(
        "presets.next",
        "screen.choose_preset(1)",
        "next",
        "Go to the next preset.",
        "Presets page",
        ("down", "j"),
        "↓",
        scope="presets",
    ),
    Action(
        "presets.previous",
        "screen.choose_preset(-1)",
        "previous",
        "Go to the preset before.",
        "Presets page",
        ("up", "k"),
        "↑",
        scope="presets",
    ),
    Action(
        "presets.use",
        "screen.use_preset",
        _use_title,
        "Start the chosen preset, or switch to it.",
        "Presets page",
        ("enter",),
        in_bar=True,
        bar_rank=0,
        against=_against_use,
        scope="presets",
    ),
    Action(
        "presets.duplicate",
        "screen.duplicate_preset",
        "copy",
        "Make a file of your own that extends the chosen preset.",
        "Presets page",
        ("n",),
        in_bar=True,
        bar_rank=1,
        against=_against_highlighted,
        scope="presets",
    ),
    Action(
        "presets.edit",
        "screen.edit_preset",
        "edit",
        "Open the file in $VISUAL or $EDITOR and check it afterwards.",
        "Presets page",
        ("e",),
        in_bar=True,
        bar_rank=0,
        against=_against_edit,
        scope="presets",
    ),
    Action(
        "presets.rename",
        "screen.rename_preset",
        "rename",
        "Give a file of your own another name.",
        "Presets page",
        ("R",),
        in_bar=True,
        bar_rank=3,
        against=_against_owned("renamed", broken_too=False),
        scope="presets",
    ),
    Action(
        "presets.delete",
        "screen.delete_preset",
        "delete",
        "Delete a file of your own, after asking.",
        "Presets page",
        ("d", "delete"),
        in_bar=True,
        bar_rank=1,
        against=_against_owned("deleted", broken_too=True),
        scope="presets",
    ),
    Action(
        "presets.reset",
        "screen.reset_overlay",
        "reset",
        "Forget the changes that were kept on top of the file, after asking.",
        "Presets page",
        ("o",),
        in_bar=True,
        bar_rank=2,
        against=_against_reset,
        scope="presets",
    ),
    Action(
        "presets.command",
        "screen.show_command",
        "command",
        "Show and copy the equivalent `vllm serve` command.",
        "Presets page",
        ("y",),
        in_bar=True,
        bar_rank=1,
        against=_against_highlighted,
        scope="presets",
    ),
    Action(
        "presets.import",
        "screen.import_command",
        "import",
        "Make a preset from a pasted `vllm serve` command.",
        "Presets page",
        ("i",),
        in_bar=True,
        bar_rank=2,
        scope="presets",
    ),
)
