"""GPUs line by line with the pair's skew; without GPUs the memory of the engine's processes."""

from __future__ import annotations

from agentserve.domain.gpu import GpuSample, ProcessSample
from agentserve.ui.formatting import (
    DASH,
    gibibytes,
    gigabytes_per_s,
    integer,
    memory,
    whole_percent,
)
from agentserve.ui.glyphs import bar
from agentserve.ui.lines import Line, Lines, Role, Span, cells, clip, fit, joined, wrap

_MINIMUM_BAR = 6


def title(gpus: tuple[GpuSample, ...], processes: tuple[ProcessSample, ...]) -> str:
    """Name the panel: what its numbers are, and how far a pair of cards is apart."""
    if not gpus:
        return "Memory of the engine's processes (no GPU)" if processes else "GPUs"
    skew = _skew(gpus)
    return f"GPUs · {skew}" if skew else "GPUs"


def draw(
    gpus: tuple[GpuSample, ...],
    unavailable: str | None,
    processes: tuple[ProcessSample, ...],
    width: int,
    height: int,
) -> Lines:
    """Draw one line a GPU, or why there are none and what the processes hold.

    Args:
        gpus: Newest readings.
        unavailable: Why there are no readings.
        processes: Resident memory of the engine's processes, shown where there are no GPUs.
        width: Cells per line.
        height: Rows to use at most.
    """
    if gpus:
        return tuple(_gpu(gpu, width) for gpu in gpus[:height])
    lines: list[Line] = []
    if processes:
        lines.append(_processes(processes, width))
    reason = unavailable or "no GPU readings"
    lines += [(Span(row, Role.MUTED),) for row in wrap(reason, width)]
    return tuple(lines[:height])


def _gpu(gpu: GpuSample, width: int) -> Line:
    name: Line = (Span(f"GPU {gpu.index}", Role.LABEL), Span(" "))
    if gpu.lost:
        text = "✗ LOST: it has fallen off the bus; the driver needs a reset or the machine a reboot"
        return clip((*name, Span(text, Role.FAILED)), width)
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    fraction = used / total if used is not None and total else None
    limit = "" if gpu.power_limit_w is None else f"/{integer(gpu.power_limit_w, 3)}"
    figures: list[Line] = [
        (Span(f" {gibibytes(used)}/{gibibytes(total)} GiB", Role.STRONG),),
        (Span(f" {whole_percent(gpu.utilization_percent)}"),),
        (Span(f"  {integer(gpu.temperature_c, 3)} °C"),),
        (Span(f"  {integer(gpu.power_w, 3)}{limit} W"),),
        (
            Span("  PCIe", Role.LABEL),
            Span(
                f" ↓{gigabytes_per_s(gpu.pcie_rx_bytes_per_s)}"
                f" ↑{gigabytes_per_s(gpu.pcie_tx_bytes_per_s)} GB/s"
            ),
        ),
        (Span(f"  {_link(gpu)}", Role.MUTED),),
    ]
    kept: list[Span] = []
    room = width - cells(name) - _MINIMUM_BAR
    for figure in figures:
        if cells(figure) > room:
            break
        kept += figure
        room -= cells(figure)
    filled, empty = bar(fraction, room + _MINIMUM_BAR)
    return (*name, Span(filled, Role.MEMORY), Span(empty, Role.TRACK), *kept)


def _link(gpu: GpuSample) -> str:
    gen = DASH if gpu.pcie_gen is None else str(gpu.pcie_gen)
    lanes = DASH if gpu.pcie_width is None else str(gpu.pcie_width)
    return f"gen {gen} x{lanes:<2}"


def _skew(gpus: tuple[GpuSample, ...]) -> str:
    if len(gpus) != 2 or any(gpu.lost for gpu in gpus):
        return ""
    parts: list[str] = []
    used = [gpu.memory_used_bytes for gpu in gpus if gpu.memory_used_bytes is not None]
    busy = [gpu.utilization_percent for gpu in gpus if gpu.utilization_percent is not None]
    if len(used) == 2:
        parts.append(memory(abs(used[0] - used[1])).strip())
    if len(busy) == 2:
        parts.append(f"{abs(busy[0] - busy[1])} % busy")
    return "skew " + ", ".join(parts) if parts else ""


def _processes(processes: tuple[ProcessSample, ...], width: int) -> Line:
    total = sum(process.resident_bytes for process in processes)
    parts: list[Line] = [(Span("all", Role.LABEL), Span(" " + memory(total), Role.STRONG))]
    parts += [
        (
            Span(fit(process.role, min(len(process.role), 16)), Role.LABEL),
            Span(" " + memory(process.resident_bytes)),
        )
        for process in processes
    ]
    return clip(joined(parts, "   "), width)
