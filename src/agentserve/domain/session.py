"""What is known of agent sessions and of their use of the prefix cache.

Owns the closed list of verdicts and the views that the snapshot carries. None always means "not
known", never 0. Excerpts of prompts occur only in `Verdict`, bounded; they live in memory and are
drawn as data.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from agentserve.domain.prompt import PromptPart
from agentserve.domain.request import RequestOutcome

EXCERPT_CHARACTERS = 80
"""Most characters of an excerpt before and after a change."""


class VerdictKind(StrEnum):
    """Why a turn reused what it did. The list is closed and documented in docs/guide."""

    FIRST_REQUEST = "first_request"
    FULL_REUSE = "full_reuse"
    BLOCK_ROUNDING = "block_rounding"
    BELOW_BLOCK = "below_block"
    SYSTEM_CHANGED = "system_changed"
    TOOLS_CHANGED = "tools_changed"
    HISTORY_REWRITTEN = "history_rewritten"
    VOLATILE_VALUE = "volatile_value"
    EVICTED = "evicted"
    CHECKPOINT_GAP = "checkpoint_gap"
    SPECULATIVE_BLOCK_DROP = "speculative_block_drop"
    DIFFERENT_SALT = "different_salt"
    ENGINE_RESTARTED = "engine_restarted"
    PREEMPTED = "preempted"
    UNKNOWN = "unknown"

    @property
    def lost_reuse(self) -> bool:
        """Whether reuse was lost for a known cause."""
        return self not in _HARMLESS and self is not VerdictKind.UNKNOWN


_HARMLESS = frozenset(
    {
        VerdictKind.FIRST_REQUEST,
        VerdictKind.FULL_REUSE,
        VerdictKind.BLOCK_ROUNDING,
        VerdictKind.BELOW_BLOCK,
    }
)


class VolatileKind(StrEnum):
    """What kind of value changes by itself."""

    CLOCK = "clock"
    DATE = "date"
    COUNTER = "counter"
    RANDOM_ID = "random id"
    NONCE = "nonce"


class Excerpt(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a prompt, before and now. Each text is context, change, context."""

    before: str
    """As the place read in the turn before."""
    after: str
    """As it reads now."""
    change_start: int
    """Characters at the start of both texts that are equal."""
    before_change_end: int
    """Where the change ends in `before`."""
    after_change_end: int
    """Where the change ends in `after`."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Why one turn reused what it did."""

    kind: VerdictKind
    sentence: str
    """One sentence for a person."""
    advice: str | None = None
    """One sentence: what to do about it."""
    token_index: int | None = None
    """The first token that differs from the turn before, counted from 0."""
    token_index_step: int = 1
    """The index is exact at 1, else known to this many tokens (only block hashes were kept)."""
    part: PromptPart | None = None
    """The part of the prompt that the index lies in."""
    volatile_kind: VolatileKind | None = None
    excerpt: Excerpt | None = None
    lost_tokens: int | None = None
    """At least so many tokens of the turn before had to be computed again."""
    cost_s: float | None = None
    """Seconds of prefill that they cost, at this turn's own speed or this engine's."""
    evicted_by: str | None = None
    """Id of the session that took the blocks."""


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a session."""

    number: int
    """From 1, within the session."""
    at_unix_s: float
    """When it began."""
    generation: int
    running: bool = False
    outcome: RequestOutcome | None = None
    """None while it runs."""
    prompt_tokens: int
    expected_cached_tokens: int | None = None
    """What was reusable just before the first scheduled step."""
    cached_tokens: int | None = None
    """What vLLM says that it reused."""
    computed_tokens: int | None = None
    generated_tokens: int | None = None
    """None while it runs."""
    ttft_s: float | None = None
    verdict: Verdict | None = None
    """None until the first token."""


class LayoutPartView(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a session's prompt, in the order of the prompt."""

    part: PromptPart
    tokens: int | None
    """Estimated from characters, by the measured ratio of this prompt."""
    turns: int
    """Turns that had it."""
    changes: int
    """Turns in which it differed from the turn before."""


class IdentitySource(StrEnum):
    """How requests were told to belong together."""

    SESSION_HEADER = "X-Session-ID"
    PROMPT_CACHE_KEY = "prompt_cache_key"
    METADATA = "metadata"
    USER = "user"
    LINEAGE = "lineage"
    """No id was given: the prompt continues a known conversation."""


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """One agent session. Unless it says otherwise a field is of the newest turn."""

    id: str
    """Made here, stable within the life of the app; contains nothing that the client sent."""
    label: str
    """Short name for a person, unique."""
    agent: str | None = None
    """Name of the client's product."""
    side: bool = False
    """A side query of an agent, such as one that makes a title."""
    identity: IdentitySource = IdentitySource.LINEAGE
    isolation: str | None = None
    """Sessions with different values cannot share a prefix; None is the common pool."""
    requests: int = 0
    """Turns, of all generations."""
    running_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    expected_cached_tokens: int | None = None
    computed_tokens: int | None = None
    hit_rate: float | None = None
    """Cached / prompt tokens over all turns of this generation that report both."""
    hit_rate_requests: int = 0
    """n of `hit_rate`."""
    resident_tokens: int | None = None
    """Tokens from the start of its newest prompt that a next turn could reuse now."""
    sequence_tokens: int = 0
    """Prompt and answer of its newest turn."""
    ttft_s: float | None = None
    first_seen_unix_s: float = 0.0
    last_seen_unix_s: float = 0.0
    verdict: Verdict | None = None
    history: tuple[TurnView, ...] = ()
    """Newest first; the last `HISTORY_TURNS`."""
    layout: tuple[LayoutPartView, ...] = ()
    layout_advice: str | None = None
    """One sentence: what to move in the prompt, and what it would save."""


HISTORY_TURNS = 32


class PoolShare(msgspec.Struct, frozen=True):
    """Blocks of the KV pool that hold what one session computed."""

    session: str | None
    """Id of the session; None is everything that no known session computed."""
    blocks: int


class EvictionView(msgspec.Struct, frozen=True, kw_only=True):
    """Cached blocks of one session went to make room for another; joined over a second."""

    at_unix_s: float
    loser: str | None
    """Id of the session that lost them; None when no known session computed them."""
    winner: str | None
    """Id of the session that needed room; None when it is not known."""
    blocks: int
    tokens: int | None


class CacheMonitorView(msgspec.Struct, frozen=True, kw_only=True):
    """The monitor of sessions about itself and the pool."""

    residency_problem: str | None = None
    """Why it is not known what is resident, in one sentence; None while it is known."""
    predictions: int = 0
    """Turns of this generation with an expected and an actual figure."""
    mispredictions: int = 0
    """Those in which they differ."""
    prefill_tokens_per_s: float | None = None
    """Measured over the computed tokens of this generation's turns."""
    cached_blocks: int | None = None
    """Blocks in the pool that can be reused, used ones included."""
    shares: tuple[PoolShare, ...] = ()
    """Who computed them, largest first; they add up to `cached_blocks`."""
    evictions: tuple[EvictionView, ...] = ()
    """Newest first; the last `EVICTIONS_KEPT`."""
    sessions_forgotten: int = 0
    """Sessions that left the list for newer ones."""


EVICTIONS_KEPT = 20
