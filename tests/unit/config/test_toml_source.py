from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.config.problem import ConfigProblem
from agentserve.config.toml_source import (
    TomlDocument,
    convert_document,
    nearest_name,
    parse_toml,
    read_toml,
)


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    seats: Annotated[int, msgspec.Meta(ge=1)] | None = None
    sizes: list[int] = []
    free: dict[str, int] = {}


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    engine: Engine
    title: Annotated[str, msgspec.Meta(min_length=1)] = "x"


def check(text: str) -> tuple[Document | None, tuple[ConfigProblem, ...]]:
    document = parse_toml(text, Path("preset.toml"))
    assert isinstance(document, TomlDocument)
    return convert_document(document, Document)


def only_problem(text: str) -> ConfigProblem:
    _, problems = check(text)
    assert len(problems) == 1, problems
    return problems[0]


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ('[engine]\nmodel = "m"\nseets = 2\n', 3, "engine.seets", "did you mean `seats`"),
        ('engine.model = "m"\nengine.seats = 0\n', 2, "engine.seats", "a whole number >= 1"),
        ('engine = { model = "m", seats = "2" }\n', 1, "engine.seats", "not text in quotes"),
        ('[engine]\nmodel = "m"\n"seats" = true\n', 3, "engine.seats", "true or false"),
        ('[engine]\nmodel = "m"\nsizes = [1,\n "2"]\n', 4, "engine.sizes.1", "a whole number"),
        ('[engine]\nmodel = "m"\n[engine.free]\na = 1\nb = "x"\n', 5, "engine.free.b", "whole"),
        ('title = ""\n[engine]\nmodel = "m"\n', 1, "title", "must not be empty"),
        ("[engine]\nseats = 1\n", 1, "engine.model", "is missing"),
        ('titel = "x"\n[engine]\nmodel = "m"\n', 1, "titel", "`title`"),
    ],
)
def test_a_wrong_key_is_named_with_its_line_and_a_remedy(
    text: str, line: int, key: str, words: str
) -> None:
    problem = only_problem(text)
    assert (problem.line, problem.key) == (line, key)
    assert words in problem.sentence
    assert problem.sentence.startswith(f"preset.toml:{line}: ")


def test_all_wrong_keys_of_a_file_are_named_at_once_in_the_order_of_lines() -> None:
    value, problems = check('titel = 1\n[engine]\nmodel = "m"\nseats = 0\nx = 1\nsizes = ["a"]\n')
    assert [problem.line for problem in problems] == [1, 4, 5, 6]
    assert value is not None
    assert value.engine.model == "m"


@pytest.mark.parametrize(
    ("text", "line"),
    [("a = 1\nb = \n", 2), ("a = 1\na = 2\n", 2), ('x = "\n', 1), ("[a\n", 1), ("a = [1,\n2", 2)],
)
def test_a_syntax_error_has_a_line(text: str, line: int) -> None:
    problem = parse_toml(text, Path("x.toml"))
    assert isinstance(problem, ConfigProblem)
    assert problem.line == line
    assert "not valid TOML" in problem.sentence


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    missing = read_toml(tmp_path / "missing.toml")
    assert isinstance(missing, ConfigProblem)
    assert "No such file" in missing.sentence
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'a = 1\nb = "\xff"\n')
    problem = read_toml(latin)
    assert isinstance(problem, ConfigProblem)
    assert (problem.line, "UTF-8" in problem.sentence) == (2, True)


def test_escape_sequences_in_a_key_do_not_reach_the_terminal() -> None:
    problem = only_problem('"\\u001b[31mred" = 1\n[engine]\nmodel = "m"\n')
    assert problem.sentence.isprintable()


def test_the_nearest_name_forgives_dashes_but_not_other_words() -> None:
    names = ["max_num_seqs", "max_model_len"]
    assert nearest_name("max-num-seq", names) == "max_num_seqs"
    assert nearest_name("colour", names) is None


@given(st.text(max_size=200))
def test_any_text_gives_a_document_or_a_located_problem(text: str) -> None:
    result = parse_toml(text, Path("x.toml"))
    if isinstance(result, ConfigProblem):
        assert result.line is not None
        assert result.line >= 1
    else:
        value, problems = convert_document(result, Document)
        assert value is not None or problems
        assert all(problem.sentence.isprintable() for problem in problems)
