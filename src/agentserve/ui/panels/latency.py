"""Time to first token and inter-token latency as percentiles, with n."""

from __future__ import annotations

from agentserve.domain.snapshot import HistoryView, LatencyView, Percentiles
from agentserve.ui.formatting import duration, integer
from agentserve.ui.lines import BLANK, Line, Lines, Role, Span
from agentserve.ui.panels.meters import LABEL_WIDTH, graph, peak_of

_GAP = 1


def title(latency: LatencyView, *, per_event: bool) -> str:
    """Name the panel, its window, and what one inter-token latency stands for."""
    window = f" · {latency.window_s:.0f} s" if latency.window_s else ""
    return f"Latency{window}{' · ITL per event' if per_event else ''}"


def draw(latency: LatencyView, history: HistoryView, width: int, height: int) -> Lines:
    """Draw a table of percentiles and below it the two series.

    Args:
        latency: Percentiles over the window.
        history: Graphs of the means per interval.
        width: Cells per line.
        height: Rows to use at most.
    """
    lines: list[Line] = [
        _row("", "p50   ", "p95   ", "p99   ", "n", width, Role.MUTED),
        _percentiles("TTFT", latency.ttft_s, width, with_p99=False),
        _percentiles("ITL", latency.itl_s, width, with_p99=True),
    ]
    spare = height - len(lines)
    if spare >= 2:
        if spare % 2:
            lines.append(BLANK)
        rows = min(spare // 2, 5)
        # With one row there is no room to say what the top stands for.
        right = (Span(" " * 12),) if rows > 1 else ()
        for label, values in (("TTFT", history.ttft_s), ("ITL", history.itl_s)):
            peak = peak_of(values, duration)
            lines += graph(label, values, right, width, Role.LATENCY_GRAPH, rows, peak=peak)
    elif spare == 1:
        left = graph("TTFT", history.ttft_s, (), width // 2, Role.LATENCY_GRAPH)
        beside = graph("ITL", history.itl_s, (), width - width // 2, Role.LATENCY_GRAPH)
        lines.append((*left[0], *beside[0]))
    return tuple(lines[:height])


def _percentiles(label: str, values: Percentiles, width: int, *, with_p99: bool) -> Line:
    # TTFT has too few samples in a window for a 99th percentile to mean anything.
    p99 = duration(values.p99) if with_p99 else ""
    return _row(
        label,
        duration(values.p50),
        duration(values.p95),
        p99,
        integer(values.n, 5),
        width,
        Role.TEXT,
    )


def _row(label: str, p50: str, p95: str, p99: str, n: str, width: int, role: Role) -> Line:
    room = max(0, width - 6 - LABEL_WIDTH + 3)
    column = max(8, min(11, room // 3))
    figures = "".join(text.rjust(column) for text in (p50, p95, p99))
    name = label.ljust(max(0, width - len(figures) - 6))
    return (Span(name, Role.LABEL), Span(figures, role), Span(n.rjust(6), Role.MUTED))
