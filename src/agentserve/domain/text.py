"""Text from outside made safe to show.

Owns what counts as safe: one line of bounded length, without escape sequences, control characters
or direction changes. It must not know where a text comes from or where it is shown.
"""

from __future__ import annotations

import re
import unicodedata

_ESCAPE_SEQUENCES = re.compile(
    # Strings up to their terminator, or to the end when it never comes: OSC, DCS, SOS, PM, APC.
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f]).*?(?:\x07|\x1b\\|\x9c|\Z)"
    # CSI with parameters and intermediates; the final byte may be missing.
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    # Two- and three-byte escapes such as a character set selection.
    r"|\x1b[ -/]*[0-~]?",
    re.DOTALL,
)
_SPACES = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+")

ELLIPSIS = "…"


def printable(text: str, limit: int = 500) -> str:
    """Return `text` as one line of characters that only ever print.

    Removes escape sequences of ECMA-48, C0 and C1 controls, and format characters such as
    bidirectional overrides; line ends and tabs become one space; lone surrogates become U+FFFD.
    Wide and combining characters stay.

    Args:
        text: Anything.
        limit: Most characters to return, at least 1; a longer text ends in an ellipsis.

    Returns:
        A text that is its own `printable` form.
    """
    if not text.isprintable():
        text = _ESCAPE_SEQUENCES.sub("", text)
        text = _SPACES.sub(" ", text)
        text = "".join(_visible(character) for character in text)
    if len(text) > limit:
        return text[: limit - 1] + ELLIPSIS
    return text


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    category = unicodedata.category(character)
    if category in ("Cc", "Cf"):
        return ""
    if category == "Zs":
        return " "
    return "\N{REPLACEMENT CHARACTER}"
