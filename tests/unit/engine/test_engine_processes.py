from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentserve.domain.errors import AgentServeError
from agentserve.engine import engine_processes as processes
from agentserve.engine.engine_processes import EngineMark, end_processes, engine_pids
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

# The leader starts a member, tells its pid, and ends.
LEADER = """
import os, signal, sys
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
os.close(1)
signal.pause()
"""


@pytest.fixture
def mark(tmp_path: Path) -> EngineMark:
    return EngineMark(f"test-{os.getpid()}", 1, tmp_path)


@pytest.fixture
def started() -> Iterator[Children]:
    with children() as running:
        yield running


@pytest.fixture(params=SHARED_MEMORY)
def segment(request: pytest.FixtureRequest) -> Iterator[Path]:
    path = Path(f"/dev/shm/{request.param}-{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


def test_a_process_with_the_marker_is_found(mark: EngineMark, started: Children) -> None:
    child = started.start(mark=mark)
    assert engine_pids(mark) == [child.pid]


def test_processes_of_other_generations_and_other_apps_are_not_found(
    mark: EngineMark, started: Children
) -> None:
    started.start(mark=EngineMark(mark.app_id, 11, mark.runtime_dir))
    started.start(mark=EngineMark(f"{mark.app_id}0", 1, mark.runtime_dir))
    started.start()
    assert engine_pids(mark) == []


def test_a_member_of_a_noted_group_is_found_without_a_marker(
    mark: EngineMark, started: Children
) -> None:
    child = started.start(new_group=True)
    assert engine_pids(mark) == []
    note_group(mark, child.pid, start_time(child.pid))
    assert engine_pids(mark) == [child.pid]


def test_a_member_is_found_after_the_leader_of_its_group_has_ended(
    mark: EngineMark, started: Children
) -> None:
    leader = subprocess.Popen(
        [sys.executable, "-ISc", LEADER],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert leader.stdout is not None
    note_group(mark, leader.pid, start_time(leader.pid))
    member = int(leader.stdout.readline())
    leader.stdout.close()
    leader.wait()
    try:
        assert engine_pids(mark) == [member]
        end_processes(mark, grace_s=5.0)
        assert not is_alive(member)
    finally:
        if is_alive(member):
            os.kill(member, signal.SIGKILL)


def test_a_stranger_in_a_group_of_a_reused_number_is_never_touched(
    mark: EngineMark, started: Children
) -> None:
    stranger = started.start(new_group=True)
    note_group(mark, stranger.pid, str(int(start_time(stranger.pid)) - 1))
    assert engine_pids(mark) == []
    end_processes(mark, grace_s=0.0)
    assert is_alive(stranger.pid)


def test_ending_touches_nothing_without_mark(mark: EngineMark, started: Children) -> None:
    neighbour = started.start()
    child = started.start(mark=mark)
    assert end_processes(mark, grace_s=5.0) is False
    assert not is_alive(child.pid)
    assert child.wait() == -signal.SIGTERM
    assert is_alive(neighbour.pid)


def test_a_process_that_ignores_term_is_killed_after_the_grace(
    mark: EngineMark, started: Children
) -> None:
    child = started.start(STUBBORN, mark=mark)
    assert end_processes(mark, grace_s=0.1) is True
    assert child.wait() == -signal.SIGKILL


def test_a_process_that_has_ended_but_was_not_reaped_does_not_live(
    mark: EngineMark, started: Children
) -> None:
    child = started.start(mark=mark)
    found = processes.engine_processes(mark)
    assert processes.first_dead(found) is None
    os.kill(child.pid, signal.SIGKILL)
    dead = wait_until(lambda: processes.first_dead(found), 5.0, "the child has ended")
    assert dead.pid == child.pid
    assert engine_pids(mark) == []


@pytest.mark.parametrize(
    ("title", "role"),
    [
        ("VLLM::EngineCore", "engine core"),
        ("VLLM::EngineCore_DP0", "engine core"),
        ("VLLM::Worker_TP0", "worker 0"),
        ("VLLM::Worker_DP0_PP0_TP1_EP1", "worker 1"),
        ("vllm.model_executor.models.registry", "helper"),
    ],
)
def test_the_role_is_read_from_the_title(
    mark: EngineMark, started: Children, title: str, role: str
) -> None:
    child = started.start(mark=mark, title=title)
    assert processes.engine_processes(mark) == [processes.EngineProcess(child.pid, role)]


def test_shared_memory_of_a_killed_process_is_removed(
    mark: EngineMark, started: Children, segment: Path
) -> None:
    started.start(mapping_shared_memory(segment), mark=mark)
    assert segment.exists()
    end_processes(mark, grace_s=5.0)
    assert not segment.exists()


def test_shared_memory_of_processes_that_ended_before_is_removed(
    mark: EngineMark, started: Children, segment: Path
) -> None:
    child = started.start(mapping_shared_memory(segment), mark=mark)
    remembered = processes.shared_memory_of([child.pid])
    child.kill()
    child.wait()
    end_processes(mark, grace_s=0.0, segments=remembered)
    assert not segment.exists()


def test_shared_memory_of_others_stays(mark: EngineMark, started: Children, segment: Path) -> None:
    started.start(mapping_shared_memory(segment))
    started.start(mark=mark)
    end_processes(mark, grace_s=5.0)
    assert segment.exists()


def test_a_process_that_no_signal_ends_is_named_in_an_error(
    mark: EngineMark, started: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = started.start(mark=mark)
    monkeypatch.setattr(processes, "send_signal", lambda *_: None)
    now_s = 0.0

    def pause(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds * 10

    with pytest.raises(AgentServeError, match=str(child.pid)):
        end_processes(mark, grace_s=1.0, clock=lambda: now_s, pause=pause)
    assert now_s <= 7.0


def test_notes_are_dropped_with_their_groups_but_a_new_group_keeps_its_own(
    mark: EngineMark, started: Children
) -> None:
    ended = started.start(new_group=True)
    note_group(mark, ended.pid, start_time(ended.pid))
    end_processes(mark, grace_s=5.0)
    assert list(mark.group_dir.iterdir()) == []
    begun = started.start(new_group=True)
    note_group(mark, begun.pid, start_time(begun.pid))
    mark.forget()
    assert engine_pids(mark) == [begun.pid]


def test_junk_among_the_notes_is_ignored(mark: EngineMark, started: Children) -> None:
    child = started.start(mark=mark)
    mark.prepare()
    (mark.group_dir / "notes.txt").write_text("x")
    (mark.group_dir / "0x1").write_text("")
    (mark.group_dir / "7").mkdir()
    assert engine_pids(mark) == [child.pid]
    end_processes(mark, grace_s=5.0)
    assert not is_alive(child.pid)
