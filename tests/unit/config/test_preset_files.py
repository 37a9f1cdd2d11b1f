from __future__ import annotations

import tomllib

import pytest

from agentserve.config.overlays import overlay_file, save_overlay
from agentserve.config.preset_files import PresetFiles
from agentserve.config.presets import PresetLibrary
from agentserve.config.start_history import StartHistory, settings_fingerprint
from agentserve.domain.control import OptionDifference, PresetPort
from agentserve.domain.errors import ConfigError
from agentserve.domain.pending import ToggleOption
from tests.unit.config.world import World

BASE = 'title = "Base"\n[engine]\nmodel = "org/model"\nmax_num_seqs = 4\n'


class Desk:
    """A `PresetFiles` over a world, and what it told."""

    def __init__(self, world: World) -> None:
        self.paths = world.paths
        self.running: str | None = None
        self.told: list[PresetLibrary] = []
        self.renamed: list[tuple[str, str]] = []
        self.history = StartHistory(world.paths.state / "times.json")
        self.files = PresetFiles(
            world.paths,
            running=lambda: self.running,
            history=self.history,
            changed=self.told.append,
            renamed=lambda old, new: self.renamed.append((old, new)),
            shipped=world.shipped,
        )
        self.port: PresetPort = self.files

    def keep(self, name: str, changes: dict[ToggleOption, int]) -> None:
        """Keep toggles as the product does."""
        save_overlay(self.paths, self.files.library.get(name), changes)
        self.files.reload()

    @property
    def names(self) -> list[str]:
        return [preset.name for preset in self.files.library.presets]


@pytest.fixture
def desk(world: World) -> Desk:
    world.ship("shipped", BASE)
    world.write("mine", 'extends = "shipped"\n[engine]\nmax_num_seqs = 2\n')
    return Desk(world)


def test_a_page_shows_options_overlay_differences_and_command(world: World, desk: Desk) -> None:
    desk.keep("mine", {ToggleOption.TOKEN_BUDGET: 1024})
    desk.running = "shipped"
    fingerprint = settings_fingerprint(desk.files.library.get("mine"))
    desk.history.record_start("mine", 20.0, fingerprint, capacity_tokens=107_000)
    detail = desk.port.detail("mine")
    assert dict(detail.options)["engine.max_num_batched_tokens"] == "1024"
    assert detail.overlay == (OptionDifference("engine.max_num_batched_tokens", "", "1024"),)
    assert detail.differences == (
        OptionDifference("engine.max_num_seqs", "4", "2"),
        OptionDifference("engine.max_num_batched_tokens", "", "1024"),
    )
    assert detail.command == "vllm serve org/model --max-num-batched-tokens 1024 --max-num-seqs 2"
    assert (detail.expected_start_s, detail.capacity_tokens) == (20.0, 107_000)
    assert detail.path == str(world.user / "mine.toml")
    assert detail.summary.has_overlay
    assert desk.port.detail("shipped").differences == ()


def test_a_running_preset_that_is_gone_costs_the_differences_only(desk: Desk) -> None:
    desk.running = "gone"
    assert desk.port.detail("mine").differences == ()


def test_a_page_of_a_preset_that_does_not_exist_is_an_error(desk: Desk) -> None:
    with pytest.raises(ConfigError) as unknown:
        desk.port.detail("mime")
    assert "mine" in unknown.value.hint


def test_reload_reads_what_an_editor_wrote_and_tells(world: World, desk: Desk) -> None:
    world.write("new", BASE)
    desk.port.reload()
    assert desk.names == ["mine", "new", "shipped"]
    assert desk.told == [desk.files.library]


def test_a_copy_extends_its_original(world: World, desk: Desk) -> None:
    desk.port.duplicate("shipped", "copy-1")
    written = tomllib.loads((world.user / "copy-1.toml").read_text())
    assert written == {"extends": "shipped", "title": "Copy of Base"}
    assert desk.files.library.get("copy-1").engine == desk.files.library.get("shipped").engine
    assert len(desk.told) == 1


def test_a_copy_holds_what_was_toggled_on_its_original(world: World, desk: Desk) -> None:
    mtp = BASE + 'speculative_config = { method = "mtp", num_speculative_tokens = 2 }\n'
    world.ship("mtp", mtp)
    desk.port.reload()
    desk.keep("mtp", {ToggleOption.DRAFT_TOKENS: 0, ToggleOption.SEATS: 1})
    desk.port.duplicate("mtp", "copy")
    copy = desk.files.library.get("copy")
    assert (copy.speculative_tokens, copy.engine.max_num_seqs, copy.overlay) == (0, 1, {})


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", ".x", "x" * 65, "a/b", "a\n"])
def test_odd_names_are_refused_and_nothing_is_written(world: World, desk: Desk, name: str) -> None:
    for work in (desk.port.duplicate, desk.port.rename):
        with pytest.raises(ConfigError, match="cannot be a preset's name"):
            work("mine", name)
    with pytest.raises(ConfigError, match="cannot be a preset's name"):
        desk.port.import_command("vllm serve m", name)
    assert [path.name for path in world.user.iterdir()] == ["mine.toml"]


