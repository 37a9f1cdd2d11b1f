"""The architecture as facts: which module may load what."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import agentserve

PACKAGE = Path(agentserve.__file__).parent
HEAVY = ("textual", "rich", "torch", "vllm", "pynvml", "httpx", "uvicorn", "psutil")


def loaded_by(module: str) -> set[str]:
    """Top-level names in `sys.modules` after a fresh interpreter imported `module`."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("agentserve.domain.snapshot", set()),
        ("agentserve.domain.preset", set()),
        ("agentserve.config.presets", set()),
        ("agentserve.telemetry.collector", set()),
        ("agentserve.telemetry.gpu", set()),
        ("agentserve.engine.supervisor", set()),
        ("agentserve.engine.vllm.backend", set()),
        ("agentserve.cli.main", set()),
        ("agentserve.cli.product", {"psutil"}),
        ("agentserve.ui.app", {"textual", "rich"}),
    ],
)
def test_importing_a_module_loads_only_what_it_needs(module: str, allowed: set[str]) -> None:
    assert loaded_by(module) & set(HEAVY) <= allowed


def imported_names(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize(
    ("library", "home"),
    [("vllm", "engine/vllm"), ("torch", "engine/vllm"), ("pynvml", "telemetry/nvml.py")],
)
def test_one_place_imports_a_heavy_library(library: str, home: str) -> None:
    importers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if library in imported_names(path)
    }
    assert importers
    assert all(path.startswith(home) for path in importers), importers


def test_modules_stay_readable() -> None:
    """Past about 400 lines a module holds more than one noun."""
    lengths = {
        path.relative_to(PACKAGE).as_posix(): len(path.read_text().splitlines())
        for path in PACKAGE.rglob("*.py")
    }
    assert {path: n for path, n in lengths.items() if n > 420} == {}


def test_no_colour_stands_in_python_code() -> None:
    """Colours come from themes only."""
    offenders = [
        path.name
        for path in (PACKAGE / "ui").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith("#")
        and len(node.value) in {4, 7}
    ]
    assert offenders == []
