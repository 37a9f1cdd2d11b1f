"""Which sessions are looked at anew in a view, so that a thousand of them cost no more than some.

Owns the turns. It must not know what is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

SESSIONS_A_VIEW = 100
"""The newest sessions, in every view: more than a screen shows; and as many of the others."""


class RefreshTurns:
    """Takes the newest sessions every time and the others in turn."""

    def __init__(self) -> None:
        self._version: object = None
        self._next = 0
        self._behind = 0

    @property
    def behind(self) -> bool:
        """Whether some sessions were not looked at since the last change."""
        return self._behind > 0

    def due(self, newest_first: Sequence[str], version: object) -> Sequence[str]:
        """Choose the sessions of one view.

        Args:
            newest_first: All sessions.
            version: Another value than the last one says that something has changed for all.

        Returns:
            At most two times `SESSIONS_A_VIEW` of them.
        """
        others = newest_first[SESSIONS_A_VIEW:]
        if version != self._version:
            self._version = version
            self._behind = len(others)
        newest = newest_first[:SESSIONS_A_VIEW]
        if self._behind <= 0:
            return newest
        start = self._next if self._next < len(others) else 0
        self._next = start + SESSIONS_A_VIEW
        turn = others[start : self._next]
        self._behind -= len(turn)
        return (*newest, *turn)
