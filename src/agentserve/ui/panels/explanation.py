"""The explanation of one figure in a box over the dashboard."""

from __future__ import annotations

from agentserve.ui.explanations import EXPLANATIONS, Explanation
from agentserve.ui.lines import Line, Lines, Role, Span, fit, wrap

_LABEL = 9


def draw(panel: str, key: str, width: int, height: int) -> Lines:
    """Draw what a figure is, its source, its window, what is good, and what to change.

    Args:
        panel: Id of the figure's panel.
        key: The figure.
        width: Cells per line.
        height: Rows to use at most.
    """
    explanation = EXPLANATIONS.get(panel, {}).get(key)
    if explanation is None:
        return ((Span("nothing to explain here", Role.MUTED),),)[:height]
    lines: list[Line] = []
    for label, text in _parts(explanation):
        for index, row in enumerate(wrap(text, max(2, width - _LABEL))):
            name = fit(label if index == 0 else "", min(_LABEL, width))
            role = Role.STRONG if label == "what" else Role.TEXT
            lines.append((Span(name, Role.LABEL), Span(row, role)))
    return tuple(lines[: max(0, height)])


def _parts(explanation: Explanation) -> tuple[tuple[str, str], ...]:
    return (
        ("what", explanation.what),
        ("from", explanation.source),
        ("window", explanation.window),
        ("good", explanation.good),
        ("change", explanation.change),
    )
