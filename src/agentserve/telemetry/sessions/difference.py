"""Where in a prompt two turns part, and in which part of it.

Owns the structural comparison and its confirmation by the tokens: the chat template decides which
of several changed parts comes first, so the part counts as confirmed only when its own text fits
what was decoded around the first differing token. Templates write JSON in their own way, so only
letters and digits are compared. It must not know tokens, sessions or what the change cost.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

import msgspec

from agentserve.domain.prompt import PartKind, PartText, PromptPart
from agentserve.domain.session import Excerpt, VolatileKind
from agentserve.domain.text import printable
from agentserve.telemetry.sessions.excerpt import make_excerpt
from agentserve.telemetry.sessions.token_prefix import common_prefix_length
from agentserve.telemetry.sessions.volatile import volatile_kind

NAME_CHARACTERS = 40
"""Most characters of a tool's name."""

_COMPARED_CHARACTERS = 600
"""Raw characters of a part that are compared around its first difference."""
_SURE_CHARACTERS = 8
"""Letters and digits that must fit, or all that the part has."""
_MESSAGES_TRIED = 32
"""Edited messages that are tried: behind so many none comes first."""
_TOOLS_TRIED = 256
_PIECES = (32, 16, 8, 4, 2, 1)

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")
_OTHER_CHARACTERS = re.compile(r"[\W_]+")


class ToolChange(StrEnum):
    """What happened to the tools of a prompt."""

    ADDED = "added"
    REMOVED = "removed"
    MOVED = "moved"
    EDITED = "edited"


