"""One record per request: the source of the recent list, sessions and history.

Holds facts only, never text of a prompt or an answer.
"""

from __future__ import annotations

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
    internal: bool = False
    """True for our own smoke prompt, which no statistic counts."""


class InFlightRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that the engine has not finished yet."""

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
