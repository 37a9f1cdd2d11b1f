from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.config.start_history import StartHistory


def test_there_is_no_estimate_before_the_first_start(tmp_path: Path) -> None:
    assert StartHistory(tmp_path / "times.json").expected_start_s("a") is None


def test_starts_are_remembered_by_the_next_run_and_per_preset(tmp_path: Path) -> None:
    path = tmp_path / "new" / "times.json"
    for duration in (10.0, 30.0, 20.0):
        StartHistory(path).record_start("a", duration)
    history = StartHistory(path)
    assert history.expected_start_s("a") == 20.0
    assert history.expected_start_s("b") is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"starts_s": {"a": ["x"]}}', b'{"starts_s": {"a": [-1]}}', b"\xff"],
)
def test_a_broken_file_means_no_estimate_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "times.json"
    path.write_bytes(content)
    history = StartHistory(path)
    assert history.expected_start_s("a") is None
    history.record_start("a", 5.0)
    assert history.expected_start_s("a") == 5.0


def test_a_folder_that_cannot_be_written_costs_the_estimate_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    history = StartHistory(tmp_path / "file" / "times.json")
    history.record_start("a", 5.0)
    assert history.expected_start_s("a") is None


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=25))
def test_the_estimate_is_the_median_of_the_last_ten(
    tmp_path_factory: pytest.TempPathFactory, durations: list[float]
) -> None:
    history = StartHistory(tmp_path_factory.mktemp("times") / "times.json")
    for duration in durations:
        history.record_start("a", duration)
    assert history.expected_start_s("a") == statistics.median(durations[-10:])


def test_the_file_stays_small_with_many_presets(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    content = {"starts_s": {f"p{number}": [1.0] for number in range(500)}}
    path.write_text(json.dumps(content))
    history = StartHistory(path)
    history.record_start("newest", 2.0)
    assert len(json.loads(path.read_text())["starts_s"]) == 100
    assert history.expected_start_s("newest") == 2.0
