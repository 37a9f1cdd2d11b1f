from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.config.start_history import StartHistory, settings_fingerprint
from agentserve.domain.pending import ToggleOption
from agentserve.domain.preset import EngineOptions, Preset
from agentserve.domain.toggles import with_changes


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


def test_a_capacity_belongs_to_exactly_the_settings_that_gave_it(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    StartHistory(path).record_start("a", 10.0, "f1", capacity_tokens=107_000)
    history = StartHistory(path)
    assert history.capacity_tokens("f1") == 107_000
    assert history.capacity_tokens("f2") is None
    history.record_start("a", 10.0, "f1")
    assert history.capacity_tokens("f1") == 107_000
    history.record_start("a", 10.0, "f1", capacity_tokens=90_000)
    assert history.capacity_tokens("f1") == 90_000


def test_starts_with_the_same_settings_count_before_those_of_the_preset(tmp_path: Path) -> None:
    history = StartHistory(tmp_path / "times.json")
    history.record_start("a", 100.0, "slow")
    history.record_start("a", 100.0, "slow")
    history.record_start("a", 10.0, "fast")
    assert history.expected_start_s("a", "fast") == 10.0
    assert history.expected_start_s("a", "other") == 100.0
    assert history.expected_start_s("a") == 100.0
    assert history.expected_start_s("b", "fast") == 10.0


def test_a_file_of_an_earlier_version_is_read_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    path.write_text('{"schema": 1, "starts_s": {"a": [7.0]}}')
    history = StartHistory(path)
    assert history.expected_start_s("a", "f") == 7.0
    history.record_start("b", 1.0, "f", 5)
    assert (history.expected_start_s("a"), history.capacity_tokens("f")) == (7.0, 5)


def test_old_settings_are_forgotten_first(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    kept = {f"f{number}": {"durations_s": [1.0]} for number in range(500)}
    path.write_text(json.dumps({"settings": kept}))
    history = StartHistory(path)
    history.record_start("a", 1.0, "f499", 9)
    fingerprints = list(json.loads(path.read_text())["settings"])
    assert (len(fingerprints), fingerprints[-1]) == (200, "f499")


def test_a_fingerprint_tells_settings_apart_and_nothing_else() -> None:
    preset = Preset(name="a", engine=EngineOptions(model="demo:hybrid"), env={"A": "1", "B": "2"})
    same = Preset(
        name="b", title="T", engine=EngineOptions(model="demo:hybrid"), env={"B": "2", "A": "1"}
    )
    assert settings_fingerprint(preset) == settings_fingerprint(same)
    changed = with_changes(preset, {ToggleOption.SEATS: 2})
    assert settings_fingerprint(changed) != settings_fingerprint(preset)
    assert settings_fingerprint(Preset(name="a", engine=preset.engine)) != settings_fingerprint(
        preset
    )
