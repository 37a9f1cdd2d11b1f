"""Changes that were asked for and are not applied yet, and what applying them would mean.

A toggle never touches a running engine. It becomes a pending change, is checked, and is shown as a
difference with its consequence; only applying it stops anything. Owns these values; how they come
about is the business of configuration and engine.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ToggleOption(StrEnum):
    """The options that can be changed from the screen; named as the engine's arguments."""

    TOKEN_BUDGET = "max_num_batched_tokens"
    DRAFT_TOKENS = "num_speculative_tokens"
    """0 switches speculative decoding off."""
    SEATS = "max_num_seqs"
    CONTEXT = "max_model_len"


class PendingChange(msgspec.Struct, frozen=True, kw_only=True):
    """One option that would change."""

    option: ToggleOption
    before: int | None
    """The running or configured value; None when vLLM's default applies."""
    after: int


class CheckState(StrEnum):
    """How far the check by vLLM's own parser and configuration is."""

    NONE = "none"
    """Not asked, for example because vLLM is not installed."""
    RUNNING = "running"
    PASSED = "passed"
    REFUSED = "refused"


class Consequence(msgspec.Struct, frozen=True, kw_only=True):
    """What applying the pending changes would mean; None where it is not known."""

    needs_restart: bool = True
    expected_restart_s: float | None = None
    """Median of earlier starts of this preset."""
    capacity_tokens_before: int | None = None
    capacity_tokens_after: int | None = None
    """KV capacity that an earlier start with exactly these settings had."""
    warm_tokens_lost: int | None = None
    """Tokens in the prefix cache that a restart forgets."""
    requests_interrupted: int = 0
    """Requests that are running or waiting now."""


class PendingView(msgspec.Struct, frozen=True, kw_only=True):
    """All pending changes of the current preset."""

    preset: str
    changes: tuple[PendingChange, ...]
    consequence: Consequence = Consequence()
    check: CheckState = CheckState.NONE
    refusal: str | None = None
    """One sentence why vLLM, or we, would refuse; nothing can be applied then."""
    warnings: tuple[str, ...] = ()
    """What works and is unwise, one sentence each."""


class DrainView(msgspec.Struct, frozen=True, kw_only=True):
    """A switch that waits for requests to finish; new ones are answered with 503."""

    target_preset: str | None
    """What is started afterwards; None when the engine is only stopped."""
    remaining_s: float
    """When it ends, the requests that are left are aborted."""
    requests_left: int
