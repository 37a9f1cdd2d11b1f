from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.text import printable

SEQUENCES = "\x1b[31m|\x1b]0;t\x07|\x1b]8;;http://x\x1b\\|\x9b2J|\x1bP1q|\x1b|\x9c"
CHARACTERS = "\u202e|\u2066|\u200d|\ud800|\r|\n|\t|\x07|[bold]|漢字|e\u0301"
PIECES = st.sampled_from([*SEQUENCES.split("|"), *CHARACTERS.split("|")])
HOSTILE = st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join)


@given(text=HOSTILE, limit=st.integers(1, 80))
def test_only_printing_characters_come_out(text: str, limit: int) -> None:
    clean = printable(text, limit)
    assert len(clean) <= limit
    assert not {unicodedata.category(character) for character in clean} & {"Cc", "Cf", "Cs", "Zl"}
    clean.encode("utf-8")


@given(text=HOSTILE, limit=st.integers(1, 80))
def test_a_safe_text_is_left_alone(text: str, limit: int) -> None:
    clean = printable(text, limit)
    assert printable(clean, limit) == clean


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[1;31mred\x1b[0m text", "red text"),
        ("\x1b]0;owned\x07after", "after"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;never ends", ""),
        ("\x1bP1$r0m\x1b\\kept", "kept"),
        ("\x9b31mC1", "C1"),
        ("\x1b(Bcharset", "charset"),
        ("a\tb\r\nc", "a b c"),
        ("user\u202etxt.exe", "usertxt.exe"),
        ("漢字 [bold]x[/", "漢字 [bold]x[/"),
        ("half \ud83d pair", "half \N{REPLACEMENT CHARACTER} pair"),
    ],
)
def test_sequences_go_and_text_stays(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_a_long_text_ends_in_an_ellipsis() -> None:
    assert printable("x" * 10_000, 5) == "xxxx…"
