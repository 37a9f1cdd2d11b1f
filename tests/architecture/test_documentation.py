"""What the documents say, held against the code."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

import agentserve
from agentserve.cli import main
from agentserve.config.paths import AppPaths, app_paths, shipped_dir
from agentserve.config.presets import _PresetFile, check_preset_file
from agentserve.config.settings import Settings, load_settings
from agentserve.config.themes import DEFAULT_THEME, load_themes
from agentserve.domain.pending import ToggleOption
from agentserve.domain.preset import EngineOptions, Evidence, EvidenceLevel, ServerOptions
from agentserve.domain.theme import RoleColours
from agentserve.ui.actions import ACTIONS
from agentserve.ui.agent_settings import AGENTS
from agentserve.ui.keymap import check

ROOT = Path(__file__).parents[2]
PACKAGE = Path(agentserve.__file__).parent
GUIDE = ROOT / "docs" / "guide"
FOR_USERS = (ROOT / "README.md", *sorted(GUIDE.glob("*.md")))
DOCUMENTS = (
    *(*FOR_USERS, *sorted((ROOT / "docs" / "design").glob("*.md"))),
    *(ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"),
)

FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`(?P<text>[^`\n]+)`")
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
PLACEHOLDERS = {
    **{"NAME": "cpu-tiny", "URL": "http://127.0.0.1:8000", "FILE": "my-own.toml"},
    **{"P": "8000", "N": "7", "HOST": "127.0.0.1", "DIR": "folder"},
}
NOT_OURS = ("vllm serve", "pip ", "curl ", "python -m", "ssh ", "set -", "make ", "-- vllm")
SUBCOMMANDS = ("serve", "status", "presets", "history", "doctor")


def named(paths: tuple[Path, ...]) -> list[Any]:
    return [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in paths]


def code_of(path: Path) -> Iterator[str]:
    """All lines of code blocks that are no TOML, and all code in running text."""
    text = path.read_text()
    for block in FENCE.finditer(text):
        if block["kind"] != "toml":
            yield from block["text"].replace("\\\n", " ").splitlines()
    for span in SPAN.finditer(FENCE.sub("", text)):
        yield span["text"].replace("\\|", "|")


def blocks(path: Path, kind: str) -> list[str]:
    return [block["text"] for block in FENCE.finditer(path.read_text()) if block["kind"] == kind]


def example(path: Path, file: str) -> str:
    """The TOML example that begins with the name of its file."""
    (text,) = [text for text in blocks(path, "toml") if text.startswith(f"# {file}\n")]
    return text


def keys_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("keys", ROOT / "tools" / "write_keys_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def paths(tmp_path: Path) -> AppPaths:
    found = app_paths({"AGENTSERVE_HOME": str(tmp_path)})
    for folder in (found.user_presets, found.config / "themes"):
        folder.mkdir(parents=True)
    return found


def test_the_tables_of_keys_are_those_of_the_registry() -> None:
    tool = keys_tool()
    for path, name, table in tool.DOCUMENTS:
        text = path.read_text()
        assert tool.with_table(text, name, table()) == text, "run tools/write_keys_table.py"


def test_the_guide_names_every_action() -> None:
    text = (GUIDE / "keys.md").read_text()
    slots = {f"preset.{number}" for number in range(2, 9)}
    assert {action.id for action in ACTIONS if f"`{action.id}`" not in text} == slots


def test_the_example_of_own_keys_works() -> None:
    (text,) = blocks(GUIDE / "keys.md", "toml")
    assert check(tomllib.loads(text)["keys"]).problems == ()


def anchors(path: Path) -> set[str]:
    """Anchors as GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", named(DOCUMENTS))
def test_every_link_leads_somewhere(path: Path) -> None:
    for link in LINK.finditer(FENCE.sub("", path.read_text())):
        target = link["target"]
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_the_readme_leads_to_every_document() -> None:
    text = (ROOT / "README.md").read_text()
    assert [path for path in DOCUMENTS[1:] if f"({path.relative_to(ROOT)})" not in text] == []


@pytest.mark.parametrize("path", named(DOCUMENTS))
def test_no_path_of_this_machine_stands_in_a_document(path: Path) -> None:
    text = path.read_text()
    for place in (str(ROOT), str(Path.home()), "/home/", "/root/", "/work/"):
        assert place not in text


def commands_in(path: Path) -> list[str]:
    found = []
    for code in code_of(path):
        words = code.partition("  #")[0].strip()
        if re.match(r"(\w+=\S* )*agentserve-tui($| )", words):
            found.append(words[words.index("agentserve-tui") :])
        elif re.match(rf"({'|'.join(SUBCOMMANDS)}) (-|[a-z])", words):
            found.append(f"agentserve-tui {words}")
    return found


def parsed_words(command: str) -> list[str]:
    words = shlex.split(command.partition(" < ")[0].replace("[", " ").replace("]", " "))[1:]
    return [PLACEHOLDERS.get(word, word) for word in words]


@pytest.mark.parametrize("path", named(FOR_USERS))
def test_every_command_in_the_documents_exists(path: Path) -> None:
    for command in commands_in(path):
        main._parser().parse_args(parsed_words(command))


