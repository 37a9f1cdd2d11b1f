"""Everything that each GPU reports, and why a reading is missing."""

from __future__ import annotations

from agentserve.domain.gpu import GpuSample, ProcessSample
from agentserve.ui.formatting import (
    DASH,
    gigabytes_per_s,
    integer,
    memory,
    whole_percent,
)
from agentserve.ui.lines import BLANK, Line, Lines, Role, Span, clip, fact, fit, wrap

_MOST_WIDTH = 76


def draw(
    gpus: tuple[GpuSample, ...],
    unavailable: str | None,
    processes: tuple[ProcessSample, ...],
    width: int,
    height: int,
) -> Lines:
    """Draw all readings of all GPUs, then the engine's processes.

    Args:
        gpus: Newest readings.
        unavailable: Why there are none.
        processes: Resident memory of the engine's processes.
        width: Cells per line.
        height: Rows to use at most.
    """
    width = min(width, _MOST_WIDTH)
    lines: list[Line] = []
    for gpu in gpus:
        lines += [*_gpu(gpu, width), BLANK]
    if not gpus:
        reason = unavailable or "no GPU readings"
        lines += [*((Span(row, Role.WARNING),) for row in wrap(reason, width)), BLANK]
    lines.append((Span("Engine processes, resident memory", Role.STRONG),))
    lines += [
        fact(f"{process.role}  pid {process.pid}", memory(process.resident_bytes), width)
        for process in processes
    ]
    if not processes:
        lines.append((Span("no process of the engine runs", Role.MUTED),))
    return tuple(lines[:height])


def _gpu(gpu: GpuSample, width: int) -> list[Line]:
    head: Line = (
        Span(f"GPU {gpu.index}", Role.STRONG),
        Span(f"  {fit(gpu.name or DASH, len(gpu.name or DASH))}"),
        Span(f"  {fit(gpu.uuid or '', len(gpu.uuid or ''))}", Role.MUTED),
    )
    lines: list[Line] = [clip(head, width)]
    if gpu.lost:
        lines.append((Span("✗ LOST: it has fallen off the bus", Role.FAILED),))
    rx, tx = gigabytes_per_s(gpu.pcie_rx_bytes_per_s), gigabytes_per_s(gpu.pcie_tx_bytes_per_s)
    limit, power = integer(gpu.power_limit_w, 4), integer(gpu.power_w, 4)
    lines += [
        fact("memory used", memory(gpu.memory_used_bytes), width, Role.MEMORY),
        fact("memory reserved by the driver", memory(gpu.memory_reserved_bytes), width),
        fact("memory total", memory(gpu.memory_total_bytes), width),
        fact("utilisation", whole_percent(gpu.utilization_percent), width),
        fact("temperature", integer(gpu.temperature_c, 4) + " °C", width),
        fact("power / limit", f"{power} / {limit} W", width),
        fact("PCIe received / sent", f"{rx} / {tx} GB/s", width),
        fact("PCIe link", f"gen {_or_dash(gpu.pcie_gen)} x{_or_dash(gpu.pcie_width)}", width),
        fact("SM clock", integer(gpu.sm_clock_mhz, 5) + " MHz", width),
    ]
    for note in gpu.notes:
        lines += [(Span(row, Role.MUTED),) for row in wrap(note, width, most=3)]
    return lines


def _or_dash(value: int | None) -> str:
    return DASH if value is None else str(value)
