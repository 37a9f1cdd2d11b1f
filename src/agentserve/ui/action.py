"""What one thing that a person can do consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from textual.keys import format_key

from agentserve.ui.frame import Frame

_KEY_TEXTS = {"escape": "esc", "pageup": "pgup", "pagedown": "pgdn"}


def key_text(key: str) -> str:
    """Write a key of Textual's naming as people do: `question_mark` as `?`, `escape` as `esc`."""
    return _KEY_TEXTS.get(key) or format_key(key)


def first_key(action_id: str, keys_of: Mapping[str, tuple[str, ...]]) -> str:
    """Return the key that is shown for an action, in Textual's naming; empty without a key.

    Args:
        action_id: One of the registry.
        keys_of: The keys that the user gave, by action id.
    """
    # Imported late: conditions in the registry ask here.
    from agentserve.ui.actions import BY_ID

    return next(iter(keys_of.get(action_id, BY_ID[action_id].keys)), "")


def key_for(action_id: str, keys_of: Mapping[str, tuple[str, ...]]) -> str:
    """Write the key that the user has for an action; empty without a key.

    Args:
        action_id: One of the registry.
        keys_of: The keys that the user gave, by action id.
    """
    # Imported late: conditions in the registry ask here.
    from agentserve.ui.actions import BY_ID

    if action_id in keys_of:
        return key_text(keys_of[action_id][0])
    return BY_ID[action_id].key_label


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
    in_bar: bool | Callable[[Frame], bool] = False
    """Whether the bar at the bottom offers it."""
    bar_rank: int = 1
    """In a bar that is too narrow the highest rank leaves first."""
    bar_text: tuple[str, str] | None = None
    """Key and title in the bar where they differ, for an action that stands for several."""
    against: Callable[[Frame], str | None] = _possible
    """Why the action is impossible now, in one sentence; None when it is possible."""
    scope: str = ""
    """Name of the view that must be open; empty: everywhere. `call` then begins with `screen.`."""

    def title_at(self, frame: Frame) -> str:
        """Return the title that fits `frame`."""
        return self.title if isinstance(self.title, str) else self.title(frame)

    @property
    def key_label(self) -> str:
        """How the built-in key is written for people; empty without a key."""
        return self.label or (self.keys[0] if self.keys else "")

    def key_at(self, frame: Frame) -> str:
        """How the key that the user has for this action is written; empty without a key."""
        keys = frame.keys_of.get(self.id)
        return self.key_label if keys is None else key_text(keys[0])

    def keys_at(self, frame: Frame) -> tuple[str, ...]:
        """All keys that the user has for this action, as written for people."""
        keys = frame.keys_of.get(self.id)
        if keys is not None:
            return tuple(key_text(key) for key in keys)
        return (self.key_label, *(key_text(key) for key in self.keys[1:])) if self.keys else ()
