"""The help text: every action of the registry, and what the numbers mean."""

from __future__ import annotations

from agentserve.ui.actions import ACTIONS, SLOTS, Action
from agentserve.ui.formatting import DASH
from agentserve.ui.frame import Frame
from agentserve.ui.lines import BLANK, Line, Lines, Role, Span, fit, wrap

_KEY_WIDTH = 14
_NAME_WIDTH = 16
_MOST_WIDTH = 96

_TERMS: tuple[tuple[str, str], ...] = (
    ("address", "OpenAI clients use the address at the top with /v1; Anthropic clients as it is."),
    (DASH, "Not known or not reported. It never stands for 0."),
    ("in use", "Share of KV blocks that running requests hold; 0 with a warm but idle cache."),
    ("warm, free", "Blocks whose prefixes can be reused, and blocks that hold nothing."),
    ("fits", "vLLM's maximum concurrency: how many sequences of full length fit at once."),
    ("recent", "Hit rate over the last n requests: cached / all prompt tokens."),
    ("since up", "The same since this engine became ready."),
    ("cached", "Prompt tokens taken from the cache: tokens per second, then all since ready."),
    ("computed", "Prompt tokens that had to be prefilled, likewise."),
    ("TTFT", "Time from a request's arrival to its first output."),
    ("ITL", "Time between outputs. With MTP an output can carry several tokens: per event."),
    ("MTP", "Accepted / drafted tokens, and accepted tokens per step."),
    ("graphs", "One column per second, the newest at the right, scaled to its own maximum."),
)


def draw(frame: Frame, width: int, height: int) -> Lines:
    """Draw all actions by group, then the terms.

    Args:
        frame: Titles follow the engine's state.
        width: Cells per line.
        height: Rows to use at most.
    """
    width = min(width, _MOST_WIDTH)
    lines: list[Line] = []
    for problem in frame.key_problems:
        lines += [(Span(row, Role.WARNING),) for row in wrap(problem, width)]
    group = ""
    for action in ACTIONS:
        if action.group != group:
            group = action.group
            lines += [*([BLANK] if lines else []), (Span(group, Role.STRONG),)]
        lines += _action(action, frame, width)
    lines += [BLANK, (Span("Scrolling", Role.STRONG),)]
    lines += _entry(
        "↑ ↓ pgup pgdn", "scroll", "Move; in the log, end follows the newest line again.", width
    )
    lines += [BLANK, (Span("What the numbers mean", Role.STRONG),)]
    for term, meaning in _TERMS:
        lines += _entry(term, "", meaning, width)
    return tuple(lines[:height])


def _action(action: Action, frame: Frame, width: int) -> list[Line]:
    if action.id.startswith("preset."):
        slot = int(action.keys[0])
        if frame.preset_in_slot(slot) is not None:
            return _entry(action.key_at(frame), "", action.title_at(frame), width)
        if slot != SLOTS[0]:
            return []
        return _entry("1-9", "preset", "Start the preset in that slot, or switch to it.", width)
    keys = ", ".join(action.keys_at(frame)) or "palette"
    return _entry(keys, action.title_at(frame), action.help, width)


def _entry(keys: str, name: str, meaning: str, width: int) -> list[Line]:
    name_width = _NAME_WIDTH if name else 0
    rows = wrap(meaning, width - _KEY_WIDTH - name_width - 2)
    return [
        (
            Span("  " + fit(keys if index == 0 else "", _KEY_WIDTH), Role.KEY),
            Span(fit(name if index == 0 else "", name_width)),
            Span(row, Role.LABEL),
        )
        for index, row in enumerate(rows)
    ]
