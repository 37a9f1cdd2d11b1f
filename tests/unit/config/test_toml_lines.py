from __future__ import annotations

import tomllib
from typing import Any

import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from agentserve.config.toml_lines import KeyPath, key_lines

VALID = '''\
title = "a # no comment"   # a comment

[engine]
model = """
first [line]
second = line \\""""
"quoted.key" = 'literal \\'
speculative_config = { method = "mtp", nested = { deep = 1 } }
sizes = [
  1,  # one
  { a = "}" },
  [2,
   3],
]
extra.dotted.key = 1979-05-27 07:32:00

[[models]]
name = "one"

[[models]]
name = "two"
[models.sub]
x = true
[engine.late]
y = 1.5
'''


def test_every_form_of_a_key_has_its_line() -> None:
    tomllib.loads(VALID)
    lines = key_lines(VALID)
    assert lines["title",] == 1
    assert lines["engine",] == 3
    assert lines["engine", "model"] == 4
    assert lines["engine", "quoted.key"] == 7
    assert lines["engine", "speculative_config", "method"] == 8
    assert lines["engine", "speculative_config", "nested", "deep"] == 8
    assert lines["engine", "sizes", 0] == 10
    assert lines["engine", "sizes", 1, "a"] == 11
    assert lines["engine", "sizes", 2, 1] == 13
    assert lines["engine", "extra", "dotted", "key"] == 15
    assert lines["models", 0, "name"] == 18
    assert lines["models", 1, "name"] == 21
    assert lines["models", 1, "sub", "x"] == 23
    assert lines["engine", "late", "y"] == 25


_scalars = (
    st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.dates()
)
_keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=12,
)


def _paths(value: Any, at: KeyPath = ()) -> list[KeyPath]:
    found: list[KeyPath] = []
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        found.append((*at, key))
        found += _paths(inner, (*at, key))
    return found


@given(st.dictionaries(_keys, _values, max_size=5))
def test_every_key_of_any_document_has_a_line_inside_it(data: dict[str, Any]) -> None:
    text = tomli_w.dumps(data)
    parsed = tomllib.loads(text)
    lines = key_lines(text)
    assert set(_paths(parsed)) <= set(lines)
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())


@given(st.integers(0, 5), st.integers(0, 5))
def test_comments_and_blank_lines_only_move_lines(blank: int, comments: int) -> None:
    text = "\n" * blank + "# [x]\n" * comments + "key = 1"
    assert key_lines(text) == {("key",): blank + comments + 1}
