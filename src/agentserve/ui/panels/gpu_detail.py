"""Everything that each GPU reports, how far a pair is apart, and why a reading is missing."""

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
from agentserve.ui.glyphs import FILL, TRACK, WARM, bar
from agentserve.ui.lines import BLANK, Line, Lines, Role, Span, cells, clip, fact, fit, wrap

_MOST_WIDTH = 92
_GUTTER = 4
_LABEL = 13
_LOADED_PERCENT = 50
"""From this utilisation on the PCIe link says something; an idle card lets it sleep."""


def draw(
    gpus: tuple[GpuSample, ...],
    unavailable: str | None,
    processes: tuple[ProcessSample, ...],
    width: int,
    height: int,
) -> Lines:
    """Draw all readings of all GPUs, side by side where there is room, then the processes.

    Args:
        gpus: Newest readings.
        unavailable: Why there are none.
        processes: Resident memory of the engine's processes.
        width: Cells per line.
        height: Rows to use at most.
    """
    lines: list[Line] = []
    if not gpus:
        reason = unavailable or "no GPU readings"
        rows = wrap(reason, min(width, _MOST_WIDTH))
        lines += [*((Span(row, Role.WARNING),) for row in rows), BLANK]
    columns = 2 if width >= 100 and len(gpus) > 1 else 1
    column = min(_MOST_WIDTH, (width - _GUTTER * (columns - 1)) // columns)
    blocks = [_gpu(gpu, gpus, column) for gpu in gpus]
    for first in range(0, len(blocks), columns):
        lines += [*_beside(blocks[first : first + columns], column), BLANK]
    lines += _pair(gpus, column)
    lines += _processes(processes, column)
    return tuple(lines[:height])


def _gpu(gpu: GpuSample, gpus: tuple[GpuSample, ...], width: int) -> list[Line]:
    name = gpu.name or DASH
    head: Line = (Span(f"GPU {gpu.index}", Role.STRONG), Span(f"  {fit(name, len(name))}"))
    lines: list[Line] = [clip(head, width)]
    uuid = gpu.uuid or DASH
    lines.append(clip((Span(fit(uuid, len(uuid)), Role.MUTED),), width))
    if gpu.lost:
        text = "✗ LOST: it has fallen off the bus; the driver needs a reset, or the machine a boot"
        lines += [(Span(row, Role.FAILED),) for row in wrap(text, width)]
    power = f"{integer(gpu.power_w, 4)} /{integer(gpu.power_limit_w, 4)} W"
    rx, tx = gigabytes_per_s(gpu.pcie_rx_bytes_per_s), gigabytes_per_s(gpu.pcie_tx_bytes_per_s)
    busy = gpu.utilization_percent
    lines += [
        BLANK,
        _memory_bar(gpu, width),
        _memory_legend(gpu, width),
        _meter("utilisation", None if busy is None else busy / 100, whole_percent(busy), width),
        _meter("power", _share(gpu.power_w, gpu.power_limit_w), power, width),
        fact("temperature", integer(gpu.temperature_c, 4) + " °C", width),
        fact("SM clock", integer(gpu.sm_clock_mhz, 5) + " MHz", width),
        fact("PCIe received", f"{rx} GB/s", width),
        fact("PCIe sent", f"{tx} GB/s", width),
        *_link(gpu, gpus, width),
    ]
    for note in gpu.notes:
        rows = wrap(note, width - 2, most=3)
        lines += [
            (Span("· " if index == 0 else "  ", Role.MUTED), Span(row, Role.MUTED))
            for index, row in enumerate(rows)
        ]
    return lines


def _memory_bar(gpu: GpuSample, width: int) -> Line:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    value = f" {gibibytes(used)} /{gibibytes(total)} GiB"
    room = max(0, width - _LABEL - len(value))
    label = Span(fit("memory", _LABEL), Role.LABEL)
    if used is None or not total:
        return (label, Span(TRACK * room, Role.TRACK), Span(value, Role.STRONG))
    filled = min(room, max(1 if used else 0, round(used / total * room)))
    reserved = gpu.memory_reserved_bytes or 0
    held = min(room - filled, max(1, round(reserved / total * room))) if reserved else 0
    return (
        label,
        Span(FILL * filled, Role.MEMORY),
        Span(WARM * held, Role.WARNING),
        Span(TRACK * (room - filled - held), Role.TRACK),
        Span(value, Role.STRONG),
    )


def _memory_legend(gpu: GpuSample, width: int) -> Line:
    used, total, reserved = (
        gpu.memory_used_bytes,
        gpu.memory_total_bytes,
        gpu.memory_reserved_bytes,
    )
    free = None if used is None or total is None else max(0, total - used - (reserved or 0))
    return clip(
        (
            Span(" " * _LABEL),
            Span(FILL + " ", Role.MEMORY),
            Span("used  ", Role.MUTED),
            Span(WARM + " ", Role.WARNING),
            Span("driver", Role.MUTED),
            Span(memory(reserved).rjust(9), Role.TEXT),
            Span("  ", Role.MUTED),
            Span(TRACK + " ", Role.TRACK),
            Span("free", Role.MUTED),
            Span(memory(free).rjust(9), Role.TEXT),
        ),
        width,
    )


def _meter(label: str, fraction: float | None, value: str, width: int) -> Line:
    room = max(0, width - _LABEL - len(value) - 1)
    filled, empty = bar(fraction, room)
    return (
        Span(fit(label, _LABEL), Role.LABEL),
        Span(filled, Role.COMPUTED),
        Span(empty, Role.TRACK),
        Span(" " + value),
    )


def _link(gpu: GpuSample, gpus: tuple[GpuSample, ...], width: int) -> list[Line]:
    gen, lanes = gpu.pcie_gen, gpu.pcie_width
    value = f"gen {DASH if gen is None else gen} x{DASH if lanes is None else lanes}"
    busy = gpu.utilization_percent
    if busy is None or busy < _LOADED_PERCENT:
        note, role = "idle cards let the link sleep: judge it under load", Role.MUTED
    else:
        note, role = _link_verdict(gpu, gpus)
    lines = [fact("PCIe link", value, width, role if role is Role.WARNING else Role.TEXT)]
    if note:
        lines += [(Span("  " + row, role),) for row in wrap(note, width - 2, most=2)]
    return lines


def _link_verdict(gpu: GpuSample, gpus: tuple[GpuSample, ...]) -> tuple[str, Role]:
    others = [other for other in gpus if other.index != gpu.index and not other.lost]
    for other in others:
        if (other.utilization_percent or 0) < _LOADED_PERCENT:
            continue
        if gpu.pcie_width and other.pcie_width and gpu.pcie_width < other.pcie_width:
            text = f"narrower than GPU {other.index} (x{other.pcie_width}): the slower card decides"
            return text, Role.WARNING
        if gpu.pcie_gen and other.pcie_gen and gpu.pcie_gen < other.pcie_gen:
            text = f"slower than GPU {other.index} (gen {other.pcie_gen}): the slower card decides"
            return text, Role.WARNING
    return "", Role.TEXT


def _pair(gpus: tuple[GpuSample, ...], width: int) -> list[Line]:
    if len(gpus) != 2 or any(gpu.lost for gpu in gpus):
        return []
    first, second = gpus
    lines: list[Line] = [(Span("How far the pair is apart", Role.STRONG),)]
    for label, left, right, written in (
        ("memory used", first.memory_used_bytes, second.memory_used_bytes, memory),
        ("utilisation", first.utilization_percent, second.utilization_percent, whole_percent),
        ("temperature", first.temperature_c, second.temperature_c, _degrees),
        ("power", first.power_w, second.power_w, _watts),
        ("SM clock", first.sm_clock_mhz, second.sm_clock_mhz, _megahertz),
    ):
        apart = None if left is None or right is None else abs(left - right)
        lines.append(fact(label, written(apart), width))
    return [*lines, BLANK]


def _processes(processes: tuple[ProcessSample, ...], width: int) -> list[Line]:
    lines: list[Line] = [(Span("Engine processes, resident memory", Role.STRONG),)]
    if not processes:
        lines.append((Span("no process of the engine runs", Role.MUTED),))
        return lines
    total = sum(process.resident_bytes for process in processes)
    for process in processes:
        value = memory(process.resident_bytes)
        name = fit(process.role, 14)
        room = max(0, width - 14 - 14 - len(value) - 1)
        filled, empty = bar(process.resident_bytes / total if total else None, room)
        lines.append(
            (
                Span(name, Role.LABEL),
                Span(fit(f"pid {process.pid}", 14), Role.MUTED),
                Span(filled, Role.MEMORY),
                Span(empty, Role.TRACK),
                Span(" " + value),
            )
        )
    lines.append(fact("all", memory(total), width, Role.STRONG))
    return lines


def _beside(blocks: list[list[Line]], column: int) -> list[Line]:
    lines: list[Line] = []
    for index in range(max(len(block) for block in blocks)):
        line: list[Span] = []
        for number, block in enumerate(blocks):
            part = block[index] if index < len(block) else BLANK
            if number:
                line.append(Span(" " * _GUTTER))
            line += [*part, Span(" " * (column - cells(part)))]
        lines.append(tuple(line))
    return lines


def _share(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else value / whole


def _degrees(value: float | None) -> str:
    return integer(value, 4) + " K"


def _watts(value: float | None) -> str:
    return integer(value, 4) + " W"


def _megahertz(value: float | None) -> str:
    return integer(value, 5) + " MHz"
