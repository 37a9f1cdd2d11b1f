"""Compiles the stand-in for the NVIDIA driver library; see nvml_stub.c for what it can be told."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml_stub.c")
LIBRARY_NAME = "libnvidia-ml.so.1"


def build_nvml_stub(target_dir: Path, *, memory_v2: bool = True) -> Path:
    """Compile the stub.

    Args:
        target_dir: An existing folder; put it on LD_LIBRARY_PATH of a new process.
        memory_v2: False leaves out the second version of the memory call, as old drivers do.

    Returns:
        The library's path.
    """
    library = target_dir / LIBRARY_NAME
    options = [] if memory_v2 else ["-DNO_MEMORY_V2"]
    command = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *options]
    subprocess.run([*command, "-o", str(library), str(SOURCE)], check=True)
    return library
