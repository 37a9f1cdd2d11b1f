"""TOML files, checked against types, with a line for everything that is wrong.

Owns the way from text to typed values and from msgspec's error paths to lines. It must not know
what the values are for: callers hand in the type and what they know about wrong keys.
"""

from __future__ import annotations

import copy
import difflib
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentserve.config.problem import ConfigProblem
from agentserve.config.toml_lines import KeyPath, key_lines

T = TypeVar("T")

KeyAdvice = Callable[[KeyPath], tuple[str, str] | None]
"""Tells why a key is wrong and what to do, or None when it knows nothing about it."""

_MAX_PROBLEMS = 20
_MAX_BYTES = 1024 * 1024
_SYNTAX_PLACE = re.compile(r" \(at line (?P<line>\d+), column \d+\)$| \(at end of document\)$")
_ERROR_PLACE = re.compile(r" - at `(?P<path>.+)`$", re.DOTALL)
_PATH_PART = re.compile(r"\.(?P<key>[^.\[\]]+)|\[(?P<index>\d+)\]|(?P<any>\[\.\.\.\])")
_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<name>.+)`")
_MISSING_FIELD = re.compile(r"missing required field `(?P<name>.+)`")
_EXPECTED = re.compile(r"Expected `(?P<type>[^`]+)`(?P<rest>.*)", re.DOTALL)


class TomlDocument(msgspec.Struct, frozen=True):
    """One parsed file."""

    path: Path
    data: dict[str, Any]
    lines: dict[KeyPath, int]

    def line_of(self, key_path: KeyPath) -> int | None:
        """Return the line of a key, or that of the nearest table around it."""
        for length in range(len(key_path), 0, -1):
            if key_path[:length] in self.lines:
                return self.lines[key_path[:length]]
        return None


def parse_toml(text: str, path: Path) -> TomlDocument | ConfigProblem:
    """Parse TOML text.

    Args:
        text: The content of the file.
        path: Where it came from.

    Returns:
        The document, or the syntax error.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = _SYNTAX_PLACE.search(message)
        line = place["line"] if place else None
        return ConfigProblem(
            path=path,
            line=int(line) if line else max(1, len(text.splitlines())),
            message=f"not valid TOML: {_SYNTAX_PLACE.sub('', message)}",
            remedy="text stands in quotes, true and false are lower case",
        )
    except RecursionError:
        return ConfigProblem(path=path, line=1, message="not valid TOML: nested too deeply")
    return TomlDocument(path, data, key_lines(text))


def read_toml(path: Path) -> TomlDocument | ConfigProblem:
    """Read and parse a TOML file.

    Returns:
        The document, or why it cannot be read.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        return ConfigProblem(
            path=path, line=None, message=f"cannot be read: {error.strerror or error}"
        )
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        return ConfigProblem(
            path=path, line=line, message="not UTF-8 text", remedy="save the file as UTF-8"
        )
    if len(raw) > _MAX_BYTES:
        return ConfigProblem(path=path, line=None, message="larger than 1 MiB")
    return parse_toml(text, path)


def convert_document(
    document: TomlDocument,
    kind: type[T],
    *,
    data: Mapping[str, Any] | None = None,
    advice: KeyAdvice | None = None,
) -> tuple[T | None, tuple[ConfigProblem, ...]]:
    """Check a document against a type and name everything that is wrong with it.

    Args:
        document: The file; problems are located in it.
        kind: A msgspec struct.
        data: Values to check instead of the document's own, for example merged with a base.
        advice: What the caller knows about wrong keys.

    Returns:
        The value and no problems, or what is left when the wrong keys are taken away (None when
        something that is required is missing) and the problems in the order of their lines.
    """
    remaining = copy.deepcopy(dict(document.data if data is None else data))
    problems: list[ConfigProblem] = []
    value: T | None = None
    while len(problems) < _MAX_PROBLEMS:
        try:
            value = msgspec.convert(remaining, kind)
            break
        except msgspec.ValidationError as error:
            wrong, problem = _located(str(error), document, kind, remaining, advice)
            # A required key that was wrong, and taken away for it, is not missing as well.
            if wrong is not None or problem.key not in {each.key for each in problems}:
                problems.append(problem)
            if wrong is None or not _remove(remaining, wrong):
                break
    problems.sort(key=lambda problem: problem.line or 0)
    return value, tuple(problems)


def nearest_name(name: str, names: Sequence[str]) -> str | None:
    """Return the name that `name` was probably meant to be, or None."""
    close = difflib.get_close_matches(name.replace("-", "_"), names, n=1, cutoff=0.6)
    return close[0] if close else None


def _located(
    message: str,
    document: TomlDocument,
    kind: type[Any],
    data: Mapping[str, Any],
    advice: KeyAdvice | None,
) -> tuple[KeyPath | None, ConfigProblem]:
    """Return the wrong key, if one can be taken away, and the problem."""
    sentence = _ERROR_PLACE.sub("", message)
    place = _error_path(message, data, kind)

    def problem(at: KeyPath, text: str, remedy: str) -> ConfigProblem:
        advised = advice(at) if advice else None
        text, remedy = advised or (text, remedy)
        return ConfigProblem(
            path=document.path,
            line=document.line_of(at),
            key=dotted(at),
            message=text,
            remedy=remedy,
        )

    if missing := _MISSING_FIELD.search(sentence):
        table = f"under [{dotted(place)}]" if place else "at the top of the file"
        return None, problem(
            (*place, missing["name"]),
            f"`{dotted((*place, missing['name']))}` is missing",
            f"write it {table}",
        )
    if unknown := _UNKNOWN_FIELD.search(sentence):
        at = (*place, unknown["name"])
        names = _field_names(_type_at(kind, place))
        near = nearest_name(unknown["name"], names)
        remedy = f"did you mean `{near}`?" if near else f"known keys: {', '.join(names)}"
        return at, problem(at, f"unknown key `{dotted(at)}`", remedy.rstrip("?"))
    return place or None, problem(place, f"`{dotted(place)}`: {_readable(sentence)}", "")


def dotted(path: KeyPath) -> str:
    """Spell a key path as in TOML."""
    return ".".join(
        str(part) if re.fullmatch(r"[\w-]+", str(part)) else f'"{part}"' for part in path
    )


_TYPE_WORDS = {
    "str": "text in quotes",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
    "null": "nothing",
}


def _readable(sentence: str) -> str:
    """Turn msgspec's sentence into one for people who write TOML."""
    expected = _EXPECTED.search(sentence)
    if expected is None:
        return sentence[:1].lower() + sentence[1:]
    wanted = [word.strip() for word in expected["type"].split("|")]
    words = " or ".join(_TYPE_WORDS.get(word, word) for word in wanted if word != "null")
    rest = expected["rest"]
    if got := re.search(r"got `(\w+)`", rest):
        return f"must be {words}, not {_TYPE_WORDS.get(got[1], got[1])}"
    if "matching regex" in rest:
        return "has characters that are not allowed here"
    if "of length >= 1" in rest:
        return "must not be empty"
    return f"must be {words}{rest}"


def _error_path(message: str, data: Any, kind: type[Any]) -> KeyPath:
    """Resolve msgspec's path of an error, in which keys of free tables read `[...]`."""
    found = _ERROR_PLACE.search(message)
    if found is None:
        return ()
    # Wrong keys are reported as "at `key` in `$.table`".
    text = found["path"]
    is_key = text.startswith("key` in `")
    text = text.removeprefix("key` in `")
    path: KeyPath = ()
    node = data
    for part in _PATH_PART.finditer(text.removeprefix("$")):
        if part["index"] is not None:
            step: str | int = int(part["index"])
        elif part["key"] is not None:
            step = part["key"]
        else:
            wrong = _wrong_entry(path, node, kind, message)
            if wrong is None:
                return path
            step = wrong
        path = (*path, step)
        node = _child(node, step)
    if is_key and (wrong := _wrong_entry(path, node, kind, message)):
        path = (*path, wrong)
    return path


def _wrong_entry(path: KeyPath, table: Any, kind: type[Any], message: str) -> str | None:
    """Find the entry of a free table that causes an error, by checking each one alone."""
    table_type = _type_at(kind, path)
    if not isinstance(table, Mapping) or table_type is None:
        return None
    expected = _ERROR_PLACE.sub("", message)
    for key, value in table.items():
        try:
            msgspec.convert({key: value}, table_type)
        except msgspec.ValidationError as error:
            if _ERROR_PLACE.sub("", str(error)) == expected:
                return str(key)
    return None


def _child(node: Any, step: str | int) -> Any:
    try:
        return node[step]
    except (KeyError, IndexError, TypeError):
        return None


def _remove(data: Any, path: KeyPath) -> bool:
    """Take a key away; False when it is not there."""
    for step in path[:-1]:
        data = _child(data, step)
    try:
        del data[path[-1]]
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _type_at(kind: Any, path: KeyPath) -> Any:
    """Follow a key path through struct fields and free tables."""
    for step in path:
        kind = _without_wrapping(kind)
        fields = _fields(kind)
        if fields is not None:
            kind = fields.get(str(step))
        elif typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
        else:
            return None
    return _without_wrapping(kind)


def _without_wrapping(kind: Any) -> Any:
    """Reduce `Annotated[X, ...]` and `X | None` to X."""
    while True:
        origin = typing.get_origin(kind)
        if origin is typing.Annotated:
            kind = typing.get_args(kind)[0]
        elif origin in (typing.Union, types.UnionType):
            options = [each for each in typing.get_args(kind) if each is not type(None)]
            if len(options) != 1:
                return kind
            kind = options[0]
        else:
            return kind


def _fields(kind: Any) -> dict[str, Any] | None:
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return None
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}


def _field_names(kind: Any) -> list[str]:
    return list(_fields(kind) or ())
