"""The user's own keys: checked against the registry before any of them is used. Pure.

Textual would drop an action silently whose key another one takes, so nothing that is doubtful
reaches it: each problem is one sentence, and only what is left is applied.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from textual.keys import KEY_NAME_REPLACEMENTS

from agentserve.domain.text import printable
from agentserve.ui.action import Action, key_text
from agentserve.ui.actions import ACTIONS

_ESSENTIAL = ("app.quit", "view.help", "view.back")
"""Without these nobody finds the way out."""
_MODIFIERS = frozenset({"ctrl", "alt", "shift", "super", "meta", "hyper"})
_NAMED_KEYS = frozenset(
    {
        *("escape", "enter", "tab", "space", "backspace", "insert", "delete"),
        *("up", "down", "left", "right", "home", "end", "pageup", "pagedown"),
        *(f"f{number}" for number in range(1, 25)),
    }
)
_RESERVED = {
    "ctrl+b": "tmux uses it",
    "ctrl+s": "terminals stop their output with it",
    "ctrl+z": "it is kept free, since shells suspend programs with it",
}


class CheckedKeys(NamedTuple):
    """What became of the user's keys."""

    keys_of: dict[str, tuple[str, ...]]
    """Keys to use instead of the built-in ones, in Textual's naming, by action id."""
    problems: tuple[str, ...]
    """Why keys were not taken, one sentence each."""


def check(
    wanted: Mapping[str, str | Sequence[str]], actions: Sequence[Action] = ACTIONS
) -> CheckedKeys:
    """Check the user's keys and keep those that are safe to use.

    Args:
        wanted: Keys by action id: one key, several with commas, or a list.
        actions: The registry.

    Returns:
        The usable keys, and what is wrong with the others.
    """
    known = {action.id: action for action in actions}
    problems: list[str] = []
    chosen: dict[str, tuple[str, ...]] = {}
    for action_id, value in wanted.items():
        if action_id not in known:
            problems.append(_unknown(action_id, known))
            continue
        keys, wrong = _parsed(action_id, value)
        problems += wrong
        if keys:
            chosen[action_id] = keys
    while conflict := _conflict(chosen, known):
        refused, problem = conflict
        problems.append(problem)
        del chosen[refused]
    return CheckedKeys(chosen, tuple(problems))


def textual_keymap(keys_of: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Write checked keys as Textual's keymap."""
    return {action_id: ",".join(keys) for action_id, keys in keys_of.items()}


def normalized(key: str) -> str | None:
    """Return Textual's name of a key, or None when there is no such key."""
    if len(key) == 1:
        return _named(key)
    *modifiers, last = key.lower().split("+") if key != "+" else [key]
    if not last or not _MODIFIERS.issuperset(modifiers):
        return None
    if len(last) == 1:
        name = _named(last)
    elif last in _NAMED_KEYS or _is_character_name(last):
        name = last
    else:
        return None
    return "+".join((*modifiers, name)) if name else None


def _parsed(action_id: str, value: str | Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    parts = value.split(",") if isinstance(value, str) and value != "," else [*value]
    keys: list[str] = []
    problems: list[str] = []
    for part in parts:
        text = str(part).strip() or "(empty)"
        key = normalized(text)
        if key is None:
            problems.append(f"Key {printable(text, 30)!r} for {action_id}: there is no such key.")
        elif key in _RESERVED:
            problems.append(f"Key {key} for {action_id} cannot be used: {_RESERVED[key]}.")
        elif key not in keys:
            keys.append(key)
    return tuple(keys), problems


def _unknown(action_id: str, known: Mapping[str, Action]) -> str:
    # Imported late: it is rarely needed, and the first frame waits for every import.
    import difflib

    near = difflib.get_close_matches(action_id, known, n=1, cutoff=0.5)
    meant = f" Did you mean {near[0]}?" if near else " See the help for all names."
    return f"There is no action {printable(action_id, 40)}.{meant}"


def _conflict(
    chosen: Mapping[str, tuple[str, ...]], known: Mapping[str, Action]
) -> tuple[str, str] | None:
    """Find one action whose chosen keys cannot stand, with the reason."""
    owners: dict[str, list[Action]] = {}
    for action in known.values():
        for key in chosen.get(action.id, action.keys):
            owners.setdefault(key, []).append(action)
    for key, actions in owners.items():
        for index, first in enumerate(actions):
            for second in actions[index + 1 :]:
                pair = [each for each in (second, first) if each.id in chosen]
                if not pair or not _within_reach(first, second):
                    continue
                # Of two chosen ones the essential one stays.
                refused = min(pair, key=lambda each: each.id in _ESSENTIAL)
                other = second if refused is first else first
                lost = " Nobody could leave or find help." if other.id in _ESSENTIAL else ""
                return refused.id, (
                    f"Key {key_text(key)} cannot be {refused.id}: it is {other.id} already.{lost}"
                )
    return None


def _within_reach(first: Action, second: Action) -> bool:
    return not first.scope or not second.scope or first.scope == second.scope


def _named(character: str) -> str | None:
    if not character.isprintable():
        return None
    if character == " ":
        return "space"
    if character.isalnum():
        return character
    try:
        name = unicodedata.name(character)
    except ValueError:
        return None
    name = name.lower().replace("-", "_").replace(" ", "_")
    return KEY_NAME_REPLACEMENTS.get(name, name)


def _is_character_name(name: str) -> bool:
    text = key_text(name)
    return len(text) == 1 and _named(text) == name
