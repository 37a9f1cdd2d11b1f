"""Scripted agent sessions: every verdict, side queries, evictions, hostile text."""

from __future__ import annotations

import msgspec

from agentserve.domain.prompt import PartKind, PromptPart
from agentserve.domain.request import RequestOutcome
from agentserve.domain.session import (
    CacheMonitorView,
    EvictionView,
    Excerpt,
    IdentitySource,
    LayoutPartView,
    PoolShare,
    SessionView,
    TurnView,
    Verdict,
    VerdictKind,
    VolatileKind,
)
from agentserve.domain.snapshot import Snapshot

from . import scripted

NOW = scripted.START_UNIX_S
SYSTEM = PromptPart(kind=PartKind.SYSTEM)
BEFORE = (
    "You are a coding agent. The working folder is a git repository. It is 12:01 now. Be short."
)
AFTER = BEFORE.replace("12:01", "12:02")
CLOCK = Verdict(
    kind=VerdictKind.VOLATILE_VALUE,
    sentence="A clock in the system prompt changed, so that all after it was computed again.",
    advice="Move the clock to the end of the last message, or leave it out.",
    token_index=1_204,
    part=SYSTEM,
    volatile_kind=VolatileKind.CLOCK,
    excerpt=Excerpt(
        before=BEFORE,
        after=AFTER,
        change_start=BEFORE.index("1 now"),
        before_change_end=BEFORE.index("1 now") + 1,
        after_change_end=BEFORE.index("1 now") + 1,
    ),
    lost_tokens=17_040,
    cost_s=9.42,
)
TOOL = Verdict(
    kind=VerdictKind.TOOLS_CHANGED,
    sentence="The definition of a tool changed place.",
    advice="Send the tools in the same order each time.",
    token_index=2_048,
    token_index_step=16,
    part=PromptPart(kind=PartKind.TOOL, name="read_file"),
    lost_tokens=640,
    cost_s=0.41,
)
EVICTED = Verdict(
    kind=VerdictKind.EVICTED,
    sentence="Claude Code 2 needed room and took 640 tokens of it.",
    advice="Run fewer agents at once, or give the KV pool more memory.",
    lost_tokens=640,
    cost_s=0.41,
    evicted_by="s2",
)


def plain_verdict(kind: VerdictKind) -> Verdict:
    return Verdict(kind=kind, sentence=f"It is {kind.value}.")


FULL = plain_verdict(VerdictKind.FULL_REUSE)


def turn(number: int, **changes: object) -> TurnView:
    prompt = 9_000 + 1_840 * number
    cached = prompt - 1_100
    view = TurnView(
        number=number,
        at_unix_s=NOW - 60 * (20 - number),
        generation=3,
        outcome=RequestOutcome.STOP,
        prompt_tokens=prompt,
        expected_cached_tokens=cached,
        cached_tokens=cached,
        computed_tokens=prompt - cached,
        generated_tokens=212 + 40 * (number % 5),
        ttft_s=0.412 + 0.02 * number,
        verdict=FULL,
    )
    return msgspec.structs.replace(view, **changes)


def history(turns: int = 12) -> tuple[TurnView, ...]:
    """Turns of a session whose clock moved in turns 4 and 9, newest first."""
    views = []
    for number in range(turns, 0, -1):
        view = turn(number)
        if number == 1:
            view = turn(1, cached_tokens=0, expected_cached_tokens=0, computed_tokens=10_840)
            first = plain_verdict(VerdictKind.FIRST_REQUEST)
            view = msgspec.structs.replace(view, verdict=first)
        elif number in (4, 9, turns):
            view = turn(
                number,
                cached_tokens=1_200,
                expected_cached_tokens=1_200,
                computed_tokens=view.prompt_tokens - 1_200,
                ttft_s=9.7,
                verdict=CLOCK,
            )
        elif number == 7:
            view = turn(
                number,
                cached_tokens=12_000,
                expected_cached_tokens=18_000,
                computed_tokens=view.prompt_tokens - 12_000,
                verdict=plain_verdict(VerdictKind.UNKNOWN),
            )
        views.append(view)
    return tuple(views)


LAYOUT = (
    LayoutPartView(part=SYSTEM, tokens=1_312, turns=12, changes=3),
    LayoutPartView(
        part=PromptPart(kind=PartKind.TOOL, name="read_file"), tokens=820, turns=12, changes=0
    ),
    LayoutPartView(
        part=PromptPart(kind=PartKind.TOOL, name="run"), tokens=410, turns=12, changes=0
    ),
    *(
        LayoutPartView(
            part=PromptPart(
                kind=PartKind.MESSAGE, index=index, role=("user", "assistant")[index % 2 - 1]
            ),
            tokens=900 * index,
            turns=13 - index,
            changes=0,
        )
        for index in range(1, 6)
    ),
)


def session(number: int, **changes: object) -> SessionView:
    view = SessionView(
        id=f"s{number}",
        label=f"{('Claude Code', 'OpenCode', 'Codex')[number % 3]} {number}",
        agent=("claude-cli", "opencode", "codex")[number % 3],
        identity=IdentitySource.METADATA,
        requests=12 + number,
        prompt_tokens=18_240 + 100 * number,
        cached_tokens=17_248,
        expected_cached_tokens=17_248,
        computed_tokens=992 + 100 * number,
        hit_rate=0.912,
        hit_rate_requests=11,
        resident_tokens=17_248,
        sequence_tokens=18_452,
        ttft_s=0.412,
        first_seen_unix_s=NOW - 900,
        last_seen_unix_s=NOW - 12.0 * number,
        verdict=FULL,
    )
    return msgspec.structs.replace(view, **changes)


def three() -> tuple[SessionView, ...]:
    """One that runs, one whose clock moves, one side query that is not resident any more."""
    return (
        session(1, running_requests=1),
        session(
            3,
            requests=12,
            cached_tokens=1_200,
            expected_cached_tokens=1_216,
            computed_tokens=17_340,
            hit_rate=0.41,
            ttft_s=9.7,
            verdict=CLOCK,
            history=history(),
            layout=LAYOUT,
            layout_advice=(
                "Move what changes in the system prompt behind the tools: it would save 17,040"
                " tokens, 9.4 s a turn."
            ),
        ),
        session(
            2,
            label="Codex 2 title",
            side=True,
            requests=1,
            resident_tokens=None,
            hit_rate=None,
            hit_rate_requests=0,
            cached_tokens=None,
            expected_cached_tokens=None,
            computed_tokens=None,
            ttft_s=None,
            verdict=None,
        ),
    )


MONITOR = CacheMonitorView(
    predictions=58,
    mispredictions=1,
    prefill_tokens_per_s=1_812.0,
    cached_blocks=98,
    shares=(
        PoolShare("s3", 41),
        PoolShare("s1", 37),
        PoolShare(None, 12),
        PoolShare("s2", 8),
    ),
    evictions=(EvictionView(at_unix_s=NOW - 12, loser="s1", winner="s3", blocks=40, tokens=640),),
)


def snapshot(sessions: tuple[SessionView, ...] | None = None, **changes: object) -> Snapshot:
    """An engine that serves the given sessions; three by default."""
    fields = {
        "sessions": three() if sessions is None else sessions,
        "cache_monitor": MONITOR,
        **changes,
    }
    return msgspec.structs.replace(scripted.serving(), **fields)


def many(count: int, *, turns: int = 0) -> tuple[SessionView, ...]:
    kinds = [*VerdictKind]
    return tuple(
        session(
            number,
            verdict=plain_verdict(kinds[number % len(kinds)]),
            history=history(turns) if turns else (),
        )
        for number in range(count)
    )
