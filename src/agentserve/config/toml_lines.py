"""The line of every key in a TOML document.

Owns a small scanner over text that `tomllib` has accepted already, so it looks for keys only and
checks nothing. It exists because `tomllib` tells no lines for valid documents.
"""

from __future__ import annotations

import bisect
import tomllib

KeyPath = tuple[str | int, ...]
"""Keys from the root down; array elements by index."""

_SPACE = " \t"
_BARE_END = set(" \t\r\n.=]\"'#,{}[")


def key_lines(text: str) -> dict[KeyPath, int]:
    """Map every key path of a valid TOML document to its line.

    Args:
        text: The document; it must be valid.

    Returns:
        Lines, counted from 1, of tables, keys and array elements. A key that is defined in several
        places, such as a table with subtables, has its first line.
    """
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines: dict[KeyPath, int] = {}
        self._ends = [index for index, character in enumerate(text) if character == "\n"]
        self._array_lengths: dict[KeyPath, int] = {}

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._skip_blank():
            if self._text.startswith("[[", self._at):
                self._at += 2
                table = self._header(is_array=True)
                self._at += 2
            elif self._text[self._at] == "[":
                self._at += 1
                table = self._header(is_array=False)
                self._at += 1
            else:
                self._pair(table)
        return self._lines

    def _header(self, *, is_array: bool) -> KeyPath:
        line = self._line()
        keys = self._keys()
        path: KeyPath = ()
        for position, key in enumerate(keys):
            path = (*path, key)
            self._lines.setdefault(path, line)
            is_last = position == len(keys) - 1
            if is_last and is_array:
                index = self._array_lengths.get(path, 0)
                self._array_lengths[path] = index + 1
                path = (*path, index)
                self._lines[path] = line
            elif path in self._array_lengths:
                path = (*path, self._array_lengths[path] - 1)
        return path

    def _pair(self, table: KeyPath) -> None:
        line = self._line()
        path = table
        for key in self._keys():
            path = (*path, key)
            self._lines.setdefault(path, line)
        self._at = self._text.index("=", self._at) + 1
        self._skip_spaces()
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        character = self._text[self._at]
        if character in "\"'":
            self._string()
        elif character == "[":
            self._at += 1
            self._elements(path)
        elif character == "{":
            self._at += 1
            self._inline_table(path)
        else:
            while self._at < len(self._text) and self._text[self._at] not in "\n#,]}":
                self._at += 1

    def _elements(self, path: KeyPath) -> None:
        index = 0
        while self._skip_blank(separator=","):
            if self._text[self._at] == "]":
                self._at += 1
                return
            self._lines[(*path, index)] = self._line()
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: KeyPath) -> None:
        while self._skip_blank(separator=","):
            if self._text[self._at] == "}":
                self._at += 1
                return
            self._pair(path)

    def _keys(self) -> list[str]:
        keys = []
        while True:
            self._skip_spaces()
            start = self._at
            if self._text[self._at] in "\"'":
                self._string()
                keys.append(_unquoted(self._text[start : self._at]))
            else:
                while self._text[self._at] not in _BARE_END:
                    self._at += 1
                keys.append(self._text[start : self._at])
            self._skip_spaces()
            if self._text[self._at] != ".":
                return keys
            self._at += 1

    def _string(self) -> None:
        quote = self._text[self._at]
        if self._text.startswith(quote * 3, self._at):
            self._at += 3
            while not self._text.startswith(quote * 3, self._at):
                self._at += 2 if quote == '"' and self._text[self._at] == "\\" else 1
            self._at += 3
            # Up to two quotes may stand directly before the closing three.
            while self._at < len(self._text) and self._text[self._at] == quote:
                self._at += 1
            return
        self._at += 1
        while self._text[self._at] != quote:
            self._at += 2 if quote == '"' and self._text[self._at] == "\\" else 1
        self._at += 1

    def _skip_blank(self, separator: str = "") -> bool:
        """Go to the next thing that is neither space, line end nor comment; False at the end."""
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif character in " \t\r\n" or (separator and character == separator):
                self._at += 1
            else:
                return True
        return False

    def _skip_spaces(self) -> None:
        while self._at < len(self._text) and self._text[self._at] in _SPACE:
            self._at += 1

    def _line(self) -> int:
        return bisect.bisect_left(self._ends, self._at) + 1


def _unquoted(quoted: str) -> str:
    return next(iter(tomllib.loads(f"{quoted} = 0")))