class LocatedChange(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where a prompt is not what it was the turn before."""

    part: PromptPart
    confirmed: bool
    """Whether the part's text fits the tokens; else it is only the first changed one."""
    excerpt: Excerpt
    volatile_kind: VolatileKind | None = None
    tool_change: ToolChange | None = None
    tool_names: tuple[str, ...] = ()
    """The tools that were added, removed, moved or edited."""


class _Candidate(NamedTuple):
    """A part that differs, with its text as it was and as it is."""

    part: PromptPart
    before: str
    after: str
    tool_change: ToolChange | None = None
    tool_names: tuple[str, ...] = ()


def locate_change(
    before: Sequence[PartText],
    after: Sequence[PartText],
    before_window: str,
    after_window: str,
) -> LocatedChange | None:
    """Find the part of a prompt in which it first differs from the turn before.

    Args:
        before: Parts of the turn before, in their author's order.
        after: Parts of this turn.
        before_window: Decoded text around the first differing token of the turn before: the same
            context first as in `after_window`, then what follows the difference.
        after_window: The same of this turn.

    Returns:
        The change; None when the windows do not part, as with a prompt that only grew, or when
        the parts of one turn are not known. Without windows (both empty) the first changed part,
        unconfirmed, or None when no part changed.
    """
    if not before or not after:
        return None
    candidates = _changed_parts(before, after)
    windows_known = bool(before_window or after_window)
    start = common_prefix_length(before_window, after_window)
    if windows_known and start == min(len(before_window), len(after_window)):
        return None
    if not windows_known:
        if not candidates:
            return None
        chosen, confirmed = candidates[0], False
        excerpt = make_excerpt(chosen.before, chosen.after)
        start = common_prefix_length(chosen.before, chosen.after)
        context, old, new = chosen.before[:start], chosen.before[start:], chosen.after[start:]
    else:
        chosen, confirmed = _choose(candidates, before_window, after_window)
        excerpt = make_excerpt(before_window, after_window)
        context, old, new = before_window[:start], before_window[start:], after_window[start:]
    listed = chosen.part.kind is PartKind.TOOLS
    return LocatedChange(
        part=_shown(chosen.part),
        confirmed=confirmed,
        excerpt=excerpt,
        volatile_kind=None if listed else volatile_kind(context, old, new),
        tool_change=chosen.tool_change,
        tool_names=tuple(printable(name, NAME_CHARACTERS) for name in chosen.tool_names),
    )


def _changed_parts(before: Sequence[PartText], after: Sequence[PartText]) -> list[_Candidate]:
    """Return the parts that differ, in the order of the request."""
    changed: list[_Candidate] = []
    old, new = _texts(before, PartKind.SYSTEM), _texts(after, PartKind.SYSTEM)
    for index in range(max(len(old), len(new))):
        earlier = old[index] if index < len(old) else ""
        later = new[index] if index < len(new) else ""
        if earlier != later:
            changed.append(_Candidate(PromptPart(kind=PartKind.SYSTEM), earlier, later))
    changed.extend(_changed_tools(before, after))
    old_messages = [one for one in before if one.part.kind is PartKind.MESSAGE]
    new_messages = [one for one in after if one.part.kind is PartKind.MESSAGE]
    edited = (
        _Candidate(other.part, one.text, other.text)
        for one, other in zip(old_messages, new_messages, strict=False)
        if one.text != other.text or one.part.role != other.part.role
    )
    changed.extend(islice(edited, _MESSAGES_TRIED))
    if len(new_messages) < len(old_messages):
        # A longer list goes on; a shorter one was cut.
        cut = old_messages[len(new_messages)]
        changed.append(_Candidate(cut.part, cut.text, ""))
    return changed


def _changed_tools(before: Sequence[PartText], after: Sequence[PartText]) -> list[_Candidate]:
    old, new = _tools(before), _tools(after)
    edited = (
        _Candidate(new[key].part, old[key].text, new[key].text, ToolChange.EDITED, (key[0],))
        for key in new
        if key in old and old[key].text != new[key].text
    )
    changed = list(islice(edited, _TOOLS_TRIED))
    old_keys, new_keys = list(old), list(new)
    if old_keys == new_keys:
        return changed
    place = next(
        (
            place
            for place, (one, other) in enumerate(zip(old_keys, new_keys, strict=False))
            if one != other
        ),
        min(len(old_keys), len(new_keys)),
    )
    gone = old_keys[place] if place < len(old_keys) else None
    come = new_keys[place] if place < len(new_keys) else None
    if come is not None and come not in old:
        change, names = ToolChange.ADDED, [key for key in new if key not in old]
    elif gone is not None and gone not in new:
        change, names = ToolChange.REMOVED, [key for key in old if key not in new]
    else:
        change, names = ToolChange.MOVED, _moved(old_keys, new_keys)
    listed = _Candidate(
        PromptPart(kind=PartKind.TOOLS),
        "" if gone is None else old[gone].text,
        "" if come is None else new[come].text,
        change,
        tuple(name for name, _ in names),
    )
    places = {key: number for number, key in enumerate(new_keys)}
    return sorted([*changed, listed], key=lambda one: _place(one, places, place))


def _place(
    candidate: _Candidate, places: dict[tuple[str, int], int], place: int
) -> tuple[int, bool]:
    """Order an edited tool before or behind the place from which the list differs."""
    if candidate.part.kind is PartKind.TOOLS:
        return place, False
    return places[candidate.tool_names[0], 0], True


def _moved(before: list[tuple[str, int]], after: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the tools that moved: a pair that changed places, else the fewest that explain it."""
    known, kept = set(before), set(after)
    old = [key for key in before if key in kept]
    new = [key for key in after if key in known]
    displaced = [key for key, other in zip(new, old, strict=True) if key != other]
    if len(displaced) == 2:
        return displaced
    # What stayed is the longest run of tools that kept their order (patience sorting).
    positions = {key: position for position, key in enumerate(old)}
    tails: list[int] = []
    lengths: list[int] = []
    for key in new:
        length = bisect_left(tails, positions[key])
        tails[length : length + 1] = [positions[key]]
        lengths.append(length)
    stayed: set[tuple[str, int]] = set()
    wanted, below = len(tails) - 1, len(old)
    for key, length in zip(reversed(new), reversed(lengths), strict=True):
        if length == wanted and positions[key] < below:
            stayed.add(key)
            wanted, below = wanted - 1, positions[key]
    return [key for key in new if key not in stayed]


def _texts(parts: Sequence[PartText], kind: PartKind) -> list[str]:
    return [one.text for one in parts if one.part.kind is kind]


def _tools(parts: Sequence[PartText]) -> dict[tuple[str, int], PartText]:
    """Key tools by name, and by number where a name occurs again."""
    seen: Counter[str] = Counter()
    tools: dict[tuple[str, int], PartText] = {}
    for one in parts:
        if one.part.kind is PartKind.TOOL:
            name = one.part.name or ""
            tools[name, seen[name]] = one
            seen[name] += 1
    return tools


def _choose(
    candidates: list[_Candidate], before_window: str, after_window: str
) -> tuple[_Candidate, bool]:
    """Return the candidate that fits the windows best, and whether it fits well enough."""
    if not candidates:
        return _Candidate(PromptPart(kind=PartKind.TEMPLATE), "", ""), True
    strict = _letters(before_window), _letters(after_window)
    exact = common_prefix_length(*strict) == min(map(len, strict))
    windows = (before_window, after_window) if exact else strict
    best, best_fit = candidates[0], 0
    for candidate in candidates:
        fit = _fit(candidate, windows, exact)
        if fit > best_fit:
            best, best_fit = candidate, fit
    return best, best_fit > 0


def _fit(candidate: _Candidate, windows: tuple[str, str], exact: bool) -> int:
    """Count the characters of a candidate that fit the windows; 0 when it cannot be the place.

    Args:
        candidate: A part that differs.
        windows: What was decoded, in the form that is compared.
        exact: Whether every character counts: only spaces or punctuation changed.
    """
    start = common_prefix_length(candidate.before, candidate.after)
    tool = candidate.tool_change is not None
    begin = 0 if tool else max(0, start - _COMPARED_CHARACTERS)
    end = start + _COMPARED_CHARACTERS * (30 if tool else 1)
    old, new = candidate.before[begin:end], candidate.after[begin:end]
    if not exact:
        old, new = _letters(old), _letters(new)
    split = common_prefix_length(*windows)
    context = windows[0][:split]
    own = common_prefix_length(old, new)
    total = _suffix_length(context, old[:own])
    fits = True
    for text, window in zip((old, new), windows, strict=True):
        rest, decoded = text[own:], window[split:]
        equal = common_prefix_length(rest, decoded)
        fits = fits and (equal > 0 or not rest or not decoded)
        total += equal
    enough = min(_SURE_CHARACTERS, len(old) + len(new) - own)
    if fits and total >= max(1, enough):
        return total
    if not tool:
        return 0
    # The template may write the keys in another order: look for the place anywhere in the tool.
    pieces = [
        _piece_length(context, window[split:], text)
        for text, window in zip((old, new), windows, strict=True)
        if text
    ]
    return min(pieces) if pieces and min(pieces) >= _SURE_CHARACTERS else 0


def _piece_length(context: str, decoded: str, text: str) -> int:
    """Return the length of the largest piece around the difference that occurs in the text."""
    return max(
        (
            min(left, len(context)) + min(right, len(decoded))
            for left in (*_PIECES, 0)
            for right in _PIECES
            if decoded and context[max(0, len(context) - left) :] + decoded[:right] in text
        ),
        default=0,
    )


def _suffix_length(first: str, second: str) -> int:
    return common_prefix_length(first[::-1], second[::-1])


def _letters(text: str) -> str:
    """Leave letters and digits only; JSON's numbered escapes are undone, the others dropped."""
    text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else "", text)
    return _OTHER_CHARACTERS.sub("", text)


def _shown(part: PromptPart) -> PromptPart:
    """Clean and bound the names that come from outside."""
    return msgspec.structs.replace(
        part,
        name=None if part.name is None else printable(part.name, NAME_CHARACTERS),
        role=None if part.role is None else printable(part.role, NAME_CHARACTERS),
    )
