"""Where files live.

Owns every folder that the product reads or writes. `AGENTSERVE_HOME` moves all of them under one
folder, for tests and for a second, separate instance.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
import platformdirs

import agentserve
from agentserve.domain.errors import ConfigError

APP_NAME = "agentserve-tui"
HOME_VARIABLE = "AGENTSERVE_HOME"

_LONGEST_RUNTIME_PATH = 60
"""A socket's path has 107 bytes at most, and vLLM appends a name of 36 to the folder."""


class AppPaths(msgspec.Struct, frozen=True, kw_only=True):
    """The folders of one instance; none needs to exist."""

    config: Path
    """What the user writes: `config.toml`, `presets/`, `themes/`."""
    state: Path
    """What we remember: the last preset, toggles kept from the screen, durations of starts."""
    data: Path
    """What is collected and cannot be made again: the facts of past requests."""
    cache: Path
    """What can be made again: demo models."""
    log: Path
    runtime: Path
    """Sockets and locks of running processes; only for this user."""

    @property
    def user_presets(self) -> Path:
        """The user's preset files."""
        return self.config / "presets"

    @property
    def overlays(self) -> Path:
        """What toggles from the screen keep on top of presets, one file each."""
        return self.state / "overlays"

    @property
    def request_history(self) -> Path:
        """The facts of past requests, an SQLite file."""
        return self.data / "requests.sqlite3"

    @property
    def config_file(self) -> Path:
        """The user's settings."""
        return self.config / "config.toml"

    def ensure_runtime(self) -> Path:
        """Make the runtime folder, readable by this user only.

        Returns:
            The folder.

        Raises:
            ConfigError: It cannot be made, or somebody else could put files into it.
        """
        return _private_folder(self.runtime)


def app_paths(environ: Mapping[str, str] = os.environ) -> AppPaths:
    """Find the folders of this instance.

    Args:
        environ: The environment; `AGENTSERVE_HOME` replaces the places of the system.
    """
    home = environ.get(HOME_VARIABLE, "")
    if not home:
        return AppPaths(
            config=platformdirs.user_config_path(APP_NAME, appauthor=False),
            state=platformdirs.user_state_path(APP_NAME, appauthor=False),
            data=platformdirs.user_data_path(APP_NAME, appauthor=False),
            cache=platformdirs.user_cache_path(APP_NAME, appauthor=False),
            log=platformdirs.user_log_path(APP_NAME, appauthor=False),
            runtime=_short(_system_runtime(environ)),
        )
    root = Path(home).expanduser().absolute()
    return AppPaths(
        config=root / "config",
        state=root / "state",
        data=root / "data",
        cache=root / "cache",
        log=root / "log",
        runtime=_short(root / "runtime"),
    )


def shipped_dir(name: str) -> Path:
    """Find a folder of data files that we ship.

    Args:
        name: `presets` or `themes`.

    Returns:
        The folder inside the installed package, or that of the checkout in an editable install.

    Raises:
        ConfigError: Neither exists: the installation is incomplete.
    """
    package = Path(agentserve.__file__).resolve().parent
    for folder in (package / "_data" / name, package.parents[1] / name):
        if folder.is_dir():
            return folder
    raise ConfigError(
        f"The shipped folder {name!r} is missing from this installation.",
        "Install agentserve-tui again.",
    )


def _system_runtime(environ: Mapping[str, str]) -> Path:
    """Return the login session's folder; without one (su, cron, containers) a temporary one.

    platformdirs would warn on the terminal in the second case.
    """
    session = environ.get("XDG_RUNTIME_DIR", "")
    if session and Path(session).is_dir():
        return Path(session) / APP_NAME
    return Path(tempfile.gettempdir()) / f"{APP_NAME}-{os.getuid()}"


def _short(runtime: Path) -> Path:
    if len(os.fsencode(runtime)) <= _LONGEST_RUNTIME_PATH:
        return runtime
    digest = hashlib.sha256(os.fsencode(runtime)).hexdigest()[:10]
    return Path(tempfile.gettempdir()) / f"agentserve-{os.getuid()}-{digest}"


def _private_folder(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise ConfigError(
                f"{folder} belongs to somebody else.",
                f"Remove it, or set {HOME_VARIABLE} to a folder of your own.",
            )
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            f"The folder {folder} cannot be used: {error.strerror}.",
            f"Set {HOME_VARIABLE} to a folder that you can write.",
        ) from error
    return folder
