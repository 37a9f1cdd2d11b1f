"""The place where two prompts part, cut out for a person.

Owns how much of it is shown and how it is made safe to draw. Characters are replaced one by one, so
that offsets stay right. It must not know what the texts are parts of.
"""

from __future__ import annotations

import unicodedata

from agentserve.domain.session import EXCERPT_CHARACTERS, Excerpt
from agentserve.telemetry.sessions.token_prefix import common_prefix_length

_SCANNED_CHARACTERS = 400
"""How far behind a difference the two texts are searched for the place where they meet again."""
_MEETING_CHARACTERS = 12
"""Equal characters in a row that count as meeting again."""

_CONTROL_PICTURES = 0x2400
_MARKS = {"\n": "↵", "\r": "↵", "\t": "⇥", "\u2028": "↵", "\u2029": "↵", "\x85": "↵"}


def make_excerpt(before_window: str, after_window: str) -> Excerpt:
    """Cut the first difference of two texts out, with context, safe to draw.

    Args:
        before_window: Text around the difference as it was; begins with the same context as
            `after_window`.
        after_window: The same place now.

    Returns:
        Up to 80 characters of common context, of the change, and of common context behind it. A
        change that is longer is cut, and then nothing follows it.
    """
    start = common_prefix_length(before_window, after_window)
    context = _visible(before_window[max(0, start - EXCERPT_CHARACTERS) : start])
    before = before_window[start : start + _SCANNED_CHARACTERS]
    after = after_window[start : start + _SCANNED_CHARACTERS]
    before_end, after_end = _meeting(before, after)
    behind = ""
    if max(before_end, after_end) <= EXCERPT_CHARACTERS:
        rest = before[before_end : before_end + EXCERPT_CHARACTERS]
        behind = _visible(rest[: common_prefix_length(rest, after[after_end:])])
    old = _visible(before[: min(before_end, EXCERPT_CHARACTERS)])
    new = _visible(after[: min(after_end, EXCERPT_CHARACTERS)])
    return Excerpt(
        before=context + old + behind,
        after=context + new + behind,
        change_start=len(context),
        before_change_end=len(context) + len(old),
        after_change_end=len(context) + len(new),
    )


def _meeting(before: str, after: str) -> tuple[int, int]:
    """Return where both texts meet again, nearest first; their ends when they do not."""
    places: dict[str, int] = {}
    for index in range(len(before) - _MEETING_CHARACTERS + 1):
        places.setdefault(before[index : index + _MEETING_CHARACTERS], index)
    nearest: tuple[int, int] | None = None
    for index in range(len(after) - _MEETING_CHARACTERS + 1):
        run = after[index : index + _MEETING_CHARACTERS]
        place = places.get(run)
        if place is None or run.isspace():
            continue
        if nearest is None or place + index < sum(nearest):
            nearest = place, index
    if nearest is not None:
        return nearest
    # Too near to the end of the windows for a run: what they end in alike is behind the change.
    equal = common_prefix_length(before[::-1], after[::-1])
    return len(before) - equal, len(after) - equal


def _visible(text: str) -> str:
    """Replace each character that does not print by one that does."""
    if text.isprintable():
        return text
    return "".join(map(_visible_character, text))


def _visible_character(character: str) -> str:
    if character.isprintable():
        return character
    mark = _MARKS.get(character)
    if mark is not None:
        return mark
    if character < " ":
        return chr(_CONTROL_PICTURES + ord(character))
    return " " if unicodedata.category(character) == "Zs" else "\N{REPLACEMENT CHARACTER}"
