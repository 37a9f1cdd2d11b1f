"""A small process that ends the engine when the app dies without doing so.

`kill -9` on the app leaves vLLM's EngineCore and workers alive under pid 1 with all their memory:
nothing in vLLM watches the parent. The guardian holds the read end of a pipe whose write end only
the app has. When the app ends, in whatever way, the read returns; then every process of the app's
engines is ended, found as `agentserve.engine.engine_processes` finds them. Run as a plain script
with `python -I -S`, it imports only what it needs, to stay at a few MiB, and must not import the
rest of the product.

Usage: ``guardian.py MARKER_PREFIX RUNTIME_DIR`` with the pipe as standard input.
"""

import contextlib
import os
import signal
import sys
import time

_MARKER_VARIABLE = b"AGENTSERVE_ENGINE"
_GRACE_S = 1.0
_GROUP_FIELD = 2
_START_FIELD = 19


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs memory here
            return file.read()
    except OSError:
        return b""


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208 - as above
    except OSError:
        return []


def _stat_fields(pid: str) -> list[bytes]:
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _noted_groups(runtime_dir: str) -> set[bytes]:
    groups = set()
    for generation in _names(f"{runtime_dir}/groups"):
        for group in _names(f"{runtime_dir}/groups/{generation}"):
            leader = _stat_fields(group)
            note = _read(f"{runtime_dir}/groups/{generation}/{group}")
            if not leader or leader[_START_FIELD] == note:
                groups.add(group.encode())
    return groups


def _engine_pids(prefix: bytes, runtime_dir: str) -> list[int]:
    groups = _noted_groups(runtime_dir)
    needle = b"\0" + _MARKER_VARIABLE + b"=" + prefix
    pids = []
    for name in _names("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        stat = _stat_fields(name)
        if not stat or stat[0] in b"ZX":
            continue
        if stat[_GROUP_FIELD] in groups or needle in b"\0" + _read(f"/proc/{name}/environ"):
            pids.append(int(name))
    return pids


def _signal_all(pids: list[int], signum: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def _shared_memory(pids: list[int]) -> set[str]:
    inodes = {
        int(line.split()[4])
        for pid in pids
        for line in _read(f"/proc/{pid}/maps").splitlines()
        if b" /dev/shm/" in line
    }
    if not inodes:
        return set()
    try:
        with os.scandir("/dev/shm") as entries:
            return {entry.path for entry in entries if entry.inode() in inodes}
    except OSError:
        return set()


def main(prefix: bytes, runtime_dir: str) -> None:
    """Wait for the end of the app, then end what it left behind.

    Args:
        prefix: Marker of the app, `<app id>:`.
        runtime_dir: The app's folder for sockets and group notes; removed at the end.
    """
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    while os.read(0, 64):
        pass
    pids = _engine_pids(prefix, runtime_dir)
    segments = _shared_memory(pids)
    _signal_all(pids, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while _engine_pids(prefix, runtime_dir) and time.monotonic() < deadline:
        time.sleep(0.05)
    # Without an end: a process inside a driver may become mortal minutes later.
    while pids := _engine_pids(prefix, runtime_dir):
        segments |= _shared_memory(pids)
        _signal_all(pids, signal.SIGKILL)
        time.sleep(0.05)
    for segment in segments:
        with contextlib.suppress(OSError):
            os.unlink(segment)  # noqa: PTH108 - as above
    import shutil  # only now: it loads three compression libraries

    shutil.rmtree(runtime_dir, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1].encode(), sys.argv[2])
