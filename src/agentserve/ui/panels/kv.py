"""The KV pool: how full, how large, how many full-length sequences fit."""

from __future__ import annotations

from agentserve.domain.snapshot import HistoryView, KvView
from agentserve.ui.formatting import COUNT_WIDTH, DASH, count, percent, times
from agentserve.ui.glyphs import WARM, bar
from agentserve.ui.lines import Line, Lines, Role, Span, fit, pair
from agentserve.ui.panels.meters import LABEL_WIDTH, graph


def draw(kv: KvView, history: HistoryView, width: int, height: int) -> Lines:
    """Draw the KV pool.

    Args:
        kv: The pool now.
        history: For the graph of the share in use, drawn where there are rows for it.
        width: Cells per line.
        height: Rows to use at most.
    """
    lines = [
        _usage(kv, width),
        pair(
            ("capacity", count(kv.capacity_tokens) + " tok"),
            ("fits", times(kv.max_concurrency)),
            width,
        ),
        pair(
            ("block", count(kv.block_tokens) + " tok"),
            ("preempted", count(kv.preemptions) + " x"),
            width,
        ),
        pair(("warm", _share(kv, kv.blocks_warm)), ("free", _share(kv, kv.blocks_free)), width),
    ]
    spare = height - len(lines)
    if spare >= 2:
        value = (Span(" " * 8),)
        lines += graph(
            "in use",
            history.kv_usage_fraction,
            value,
            width,
            Role.KV_GRAPH,
            min(spare, 6),
            top=1.0,
            peak="100 %",
        )
    return tuple(lines[:height])


def _usage(kv: KvView, width: int) -> Line:
    value = " " + percent(kv.usage_fraction)
    room = max(0, width - LABEL_WIDTH - len(value))
    filled, empty = bar(kv.usage_fraction, room)
    warm = 0
    if kv.blocks_warm and kv.blocks_total:
        warm = min(len(empty), max(1, round(kv.blocks_warm / kv.blocks_total * room)))
    return (
        Span(fit("in use", LABEL_WIDTH), Role.LABEL),
        Span(filled, Role.KV),
        Span(WARM * warm, Role.KV),
        Span(empty[warm:], Role.TRACK),
        Span(value, Role.STRONG),
    )


def _share(kv: KvView, blocks: int | None) -> str:
    if blocks is None:
        return DASH.rjust(COUNT_WIDTH) + " blk"
    return count(blocks) + " blk"
