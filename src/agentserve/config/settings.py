"""`config.toml`, which the user writes, and what we remember between runs.

Owns both files and their defaults. Settings decide who may reach the engine, so a file that
cannot be read stops the start; what we remember is a convenience, so a broken state file is only a
problem.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import tomli_w

from agentserve.config.api_keys import ISOLATED_KEYS_MIN, chosen_keys, key_problems
from agentserve.config.atomic_file import write_atomically
from agentserve.config.paths import AppPaths
from agentserve.config.problem import ConfigProblem
from agentserve.config.toml_source import TomlDocument, convert_document, read_toml

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
_STATE_FILE_NAME = "state.toml"

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[server]`: where the API listens."""

    host: Annotated[str, msgspec.Meta(min_length=1)] = DEFAULT_HOST
    port: Port = DEFAULT_PORT
    api_key: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    api_keys: dict[str, str] = msgspec.field(default_factory=dict)
    """More keys, each with the name of its owner."""
    isolate_api_keys: bool = False
    """Whether each key gets a prefix cache of its own."""

    def __repr__(self) -> str:
        key = None if self.api_key is None else "***"
        return (
            f"ServerSettings(host={self.host!r}, port={self.port!r}, api_key={key!r},"
            f" api_keys={dict.fromkeys(self.api_keys, '***')!r},"
            f" isolate_api_keys={self.isolate_api_keys!r})"
        )

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("host", self.host), ("port", self.port)]


class NotifySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[notify]`: how a change of state is announced."""

    bell: bool = True
    title: bool = True
    """Whether the terminal's title follows the state."""
    desktop: bool = False
    """Whether terminals that can are asked for a desktop notification."""


class HistorySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[history]`: facts about finished requests, never text, kept in the data folder."""

    enabled: bool = True
    retention_days: Annotated[int, msgspec.Meta(ge=1, le=3650)] = 90


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything in `config.toml`."""

    server: ServerSettings = ServerSettings()
    theme: str | None = None
    """Name of a theme; None is the one chosen last on the screen, or the product's own."""
    ascii: bool = False
    """Whether the screen draws with ASCII characters only."""
    keys: dict[str, str | list[str]] = msgspec.field(default_factory=dict)
    """Action to key or keys; which actions there are is the screen's business."""
    notify: NotifySettings = NotifySettings()
    history: HistorySettings = HistorySettings()


class RememberedState(msgspec.Struct, frozen=True, kw_only=True):
    """What comes back at the next start. Unknown keys of a newer version are ignored."""

    last_preset: str | None = None
    theme: str | None = None
    """Name of the theme that was chosen on the screen."""


def load_settings(
    paths: AppPaths, environ: Mapping[str, str] = os.environ
) -> tuple[Settings, tuple[ConfigProblem, ...]]:
    """Read `config.toml`; a missing file means defaults.

    Args:
        paths: The folders of this instance.
        environ: The environment, where one more API key may be.

    Returns:
        The settings and problems that do not matter for safety, such as a bad theme.

    Raises:
        ConfigError: The file is not valid TOML, or its `[server]` table is wrong.
    """
    path = paths.config_file
    if not path.exists():
        return Settings(), ()
    document = read_toml(path)
    if isinstance(document, ConfigProblem):
        raise document.as_error()
    settings, problems = convert_document(document, Settings)
    for problem in problems:
        if settings is None or problem.key.partition(".")[0] == "server":
            raise problem.as_error()
    if settings is None:
        settings = Settings()
    server = settings.server
    for problem in key_problems(document, server.api_key, server.api_keys):
        raise problem.as_error()
    return settings, (*problems, *_server_warnings(document, server, environ))


def _server_warnings(
    document: TomlDocument, server: ServerSettings, environ: Mapping[str, str]
) -> Iterator[ConfigProblem]:
    readable = document.path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    if readable and (server.api_key is not None or server.api_keys):
        key = "api_keys" if server.api_key is None else "api_key"
        yield ConfigProblem(
            path=document.path,
            line=document.line_of(("server", key)),
            key=f"server.{key}",
            message="holds an API key and other users of this machine may read it",
            remedy=f"run: chmod 600 {document.path}",
        )
    keys = chosen_keys(server.api_key, server.api_keys, environ)
    if server.isolate_api_keys and len(keys) < ISOLATED_KEYS_MIN:
        yield ConfigProblem(
            path=document.path,
            line=document.line_of(("server", "isolate_api_keys")),
            key="server.isolate_api_keys",
            message="`server.isolate_api_keys` has no effect with fewer than two API keys",
            remedy="name two or more under [server.api_keys]",
        )


def load_state(paths: AppPaths) -> tuple[RememberedState, tuple[ConfigProblem, ...]]:
    """Read what was remembered; a file that cannot be read counts as empty.

    Args:
        paths: The folders of this instance.

    Returns:
        The state, and why it is empty if the file is broken.
    """
    path = _state_file(paths)
    if not path.exists():
        return RememberedState(), ()
    document = read_toml(path)
    if isinstance(document, ConfigProblem):
        return RememberedState(), (document,)
    state, problems = convert_document(document, RememberedState)
    return state or RememberedState(), problems


def save_state(paths: AppPaths, state: RememberedState) -> None:
    """Remember something for the next start.

    Args:
        paths: The folders of this instance.
        state: What to remember, as a whole.

    Raises:
        OSError: It could not be written; the old file is unchanged.
    """
    content = {key: value for key, value in msgspec.to_builtins(state).items() if value is not None}
    write_atomically(_state_file(paths), tomli_w.dumps(content).encode())


def _state_file(paths: AppPaths) -> Path:
    return paths.state / _STATE_FILE_NAME
