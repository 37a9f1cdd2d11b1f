from __future__ import annotations

import stat
from pathlib import Path

import pytest

from agentserve.config.paths import AppPaths, app_paths
from agentserve.config.settings import (
    NotifySettings,
    RememberedState,
    ServerSettings,
    Settings,
    load_settings,
    load_state,
    save_state,
)
from agentserve.domain.errors import ConfigError


@pytest.fixture
def paths(tmp_path: Path) -> AppPaths:
    return app_paths({"AGENTSERVE_HOME": str(tmp_path)})


def write_config(paths: AppPaths, text: str, mode: int = 0o600) -> None:
    paths.config.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(text)
    paths.config_file.chmod(mode)


def test_without_a_file_the_app_listens_on_this_machine_only(paths: AppPaths) -> None:
    settings, problems = load_settings(paths)
    assert settings == Settings(server=ServerSettings(host="127.0.0.1", port=8000, api_key=None))
    assert problems == ()


def test_values_of_the_file_are_taken(paths: AppPaths) -> None:
    write_config(paths, 'theme = "dusk"\nascii = true\n[server]\nport = 9000\napi_key = "k"\n')
    settings, problems = load_settings(paths)
    assert (settings.theme, settings.ascii) == ("dusk", True)
    assert (settings.server.port, settings.server.api_key) == (9000, "k")
    assert problems == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server\n", "not valid TOML"),
        ("[server]\nport = 0\n", r"config\.toml:2"),
        ('[server]\napi_kee = "x"\n', "api_kee"),
        ("server = 3\n", "a table"),
    ],
)
def test_a_server_table_that_cannot_be_read_stops_the_start(
    paths: AppPaths, text: str, words: str
) -> None:
    write_config(paths, text)
    with pytest.raises(ConfigError, match=words):
        load_settings(paths)


def test_a_wrong_theme_costs_the_theme_only(paths: AppPaths) -> None:
    write_config(paths, "theme = 3\n[server]\nport = 9000\n")
    settings, problems = load_settings(paths)
    assert (settings.theme, settings.server.port) == (None, 9000)
    assert [problem.line for problem in problems] == [1]


def test_keys_ascii_and_notifications_are_taken_and_have_defaults(paths: AppPaths) -> None:
    assert Settings().notify == NotifySettings(bell=True, title=True, desktop=False)
    assert (Settings().ascii, Settings().keys) == (False, {})
    write_config(
        paths,
        'ascii = true\n[keys]\nstop = "x"\n"log.follow" = ["f", "F2"]\n[notify]\ndesktop = true\n',
    )
    settings, problems = load_settings(paths)
    assert problems == ()
    assert settings.ascii is True
    assert settings.keys == {"stop": "x", "log.follow": ["f", "F2"]}
    assert settings.notify == NotifySettings(desktop=True)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[keys]\nstop = 1\n", 2, "`keys.stop`: must be text in quotes or a list"),
        ('[keys]\nstart = "s"\nstop = ["x", 2]\n', 3, "keys.stop.1"),
        ("[notify]\nbel = true\n", 2, "did you mean `bell`"),
        ('ascii = "yes"\n', 1, "true or false"),
    ],
)
def test_a_wrong_key_or_notification_costs_only_itself(
    paths: AppPaths, text: str, line: int, words: str
) -> None:
    write_config(paths, text + "[server]\nport = 9000\n")
    settings, (problem,) = load_settings(paths)
    assert settings.server.port == 9000
    assert problem.line == line
    assert words in problem.sentence


def test_a_key_that_others_can_read_is_a_problem(paths: AppPaths) -> None:
    write_config(paths, '[server]\napi_key = "k"\n', mode=0o644)
    _, problems = load_settings(paths)
    assert len(problems) == 1
    assert "chmod 600" in problems[0].sentence


