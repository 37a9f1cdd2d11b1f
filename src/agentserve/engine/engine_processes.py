"""Finding and ending the processes of an engine.

vLLM's processes share our process group, leave their parent when it dies and overwrite their
titles, and with them what `/proc/<pid>/environ` shows. Two things identify them all the same:

- EngineCore is spawned through a shim that first makes a process group and notes it in a file of
  ours. Workers and whatever they start inherit the group. A group id is not reused while the group
  has a member, so a member of a noted group is ours. It is a group and not a session because Linux
  schedules by session (sched(7), autogroup): alone in one, busy workers would starve the app and
  its clients.
- Every process started for an engine inherits a marker in its environment. It finds children of our
  own that did not come through the shim, such as vLLM's model inspection.

Nothing else is ever signalled.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from agentserve.domain.errors import AgentServeError

MARKER_VARIABLE = "AGENTSERVE_ENGINE"
GROUP_DIR_VARIABLE = "AGENTSERVE_GROUP_DIR"
_GROUPS = "groups"
_POLL_INTERVAL_S = 0.05
_KILL_S = 3.0
_SHARED_MEMORY_DIR = Path("/dev/shm")
# proc_pid_maps(5): address, permissions, offset, device, inode, path.
_SHARED_MEMORY = re.compile(rb"^\S+ \S+ \S+ \S+ (\d+) +/dev/shm/", re.MULTILINE)
_GROUP_FIELD = 2
_START_FIELD = 19


class EngineMark(msgspec.Struct, frozen=True):
    """What identifies the processes of one engine."""

    app_id: str
    generation: int
    runtime_dir: Path

    @property
    def marker(self) -> str:
        """Value of the environment marker."""
        return f"{self.app_id}:{self.generation}"

    @property
    def group_dir(self) -> Path:
        """Holds a file per group, named by its id, with the leader's start time as its text."""
        return self.runtime_dir / _GROUPS / str(self.generation)

    @property
    def variables(self) -> dict[str, str]:
        """The environment that every process of the engine is started with."""
        return {MARKER_VARIABLE: self.marker, GROUP_DIR_VARIABLE: str(self.group_dir)}

    def prepare(self) -> None:
        """Make the folder for group notes."""
        self.group_dir.mkdir(mode=0o700, parents=True, exist_ok=True)

    def forget(self) -> None:
        """Drop the notes of groups whose leader has ended, since ids are reused.

        Only for when no process is left. A group that began a moment ago keeps its note: its
        leader may be hiding its environment soon.
        """
        for group, started in _notes(self):
            leader = _living(group)
            if leader is None or leader[_START_FIELD] != started:
                (self.group_dir / str(group)).unlink(missing_ok=True)


class EngineProcess(msgspec.Struct, frozen=True):
    """A living process of an engine."""

    pid: int
    role: str
    """`engine core`, `worker N` or `helper`."""


def engine_pids(mark: EngineMark) -> list[int]:
    """List the living processes of an engine, in ascending order; zombies do not live."""
    groups = _noted_groups(mark)
    needle = f"\0{MARKER_VARIABLE}={mark.marker}\0".encode()
    own = os.getpid()
    pids = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all that is needed
        if not name.isdecimal() or int(name) == own:
            continue
        stat = _living(int(name))
        if stat is None:
            continue
        if int(stat[_GROUP_FIELD]) in groups or needle in _environment(int(name)):
            pids.append(int(name))
    return sorted(pids)


def engine_processes(mark: EngineMark) -> list[EngineProcess]:
    """Like `engine_pids`, with the part that each process plays."""
    return [EngineProcess(pid, _role(pid)) for pid in engine_pids(mark)]


def first_dead(processes: Sequence[EngineProcess]) -> EngineProcess | None:
    """Return the first of `processes` that has ended, or None while all live."""
    for process in processes:
        if _living(process.pid) is None:
            return process
    return None


