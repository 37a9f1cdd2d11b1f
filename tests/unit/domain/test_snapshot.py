from __future__ import annotations

from agentserve.domain.prompt import PartKind, PromptPart
from agentserve.domain.session import LayoutPartView, SessionView, TurnView
from agentserve.domain.snapshot import (
    DETAILED_SESSIONS,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
)

TURN = TurnView(number=1, at_unix_s=1.0, generation=1, prompt_tokens=40)
PART = LayoutPartView(part=PromptPart(kind=PartKind.SYSTEM), tokens=7, turns=2, changes=1)


def sessions(count: int) -> tuple[SessionView, ...]:
    """Newest first, each with a turn, a layout and advice."""
    return tuple(
        SessionView(
            id=f"s{number}",
            label=f"agent {number}",
            requests=number,
            history=(TURN,) * 32,
            layout=(PART,) * 5,
            layout_advice="Move the clock.",
        )
        for number in range(count)
    )


def test_up_to_the_limit_sessions_are_encoded_whole() -> None:
    snapshot = Snapshot(sessions=sessions(DETAILED_SESSIONS))
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


def test_sessions_after_the_newest_have_all_but_history_and_layout() -> None:
    whole = sessions(DETAILED_SESSIONS + 2)
    told = decode_snapshot(encode_snapshot(Snapshot(sessions=whole))).sessions
    assert told[:DETAILED_SESSIONS] == whole[:DETAILED_SESSIONS]
    for brief, session in zip(told[DETAILED_SESSIONS:], whole[DETAILED_SESSIONS:], strict=True):
        assert (brief.history, brief.layout) == ((), ())
        assert (brief.id, brief.label, brief.requests) == (
            session.id,
            session.label,
            session.requests,
        )
        assert brief.layout_advice == session.layout_advice


def test_the_snapshot_itself_keeps_everything() -> None:
    snapshot = Snapshot(sessions=sessions(DETAILED_SESSIONS + 1))
    encode_snapshot(snapshot)
    assert snapshot.sessions[-1].history == (TURN,) * 32