def test_named_keys_are_taken_in_the_order_of_the_file(paths: AppPaths) -> None:
    write_config(
        paths,
        '[server]\napi_key = "k"\nisolate_api_keys = true\n'
        '[server.api_keys]\nbo-2 = "b"\nada_1 = "a"\n',
    )
    settings, problems = load_settings(paths, {})
    assert list(settings.server.api_keys.items()) == [("bo-2", "b"), ("ada_1", "a")]
    assert settings.server.isolate_api_keys is True
    assert problems == ()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('[server.api_keys]\nada = "a"\nBo = "hush"\n', 3, "1 to 32"),
        (f'[server.api_keys]\n{"hush" * 9} = "ada"\n', 2, "1 to 32"),
        ('[server.api_keys]\n"" = "hush"\n', 2, "1 to 32"),
        ('[server.api_keys]\nada = ""\n', 2, "server.api_keys.ada"),
        ('[server.api_keys]\nada = "hush "\n', 2, "without spaces around"),
        ('[server.api_keys]\nada = "hüsh"\n', 2, "ASCII"),
        ("[server.api_keys]\nada = 3\n", 2, "text in quotes"),
        ('[server.api_keys.ada]\nkey = "hush"\n', 1, "text in quotes"),
        ('[server]\napi_keys = ["hush"]\n', 2, "a table"),
        ('[server]\napi_key = "hu\\nsh"\n', 2, "HTTP header"),
        ('[server]\nisolate_api_keys = "yes"\n', 2, "true or false"),
        ('[server.api_keys]\nada = "hush"\nbo = "b"\ncy = "hush"\n', 4, "`server.api_keys.ada`"),
        ('[server]\napi_key = "hush"\n[server.api_keys]\nbo = "hush"\n', 4, "`server.api_key`"),
    ],
)
def test_keys_that_cannot_be_used_stop_the_start_and_are_not_shown(
    paths: AppPaths, text: str, line: int, words: str
) -> None:
    write_config(paths, text)
    with pytest.raises(ConfigError) as refused:
        load_settings(paths, {})
    said = f"{refused.value.message} {refused.value.hint}"
    assert f"config.toml:{line}: " in said
    assert words in said
    assert "hush" not in said
    assert "hüsh" not in said


def test_named_keys_that_others_can_read_are_a_problem(paths: AppPaths) -> None:
    write_config(paths, '[server]\nport = 9000\n[server.api_keys]\nada = "a"\n', mode=0o640)
    _, (problem,) = load_settings(paths, {})
    assert (problem.line, problem.remedy) == (3, f"run: chmod 600 {paths.config_file}")


@pytest.mark.parametrize(
    ("keys", "environ", "problems"),
    [
        ("", {}, 1),
        ('[server.api_keys]\nada = "a"\n', {}, 1),
        ('[server.api_keys]\nada = "a"\n', {"AGENTSERVE_API_KEY": "a"}, 1),
        ('[server.api_keys]\nada = "a"\n', {"AGENTSERVE_API_KEY": "e"}, 0),
        ('[server.api_keys]\nada = "a"\nbo = "b"\n', {}, 0),
    ],
)
def test_isolation_of_fewer_than_two_keys_is_said_to_have_no_effect(
    paths: AppPaths, keys: str, environ: dict[str, str], problems: int
) -> None:
    write_config(paths, "[server]\nisolate_api_keys = true\n" + keys)
    _, found = load_settings(paths, environ)
    assert [problem.line for problem in found] == [2] * problems
    assert all("no effect" in problem.sentence for problem in found)


def test_the_key_is_in_no_representation() -> None:
    server = ServerSettings(api_key="very-secret", api_keys={"ada": "very-secret-too"})
    assert "very-secret" not in repr(server)
    assert "very-secret" not in repr(Settings(server=server))
    assert "very-secret" not in str(server.__rich_repr__())


def test_what_was_remembered_comes_back_and_is_private(paths: AppPaths) -> None:
    save_state(paths, RememberedState(last_preset="cpu-tiny"))
    assert load_state(paths) == (RememberedState(last_preset="cpu-tiny"), ())
    (file,) = paths.state.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_theme_is_remembered_beside_the_preset(paths: AppPaths) -> None:
    save_state(paths, RememberedState(last_preset="a", theme="dusk"))
    assert load_state(paths)[0].theme == "dusk"


def test_a_broken_state_file_counts_as_empty_and_is_replaced(paths: AppPaths) -> None:
    save_state(paths, RememberedState(last_preset="a"))
    (file,) = paths.state.iterdir()
    file.write_bytes(b"\xff\x00 = [")
    state, problems = load_state(paths)
    assert state == RememberedState()
    assert len(problems) == 1
    save_state(paths, RememberedState(last_preset="b"))
    assert load_state(paths)[0].last_preset == "b"


def test_a_failed_write_leaves_the_old_state_and_no_litter(
    paths: AppPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_state(paths, RememberedState(last_preset="a"))

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_state(paths, RememberedState(last_preset="b"))
    assert load_state(paths)[0].last_preset == "a"
    assert len(list(paths.state.iterdir())) == 1