@pytest.mark.parametrize("taken", ["mine", "shipped", "broken"])
def test_a_name_that_is_taken_is_refused(world: World, desk: Desk, taken: str) -> None:
    world.write("broken", "[engine\n")
    world.write("second", BASE)
    before = {path.name: path.read_text() for path in world.user.iterdir()}
    for work in (desk.port.duplicate, desk.port.rename):
        with pytest.raises(ConfigError, match="already"):
            work("second" if work == desk.port.rename else "mine", taken)
    assert {path.name: path.read_text() for path in world.user.iterdir()} == before


def test_renaming_moves_the_file_as_it_is_and_its_overlay(world: World, desk: Desk) -> None:
    text = (world.user / "mine.toml").read_text()
    desk.keep("mine", {ToggleOption.SEATS: 1})
    desk.port.rename("mine", "yours")
    assert desk.names == ["shipped", "yours"]
    assert (world.user / "yours.toml").read_text() == text
    assert desk.files.library.get("yours").overlay == {"max_num_seqs": 1}
    assert not overlay_file(world.paths, "mine").exists()
    assert desk.renamed == [("mine", "yours")]


def test_deleting_takes_the_overlay_along(world: World, desk: Desk) -> None:
    desk.keep("mine", {ToggleOption.SEATS: 1})
    desk.port.delete("mine")
    assert desk.names == ["shipped"]
    assert list(world.paths.overlays.iterdir()) == []
    assert desk.files.library.problems == ()


def test_a_broken_file_can_be_renamed_and_deleted(world: World, desk: Desk) -> None:
    world.write("broken", "[engine\n")
    desk.port.rename("broken", "broken2")
    desk.port.delete("broken2")
    assert [path.name for path in world.user.iterdir()] == ["mine.toml"]


def test_what_is_shipped_or_extended_stays_and_the_reason_is_given(
    world: World, desk: Desk
) -> None:
    world.write("child", 'extends = "mine"\n')
    world.write("broken-child", 'extends = "mine"\n[engine]\nmodel = 3\n')
    desk.port.reload()
    for work in (desk.port.delete, lambda name: desk.port.rename(name, "other")):
        with pytest.raises(ConfigError, match="comes with agentserve-tui"):
            work("shipped")
        with pytest.raises(ConfigError, match=r"because broken-child, child extend it"):
            work("mine")
        with pytest.raises(ConfigError, match="no preset of yours") as unknown:
            work("mime")
        assert "mine" in unknown.value.hint
    assert "mine" in desk.names


def test_resetting_brings_back_what_the_file_says(desk: Desk) -> None:
    desk.keep("shipped", {ToggleOption.SEATS: 1})
    desk.port.reset_overlay("shipped")
    assert desk.files.library.get("shipped").engine.max_num_seqs == 4
    desk.port.reset_overlay("shipped")
    desk.port.reset_overlay("../config")


def test_an_outdated_overlay_can_be_reset(world: World, desk: Desk) -> None:
    world.overlay("mine", "[engine]\nmax_num_seqs = 2\n")
    desk.port.reload()
    (sentence,) = desk.port.problems_of("mine")
    assert "out of date" in sentence
    desk.port.reset_overlay("mine")
    assert desk.port.problems_of("mine") == ()


def test_a_command_becomes_a_preset_and_says_what_was_left_out(world: World, desk: Desk) -> None:
    desk.port.import_command(
        "A=1 vllm serve org/other --max-num-seqs 3 --port 8001 --async-scheduling", "other"
    )
    preset = desk.files.library.get("other")
    assert (preset.engine.model, preset.engine.max_num_seqs) == ("org/other", 3)
    assert preset.engine.extra == {"async_scheduling": True}
    assert preset.env == {"A": "1"}
    assert "--port (the app owns the socket" in preset.description
    assert preset.path == str(world.user / "other.toml")


@pytest.mark.parametrize("name", ["shipped", "mine"])
def test_the_command_of_a_preset_imports_as_that_preset(desk: Desk, name: str) -> None:
    desk.port.import_command(desk.port.detail(name).command, "again")
    original, again = desk.files.library.get(name), desk.files.library.get("again")
    assert (again.engine, again.server, again.env) == (
        original.engine,
        original.server,
        original.env,
    )


@pytest.mark.parametrize(
    ("command", "message", "hint"),
    [
        ("ls", "not a `vllm serve` command", "vllm serve MODEL"),
        ("vllm serve m --max-num-seqs four", "must be a whole number", ""),
        ("vllm serve m --gpu-memory-utilization 97", "must be a number <= 1.0", ""),
    ],
)
def test_a_command_that_makes_no_valid_preset_leaves_no_file(
    world: World, desk: Desk, command: str, message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        desk.port.import_command(command, "other")
    assert message in refused.value.message
    assert hint in refused.value.hint
    assert "/tmp" not in refused.value.message
    assert [path.name for path in world.user.iterdir()] == ["mine.toml"]


def test_problems_are_those_of_one_name(world: World, desk: Desk) -> None:
    path = world.write("broken", "[engine]\nmodel = 3\n")
    world.write("worse", "[engine\n")
    desk.port.reload()
    (sentence,) = desk.port.problems_of("broken")
    assert f"{path}:2" in sentence
    assert desk.port.problems_of("mine") == ()


def test_a_full_disk_is_explained_and_leaves_nothing(
    world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        desk.port.duplicate("mine", "copy")
    assert [path.name for path in world.user.iterdir()] == ["mine.toml"]
