"""Changes that are not applied yet: each as before and after, and what applying them would mean.

What follows measurements has a fixed width or stands last, so that the panel holds still while a
check runs and while the queue behind its consequences moves.
"""

from __future__ import annotations

from rich.cells import cell_len

from agentserve.domain.pending import CheckState, Consequence, PendingChange, PendingView
from agentserve.domain.text import printable
from agentserve.ui.formatting import DASH, about_seconds, count
from agentserve.ui.lines import Line, Lines, Role, Span, cells, clip, fit, joined, spread, wrap
from agentserve.ui.toggles import change_text

_LONG_FROM = 96
"""Cells from which on the consequence is written in full words."""
_CHECKS = {
    CheckState.NONE: (f"{DASH} not checked: there is no vLLM here to ask", Role.MUTED),
    CheckState.RUNNING: ("▸ vLLM checks it…", Role.STARTING),
    CheckState.PASSED: ("✓ vLLM accepts it", Role.READY),
    CheckState.REFUSED: ("✗ refused, nothing was stopped", Role.FAILED),
}


def title(pending: PendingView | None) -> str:
    """Name the panel and count its changes."""
    changes = len(pending.changes) if pending else 0
    return f"Pending · {changes} change{'' if changes == 1 else 's'}, nothing is applied yet"


def draw(
    pending: PendingView | None, width: int, height: int, *, runs: bool, keys: tuple[str, str]
) -> Lines:
    """Draw changes, consequence or refusal, warnings, and the check with the keys below.

    Args:
        pending: What is pending, or None.
        width: Cells per line.
        height: Rows to use, at least 3; with 3 of them a warning takes the place of the check.
        runs: Whether applying stops an engine first.
        keys: The keys that apply and drop the changes.
    """
    if pending is None or height < 3:
        return ()
    refused = pending.check is CheckState.REFUSED
    offers = _keys(keys, refused=refused, runs=runs)
    lines: list[Line] = [_changes(pending.changes, width)]
    if refused:
        # Its last row shares the line with the keys.
        rows = _wrapped((_refusal(pending),), width - cells(offers) - 2)
        body = [_row(row, Role.FAILED) for row in rows]
    else:
        warned = [_row(row, Role.WARNING) for row in _wrapped(pending.warnings, width)]
        body = [_consequence(pending.consequence, width, runs=runs), *warned]
    room = height - 2
    text, role = _CHECKS[pending.check]
    if len(body) > room and not refused:
        # The rest is said in words rather than left out in silence.
        text, role = _warned(pending.warnings, width - cells(offers) - 2, keys[0]), Role.WARNING
    elif len(body) > room:
        text = " ".join(span.text for line in body[room:] for span in line)
    lines += body[:room]
    lines += [()] * (height - 1 - len(lines))
    left = clip((_row(text, role)[0],), max(0, width - cells(offers) - 2))
    lines.append(spread(left, offers, width))
    return tuple(clip(line, width) for line in lines)


def _warned(warnings: tuple[str, ...], width: int, key: str) -> str:
    """Write the only warning if it fits, else how many there are and where all can be read."""
    if len(warnings) == 1:
        whole = f"! {printable(warnings[0])}"
        return whole if cell_len(whole) <= width else f"! a warning, {key} shows it first"
    return f"! {len(warnings)} warnings, {key} shows all before it applies"


def _row(text: str, role: Role) -> Line:
    return (Span(fit(text, len(text)).rstrip(), role),)


def _wrapped(texts: tuple[str, ...], width: int) -> list[str]:
    rows: list[str] = []
    for text in texts:
        first, *rest = wrap(text, max(2, width - 2), most=4)
        rows += ["! " + first, *("  " + row for row in rest)]
    return rows


def _refusal(pending: PendingView) -> str:
    return pending.refusal or "The check found that this cannot work."


def _changes(changes: tuple[PendingChange, ...], width: int) -> Line:
    parts: list[Line] = []
    for change in changes:
        name, before, after = change_text(change)
        parts.append(
            (
                Span(f"{name} ", Role.LABEL),
                Span(before),
                Span(" → ", Role.MUTED),
                Span(after, Role.KEY),
            )
        )
    line = joined(parts, "   ")
    return line if cells(line) <= width else joined(parts, " · ")


def _consequence(consequence: Consequence, width: int, *, runs: bool) -> Line:
    long = width >= _LONG_FROM
    parts = [_restart(consequence, long=long, runs=runs), _capacity(consequence)]
    if runs and consequence.needs_restart:
        lost = count(consequence.warm_tokens_lost)
        parts.append((Span("loses ", Role.LABEL), Span(lost), Span(" warm tok", Role.LABEL)))
        interrupted = consequence.requests_interrupted
        role = Role.WARNING if interrupted else Role.MUTED
        unit = " request" + ("" if interrupted == 1 else "s") if long else " req"
        word = "interrupts" if long else "ends"
        text = f"{word} {interrupted}{unit}" if interrupted else f"{word} no{unit}"
        parts.append((Span(text, role),))
    shown = joined(parts)
    while cells(shown) > width and len(parts) > 1:
        parts.pop()
        shown = joined(parts)
    return shown


def _restart(consequence: Consequence, *, long: bool, runs: bool) -> Line:
    if not consequence.needs_restart:
        return (Span("applied without a restart", Role.READY),)
    seconds = consequence.expected_restart_s
    unknown = "time not known yet" if long else f"about {DASH}"
    time = unknown if seconds is None else f"about {about_seconds(seconds)}"
    if runs:
        word = "restarts the engine" if long else "restart"
    else:
        word = "used by the next start" if long else "next start"
    return (Span(f"{word}, ", Role.LABEL), Span(time, Role.STRONG))


def _capacity(consequence: Consequence) -> Line:
    before, after = consequence.capacity_tokens_before, consequence.capacity_tokens_after
    if before is None and after is None:
        return (Span("KV not known yet", Role.MUTED),)
    role = Role.TEXT
    if before is not None and after is not None and after != before:
        role = Role.READY if after > before else Role.WARNING
    written = DASH if after is None else count(after).strip()
    return (
        Span("KV ", Role.LABEL),
        Span(count(before).strip()),
        Span(" → ", Role.MUTED),
        Span(written, role),
        Span(" tok", Role.LABEL),
    )


def _keys(keys: tuple[str, str], *, refused: bool, runs: bool) -> Line:
    drop: Line = (Span(keys[1], Role.KEY), Span(" drop", Role.LABEL))
    if refused:
        return drop
    verb = " apply" if runs else " start with it"
    return (Span(keys[0], Role.KEY), Span(f"{verb}   ", Role.LABEL), *drop)
