"""Hardware readings: GPUs by NVML, and the memory of the engine's own processes."""

from __future__ import annotations

import msgspec


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of one GPU; each field on its own is None when it could not be read."""

    index: int
    uuid: str | None = None
    name: str | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    """Held by the driver; None where only the v1 call works, which counts it as used."""
    memory_total_bytes: int | None = None
    utilization_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    pcie_rx_bytes_per_s: int | None = None
    pcie_tx_bytes_per_s: int | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    sm_clock_mhz: int | None = None
    lost: bool = False
    """The driver says that this GPU has fallen off the bus."""
    notes: tuple[str, ...] = ()
    """Why a field is missing, one short text each, for the detail view."""


class GpuReport(msgspec.Struct, frozen=True, kw_only=True):
    """The newest readings of all GPUs, or why there are none."""

    gpus: tuple[GpuSample, ...] = ()
    unavailable_reason: str | None = None
    """One sentence when NVML cannot be used at all, for example without a driver."""
    driver_version: str | None = None


class ProcessSample(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one process of the engine."""

    pid: int
    role: str
    """`app`, `engine core`, `worker 0`, `worker 1`, or `helper`."""
    resident_bytes: int
