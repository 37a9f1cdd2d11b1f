"""What a verdict on one turn depends on.

Owns the facts and their meaning. It must not know rules, nor where facts come from.
"""

from __future__ import annotations

import msgspec

from agentserve.domain.request import RequestOutcome
from agentserve.telemetry.sessions.difference import LocatedChange


class ExpectedReuse(msgspec.Struct, frozen=True, kw_only=True):
    """What was resident just before the first scheduled step, in tokens from the start."""

    expected_tokens: int
    """What vLLM should reuse."""
    attention_tokens: int
    """Up to where attention blocks were resident, before a block is given up for drafting."""
    state_tokens: int | None = None
    """Up to where a state was resident too; None for models without states."""
    dropped_tokens: int = 0
    """Given up because draft models need the last matched block computed."""


class PreviousTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The turn before, of the same session."""

    prompt_tokens: int
    sequence_tokens: int
    """Prompt and answer."""
    common_tokens: int | None
    """Longest common prefix of its sequence and this prompt, both in tokens and in block hashes.

    None when it is not known."""
    common_step: int = 1
    """`common_tokens` is exact at 1, else known down to this many tokens."""
    generation: int
    cache_salt: str | None = None
    still_running: bool = False


class Evictor(msgspec.Struct, frozen=True, kw_only=True):
    """Whose request needed room; both None when it belongs to no known session."""

    session: str | None = None
    label: str | None = None
    itself: bool = False
    """Whether it is the session whose blocks were taken."""


class TurnFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a verdict depends on."""

    prompt_tokens: int
    cached_tokens: int | None
    """What vLLM says that it reused."""
    expected: ExpectedReuse | None
    """None when it is not known what was resident."""
    block_tokens: int
    """The step in which prefixes are reused, at least 1."""
    previous: PreviousTurn | None
    generation: int
    cache_salt: str | None = None
    preemptions: int | None = None
    """Before the first token, or later if nothing was lost before; None when it is not known."""
    outcome: RequestOutcome | None = None
    """None while it runs."""
    change: LocatedChange | None = None
    repeated_tokens: int | None = None
    """Tokens behind the common ones that both turns have, at least; None when it is not known."""
    missing_were_stored: bool | None = None
    """Whether the common blocks that were not resident had been stored before."""
    evicted_by: Evictor | None = None
    """Who removed them; None when it is not known."""
    state_was_removed: bool = False
    """Whether a state further on than the resident one had been stored and was removed."""
    other_session_same_tokens_other_salt: bool = False
    prefill_tokens_per_s: float | None = None
    """Of this engine."""
    prefill_s: float | None = None
    """Of this turn."""
    computed_tokens: int | None = None
    """Of this turn."""
