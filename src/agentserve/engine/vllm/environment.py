"""The environment that vLLM and its children run in.

Owns which variables we set and why. They are set in this process, because children inherit them and
vLLM reads most of them lazily, and taken back when the engine is gone.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker
from pathlib import Path

from agentserve.engine.engine_processes import GROUP_DIR_VARIABLE, MARKER_VARIABLE, EngineMark
from agentserve.engine.vllm.torchvision_ops import child_python_path

# Runs instead of Python where multiprocessing spawns a process: makes and notes a process group,
# then becomes that Python. Field 22 of proc_pid_stat(5) is the start time.
_SHIM = """import os, sys
os.setpgid(0, 0)
with open("/proc/self/stat") as stat:
    started = stat.read().rpartition(")")[2].split()[19]
with open(os.path.join(os.environ["{group_dir}"], str(os.getpid())), "w") as note:
    note.write(started)
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


def engine_variables(preset_variables: Mapping[str, str], mark: EngineMark) -> dict[str, str]:
    """The variables of one engine.

    Args:
        preset_variables: `[env]` of the preset; it wins, except over what the app depends on.
        mark: Identifies the engine's processes; its folder holds their sockets.

    Returns:
        Names and values.
    """
    return {
        "VLLM_NO_USAGE_STATS": "1",
        # Textual replaces sys.stdout; this names the object that stays bound to fd 1.
        "VLLM_LOGGING_STREAM": "ext://sys.__stdout__",
        "VLLM_LOGGING_COLOR": "0",
        "PYTHONUNBUFFERED": "1",
        **preset_variables,
        # `fork` would copy a process with a screen, threads and sockets.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        # Each start leaves socket files; in our own folder they can be swept.
        "VLLM_RPC_BASE_PATH": str(mark.runtime_dir),
        # The short form of block hashes in events: what telemetry compares and keeps.
        "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "1",
        "PYTHONPATH": child_python_path(os.environ.get("PYTHONPATH")),
        **mark.variables,
    }


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables and take them back at the end."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def variables_of_others(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for children that are no part of an engine: without marks, with our imports.

    A child that bears an engine's marker would be ended with it.
    """
    kept = {k: v for k, v in environ.items() if k not in {MARKER_VARIABLE, GROUP_DIR_VARIABLE}}
    return {**kept, "PYTHONPATH": child_python_path(environ.get("PYTHONPATH"))}


def prepare_spawning(runtime_dir: Path) -> None:
    """Make multiprocessing start vLLM's processes in a process group of their own.

    Without it they share our process group, so a hang-up of the terminal would reach them directly.
    Also starts multiprocessing's resource tracker, which must happen here for two reasons. It
    passes on `sys.stderr.fileno()`, which is -1 under Textual, and then no process can be spawned.
    And it must not bear the engine's marker: it outlives engines, and removes what a killed app
    leaves.

    Args:
        runtime_dir: Where the executable shim is written.
    """
    context = get_context("spawn")
    context.set_executable(sys.executable)
    screen_stderr = sys.stderr
    sys.stderr = sys.__stderr__
    try:
        resource_tracker.ensure_running()
    finally:
        sys.stderr = screen_stderr
    shim = runtime_dir / "spawn.py"
    shim.write_text(_SHIM.format(python=sys.executable, group_dir=GROUP_DIR_VARIABLE))
    # Through the shell: a first line can hold neither blanks in a path nor a long one.
    program = runtime_dir / "spawn"
    words = shlex.join([sys.executable, "-IS", str(shim)])
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o700)
    context.set_executable(str(program))
