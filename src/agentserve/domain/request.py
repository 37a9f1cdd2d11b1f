"""One record per request: the source of the recent list, sessions and history.

Holds facts only, never text of a prompt or an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class RequestOutcome(StrEnum):
    """How a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    ERROR = "error"


class RequestOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """What the front knows about the HTTP request behind a generation."""

    number: int
    """Unique within the life of the app."""
    route: str
    user_agent: str | None = None
    session_header: str | None = None
    """vLLM's `X-Session-ID`."""
    cache_salt: str | None = None
    """Set where the API key has a prefix cache of its own; says nothing of the key."""
    key_name: str | None = None
    """Name of the API key that was used, where keys have names."""
    internal: bool = False
    """True for our own smoke prompt, which no statistic counts."""


class RequestStart(msgspec.Struct, frozen=True, kw_only=True):
    """A request was handed to the engine. Holds the prompt: never to be written or logged."""

    number: int
    """Unique within the life of the app; the key to `FirstToken` and `RequestRecord`."""
    generation: int
    engine_request_id: str
    """The id that the scheduler uses; of the first choice where there are several."""
    origin: RequestOrigin | None
    at_unix_s: float
    choices: int
    prompt_token_ids: Sequence[int]
    """Not copied: must not be changed. Empty when the prompt is not tokens."""
    cache_salt: str | None
    """The salt that the engine was given, the client's included."""
    body: bytes | None
    """The HTTP body; None when it was too large to keep."""


class FirstToken(msgspec.Struct, frozen=True, kw_only=True):
    """A request got its first output."""

    number: int
    ttft_s: float
    """From arrival in the engine client to the first output of the first choice."""
    queued_s: float | None
    cached_tokens: int | None
    """Prompt tokens taken from the prefix cache; None when not reported."""
    prompt_tokens: int
    """All tokens of the prompt, cached ones included."""
    preemptions: int | None = None
    """So far; above 0 the prompt was computed more than once."""


class InFlightRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that the engine has not finished yet."""

    number: int = 0
    """See `RequestStart.number`."""
    session: str | None = None
    """Id of its session, see `SessionView.id`; None when it is not known."""
    request_id: str
    route: str | None
    agent: str | None = None
    """The client's User-Agent."""
    phase: str
    """`queued`, `prefill` or `decode`; `waiting` where the scheduler cannot be asked."""
    prompt_tokens: int
    cached_tokens: int | None
    computed_tokens: int | None
    generated_tokens: int
    elapsed_s: float


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A finished, aborted or failed request. None means that it is not known."""

    number: int = 0
    """See `RequestStart.number`."""
    session: str | None = None
    """Id of its session, see `SessionView.id`; that one may be forgotten. Set in a snapshot only:
    the request history names sessions by digests that outlive the app."""
    request_id: str
    generation: int
    route: str | None
    agent: str | None
    finished_at_unix_s: float
    outcome: RequestOutcome
    choices: int
    prompt_tokens: int
    cached_tokens: int | None
    computed_tokens: int | None
    """Prompt tokens that were prefilled; None when aborted before the first token."""
    generated_tokens: int
    queued_s: float | None
    ttft_s: float | None
    """From arrival in the engine client to the first output of the first choice."""
    decode_s: float | None
    """From the first to the last output."""
    elapsed_s: float
    preemptions: int | None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first output per second of decoding; None below two outputs."""
        if self.decode_s is None or self.decode_s <= 0 or self.generated_tokens <= self.choices:
            return None
        return (self.generated_tokens - self.choices) / self.decode_s
