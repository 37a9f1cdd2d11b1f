from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.config.overlays import delete_overlay, overlay_file, save_overlay
from agentserve.config.paths import app_paths
from agentserve.config.presets import PresetLibrary
from agentserve.domain.errors import ConfigError
from agentserve.domain.pending import ToggleOption
from agentserve.domain.preset import vllm_arguments
from agentserve.domain.toggles import value_of
from tests.unit.config.world import World

BASE = '[engine]\nmodel = "org/model"\nmax_num_seqs = 4\nmax_num_batched_tokens = 2048\n'
MTP = BASE + 'speculative_config = { method = "mtp", num_speculative_tokens = 2 }\n'
BUDGET, DRAFTS, SEATS, CONTEXT = (
    ToggleOption.TOKEN_BUDGET,
    ToggleOption.DRAFT_TOKENS,
    ToggleOption.SEATS,
    ToggleOption.CONTEXT,
)


def test_a_kept_toggle_is_in_force_and_the_file_can_still_be_read(world: World) -> None:
    file = world.write("a", BASE)
    save_overlay(world.paths, world.load().get("a"), {BUDGET: 1024})
    preset = world.load().get("a")
    assert preset.engine.max_num_batched_tokens == 1024
    assert preset.overlay == {"max_num_batched_tokens": 1024}
    assert preset.as_written.engine.max_num_batched_tokens == 2048
    assert preset.as_written.overlay == {}
    assert preset.as_written.as_written == preset.as_written
    assert file.read_text() == BASE


def test_an_overlay_of_a_shipped_preset_is_kept_apart_and_private(world: World) -> None:
    world.ship("a", BASE)
    save_overlay(world.paths, world.load().get("a"), {SEATS: 2})
    path = overlay_file(world.paths, "a")
    assert tomllib.loads(path.read_text()) == {"engine": {"max_num_seqs": 2}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in world.paths.overlays.iterdir()] == ["a.toml"]
    assert list(world.user.iterdir()) == []


def test_what_the_file_switches_on_can_be_switched_off(world: World) -> None:
    world.write("a", MTP)
    save_overlay(world.paths, world.load().get("a"), {DRAFTS: 0})
    preset = world.load().get("a")
    assert "--speculative-config" not in vllm_arguments(preset)
    assert "--speculative-config" in vllm_arguments(preset.as_written)


def test_further_changes_are_added_and_going_back_forgets(world: World) -> None:
    world.write("a", BASE)
    save_overlay(world.paths, world.load().get("a"), {BUDGET: 1024})
    save_overlay(world.paths, world.load().get("a"), {SEATS: 2})
    assert world.load().get("a").overlay == {"max_num_batched_tokens": 1024, "max_num_seqs": 2}
    save_overlay(world.paths, world.load().get("a"), {BUDGET: 2048})
    assert world.load().get("a").overlay == {"max_num_seqs": 2}
    save_overlay(world.paths, world.load().get("a"), {SEATS: 4})
    assert not overlay_file(world.paths, "a").exists()
    assert world.load().get("a").written_engine is None


def test_an_overlay_does_not_reach_presets_that_extend_its_own(world: World) -> None:
    world.write("a", BASE)
    world.write("b", 'extends = "a"\n')
    save_overlay(world.paths, world.load().get("a"), {BUDGET: 1024})
    assert world.load().get("b").engine.max_num_batched_tokens == 2048


def test_deleting_brings_the_file_back_and_may_be_repeated(world: World) -> None:
    world.write("a", BASE)
    save_overlay(world.paths, world.load().get("a"), {BUDGET: 1024})
    for _ in range(2):
        delete_overlay(world.paths, "a")
    assert world.load().get("a").overlay == {}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[engine]\nmax_num_seqs = 4\n", 2, "the preset itself says max_num_seqs = 4 by now"),
        ("[engine]\nmax_model_len = 9\nmax_num_seqs = 4\n", 3, "out of date"),
        ("[engine]\nnum_speculative_tokens = 0\n", 2, "says num_speculative_tokens = 0"),
        ("[engine]\nmax_num_seq = 2\n", 2, "did you mean `max_num_seqs`"),
        ("[engine]\nmax_num_seqs = 0\n", 2, "a whole number >= 1"),
        ('[engine]\nmax_num_seqs = "2"\n', 2, "not text in quotes"),
        ("[engine\n", 1, "not valid TOML"),
        ("[engine]\n[env]\n", 2, "unknown key `env`"),
    ],
)
def test_a_broken_or_outdated_overlay_is_explained_and_not_applied(
    world: World, text: str, line: int, words: str
) -> None:
    world.write("a", BASE)
    path = world.overlay("a", text)
    library = world.load()
    assert library.get("a").overlay == {}
    assert library.get("a").engine.max_model_len is None
    assert f"{path}:{line}: " in library.problems[0].sentence
    assert words in " ".join(problem.sentence for problem in library.problems)


def test_an_overlay_without_a_preset_names_the_nearest_one(world: World) -> None:
    world.write("cpu-tiny", BASE)
    world.write("broken", "[engine\n")
    world.overlay("cpu-tinny", "[engine]\nmax_num_seqs = 2\n")
    world.overlay("broken", "[engine]\nmax_num_seqs = 2\n")
    orphans = [each for each in world.load().problems if each.path.parent == world.paths.overlays]
    (orphan,) = orphans
    assert "did you mean `cpu-tiny`" in orphan.sentence


def test_an_overlay_that_cannot_be_written_is_an_error_and_the_old_one_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a", BASE)
    save_overlay(world.paths, world.load().get("a"), {BUDGET: 1024})

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        save_overlay(world.paths, world.load().get("a"), {SEATS: 2})
    assert world.load().get("a").overlay == {"max_num_batched_tokens": 1024}


_values = {
    BUDGET: st.integers(1, 10_000),
    DRAFTS: st.integers(0, 8),
    SEATS: st.integers(1, 16),
    CONTEXT: st.integers(1, 300_000),
}
_changes = st.fixed_dictionaries({}, optional=_values)


@given(st.sampled_from([BASE, MTP]), st.lists(_changes, max_size=3))
def test_what_is_kept_comes_back_whatever_is_toggled(
    tmp_path_factory: pytest.TempPathFactory, text: str, rounds: list[dict[ToggleOption, int]]
) -> None:
    root = tmp_path_factory.mktemp("world")
    paths = app_paths({"AGENTSERVE_HOME": str(root)})
    paths.user_presets.mkdir(parents=True)
    (paths.user_presets / "a.toml").write_text(text)
    shipped = Path(root, "shipped")
    shipped.mkdir()
    expected: dict[ToggleOption, int] = {}
    for changes in rounds:
        save_overlay(paths, PresetLibrary.load(paths, shipped).get("a"), changes)
        expected.update(changes)
    library = PresetLibrary.load(paths, shipped)
    assert library.problems == ()
    preset = library.get("a")
    for option, value in expected.items():
        assert value_of(preset, option) == value
