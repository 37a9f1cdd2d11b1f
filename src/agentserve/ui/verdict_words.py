"""Verdicts in one or two words, with a sign and a colour. Pure."""

from __future__ import annotations

from agentserve.domain.session import Verdict, VerdictKind
from agentserve.ui.formatting import DASH
from agentserve.ui.lines import Role, Span, fit

WORD_WIDTH = 14
"""Cells of the longest word."""
VERDICT_WIDTH = WORD_WIDTH + 2
"""Cells of a word with its sign."""

_WORDS = {
    VerdictKind.FIRST_REQUEST: "first request",
    VerdictKind.FULL_REUSE: "full reuse",
    VerdictKind.BLOCK_ROUNDING: "block rounding",
    VerdictKind.BELOW_BLOCK: "below a block",
    VerdictKind.SYSTEM_CHANGED: "system changed",
    VerdictKind.TOOLS_CHANGED: "tools changed",
    VerdictKind.HISTORY_REWRITTEN: "history edited",
    VerdictKind.VOLATILE_VALUE: "volatile value",
    VerdictKind.EVICTED: "evicted",
    VerdictKind.CHECKPOINT_GAP: "checkpoint gap",
    VerdictKind.SPECULATIVE_BLOCK_DROP: "draft block",
    VerdictKind.DIFFERENT_SALT: "other salt",
    VerdictKind.ENGINE_RESTARTED: "restarted",
    VerdictKind.PREEMPTED: "preempted",
    VerdictKind.UNKNOWN: "unknown",
}


_NO_LOSS = tuple(kind for kind in VerdictKind if not kind.lost_reuse)
"""A tuple: looking a few members up by identity is faster than hashing them."""


def word(verdict: Verdict) -> str:
    """Name a verdict; a volatile value by its kind."""
    if verdict.kind is VerdictKind.VOLATILE_VALUE and verdict.volatile_kind is not None:
        return str(verdict.volatile_kind.value)
    return _WORDS[verdict.kind]


def phrase(verdict: Verdict) -> str:
    """Name a verdict and where in the prompt its cause lies, as `clock in system prompt`."""
    name = word(verdict)
    where = verdict.part.label if verdict.part is not None else ""
    if verdict.kind is VerdictKind.SYSTEM_CHANGED:
        return f"{where or 'system prompt'} changed"
    if not where:
        return name
    return f"{name} in {where}"


def sign(verdict: Verdict) -> tuple[str, Role]:
    """Return what tells harmless, lost and unknown apart, with its colour."""
    if verdict.kind is VerdictKind.UNKNOWN:
        return "?", Role.MUTED
    return ("!", Role.WARNING) if is_loss(verdict) else ("✓", Role.READY)


def is_loss(verdict: Verdict | None) -> bool:
    """Tell whether reuse was lost for a known reason; not where all that followed was new."""
    return verdict is not None and verdict.kind not in _NO_LOSS and verdict.lost_tokens != 0


def verdict_span(verdict: Verdict | None) -> Span:
    """Write a verdict with its sign in `VERDICT_WIDTH` cells; a dash before the first token."""
    if verdict is None:
        return Span(fit(f"  {DASH}", VERDICT_WIDTH), Role.MUTED)
    mark, role = sign(verdict)
    return Span(fit(f"{mark} {word(verdict)}", VERDICT_WIDTH), role)
