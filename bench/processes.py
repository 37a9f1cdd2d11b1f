"""Ending what the benchmark started, with everything below it."""

from __future__ import annotations

import contextlib
import subprocess

import psutil

_KILL_S = 5.0


def end_tree(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """End a process and its descendants: TERM to it, a bounded wait, then KILL to what is left.

    Args:
        process: The root; one that has ended already is no error.
        grace_s: How long it may take to end by itself after TERM, in seconds.
    """
    below = descendants(process.pid)
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    left = [each for each in below if each.is_running()]
    if process.poll() is None:
        # What it has started since is not in the first list.
        left += descendants(process.pid)
        process.kill()
    # Engines end a moment after their owner.
    _, left = psutil.wait_procs(left, timeout=2.0)
    for each in left:
        with contextlib.suppress(psutil.Error):
            each.kill()
    psutil.wait_procs(left, timeout=_KILL_S)
    process.wait(_KILL_S)


def descendants(pid: int) -> list[psutil.Process]:
    """All living descendants of a process; empty when it is gone."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
