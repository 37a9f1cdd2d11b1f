"""The shape of an explanation of one figure."""

from __future__ import annotations

from typing import NamedTuple


class Explanation(NamedTuple):
    """One figure in words, one or two sentences each."""

    what: str
    source: str
    window: str
    good: str
    change: str
