"""Why an engine failed, explained from its log.

Owns the `Failure` value and how one is made from log lines. It must not know how the log was
collected or how a failure is shown. Every text in a `Failure` is safe to print, bounded in length
and free of things that look like keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from agentserve.domain.failure_explanations import Explanation
from agentserve.domain.failure_kinds import explain_text
from agentserve.domain.raised import (
    LogText,
    Raised,
    deepest_first,
    find_raised,
    is_wrapper_text,
    read_line,
    wrapped_text,
)
from agentserve.domain.text import printable

_MAX_LINES = 50_000
_MAX_OUTER_LINES = 2_000
_MAX_LINE_CHARACTERS = 4_000
_MAX_CAUSE_CHARACTERS = 400
_MAX_RAW_LINES = 12
_MAX_RAW_CHARACTERS = 500
_TRACEBACK = "Traceback"
_OPEN_LOG = "Read the lines before this one in the log."

_SECRET = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[a-z]_[A-Za-z0-9]{16,}|AKIA[A-Z0-9]{12,})"
)
_NAMED_SECRET = re.compile(
    r"(?P<name>\b(?:\w{0,40}[_-])?(?:api[_-]?key|token|password|secret)['\"]?\s{0,3}[=:]\s{0,3}\[?['\"]?"
    r"|\bBearer )(?P<value>[^\s'\",}\]]{1,500})",
    re.IGNORECASE,
)
_NOT_SECRET = re.compile(r"(?:\d+|None|null|True|False)$", re.IGNORECASE)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a start or a running engine failed, for people."""

    kind: str
    """Stable identifier, for example `out_of_memory`, `worker_died`, `unknown`."""
    title: str
    """A few words."""
    cause: str
    """One sentence, or the deepest first exception line as it was printed."""
    hint: str
    """One sentence: what to do next."""
    phase: str | None = None
    """Start phase or `ready`."""
    raw: tuple[str, ...] = ()
    """The log lines that the explanation rests on, as data."""


def mask_secrets(text: str) -> str:
    """Replace what looks like an API key, a token or a password by asterisks."""

    def masked(found: re.Match[str]) -> str:
        if _NOT_SECRET.match(found["value"]):
            return found[0]
        return f"{found['name']}***"

    return _SECRET.sub("***", _NAMED_SECRET.sub(masked, text))


def explain_failure(
    lines: Sequence[str], *, phase: str | None, exception_text: str | None = None
) -> Failure:
    """Explain a failure by the first exception of the process farthest from the app.

    Args:
        lines: The log of this engine, oldest first.
        phase: Start phase that was running, or `ready`; None when it is not known.
        exception_text: What reached the app: a formatted traceback, or `Class: message`.

    Returns:
        The explanation. An unknown failure keeps the exception line as it was printed.
    """
    texts = [read_line(line[:_MAX_LINE_CHARACTERS]) for line in lines[-_MAX_LINES:]]
    outer = [line[:_MAX_LINE_CHARACTERS] for line in (exception_text or "").splitlines()]
    raised = find_raised(texts)
    # What reached the app came last and from no engine process.
    raised += find_raised(map(read_line, outer[-_MAX_OUTER_LINES:]), first_index=len(texts))
    root = deepest_first(raised)

    explanation: Explanation | None = None
    evidence: Sequence[str] = ()
    if root is not None:
        explanation, evidence = _explain_chain(root, raised, phase)
    if root is None or root.is_consequence:
        # What was printed beside it may say more than the exception itself.
        explanation, evidence = _explain_by_lines(texts, phase) or (explanation, evidence)
    if explanation is None and (root is None or root.is_consequence):
        explanation, evidence = _explain_by_wrappers(raised, phase) or (explanation, evidence)
    if explanation is None:
        errors = _last_errors(texts)
        explanation = _unknown(root, outer, errors)
        evidence = evidence or errors
    return _failure(explanation, phase, evidence)


def _explain_chain(
    root: Raised, raised: Sequence[Raised], phase: str | None
) -> tuple[Explanation | None, Sequence[str]]:
    """Explain an exception, or a later one of its process that has known words for it."""
    evidence = (root.line, *root.details)
    for each in raised:
        if each.process != root.process or each.index < root.index or each.is_wrapper:
            continue
        if explanation := explain_text(each.text, phase):
            return explanation, evidence if each is root else (*evidence, each.line)
    return None, evidence


def _explain_by_lines(
    texts: Sequence[LogText], phase: str | None
) -> tuple[Explanation, list[str]] | None:
    """Look for a known failure among lines that are not exceptions, deepest process first."""
    found: tuple[int, Explanation, str] | None = None
    for text in texts:
        # Indented lines are source code inside a traceback, not messages.
        if text.is_harmless or not text.body.strip() or text.body[0].isspace():
            continue
        if is_wrapper_text(text.body):
            continue
        if found is not None and text.depth <= found[0]:
            continue
        if explanation := explain_text(text.body, phase):
            found = (text.depth, explanation, text.body)
    return (found[1], [found[2]]) if found else None


def _explain_by_wrappers(
    raised: Sequence[Raised], phase: str | None
) -> tuple[Explanation, list[str]] | None:
    """Use what wrappers quote or count, when nothing else was printed."""
    for wrapper in raised:
        if not wrapper.is_wrapper:
            continue
        inner = wrapped_text(wrapper.text)
        if explanation := explain_text(inner or wrapper.text, phase):
            return explanation, [wrapper.line]
        if inner:
            return Explanation("unknown", "Engine failed", inner, _OPEN_LOG), [wrapper.line]
    return None


def _unknown(root: Raised | None, outer: Sequence[str], errors: Sequence[str]) -> Explanation:
    sentences = [line for line in outer if line.strip() and not is_wrapper_text(line)]
    if root is not None:
        cause = root.line
    elif sentences and len(sentences) == len(outer):
        cause = sentences[0]
    elif errors:
        cause = errors[0]
    else:
        return Explanation(
            "no_message",
            "Engine ended without a message",
            "The engine ended and none of its processes printed an error.",
            "Start it again; if it ends again, read the last lines of the log.",
        )
    return Explanation("unknown", "Engine failed", cause, _OPEN_LOG)


def _last_errors(texts: Sequence[LogText]) -> list[str]:
    """The last error lines that say something themselves, oldest first."""
    errors = [
        text.body.strip()
        for text in texts
        if text.level in ("ERROR", "CRITICAL", "FATAL")
        and text.body.strip()
        and not text.body[0].isspace()
        and not text.body.startswith(_TRACEBACK)
        and not is_wrapper_text(text.body)
    ]
    return errors[-_MAX_RAW_LINES:]


def _failure(explanation: Explanation, phase: str | None, evidence: Sequence[str]) -> Failure:
    def safe(text: str, limit: int) -> str:
        return printable(mask_secrets(text), limit)

    return Failure(
        kind=explanation.kind,
        title=safe(explanation.title, 80),
        cause=safe(explanation.cause.strip(), _MAX_CAUSE_CHARACTERS),
        hint=safe(explanation.hint, _MAX_CAUSE_CHARACTERS),
        phase=phase,
        raw=tuple(safe(line, _MAX_RAW_CHARACTERS) for line in evidence[:_MAX_RAW_LINES]),
    )
