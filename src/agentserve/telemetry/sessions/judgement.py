"""Gathers the facts behind the verdict on one turn.

Owns the way from prompts, lookups and tokens to `TurnFacts`. It must not know the rules, nor what
is shown.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from agentserve.domain.session import Verdict
from agentserve.telemetry.prefix_cache.reuse import Losses, Reuse
from agentserve.telemetry.sessions.difference import LocatedChange, locate_change
from agentserve.telemetry.sessions.prompt_memory import RememberedPrompt
from agentserve.telemetry.sessions.repeated_tokens import repeated_tokens
from agentserve.telemetry.sessions.turn import Turn
from agentserve.telemetry.sessions.turn_facts import (
    Evictor,
    ExpectedReuse,
    PreviousTurn,
    TurnFacts,
)
from agentserve.telemetry.sessions.verdict import judge

WINDOW_TOKENS = 64
"""Tokens that are decoded on each side of the first difference."""

UNKNOWN_BLOCK_TOKENS = 16
"""vLLM's own step of reuse where the engine does not say."""


class Lookup(NamedTuple):
    """What was resident when the scheduler looked for a prompt's prefix."""

    hashes: array[int] | None
    reuse: Reuse | None
    """None when it is not known what was resident."""
    losses: Losses | None


class CommonPart(NamedTuple):
    """Where a prompt parts from the sequence before it."""

    tokens: int | None
    """None when it is not known."""
    step: int
    """`tokens` is exact at 1, else known to this many tokens."""
    change: LocatedChange | None = None
    repeated_tokens: int | None = None
    """Tokens behind it that both have, at least; None when they are not known."""


class PreviousPrompt(NamedTuple):
    """The sequence before, as it was when this turn began."""

    prompt: RememberedPrompt
    sequence_tokens: int
    running: bool


@dataclass(slots=True)
class OpenTurn:
    """A turn with all that is needed to judge it; holds its prompt and the one before."""

    turn: Turn
    prompt: RememberedPrompt
    previous: PreviousPrompt | None
    token_ids: Sequence[int] | None = None
    """All of the prompt, as the engine holds them; None once `prompt` has them."""
    same_tokens_other_salt: bool = False
    lookup: Lookup | None = None
    late_at_s: float = 0.0
    """When waiting for the lookup ends, in seconds of the monotonic clock."""
    counted: bool = False
    """Whether it is in the totals."""
    common: CommonPart | None = None

    def take_tokens(self) -> None:
        """Let the prompt have its tokens: as late as possible, when its hashes are known."""
        token_ids, self.token_ids = self.token_ids, None
        if token_ids is not None:
            before = None if self.previous is None else self.previous.prompt
            self.prompt.take_tokens(token_ids, before)


class Judgement(NamedTuple):
    """What a verdict needs from outside the turn."""

    block_tokens: int | None
    """The step of reuse; None when it is not known."""
    prefill_tokens_per_s: float | None
    decode: Callable[[Sequence[int]], str] | None
    evictor: Callable[[str | None], tuple[str, str] | None]
    """Session id and label of a request, by the engine's id."""

    def verdict(self, open_turn: OpenTurn) -> Verdict:
        """Judge a turn whose cached tokens are known."""
        turn, lookup = open_turn.turn, open_turn.lookup
        reuse = None if lookup is None else lookup.reuse
        previous = None
        if open_turn.previous is not None:
            if open_turn.common is None:
                open_turn.common = self._common_part(open_turn, open_turn.previous)
            previous = _previous_turn(open_turn.previous, open_turn.common)
        losses, common = None if lookup is None else lookup.losses, open_turn.common
        return judge(
            TurnFacts(
                prompt_tokens=turn.prompt_tokens,
                cached_tokens=turn.cached_tokens,
                expected=None if reuse is None else _expected(reuse),
                block_tokens=self.block_tokens or UNKNOWN_BLOCK_TOKENS,
                previous=previous,
                generation=turn.generation,
                cache_salt=turn.cache_salt,
                preemptions=turn.preemptions,
                outcome=turn.outcome,
                change=None if common is None else common.change,
                repeated_tokens=None if common is None else common.repeated_tokens,
                missing_were_stored=None if losses is None else losses.attention is not None,
                evicted_by=None if losses is None else self._evicted_by(losses, turn.session),
                state_was_removed=losses is not None and losses.state is not None,
                other_session_same_tokens_other_salt=open_turn.same_tokens_other_salt,
                prefill_tokens_per_s=self.prefill_tokens_per_s,
                prefill_s=turn.prefill_s,
                computed_tokens=turn.computed_tokens,
            )
        )

    def _common_part(self, open_turn: OpenTurn, previous: PreviousPrompt) -> CommonPart:
        prompt, before = open_turn.prompt, previous.prompt
        common, step = before.common_tokens(prompt)
        if common is None:
            return CommonPart(None, step)
        # An answer that came in since is not what this turn could build on.
        common = min(common, previous.sequence_tokens)
        if common >= min(previous.sequence_tokens, prompt.prompt_tokens):
            return CommonPart(common, step, repeated_tokens=0)
        if before.tokens is None or prompt.tokens is None:
            return CommonPart(common, step)
        if step > 1:
            # The tokens are equal, so what they stand for differs: an image, which is no value
            # that changes by itself. How many tokens stand for it is not known.
            change = locate_change(before.parts, prompt.parts, "", "")
            if change is not None:
                change = msgspec.structs.replace(change, volatile_kind=None)
            return CommonPart(common, step, change)
        old = before.tokens[: previous.sequence_tokens]
        now = prompt.tokens[: prompt.prompt_tokens]
        change = None
        windows = ("", "")
        if self.decode is not None:
            start, end = max(0, common - WINDOW_TOKENS), common + WINDOW_TOKENS
            windows = (self.decode(old[start:end]), self.decode(now[start:end]))
        if (before.parts and prompt.parts) or all(windows):
            change = locate_change(before.parts, prompt.parts, *windows)
        return CommonPart(common, step, change, repeated_tokens(old, now, common))

    def _evicted_by(self, losses: Losses, session: str) -> Evictor | None:
        removal = losses.attention or losses.state
        if removal is None:
            return None
        found = self.evictor(removal.by)
        if found is None:
            return Evictor()
        return Evictor(session=found[0], label=found[1], itself=found[0] == session)


def _expected(reuse: Reuse) -> ExpectedReuse:
    return ExpectedReuse(
        expected_tokens=reuse.expected_tokens,
        attention_tokens=reuse.attention_tokens,
        state_tokens=reuse.state_tokens,
        dropped_tokens=reuse.dropped_tokens,
    )


def _previous_turn(previous: PreviousPrompt, common: CommonPart) -> PreviousTurn:
    return PreviousTurn(
        prompt_tokens=previous.prompt.prompt_tokens,
        sequence_tokens=previous.sequence_tokens,
        common_tokens=common.tokens,
        common_step=common.step,
        generation=previous.prompt.generation,
        cache_salt=previous.prompt.cache_salt,
        still_running=previous.running,
    )
