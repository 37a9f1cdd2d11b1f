"""Which API keys count, and what is wrong with those of a file.

Owns the order of environment and file, and the rules for names and keys. No message of it repeats a
key, or what may be a key in the place of a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from agentserve.config.problem import ConfigProblem
from agentserve.config.toml_lines import KeyPath
from agentserve.config.toml_source import TomlDocument, dotted
from agentserve.domain.api_key import ApiKey

API_KEY_VARIABLE = "AGENTSERVE_API_KEY"
ISOLATED_KEYS_MIN = 2
"""With fewer keys there is nobody to keep apart."""

_KEY_PATH = ("server", "api_key")
_TABLE_PATH = ("server", "api_keys")
_NAME = re.compile(r"[a-z0-9_-]{1,32}")


def chosen_keys(
    unnamed: str | None, named: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[ApiKey, ...]:
    """All keys that clients may use.

    Args:
        unnamed: `api_key` of the file.
        named: `[server.api_keys]` of the file.
        environ: The environment; `AGENTSERVE_API_KEY` replaces `unnamed`.

    Returns:
        First the one without a name, then the others in the order of the file; each key once.
    """
    first = environ.get(API_KEY_VARIABLE, "").strip() or unnamed
    keys = {first: ApiKey(key=first)} if first else {}
    # A variable that repeats a key of the file keeps its place, and gets the name.
    keys |= {key: ApiKey(name=name, key=key) for name, key in named.items()}
    return tuple(keys.values())


def can_be_sent(key: str) -> bool:
    """Tell whether a client can send a key in an HTTP header."""
    return bool(key) and key.isascii() and key.isprintable() and key == key.strip()


def key_problems(
    document: TomlDocument, unnamed: str | None, named: Mapping[str, str]
) -> Iterator[ConfigProblem]:
    """Say what is wrong with the keys of a file.

    Args:
        document: `config.toml`, for the lines.
        unnamed: Its `api_key`.
        named: Its `[server.api_keys]`.
    """
    paths: dict[KeyPath, str] = {} if unnamed is None else {_KEY_PATH: unnamed}
    paths |= {(*_TABLE_PATH, name): key for name, key in named.items()}
    owners: dict[str, KeyPath] = {}
    for path, key in paths.items():
        if path != _KEY_PATH and _NAME.fullmatch(str(path[-1])) is None:
            yield _problem(
                document,
                path,
                f"a name under [{dotted(_TABLE_PATH)}] cannot be used",
                "use 1 to 32 of the characters a-z, 0-9, - and _; the key stands after the name",
            )
        elif not can_be_sent(key):
            yield _problem(
                document,
                path,
                f"`{dotted(path)}` cannot stand in an HTTP header",
                "use ASCII letters, digits and punctuation, without spaces around them",
            )
        elif key in owners:
            yield _problem(
                document,
                path,
                f"`{dotted(path)}` is the same key as `{dotted(owners[key])}`",
                "give every name a key of its own",
            )
        else:
            owners[key] = path


def _problem(document: TomlDocument, path: KeyPath, message: str, remedy: str) -> ConfigProblem:
    return ConfigProblem(
        path=document.path,
        line=document.line_of(path),
        # Without the name, which may be a key in the wrong place.
        key=dotted(path[:2]),
        message=message,
        remedy=remedy,
    )
