"""The history as a child process reads it, for the screen of a running app."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from agentserve.cli.history_report import MOST_SESSIONS, HistoryReader
from agentserve.config.paths import app_paths
from agentserve.domain.history import HistoryUnreadableError
from agentserve.engine.engine_processes import MARKER_VARIABLE
from agentserve.telemetry.request_history import RequestHistory
from tests.harness.waiting import wait_until
from tests.unit.telemetry.finished_request import finished

FOR_EVER = (sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)")


def store(requests: int, path: Path | None = None) -> Path:
    path = path or app_paths().request_history
    history = RequestHistory(path)
    for number in range(requests):
        history.record(finished(at_s=time.time() - number), "cpu-tiny", f"session {number}")
    history.start()
    assert history.close(20)
    assert history.written_requests == requests
    return path


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def refusal(reader: HistoryReader) -> str:
    with pytest.raises(HistoryUnreadableError) as caught:
        reader.read(7)
    return f"{caught.value.message} {caught.value.hint}".strip()


def test_what_is_stored_in_this_instances_folder_is_read(home: Path) -> None:
    assert store(3).is_relative_to(home)
    report = HistoryReader().read(7)
    assert report.total.requests == 3
    assert report.total.hit_rate == pytest.approx(0.6)
    assert [row.preset for row in report.presets] == ["cpu-tiny"]
    assert len(report.sessions) == 3
    assert report.is_recorded
    assert (report.last_day - report.first_day).days == 6


def test_only_the_newest_sessions_come_but_all_are_counted(home: Path) -> None:
    store(MOST_SESSIONS + 20)
    report = HistoryReader().read(7)
    assert len(report.sessions) == MOST_SESSIONS
    assert sum(agent.sessions for agent in report.agents) == MOST_SESSIONS + 20


def test_an_empty_history_is_a_report_without_requests() -> None:
    report = HistoryReader().read(30)
    assert report.total.requests == 0
    assert report.latest_at_unix_s is None


def test_settings_that_keep_no_history_are_told(home: Path) -> None:
    config = home / "config" / "config.toml"
    config.parent.mkdir()
    config.write_text("[history]\nenabled = false\n")
    assert not HistoryReader().read(7).is_recorded
    # What is stored is shown even when the app itself would refuse the file.
    config.write_text("[history\n")
    assert HistoryReader().read(7).is_recorded


def test_a_damaged_file_is_the_sentence_of_the_command(home: Path) -> None:
    store(3).write_bytes(b"nonsense" * 1_000)
    assert refusal(HistoryReader()).endswith("is damaged: move it away.")
    assert not refusal(HistoryReader()).startswith("agentserve-tui")


def test_an_invented_engine_has_no_history_whatever_is_stored(home: Path) -> None:
    store(3)
    said = refusal(HistoryReader(simulated=True))
    assert "not recorded" in said
    assert "--simulate" in said


def test_a_reader_that_takes_too_long_is_killed() -> None:
    began = time.monotonic()
    said = refusal(HistoryReader(command=FOR_EVER, timeout_s=0.5))
    assert time.monotonic() - began < 20
    assert "took longer than" in said
    assert "fewer days" in said


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("print('x' * 2_000)", "too long to show"),
        ("print('nonsense')", "could not be read"),
        ("raise SystemExit(9)", "ended with status 9"),
        (r"import sys; sys.exit('agentserve-tui: \x1b[2Jbad. Do this.')", "bad. Do this."),
    ],
)
def test_an_answer_that_is_none_is_one_sentence(code: str, part: str) -> None:
    said = refusal(HistoryReader(command=python(code), most_bytes=1_000))
    assert part in said
    assert said.isprintable()


def test_the_child_is_no_part_of_the_engine_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARKER_VARIABLE, "mark")
    code = f"import os, sys; sys.exit('found ' + str(os.environ.get({MARKER_VARIABLE!r})))"
    assert refusal(HistoryReader(command=python(code))) == "found None"


def test_a_program_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    reader = HistoryReader(command=(str(tmp_path / "missing"),))
    assert "could not be read" in refusal(reader)


def test_closing_ends_a_reader_that_runs_and_allows_no_other() -> None:
    reader = HistoryReader(command=FOR_EVER)
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(refusal(reader)), daemon=True)
    thread.start()
    wait_until(lambda: reader._child is not None, 20, "the child")
    reader.close()
    thread.join(20)
    assert "ended with status -9" in said[0]
    assert "ended with status -9" in refusal(reader)
