"""The user's editor: which one, and that it really gets the terminal and gives it back."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from agentserve.engine.engine_processes import GROUP_DIR_VARIABLE, MARKER_VARIABLE
from agentserve.engine.vllm import torchvision_ops
from agentserve.ui.editor import edit_file, editor_command, editor_environment

from . import scripted
from .test_app import make_app
from .test_terminal import Terminal, open_terminal

__all__ = ["open_terminal"]


@pytest.mark.parametrize(
    ("environment", "command"),
    [
        ({"VISUAL": "code --wait", "EDITOR": "nano"}, ["code", "--wait"]),
        ({"VISUAL": " ", "EDITOR": "nano"}, ["nano"]),
        ({"EDITOR": "'my editor' -x"}, ["my editor", "-x"]),
        ({}, ["vi"]),
    ],
)
def test_the_editor_is_visual_then_editor_then_vi(
    environment: dict[str, str], command: list[str]
) -> None:
    assert editor_command(environment) == command


def test_where_the_screen_cannot_be_left_no_editor_is_opened() -> None:
    async def edited() -> str | None:
        app = make_app(scripted.ScriptedControl())
        async with app.run_test():
            return edit_file(app, "/nowhere")

    assert asyncio.run(edited()) == "An editor cannot be opened from here."


def test_quotes_that_do_not_match_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "'vi")
    assert edit_file(make_app(scripted.ScriptedControl()), "/nowhere") == (
        "The quotes in $VISUAL or $EDITOR do not match."
    )


def script(folder: Path, text: str) -> str:
    path = folder / "editor.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return shlex.quote(str(path))


@pytest.mark.pty
def test_an_editor_gets_the_terminal_and_the_page_comes_back(
    open_terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    presets = tmp_path / "presets"
    presets.mkdir()
    editor = script(
        tmp_path,
        "test -t 0 && test -t 1 && test -t 2 || exit 9\n"
        'printf "editing now: "; read -r answer; printf "%s\\n" "$answer" > "$1"',
    )
    terminal = open_terminal("stopped", EDITOR=editor, VISUAL="", TEST_PRESET_FOLDER=str(presets))
    terminal.until(lambda: terminal.shows("q quit"))
    terminal.process.write(b"p\x1b[F")
    terminal.until(lambda: terminal.shows("What qwen-27b-mtp is good for."))
    terminal.process.write(b"e")
    terminal.until(lambda: terminal.shows("editing now:"))
    terminal.process.write(b"broken = 1\n")
    terminal.until(lambda: terminal.shows("qwen-27b-mtp cannot be used yet"))
    assert (presets / "qwen-27b-mtp.toml").read_text() == "broken = 1\n"
    terminal.process.write(b"e")
    terminal.until(lambda: terminal.shows("editing now:"))
    # Ctrl+C belongs to the editor: it ends, the app goes on.
    terminal.process.write(b"\x03")
    terminal.until(lambda: terminal.shows("ended with status"))
    terminal.until(lambda: terminal.shows("edit again"))
    terminal.process.write(b"\x1b")
    terminal.until(lambda: not terminal.shows("edit again"))
    terminal.process.write(b"q")
    terminal.until_closed()
    assert terminal.process.exitstatus == 0


@pytest.mark.pty
def test_an_editor_that_does_not_exist_is_named(
    open_terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    missing = str(tmp_path / "no-editor")
    terminal = open_terminal("stopped", EDITOR=missing, VISUAL="", TEST_PRESET_FOLDER=str(tmp_path))
    terminal.until(lambda: terminal.shows("q quit"))
    terminal.process.write(b"p\x1b[F")
    terminal.until(lambda: terminal.shows("What qwen-27b-mtp is good for."))
    terminal.process.write(b"e")
    terminal.until(lambda: terminal.shows("There is no program"))
    assert terminal.shows("qwen-27b-mtp.toml")
    assert list(tmp_path.iterdir()) == []


def test_the_editor_gets_nothing_that_marks_a_process_as_the_engines_own() -> None:
    child_site = str(Path(torchvision_ops.__file__).parent / "child_site")
    environment = {
        MARKER_VARIABLE: "abc",
        GROUP_DIR_VARIABLE: "/run/x",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": f"{child_site}:/home/me/lib",
        "TERM": "xterm",
    }
    assert editor_environment(environment) == {"PYTHONPATH": "/home/me/lib", "TERM": "xterm"}
    assert editor_environment({"PYTHONPATH": child_site}) == {}
    assert Path(child_site).is_dir()


@pytest.mark.pty
def test_an_editor_that_is_opened_beside_an_engine_is_not_marked(
    open_terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    presets = tmp_path / "presets"
    presets.mkdir()
    editor = script(tmp_path, 'env > "$1.env"')
    terminal = open_terminal(
        "stopped",
        EDITOR=editor,
        VISUAL="",
        TEST_PRESET_FOLDER=str(presets),
        VLLM_NO_USAGE_STATS="1",
        **{MARKER_VARIABLE: "abc"},
    )
    terminal.until(lambda: terminal.shows("q quit"))
    terminal.process.write(b"p\x1b[F")
    terminal.until(lambda: terminal.shows("What qwen-27b-mtp is good for."))
    terminal.process.write(b"e")
    written = presets / "qwen-27b-mtp.toml.env"
    terminal.until(lambda: written.exists() and "EDITOR=" in written.read_text())
    assert MARKER_VARIABLE not in written.read_text()
    assert "VLLM_" not in written.read_text()
