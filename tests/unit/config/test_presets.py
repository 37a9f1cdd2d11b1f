from __future__ import annotations

import pytest

from agentserve.config.presets import PresetLibrary, check_preset_file
from agentserve.domain.errors import ConfigError
from agentserve.domain.preset import vllm_arguments
from tests.unit.config.world import World

BASE = '[engine]\nmodel = "org/model"\nmax_num_seqs = 4\n[env]\nA = "1"\n'


def names(library: PresetLibrary) -> list[str]:
    return [preset.name for preset in library.presets]


def test_a_missing_user_folder_is_no_problem(world: World) -> None:
    world.user.rmdir()
    world.ship("a", BASE)
    library = world.load()
    assert names(library) == ["a"]
    assert library.problems == ()


def test_the_users_preset_replaces_the_shipped_one_of_its_name(world: World) -> None:
    world.ship("a", BASE)
    path = world.write("a", '[engine]\nmodel = "mine"\n')
    preset = world.load().get("a")
    assert (preset.engine.model, preset.source, preset.path) == ("mine", "user", str(path))


def test_a_broken_file_hides_nothing_and_is_explained(world: World) -> None:
    world.ship("a", BASE)
    world.ship("b", BASE)
    world.write("a", BASE + "[engine\n")
    world.write("c", "[engine]\nmodel = 3\n")
    library = world.load()
    assert names(library) == ["a", "b"]
    assert library.get("a").source == "shipped"
    assert [(problem.path.name, problem.line) for problem in library.problems] == [
        ("a.toml", 6),
        ("c.toml", 2),
    ]


def test_extends_merges_options_and_leaves_out_what_a_file_says_about_itself(world: World) -> None:
    world.ship(
        "base",
        'title = "Base"\nslot = 1\ndevice = "cuda"\n'
        + BASE
        + '[engine.extra]\nx = 1\ny = 1\n[evidence]\nlevel = "stub"\nsource = "us"\n',
    )
    world.write(
        "child",
        'extends = "base"\n[engine]\nmax_num_seqs = 8\n[engine.extra]\ny = 2\n[env]\nB = "2"\n',
    )
    child = world.load().get("child")
    assert child.engine.model == "org/model"
    assert child.engine.max_num_seqs == 8
    assert child.engine.extra == {"x": 1, "y": 2}
    assert child.env == {"A": "1", "B": "2"}
    assert child.device == "cuda"
    assert (child.title, child.slot, child.evidence) == ("child", None, None)


def test_an_empty_table_switches_off_what_the_base_switched_on(world: World) -> None:
    world.ship("base", BASE.replace("[env]", 'speculative_config = { method = "mtp" }\n[env]'))
    world.write("child", 'extends = "base"\n[engine]\nspeculative_config = {}\n')
    assert "--speculative-config" in vllm_arguments(world.load().get("base"))
    assert "--speculative-config" not in vllm_arguments(world.load().get("child"))


def test_a_users_preset_may_extend_the_shipped_one_that_it_replaces(world: World) -> None:
    world.ship("a", BASE)
    world.write("a", 'extends = "a"\n[engine]\nmax_num_seqs = 2\n')
    preset = world.load().get("a")
    assert (preset.engine.model, preset.engine.max_num_seqs) == ("org/model", 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('extends = "bse"\n', "did you mean `base`"),
        ('extends = "zzzzz"\n', "does not exist"),
        ("extends = 3\n", "in quotes"),
        ('extends = "broken"\n', "cannot be used itself"),
        ('extends = "a"\n', "does not exist"),
    ],
)
def test_a_bad_base_is_explained_at_its_line(world: World, text: str, words: str) -> None:
    world.ship("base", BASE)
    world.write("broken", "[engine]\n")
    world.write("a", "# a comment\n" + text)
    problem = next(each for each in world.load().problems if each.path.name == "a.toml")
    assert problem.line == 2
    assert words in problem.sentence


def test_a_loop_of_extends_ends_and_is_named(world: World) -> None:
    world.ship("ok", BASE)
    world.write("a", 'extends = "b"\n')
    world.write("b", 'extends = "a"\n')
    library = world.load()
    assert names(library) == ["ok"]
    assert any("a -> b -> a" in problem.sentence for problem in library.problems)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('[engine]\nmodel = "m"\nport = 1\n', 3, "the app owns the socket"),
        ('[engine]\nmodel = "m"\n[server]\nhost = "x"\n', 4, "the app owns the socket"),
        ('[engine]\nmodel = "m"\n[server.extra]\napi_key = "x"\n', 4, "secret"),
        ('[engine]\nmodel = "m"\n[engine.extra]\nmax_num_seqs = 1\n', 4, "under [engine]"),
        ('[engine]\nmodel = "m"\ntool_call_parser = "x"\n', 3, "belongs under [server]"),
        ('[engine]\nmodel = "m"\nasync_scheduling = true\n', 3, "under [engine.extra]"),
        ('model = "m"\n', 1, "belongs under [engine]"),
        ('[engine]\nmodel = "m"\n[env]\nAGENTSERVE_HOME = "x"\n', 4, "belong to the app"),
        ('[engine]\nmodel = "m"\n[env]\nNCCL_P2P_DISABLE = 1\n', 4, "text in quotes"),
        ('slot = 10\n[engine]\nmodel = "m"\n', 1, "<= 9"),
        ('device = "tpu"\n[engine]\nmodel = "m"\n', 1, "tpu"),
        ('[engine]\nmodel = "m"\ngpu_memory_utilization = 97\n', 3, "<= 1"),
    ],
)
def test_a_wrong_line_is_named_with_its_remedy(
    world: World, text: str, line: int, words: str
) -> None:
    path = world.write("wrong", text)
    preset, problems = check_preset_file(path, world.paths, world.shipped)
    assert preset is None
    assert line in [problem.line for problem in problems]
    assert any(words in problem.sentence for problem in problems), problems


def test_code_from_a_model_is_trusted_only_by_a_users_own_file(world: World) -> None:
    text = BASE.replace("[env]", "trust_remote_code = true\n[env]")
    world.ship("shipped", text)
    world.write("mine", text)
    library = world.load()
    assert names(library) == ["mine"]
    assert "--trust-remote-code" in vllm_arguments(library.get("mine"))
    assert "only a user's own file" in library.problems[0].sentence


def test_a_digit_selects_one_preset_and_the_users_goes_first(world: World) -> None:
    world.ship("shipped", "slot = 1\n" + BASE)
    world.ship("free", BASE)
    world.write("mine", "slot = 1\n" + BASE)
    world.write("other", "slot = 1\n" + BASE)
    library = world.load()
    assert names(library) == ["mine", "free", "other", "shipped"]
    found = library.in_slot(1)
    assert found is not None
    assert found.name == "mine"
    assert library.in_slot(2) is None
    assert [problem.path.name for problem in library.problems] == ["other.toml"]


def test_an_unknown_name_is_answered_with_the_nearest_one(world: World) -> None:
    world.ship("cpu-tiny", BASE)
    world.write("broken", "[engine]\n")
    with pytest.raises(ConfigError) as unknown:
        world.load().get("cpu-tinny")
    assert "cpu-tiny" in unknown.value.hint
    with pytest.raises(ConfigError, match=r"broken\.toml:1.*engine\.model"):
        world.load().get("broken")


def test_odd_file_names_and_hidden_files_are_not_presets(world: World) -> None:
    world.write(".hidden", BASE)
    world.write("odd name", BASE)
    library = world.load()
    assert names(library) == []
    assert [problem.path.name for problem in library.problems] == ["odd name.toml"]
