"""Reads GPUs through NVML, field by field.

The only importer of `pynvml` (distribution nvidia-ml-py), and only inside functions: a machine
without a driver never pays for it. It must not know threads, intervals or the screen.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from agentserve.domain.gpu import GpuReport, GpuSample

T = TypeVar("T")

NVML_LIBRARY = "libnvidia-ml.so.1"
MAX_TEXT_LENGTH = 96

NO_LIBRARY = (
    f"No NVIDIA driver library ({NVML_LIBRARY}) is installed here; "
    "install the NVIDIA driver to see GPU readings."
)
NO_BINDING = "The Python package nvidia-ml-py is missing; install it with pip to see GPU readings."
NO_GPU = (
    "The NVIDIA driver lists no GPU; check the card and its power, "
    "or the device settings of the container."
)
_INIT_REASONS = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": NO_LIBRARY,
    "NVML_ERROR_DRIVER_NOT_LOADED": (
        "The NVIDIA kernel driver is not loaded; load it with `modprobe nvidia` or reboot."
    ),
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": (
        "The NVIDIA driver was updated while its old kernel module is still running "
        "(driver/library version mismatch); reboot before the next start of an engine, "
        "a running one goes on."
    ),
    "NVML_ERROR_NO_PERMISSION": (
        "The NVIDIA driver refuses GPU readings to this user; check who may open /dev/nvidia*, "
        "or the device settings of the container."
    ),
}


@dataclass(frozen=True, slots=True)
class _Card:
    handle: Any
    identity: GpuSample
    """Index, name and UUID: they stay known after the card is lost."""


class NvmlReader:
    """Reads all GPUs of this machine; for use by one thread at a time.

    A call may block as long as the driver does. `read` opens NVML when it is not open, so `close`
    followed by `read` is a clean new beginning.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._cards: tuple[_Card, ...] = ()
        self._driver_version: str | None = None
        self._pcie: dict[int, GpuSample] = {}

    def read(self) -> GpuReport:
        """Read every GPU once, with the PCIe throughput of the last `refresh_pcie_throughput`.

        Returns:
            The readings, or the reason why NVML cannot be used.
        """
        if self._nvml is None:
            reason = self._open()
            if reason is not None:
                return GpuReport(unavailable_reason=reason, driver_version=self._driver_version)
        return GpuReport(
            gpus=tuple(self._read_card(card) for card in self._cards),
            driver_version=self._driver_version,
        )

    def refresh_pcie_throughput(self) -> None:
        """Measure PCIe throughput, to be part of later readings.

        The driver samples for about 20 ms in each direction of each card, and other calls wait for
        it meanwhile, so this is meant for every few seconds only. NVML counts in KB/s.
        """
        nvml = self._nvml
        if nvml is None:
            return
        for card in self._cards:
            fields = _FieldReader(nvml)

            def throughput(counter: int, handle: Any = card.handle) -> int:
                return int(nvml.nvmlDeviceGetPcieThroughput(handle, counter)) * 1000

            try:
                self._pcie[card.identity.index] = GpuSample(
                    index=card.identity.index,
                    pcie_rx_bytes_per_s=fields.get(
                        "PCIe receive rate", lambda: throughput(nvml.NVML_PCIE_UTIL_RX_BYTES)
                    ),
                    pcie_tx_bytes_per_s=fields.get(
                        "PCIe send rate", lambda: throughput(nvml.NVML_PCIE_UTIL_TX_BYTES)
                    ),
                    notes=tuple(fields.notes),
                )
            except _GpuLostError:
                self._pcie.pop(card.identity.index, None)

    def close(self) -> None:
        """Give NVML back; the next `read` opens it again."""
        nvml, self._nvml = self._nvml, None
        self._cards = ()
        self._pcie = {}
        if nvml is None:
            return
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            return  # A driver that is gone cannot be told goodbye; nothing is left to release.

    def _open(self) -> str | None:
        """Initialise NVML and list the cards; return the reason when that fails."""
        try:
            # Loading the library by itself first saves importing pynvml, 5 MB, for nothing.
            ctypes.CDLL(NVML_LIBRARY)
        except OSError:
            return NO_LIBRARY
        try:
            import pynvml as nvml
        except ImportError:
            return NO_BINDING
        self._driver_version = None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            return _init_reason(nvml, error)
        self._nvml = nvml
        self._driver_version = _FieldReader(nvml).text(nvml.nvmlSystemGetDriverVersion)
        try:
            self._cards = tuple(self._card(index) for index in range(nvml.nvmlDeviceGetCount()))
        except nvml.NVMLError as error:
            self.close()
            return _init_reason(nvml, error)
        if not self._cards:
            self.close()
            return NO_GPU
        return None

    def _card(self, index: int) -> _Card:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            lost = error.value == nvml.NVML_ERROR_GPU_IS_LOST
            note = f"handle: {_clean(str(error))}"
            return _Card(None, GpuSample(index=index, lost=lost, notes=(note,)))
        fields = _FieldReader(nvml)
        try:
            identity = GpuSample(
                index=index,
                uuid=fields.text(lambda: nvml.nvmlDeviceGetUUID(handle)),
                name=fields.text(lambda: nvml.nvmlDeviceGetName(handle)),
            )
        except _GpuLostError:
            identity = GpuSample(index=index)
        return _Card(handle, identity)

    def _read_card(self, card: _Card) -> GpuSample:
        if card.handle is None:
            return card.identity
        nvml, handle = self._nvml, card.handle
        fields = _FieldReader(nvml)
        try:
            memory, reserved_bytes = _read_memory(fields, handle)
            power_mw = fields.get("power", lambda: int(nvml.nvmlDeviceGetPowerUsage(handle)))
            limit_mw = fields.get(
                "power limit", lambda: int(nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
            )
            pcie = self._pcie.get(card.identity.index, card.identity)
            return GpuSample(
                index=card.identity.index,
                uuid=card.identity.uuid,
                name=card.identity.name,
                memory_used_bytes=None if memory is None else int(memory.used),
                memory_reserved_bytes=reserved_bytes,
                memory_total_bytes=None if memory is None else int(memory.total),
                utilization_percent=fields.get(
                    "utilisation", lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
                ),
                temperature_c=fields.get(
                    "temperature",
                    lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
                ),
                power_w=None if power_mw is None else power_mw / 1000,
                power_limit_w=None if limit_mw is None else limit_mw / 1000,
                pcie_rx_bytes_per_s=pcie.pcie_rx_bytes_per_s,
                pcie_tx_bytes_per_s=pcie.pcie_tx_bytes_per_s,
                pcie_gen=fields.get(
                    "PCIe generation",
                    lambda: int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
                ),
                pcie_width=fields.get(
                    "PCIe width", lambda: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
                ),
                sm_clock_mhz=fields.get(
                    "SM clock", lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
                ),
                notes=(*fields.notes, *pcie.notes),
            )
        except _GpuLostError:
            self._pcie.pop(card.identity.index, None)
            note = "The driver says that this GPU has fallen off the bus."
            return msgspec.structs.replace(card.identity, lost=True, notes=(note,))


class _GpuLostError(Exception):
    """The driver answered NVML_ERROR_GPU_IS_LOST: no other field is worth asking for."""


class _FieldReader:
    """Turns the NVML errors of single fields into None and a short note."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.notes: list[str] = []

    def get(self, label: str, read: Callable[[], T]) -> T | None:
        nvml = self.nvml
        try:
            return read()
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                raise _GpuLostError from error
            self.notes.append(f"{label}: {_clean(str(error))}")
            return None

    def text(self, read: Callable[[], object]) -> str | None:
        value = self.get("text", read)
        return None if value is None else _clean(value)


def _read_memory(fields: _FieldReader, handle: Any) -> tuple[Any, int | None]:
    """Return NVML's memory struct and the reserved bytes.

    The second version of the call wants the version constant of its struct, and reports what the
    driver reserves apart. Old drivers and WSL lack it; the first version counts that as used.
    """
    nvml = fields.nvml
    label = "memory v2"
    memory = fields.get(
        label, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    )
    if memory is not None:
        return memory, int(memory.reserved)
    memory = fields.get("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    if memory is not None:
        fields.notes.append("memory: used includes what the driver reserves")
    return memory, None


def _init_reason(nvml: Any, error: Any) -> str:
    for name, reason in _INIT_REASONS.items():
        if error.value == getattr(nvml, name):
            return reason
    return (
        f"NVML cannot be used ({_clean(str(error))}); run nvidia-smi to see what the driver says."
    )


def _clean(value: object) -> str:
    """Make text from the driver safe to show: decoded, printable, bounded."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return "".join(char for char in text if char.isprintable())[:MAX_TEXT_LENGTH]