def shared_memory_of(pids: Sequence[int]) -> set[Path]:
    """List the POSIX shared memory that processes have mapped.

    A killed process leaves its segments and semaphores in `/dev/shm`, where they hold memory until
    somebody removes them. They are found by inode: glibc maps a semaphore under a temporary name
    that it drops before it gives the file its own (sem_open.c).
    """
    inodes: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{pid}/maps").read_bytes()
            inodes.update(int(match) for match in _SHARED_MEMORY.findall(maps))
    if not inodes:
        return set()
    try:
        with os.scandir(_SHARED_MEMORY_DIR) as entries:
            return {Path(entry.path) for entry in entries if entry.inode() in inodes}
    except OSError:
        # What comes next ends the engine: that must not depend on tidiness.
        return set()


def unlink_shared_memory(segments: Iterable[Path]) -> None:
    """Remove segments that still exist; only for those whose processes are gone.

    Those of other users stay.
    """
    for segment in segments:
        with contextlib.suppress(OSError):
            segment.unlink()


def send_signal(pids: Sequence[int], signum: signal.Signals) -> None:
    """Signal processes; those that are gone, or not ours to signal, are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def end_processes(
    mark: EngineMark,
    *,
    grace_s: float,
    segments: Iterable[Path] = (),
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """End every process of an engine: TERM, a bounded wait, then KILL until none is left.

    Their shared memory goes with them.

    Args:
        mark: Which engine.
        grace_s: How long they may take after TERM, in seconds.
        segments: Shared memory of processes that may have ended already.
        clock: Monotonic seconds.
        pause: Waits some seconds.

    Returns:
        True when KILL was needed.

    Raises:
        AgentServeError: A process lives on after three seconds of KILL.
    """
    pids = engine_pids(mark)
    mapped = shared_memory_of(pids).union(segments)
    send_signal(pids, signal.SIGTERM)
    deadline_s = clock() + grace_s
    while pids and clock() < deadline_s:
        pause(_POLL_INTERVAL_S)
        pids = engine_pids(mark)
    killed = bool(pids)
    deadline_s = clock() + _KILL_S
    while pids:
        if clock() >= deadline_s:
            raise AgentServeError(
                f"The engine's processes cannot be ended: {', '.join(map(str, pids))}.",
                "They wait inside a driver: look at them with ps; a restart of the machine may be"
                " needed.",
            )
        mapped |= shared_memory_of(pids)
        send_signal(pids, signal.SIGKILL)
        pause(_POLL_INTERVAL_S)
        pids = engine_pids(mark)
    unlink_shared_memory(mapped)
    mark.forget()
    return killed


def _notes(mark: EngineMark) -> list[tuple[int, str]]:
    """Group ids and the start times of their leaders; a note may vanish while we look."""
    notes = []
    for note in mark.group_dir.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            notes.append((int(note.name), note.read_text()))
    return notes


def _noted_groups(mark: EngineMark) -> set[int]:
    groups = set()
    for group, started in _notes(mark):
        leader = _living(group)
        # A leader with another start time is a stranger that got the number of an ended group.
        if leader is None or leader[_START_FIELD] == started:
            groups.add(group)
    return groups


def _living(pid: int) -> list[str] | None:
    """Fields of `/proc/<pid>/stat` from the state on (proc_pid_stat(5), field 3).

    None for a process that has ended, reaped or not.
    """
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command's name comes before and can hold anything.
    fields = data.rpartition(b")")[2].decode().split()
    return None if not fields or fields[0] in "ZX" else fields


def _environment(pid: int) -> bytes:
    try:
        return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # gone meanwhile, or another user's
        return b""


def _role(pid: int) -> str:
    # The title is vLLM's (`VLLM::EngineCore`, `VLLM::Worker_TP0`); names in `comm` are cut at 15.
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return "helper"
    if "EngineCore" in title:
        return "engine core"
    worker = re.search(r"Worker(?:_[A-Z]+\d+)*_TP(\d+)", title)
    return f"worker {worker[1]}" if worker else "helper"
