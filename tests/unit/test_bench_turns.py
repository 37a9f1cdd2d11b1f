"""The invented turns of the benchmark: what they claim is what the real monitor finds."""

from __future__ import annotations

import pytest

from agentserve.domain.cache_layout import CacheLayout
from agentserve.domain.session import IdentitySource, SessionView, VerdictKind
from agentserve.telemetry.sessions.exchange import FinishedRequest
from agentserve.telemetry.sessions.monitor import SessionMonitor
from bench.agent_turns import (
    ANSWER_TOKENS,
    DENSE_16,
    HYBRID_784,
    InventedEngine,
    Turn,
    large_prompt,
)


class World:
    """A monitor and an invented engine."""

    def __init__(self, layout: CacheLayout, pool_tokens: int = 100_000) -> None:
        self.layout = layout
        self.engine = InventedEngine(layout, pool_tokens)
        self.monitor = SessionMonitor()
        self.monitor.handle(self.engine.facts())

    def turn(self, name: str, tokens: int, resident: int = 0, shared: int | None = None) -> None:
        prompt = large_prompt(name, tokens, self.layout, shared_tokens=shared)
        self._feed(self.engine.run(prompt, resident_tokens=resident))

    def _feed(self, turn: Turn) -> None:
        self.monitor.handle(turn.start)
        for events in turn.events:
            self.monitor.handle(events)
        self.monitor.handle(turn.first)
        self.monitor.handle(
            FinishedRequest(turn.record, turn.answer_token_ids, lambda _session: None)
        )

    @property
    def sessions(self) -> tuple[SessionView, ...]:
        return self.monitor.view().sessions


def kind(session: SessionView) -> VerdictKind | None:
    return None if session.verdict is None else session.verdict.kind


def test_a_longer_prompt_of_a_name_goes_on_with_the_answer_to_the_shorter_one() -> None:
    short, long = (large_prompt("a", tokens, DENSE_16) for tokens in (1_001, 3_000))
    sequence = [*short.token_ids, *short.answer_token_ids]
    assert long.token_ids[: len(sequence)] == sequence
    assert long.sequence_hashes[: len(short.sequence_hashes)] == short.sequence_hashes
    assert large_prompt("b", 1_001, DENSE_16).token_ids != short.token_ids


@pytest.mark.parametrize(
    ("layout", "verdict"),
    [(DENSE_16, VerdictKind.FULL_REUSE), (HYBRID_784, VerdictKind.BLOCK_ROUNDING)],
    ids=["dense", "hybrid"],
)
def test_the_monitor_takes_its_turns_for_one_session_that_is_reused(
    layout: CacheLayout, verdict: VerdictKind
) -> None:
    world = World(layout)
    world.turn("a", 9_000)
    world.turn("a", 10_000, resident=9_000 + ANSWER_TOKENS)
    (session,) = world.sessions
    assert session.identity is IdentitySource.METADATA
    assert session.requests == 2
    assert kind(session) is verdict
    assert session.expected_cached_tokens == session.cached_tokens


def test_a_prompt_that_parts_early_is_judged_as_changed_in_its_system_prompt() -> None:
    world = World(DENSE_16)
    world.turn("a", 9_000)
    world.turn("a", 10_000, resident=2_000, shared=2_000)
    (session,) = world.sessions
    assert kind(session) is VerdictKind.SYSTEM_CHANGED
    assert session.cached_tokens == session.expected_cached_tokens == 2_000


@pytest.mark.parametrize("layout", [DENSE_16, HYBRID_784], ids=["dense", "hybrid"])
def test_a_full_pool_makes_room_by_forgetting_the_oldest(layout: CacheLayout) -> None:
    world = World(layout, pool_tokens=20_000)
    for number in range(4):
        world.turn(f"s{number}", 9_000)
    newest, *_, oldest = world.sessions
    assert newest.resident_tokens
    assert oldest.resident_tokens == 0
    blocks = world.monitor.view().monitor.cached_blocks
    most = 20_000 // layout.hash_block_tokens * len(layout.groups)
    assert blocks is not None
    assert most * 0.5 < blocks <= most
