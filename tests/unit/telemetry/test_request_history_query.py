"""Reading the history that a real writer stored."""

from __future__ import annotations

import datetime
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentserve.domain.history import HistoryUnreadableError
from agentserve.domain.request import RequestOutcome, RequestRecord
from agentserve.telemetry.history_database import MIGRATIONS, HistoryDatabase
from agentserve.telemetry.history_query import read_request_history
from agentserve.telemetry.request_history import RequestHistory
from tests.unit.telemetry.finished_request import DAY_S, NOW_S, finished


def store(path: Path, *records: RequestRecord, session: str | None = "secret plan") -> None:
    history = RequestHistory(path, now=lambda: NOW_S)
    for record in records:
        history.record(record, "tiny", session)
    history.start()
    assert history.close(20)
    assert history.problem is None
    assert history.written_requests == len(records)


def test_a_missing_file_has_no_requests_and_is_not_made(tmp_path: Path) -> None:
    report = read_request_history(tmp_path / "data" / "r.sqlite3", 7, NOW_S)
    assert report.total.requests == 0
    assert report.latest_at_unix_s is None
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_has_no_requests(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite3"
    path.touch()
    assert read_request_history(path, 7, NOW_S).total.requests == 0


def test_stored_requests_come_back_by_day_preset_agent_and_session(tmp_path: Path) -> None:
    path = tmp_path / "a folder?#%" / "r.sqlite3"
    store(
        path,
        finished(),
        finished(at_s=NOW_S - DAY_S, cached=None, ttft_s=None, outcome=RequestOutcome.ABORTED),
        finished(at_s=NOW_S - 30 * DAY_S),
    )
    report = read_request_history(path, 7, NOW_S, datetime.UTC)
    assert report.total.requests == 2
    assert report.total.aborted == 1
    assert report.total.hit_rate == pytest.approx(0.6)
    assert report.total.hit_rate_requests == 1
    assert [str(row.day) for row in report.days] == ["2026-06-14", "2026-06-15"]
    assert [(row.agent, row.sessions) for row in report.agents] == [("opencode", 1)]
    assert [row.preset for row in report.presets] == ["tiny"]
    assert len(report.sessions) == 1
    assert report.latest_at_unix_s == NOW_S
    assert read_request_history(path, 40, NOW_S, datetime.UTC).total.requests == 3


def test_the_file_holds_no_session_id(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite3"
    store(path, finished())
    assert b"secret plan" not in path.read_bytes()


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 1_000), st.none() | st.floats(0, 100)), max_size=30
    )
)
def test_what_was_recorded_is_what_is_read(
    tmp_path: Path, values: list[tuple[int | None, float | None]]
) -> None:
    path = tmp_path / f"{time.monotonic_ns()}.sqlite3"
    store(path, *(finished(cached=cached, ttft_s=ttft_s) for cached, ttft_s in values))
    total = read_request_history(path, 1, NOW_S).total
    known = [cached for cached, _ in values if cached is not None]
    ttft = sorted(ttft_s for _, ttft_s in values if ttft_s is not None)
    assert total.requests == len(values)
    assert total.cached_tokens == (sum(known) if known else None)
    assert total.ttft_s.n == len(ttft)
    assert total.ttft_s.p50 == (ttft[(len(ttft) - 1) // 2] if ttft else None)


def test_readers_see_whole_batches_while_a_writer_is_at_work(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite3"
    store(path, finished())
    history = RequestHistory(path, now=lambda: NOW_S, flush_s=0.01)
    history.start()

    def read() -> list[int]:
        return [read_request_history(path, 1, NOW_S).total.requests for _ in range(40)]

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for _ in range(2_000):
            history.record(finished(), "tiny")
        counts = [reader.result() for reader in readers]
    assert history.close(20)
    assert history.problem is None
    assert all(seen == sorted(seen) and seen[0] >= 1 for seen in counts)
    assert read_request_history(path, 1, NOW_S).total.requests == 2_001


def test_a_lock_of_the_writer_does_not_keep_readers_out(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite3"
    store(path, finished())
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    assert read_request_history(path, 1, NOW_S).total.requests == 1
    writer.close()


def test_a_file_that_is_no_database_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite3"
    path.write_bytes(b"\x1b[31mno database at all" * 100)
    with pytest.raises(HistoryUnreadableError, match=r"r\.sqlite3 is damaged: move it away\."):
        read_request_history(path, 1, NOW_S)


def test_a_broken_page_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite3"
    store(path, *(finished() for _ in range(500)))
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(HistoryUnreadableError, match="damaged"):
        read_request_history(path, 1, NOW_S)


def test_values_of_another_type_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite3"
    store(path, finished())
    editor = sqlite3.connect(path)
    editor.execute("UPDATE requests SET prompt_tokens = 'many'")
    editor.commit()
    editor.close()
    with pytest.raises(HistoryUnreadableError, match="wrong types"):
        read_request_history(path, 1, NOW_S)


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite3"
    store(path, finished())
    editor = sqlite3.connect(path)
    editor.execute("PRAGMA user_version = 99")
    editor.close()
    with pytest.raises(HistoryUnreadableError, match="newer agentserve-tui"):
        read_request_history(path, 1, NOW_S)


def test_text_in_the_file_cannot_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite3"
    store(path, finished())
    editor = sqlite3.connect(path)
    editor.execute("UPDATE requests SET preset = ?, agent = ?", ("a\x1b[2Jb", "c\x9b31md/1"))
    editor.commit()
    editor.close()
    report = read_request_history(path, 1, NOW_S)
    assert report.presets[0].preset == "ab"
    assert report.agents[0].agent == "cd"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into every folder")
def test_a_folder_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "shut" / "r.sqlite3"
    store(path, finished())
    path.parent.chmod(0o500)
    try:
        assert read_request_history(path, 1, NOW_S).total.requests == 1
    finally:
        path.parent.chmod(0o700)


def test_a_path_that_is_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(HistoryUnreadableError, match="cannot be used"):
        read_request_history(tmp_path, 1, NOW_S)


def test_a_hundred_thousand_requests_are_added_up_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite3"
    history = RequestHistory(path, queue_limit=100_000, now=lambda: NOW_S)
    for n in range(100_000):
        history.record(finished(at_s=NOW_S - n), "tiny", f"session {n % 200}")
    history.start()
    assert history.close(50)
    begun_s = time.perf_counter()
    report = read_request_history(path, 30, NOW_S)
    assert time.perf_counter() - begun_s < 10  # takes 0.4 s of CPU time
    assert report.total.requests == 100_000
    assert len(report.sessions) == 200


def test_a_later_schema_step_keeps_what_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite3"
    store(path, finished())
    later = (*MIGRATIONS, ("ALTER TABLE requests ADD COLUMN verdict TEXT",))
    HistoryDatabase(path, migrations=later).close()
    HistoryDatabase(path, migrations=later).close()
    editor = sqlite3.connect(path)
    assert editor.execute("SELECT verdict, prompt_tokens FROM requests").fetchall() == [
        (None, 1_000)
    ]
    assert editor.execute("PRAGMA user_version").fetchone() == (2,)
    editor.close()


def test_a_schema_step_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite3"
    store(path, finished())
    broken = (*MIGRATIONS, ("ALTER TABLE requests ADD COLUMN verdict TEXT", "NONSENSE"))
    with pytest.raises(sqlite3.OperationalError):
        HistoryDatabase(path, migrations=broken)
    assert read_request_history(path, 1, NOW_S).total.requests == 1
    store(path, finished())
