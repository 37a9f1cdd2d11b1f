from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agentserve.config.paths import app_paths, shipped_dir
from agentserve.domain.errors import ConfigError


def test_one_variable_moves_every_folder(tmp_path: Path) -> None:
    paths = app_paths({"AGENTSERVE_HOME": str(tmp_path)})
    folders = [paths.config, paths.state, paths.data, paths.cache, paths.log]
    assert all(folder.is_relative_to(tmp_path) for folder in folders)
    assert len(set(folders)) == len(folders)


def test_without_the_variable_folders_carry_the_apps_name() -> None:
    paths = app_paths({})
    assert all(
        "agentserve-tui" in str(folder)
        for folder in (paths.config, paths.state, paths.data, paths.cache, paths.log)
    )


def test_the_request_history_lies_in_the_data_folder(tmp_path: Path) -> None:
    paths = app_paths({"AGENTSERVE_HOME": str(tmp_path)})
    assert paths.request_history.parent == paths.data == tmp_path / "data"


def test_a_deep_home_still_leaves_room_for_socket_names(tmp_path: Path) -> None:
    home = tmp_path / ("deep" * 30)
    runtime = app_paths({"AGENTSERVE_HOME": str(home)}).runtime
    assert len(os.fsencode(runtime)) + 37 < 107
    other = app_paths({"AGENTSERVE_HOME": str(home / "other")}).runtime
    assert runtime != other


def test_the_runtime_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    paths = app_paths({"AGENTSERVE_HOME": str(tmp_path / "home")})
    folder = paths.ensure_runtime()
    folder.chmod(0o755)
    assert stat.S_IMODE(paths.ensure_runtime().stat().st_mode) == 0o700
    folder.rmdir()


def test_a_runtime_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    paths = app_paths({"AGENTSERVE_HOME": str(tmp_path)})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    paths.runtime.parent.mkdir(exist_ok=True)
    paths.runtime.symlink_to(elsewhere)
    with pytest.raises(ConfigError):
        paths.ensure_runtime()
    paths.runtime.unlink()


def test_shipped_presets_are_found_and_unknown_data_is_an_error() -> None:
    assert (shipped_dir("presets") / "cpu-tiny.toml").is_file()
    with pytest.raises(ConfigError, match="no-such-folder"):
        shipped_dir("no-such-folder")
