from __future__ import annotations

import datetime
import io
import json
import re
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from agentserve.cli.history import drawn
from agentserve.cli.main import run
from agentserve.config.paths import app_paths
from agentserve.domain.history import DayWindow, RequestFact, summarize
from agentserve.telemetry.request_history import RequestHistory
from tests.unit.telemetry.finished_request import finished

NOON_S = datetime.datetime(2026, 6, 15, 12, tzinfo=datetime.UTC).timestamp()
DAY_S = 86_400
WINDOW = DayWindow.last_days(14, NOON_S, datetime.UTC)


def fact(
    days_ago: int,
    cached: int | None,
    computed: int | None,
    *,
    preset: str = "tiny",
    session: str | None = None,
) -> RequestFact:
    prompt = (cached or 0) + (computed or 0)
    at_s = NOON_S - days_ago * DAY_S
    return RequestFact(
        at_s, preset, "opencode", session, "stop", prompt, cached, computed, 10, 0.25
    )


@pytest.fixture
def stored(home: Path) -> Path:
    path = app_paths().request_history
    history = RequestHistory(path)
    for hours in range(1, 4):
        history.record(finished(at_s=time.time() - hours), "cpu-tiny", "secret")
    history.start()
    assert history.close(20)
    assert path.is_relative_to(home)
    return path


def test_nothing_stored_is_said_and_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history"]) == 0
    assert capsys.readouterr().out.startswith("No history yet")


def test_nothing_stored_as_json_has_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == 1
    assert report["days"] == []
    assert report["total"]["hit_rate"] is None


def test_what_is_stored_is_drawn(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history"]) == 0
    text = capsys.readouterr().out
    assert "requests 3 " in text
    assert "cpu-tiny" in text
    assert "60.0 %" in text
    assert "secret" not in text
    assert "\x1b" not in text


def test_json_carries_the_same_numbers(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", "--days", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["total"]["requests"] == 3
    assert report["total"]["hit_rate"] == pytest.approx(0.6)
    assert report["presets"][0]["preset"] == "cpu-tiny"
    assert report["sessions"][0]["totals"]["cached_tokens"] == 1_800


def test_a_damaged_file_is_one_sentence_and_exit_1(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored.write_bytes(b"nonsense" * 1_000)
    for words in (["history"], ["history", "--json"]):
        assert run(words) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.strip().endswith("is damaged: move it away.")
        assert captured.err.count("\n") == 1


@pytest.mark.parametrize("days", ["0", "-1", "many", "99999999"])
def test_days_that_are_none_are_refused(days: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run(["history", "--days", days])
    assert end.value.code == 2
    assert "--days" in capsys.readouterr().err


def test_a_terminal_without_these_signs_gets_ascii(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert run(["history"]) == 0
    sys.stdout.flush()
    assert "####" in raw.getvalue().decode("ascii")


def test_old_requests_outside_the_days_are_named() -> None:
    (line,) = drawn(summarize([], WINDOW, NOON_S - 40 * DAY_S), 80)
    assert "2026-05-06" in line
    assert "--days" in line


def test_the_newest_sessions_can_be_asked_for(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = RequestHistory(app_paths().request_history)
    for number in range(12):
        history.record(finished(at_s=time.time() - number), "cpu-tiny", f"session {number}")
    history.start()
    assert history.close(20)
    listed = re.compile(r"^[0-9a-f]{6} opencode", re.MULTILINE)
    for words, shown in ((["history"], 8), (["history", "--sessions", "10"], 10)):
        assert run(words) == 0
        text = capsys.readouterr().out
        assert len(listed.findall(text)) == shown
        assert f"{12 - shown} more" in text
    for words, sent in ((["--json"], 12), (["--json", "--sessions", "3"], 3)):
        assert run(["history", *words]) == 0
        assert len(json.loads(capsys.readouterr().out)["sessions"]) == sent


def test_a_history_that_is_off_is_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = home / "config" / "config.toml"
    config.parent.mkdir()
    config.write_text("[history]\nenabled = false\n")
    assert run(["history"]) == 0
    assert "[history] enabled = false" in capsys.readouterr().out


@given(
    st.lists(
        st.builds(
            fact,
            st.integers(0, 20),
            st.none() | st.integers(0, 10**9),
            st.none() | st.integers(0, 10**9),
            preset=st.text(st.characters(exclude_categories=["Cs"])),
            session=st.none() | st.sampled_from([f"{n:012x}" for n in range(12)]),
        ),
        max_size=40,
    ),
    st.integers(1, 300),
)
def test_no_line_is_wider_than_the_terminal(requests: list[RequestFact], columns: int) -> None:
    for line in drawn(summarize(requests, WINDOW), columns):
        assert cell_len(line) <= max(80, columns)
        assert line.isprintable()
