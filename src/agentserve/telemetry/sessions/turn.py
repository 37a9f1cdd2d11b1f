"""One request of a session while facts about it come in.

Owns what is known of a turn and its view. It must not know other turns, nor how a verdict is found.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from agentserve.domain.request import FirstToken, RequestOutcome, RequestRecord
from agentserve.domain.session import TurnView, Verdict


@dataclass(slots=True)
class Turn:
    """One request; written by the monitor only."""

    request_number: int
    session: str
    number: int
    """From 1, within the session."""
    at_unix_s: float
    generation: int
    engine_request_id: str
    """Of the first choice."""
    choices: int
    cache_salt: str | None
    prompt_tokens: int
    predictable: bool
    """Whether what vLLM will reuse can be expected at all."""
    expected_cached_tokens: int | None = None
    first: FirstToken | None = None
    record: RequestRecord | None = None
    verdict: Verdict | None = None
    preemptions: int | None = None
    """Before the first token; later ones count only where nothing else was lost."""
    abandoned: bool = False
    """Whether its engine went before its end was heard of."""
    _view: TurnView | None = field(default=None, repr=False)

    def changed(self) -> None:
        """Make the next view anew."""
        self._view = None

    @property
    def engine_request_ids(self) -> tuple[str, ...]:
        """The engine's ids of all choices (vLLM's `ParentRequest` numbers them in front)."""
        if self.choices == 1:
            return (self.engine_request_id,)
        _, _, parent = self.engine_request_id.partition("_")
        return tuple(f"{choice}_{parent}" for choice in range(self.choices))

    @property
    def cached_tokens(self) -> int | None:
        """What vLLM reused; None before it said so."""
        if self.record is not None:
            return self.record.cached_tokens
        return None if self.first is None else self.first.cached_tokens

    @property
    def computed_tokens(self) -> int | None:
        """Prompt tokens that were not reused."""
        cached_tokens = self.cached_tokens
        return None if cached_tokens is None else self.prompt_tokens - cached_tokens

    @property
    def prefill_s(self) -> float | None:
        """From the first scheduled step to the first token."""
        if self.first is None or self.first.queued_s is None:
            return None
        return max(0.0, self.first.ttft_s - self.first.queued_s)

    @property
    def outcome(self) -> RequestOutcome | None:
        """How it ended; None while it runs."""
        return None if self.record is None else self.record.outcome

    @property
    def mispredicted(self) -> bool | None:
        """Whether what was expected is not what vLLM reused; None when one is not known."""
        cached_tokens = self.cached_tokens
        if self.expected_cached_tokens is None or cached_tokens is None:
            return None
        return self.expected_cached_tokens != cached_tokens

    def view(self) -> TurnView:
        """Everything that is known of it."""
        if self._view is None:
            self._view = TurnView(
                number=self.number,
                at_unix_s=self.at_unix_s,
                generation=self.generation,
                running=self.record is None and not self.abandoned,
                outcome=self.outcome,
                prompt_tokens=self.prompt_tokens,
                expected_cached_tokens=self.expected_cached_tokens,
                cached_tokens=self.cached_tokens,
                computed_tokens=self.computed_tokens,
                generated_tokens=None if self.record is None else self.record.generated_tokens,
                ttft_s=None if self.first is None else self.first.ttft_s,
                verdict=self.verdict,
            )
        return self._view


class GenerationTotals(msgspec.Struct):
    """What the turns of one generation add up to."""

    generation: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_s: float = 0.0
    timed_tokens: int = 0
    """Computed tokens of the turns whose prefill was timed."""
    requests: int = 0
    predictions: int = 0
    mispredictions: int = 0

    def add(self, turn: Turn) -> None:
        """Count a turn that got its first token."""
        cached_tokens, computed_tokens = turn.cached_tokens, turn.computed_tokens
        if cached_tokens is None or computed_tokens is None:
            return
        self.requests += 1
        self.prompt_tokens += turn.prompt_tokens
        self.cached_tokens += cached_tokens
        if turn.prefill_s is not None and computed_tokens >= MIN_TIMED_TOKENS:
            self.prefill_s += turn.prefill_s
            self.timed_tokens += computed_tokens
        if turn.mispredicted is not None:
            self.predictions += 1
            self.mispredictions += turn.mispredicted

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Computed tokens per second of prefill; None before anything was timed."""
        return None if self.prefill_s <= 0 else self.timed_tokens / self.prefill_s


MIN_TIMED_TOKENS = 64
"""Below this a prefill is mostly overhead, and says nothing about speed."""
