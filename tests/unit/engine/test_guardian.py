from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentserve.engine.engine_processes import MARKER_VARIABLE, EngineMark
from agentserve.engine.guardian_link import GuardianLink
from tests.harness.engine_children import (
    SHARED_MEMORY,
    STUBBORN,
    Children,
    children,
    is_alive,
    mapping_shared_memory,
    note_group,
    start_time,
)
from tests.harness.waiting import wait_until

APP_ID = f"guarded-{os.getpid()}"
GONE_LIMIT_S = 5.0
DEADLINE_S = 20.0

# An app that holds a guardian, and whose environment bears the marker as during a start.
APP = f"""
import os, signal, sys
from pathlib import Path
from agentserve.engine.guardian_link import GuardianLink

inheritable, _ = os.pipe()
os.set_inheritable(inheritable, True)
link = GuardianLink({APP_ID!r}, Path(sys.argv[1]), {{**os.environ, {MARKER_VARIABLE!r}: "x:1"}})
link.ensure()
print(link.pid, flush=True)
signal.pause()
"""


class App:
    """A fake app as a real process."""

    def __init__(self, runtime_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", APP, str(runtime_dir)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.guardian_pid = int(self.process.stdout.readline())
        ready = Path(f"/proc/{self.guardian_pid}/status")
        # At its post it ignores HUP, INT and TERM: bits 0, 1 and 14 (proc_pid_status(5)).
        wait_until(lambda: _ignored(ready) & 0x4003 == 0x4003, DEADLINE_S, "the guardian runs")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        wait_until(lambda: not is_alive(self.guardian_pid), DEADLINE_S, "the guardian has ended")


def _ignored(status: Path) -> int:
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["SigIgn"], 16)


@pytest.fixture
def runtime_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "socket").touch()
    return folder


@pytest.fixture
def started() -> Iterator[Children]:
    with children() as running:
        yield running


@pytest.fixture
def app(runtime_dir: Path) -> Iterator[App]:
    fake = App(runtime_dir)
    yield fake
    fake.close()


@pytest.fixture(params=SHARED_MEMORY)
def segment(request: pytest.FixtureRequest) -> Iterator[Path]:
    path = Path(f"/dev/shm/{request.param}-{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


def guardian_pid(link: GuardianLink) -> int:
    pid = link.pid
    assert pid is not None
    return pid


def test_a_killed_app_leaves_nothing_after_five_seconds(
    app: App, runtime_dir: Path, started: Children, segment: Path
) -> None:
    first = EngineMark(APP_ID, 1, runtime_dir)
    second = EngineMark(APP_ID, 2, runtime_dir)
    marked = started.start(mark=first)
    stubborn = started.start(STUBBORN, mark=second)
    mapping = started.start(mapping_shared_memory(segment), mark=second)
    noted = started.start(STUBBORN, new_group=True)
    note_group(second, noted.pid, start_time(noted.pid))
    stranger = started.start(new_group=True)
    note_group(second, stranger.pid, str(int(start_time(stranger.pid)) - 1))
    neighbour = started.start(mark=EngineMark(f"{APP_ID}0", 1, runtime_dir))

    began_s = time.monotonic()
    app.kill()
    engine = (marked, stubborn, mapping, noted)
    wait_until(
        lambda: (
            not any(is_alive(child.pid) for child in engine)
            and not runtime_dir.exists()
            and not is_alive(app.guardian_pid)
        ),
        DEADLINE_S,
        "everything is gone",
    )
    assert time.monotonic() - began_s < GONE_LIMIT_S
    assert not segment.exists()
    assert is_alive(stranger.pid)
    assert is_alive(neighbour.pid)
    assert marked.wait() == -signal.SIGTERM


def test_the_guardian_inherits_nothing(app: App) -> None:
    links = {
        int(entry.name): str(entry.readlink())
        for entry in Path(f"/proc/{app.guardian_pid}/fd").iterdir()
    }
    assert sorted(links) == [0, 1, 2]
    assert links[0].startswith("pipe:")
    assert links[1] == links[2] == "/dev/null"
    environment = Path(f"/proc/{app.guardian_pid}/environ").read_bytes()
    assert MARKER_VARIABLE.encode() not in environment


def test_the_guardian_is_out_of_reach_of_the_terminal(app: App) -> None:
    assert os.getsid(app.guardian_pid) == app.guardian_pid
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        os.kill(app.guardian_pid, signum)
    assert is_alive(app.guardian_pid)


def test_the_guardian_is_small(app: App) -> None:
    lines = Path(f"/proc/{app.guardian_pid}/status").read_text().splitlines()
    memory_kib = {
        name: int(value.split()[0])
        for name, _, value in (line.partition(":") for line in lines)
        if name in {"VmRSS", "RssAnon"}
    }
    # Most of the resident pages are the interpreter's file, which the app has in memory anyway.
    assert memory_kib["RssAnon"] < 8 * 1024
    assert memory_kib["VmRSS"] < 20 * 1024


def test_closing_ends_the_guardian_and_its_folder(runtime_dir: Path) -> None:
    link = GuardianLink(APP_ID, runtime_dir, dict(os.environ))
    link.close()
    link.ensure()
    pid = guardian_pid(link)
    link.ensure()
    assert guardian_pid(link) == pid
    link.close()
    assert link.pid is None
    assert not is_alive(pid)
    assert not runtime_dir.exists()
    link.close()


def test_a_guardian_that_was_killed_is_replaced(runtime_dir: Path) -> None:
    link = GuardianLink(APP_ID, runtime_dir, dict(os.environ))
    link.ensure()
    first = guardian_pid(link)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a number
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: link.pid is None, DEADLINE_S, "it is seen to have ended")
    link.ensure()
    try:
        assert link.pid not in {None, first}
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - a number
    finally:
        link.close()


def test_a_guardian_that_does_not_end_is_killed(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentserve.engine.guardian_link._END_TIMEOUT_S", 0.1)
    link = GuardianLink(APP_ID, runtime_dir, dict(os.environ))
    link.ensure()
    pid = guardian_pid(link)
    os.kill(pid, signal.SIGSTOP)
    link.close()
    assert not is_alive(pid)
