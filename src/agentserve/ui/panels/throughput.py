"""The queue, the decode and prefill rates, and what speculative decoding adds."""

from __future__ import annotations

from agentserve.domain.snapshot import HistoryView, SpecDecodeView, ThroughputView
from agentserve.ui.formatting import count, integer, percent, rate, rate_number, three_digits
from agentserve.ui.formatting import dash as unknown
from agentserve.ui.lines import Line, Lines, Role, Span, fact, pair
from agentserve.ui.panels.meters import graph, peak_of


def title(throughput: ThroughputView) -> str:
    """Name the panel and its window."""
    return f"Throughput · {throughput.window_s:.0f} s" if throughput.window_s else "Throughput"


def draw(
    throughput: ThroughputView,
    spec_decode: SpecDecodeView | None,
    history: HistoryView,
    width: int,
    height: int,
) -> Lines:
    """Draw queue, rates and MTP.

    Args:
        throughput: Queue and rates now.
        spec_decode: Speculative decoding over its window; None when it is off.
        history: Graph of the decode rate.
        width: Cells per line.
        height: Rows to use at most; below six the prefill rates stay with the prefix cache panel.
    """
    mtp = _spec_decode(spec_decode, width)
    queue = pair(
        ("running", count(throughput.running_requests) + " req"),
        ("waiting", count(throughput.waiting_requests) + " req"),
        width,
    )
    prefill: Lines = (
        ()
        if height < 6
        else (
            fact(
                "prefill, computed",
                rate(throughput.computed_prefill_tokens_per_s),
                width,
                Role.COMPUTED,
            ),
            fact(
                "prefill, cached", rate(throughput.cached_prefill_tokens_per_s), width, Role.CACHED
            ),
        )
    )
    rows = max(1, min(7, height - 1 - len(prefill) - len(mtp)))
    decode = graph(
        "decode",
        history.decode_tokens_per_s,
        (Span(rate(throughput.decode_tokens_per_s), Role.DECODE),),
        width,
        Role.DECODE_GRAPH,
        rows,
        peak=peak_of(history.decode_tokens_per_s, rate_number),
    )
    return (queue, *decode, *prefill, *mtp)[: max(0, height)]


def _spec_decode(spec: SpecDecodeView | None, width: int) -> Lines:
    if spec is None:
        return ((Span("MTP".ljust(width - 3), Role.LABEL), Span("off", Role.MUTED)), ())
    window = f", {spec.window_s:.0f} s" if spec.window_s else ""
    accepted = spec.mean_accepted_tokens
    mean = unknown(4) if accepted is None else three_digits(accepted)
    first: Line = fact(f"MTP accepted{window}", percent(spec.acceptance_rate), width)
    second: Line = fact(f"    n {integer(spec.drafts, 6)} drafts", f"{mean} tok/step", width)
    return first, second
