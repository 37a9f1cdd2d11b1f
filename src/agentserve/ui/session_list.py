"""Which session and which turn a person looks at, and how they stay chosen. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from agentserve.domain.session import SessionView, TurnView

Sessions = tuple[SessionView, ...]
Labels = Mapping[str, str]
"""Labels of sessions by their ids; a session that is forgotten has none."""


class SessionListView(NamedTuple):
    """How a person looks at the list of sessions."""

    cursor: str | None = None
    """Id of the chosen session; None stays on the first row, whichever it is."""
    top: int = 0
    """First row in view."""

    def moved(self, sessions: Sessions, steps: int) -> SessionListView:
        """Move the cursor by `steps` rows, not beyond the ends."""
        if not sessions:
            return SessionListView()
        index = max(0, min(len(sessions) - 1, position(sessions, self.cursor) + steps))
        return self._replace(cursor=sessions[index].id)

    def scrolled(self, sessions: Sessions, height: int) -> SessionListView:
        """Move what is in view by as little as brings the cursor into it."""
        top = top_row(self.top, position(sessions, self.cursor), len(sessions), height)
        return self if top == self.top else self._replace(top=top)


class TurnListView(NamedTuple):
    """How a person looks at the turns of one session."""

    cursor: int | None = None
    """Number of the chosen turn; None stays on the newest."""
    top: int = 0
    """First turn in view."""
    scroll: int = 0
    """First line in view of what is said about the turn."""

    def moved(self, turns: tuple[TurnView, ...], steps: int) -> TurnListView:
        """Move by `steps` turns; the newest is the first."""
        if not turns:
            return TurnListView()
        index = max(0, min(len(turns) - 1, turn_position(turns, self.cursor) + steps))
        return TurnListView(cursor=turns[index].number, top=self.top)

    def scrolled(self, turns: tuple[TurnView, ...], height: int) -> TurnListView:
        """Move what is in view by as little as brings the chosen turn into it."""
        top = top_row(self.top, turn_position(turns, self.cursor), len(turns), height)
        return self if top == self.top else self._replace(top=top)


def position(sessions: Sessions, cursor: str | None) -> int:
    """Return the row of the cursor; the first when its session is gone."""
    if cursor is not None:
        for index, session in enumerate(sessions):
            if session.id == cursor:
                return index
    return 0


def chosen(sessions: Sessions, cursor: str | None) -> SessionView | None:
    """Return the session under the cursor."""
    return sessions[position(sessions, cursor)] if sessions else None


def turn_position(turns: tuple[TurnView, ...], cursor: int | None) -> int:
    """Return the place of a turn; the nearest older one when it is not kept any more."""
    if cursor is None:
        return 0
    for index, turn in enumerate(turns):
        if turn.number <= cursor:
            return index
    return max(0, len(turns) - 1)


def top_row(top: int, index: int, rows: int, height: int) -> int:
    """Return the first row in view that keeps row `index` in view and moves least."""
    height = max(1, height)
    return max(min(top, index, max(0, rows - height)), index - height + 1, 0)


def labels_of(sessions: Sessions, wanted: Collection[str | None]) -> Labels:
    """Return the labels of the sessions whose ids are wanted, as far as they are in the list.

    In one pass: there can be a thousand sessions, and a tick has no time to look each of them up.
    """
    wanted = set(wanted) - {None}
    return {each.id: each.label for each in sessions if each.id in wanted} if wanted else {}