def options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """All pairs of command and option; an empty option is the command itself."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield f"{parser.prog} {name}", ""
                yield from options(inner)
        for option in action.option_strings:
            yield parser.prog, option


def test_no_document_names_an_option_that_does_not_exist() -> None:
    known = {option for _, option in options(main._parser())}
    named_options = {
        option
        for path in FOR_USERS
        for code in code_of(path)
        if not any(other in code for other in NOT_OURS)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", code)
    }
    assert {"--preset", "--simulate", "--days"} <= named_options
    # `--name=value` shows how vLLM's options may be written.
    assert named_options - known <= {"--name"}


def test_the_documents_name_every_command_and_option() -> None:
    text = "\n".join(code for path in FOR_USERS for code in code_of(path))
    missing = [
        (command, option)
        for command, option in options(main._parser())
        if option not in {"-h", "--help", "--version"}
        if (option or command) not in text
    ]
    assert missing == []


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {
        target
        for path in DOCUMENTS
        for code in code_of(path)
        for target in re.findall(r"\bmake ([a-z][a-z-]*)", code)
    }
    assert {"demo", "test"} <= used <= targets


def stems(folder: str) -> set[str]:
    return {path.stem for path in shipped_dir(folder).glob("*.toml")}


def test_the_guide_has_a_row_for_every_preset_and_for_no_other() -> None:
    rows = re.findall(r"^\| \d \| `([^`]+)`", (GUIDE / "presets.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(stems("presets"))


def test_the_guide_has_a_row_for_every_theme_and_for_no_other() -> None:
    section = (GUIDE / "themes.md").read_text().partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)
    assert sorted(rows) == sorted(stems("themes"))
    assert f"| `{DEFAULT_THEME}` | the default |" in section


def test_no_theme_is_named_that_does_not_exist() -> None:
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    found = {*re.findall(r"--theme ([\w.-]+)", text), *re.findall(r"\btheme = \"([^\"]+)\"", text)}
    assert {"NAME", "ember"} <= found
    assert found - {"NAME"} <= stems("themes")


def test_no_preset_is_named_that_is_neither_shipped_nor_an_example() -> None:
    known = {*stems("presets"), "my-coder", "my-100k", "my-model", "NAME"}
    for path in DOCUMENTS:
        text = path.read_text()
        found = {
            *re.findall(r"--(?:first-)?preset ([\w.-]+)", text),
            *re.findall(r"\bextends = \"([^\"]+)\"", text),
            *re.findall(r"presets (?:show|command|import) ([\w.-]*\w)", text),
            *re.findall(r"`((?:cpu|qwen38)-[\w-]+)`", text),
        }
        assert found - known - {"import"} == set(), path.name


def test_the_examples_of_presets_are_valid(paths: AppPaths) -> None:
    texts = blocks(GUIDE / "presets.md", "toml")
    assert len(texts) >= 2
    for text in texts:
        name = re.match(r"# presets/(?P<name>[\w-]+)\.toml\n", text)
        assert name is not None
        file = paths.user_presets / f"{name['name']}.toml"
        file.write_text(text)
        preset, problems = check_preset_file(file, paths)
        assert problems == ()
        assert preset is not None


@pytest.mark.parametrize("form", [_PresetFile, EngineOptions, ServerOptions, Evidence])
def test_the_guide_names_every_key_of_a_preset(form: type[msgspec.Struct]) -> None:
    text = (GUIDE / "presets.md").read_text()
    tables = {"engine", "server", "env", "evidence"}
    missing = [
        name
        for name in form.__struct_fields__
        if f"`{name}`" not in text and not (name in tables and f"### [{name}]" in text)
    ]
    assert missing == []


def test_the_guide_names_levels_and_kept_options() -> None:
    text = (GUIDE / "presets.md").read_text()
    assert [level for level in EvidenceLevel if f"| `{level}` |" not in text] == []
    assert [option for option in ToggleOption if f"`{option}`" not in text] == []


def test_the_example_of_a_theme_is_valid_and_all_roles_are_named(paths: AppPaths) -> None:
    text = example(GUIDE / "themes.md", "themes/dusk.toml")
    (paths.config / "themes" / "dusk.toml").write_text(text)
    themes, problems = load_themes(paths)
    assert problems == ()
    assert "dusk" in {theme.name for theme in themes}
    guide = (GUIDE / "themes.md").read_text()
    assert [role for role in RoleColours.__struct_fields__ if f"`{role}`" not in guide] == []


def test_the_reference_of_config_toml_has_every_setting_with_its_default(paths: AppPaths) -> None:
    text = example(GUIDE / "start.md", "config.toml")
    paths.config_file.write_text(text)
    assert load_settings(paths) == (Settings(), ())
    keys = set(re.findall(r"^(?:# )?([a-z_]+) = ", text, re.MULTILINE))
    keys |= set(re.findall(r"^\[([a-z]+)\]", text, re.MULTILINE))
    assert keys == set(setting_names(Settings))


def setting_names(kind: type[msgspec.Struct]) -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        yield field.name
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from setting_names(field.type)


def test_the_example_of_history_settings_is_the_default() -> None:
    (text,) = blocks(GUIDE / "history.md", "toml")
    assert msgspec.convert(tomllib.loads(text), Settings) == Settings()


def failure_kinds() -> set[str]:
    """First arguments of everything that makes an explanation or a failure."""
    makers = ("Explanation", "fixed", "as_printed", "model_kind", "stated_failure")
    files = [*PACKAGE.glob("domain/failure*.py"), *PACKAGE.glob("engine/*.py")]
    return {
        str(node.args[0].value)
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in makers and node.args and isinstance(node.args[0], ast.Constant)
    }


def test_troubleshooting_knows_every_kind_of_failure() -> None:
    text = (GUIDE / "troubleshooting.md").read_text()
    kinds = failure_kinds()
    assert {"out_of_memory", "nccl", "not_ended"} <= kinds
    assert [kind for kind in sorted(kinds) if f"`{kind}`" not in text] == []


def test_the_guide_names_every_agent() -> None:
    text = (GUIDE / "agents.md").read_text()
    assert [agent.name for agent in AGENTS if f"| {agent.name} |" not in text] == []
