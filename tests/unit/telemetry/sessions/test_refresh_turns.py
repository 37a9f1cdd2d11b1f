"""Which sessions are looked at in one view, and that none is left behind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentserve.telemetry.sessions.refresh_turns import SESSIONS_A_VIEW, RefreshTurns


def names(count: int) -> tuple[str, ...]:
    return tuple(f"s{number}" for number in range(count))


@given(st.integers(0, 1_000), st.lists(st.integers(0, 3), max_size=30))
def test_the_newest_are_in_every_view_and_a_view_has_a_bound(
    count: int, versions: list[int]
) -> None:
    turns, sessions = RefreshTurns(), names(count)
    for version in versions:
        due = turns.due(sessions, version)
        assert tuple(due[:SESSIONS_A_VIEW]) == sessions[:SESSIONS_A_VIEW]
        assert len(due) == len(set(due)) <= 2 * SESSIONS_A_VIEW


@given(st.integers(0, 1_000), st.integers(0, 7))
def test_after_a_change_every_session_is_looked_at_before_it_stops(
    count: int, views_before: int
) -> None:
    turns, sessions = RefreshTurns(), names(count)
    for version in range(views_before):
        turns.due(sessions, version)
    seen = set(turns.due(sessions, "changed"))
    while turns.behind:
        seen.update(turns.due(sessions, "changed"))
    assert seen == set(sessions)
    assert tuple(turns.due(sessions, "changed")) == sessions[:SESSIONS_A_VIEW]


def test_changes_without_a_pause_do_not_keep_the_oldest_waiting_for_ever() -> None:
    turns, sessions = RefreshTurns(), names(1_000)
    seen: set[str] = set()
    for version in range(9):
        seen.update(turns.due(sessions, version))
    assert seen == set(sessions)
