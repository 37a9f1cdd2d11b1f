"""The app in a real pseudo terminal: what it writes, and how it leaves."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import ptyprocess
import pyte
import pytest

pytestmark = pytest.mark.pty

ROOT = Path(__file__).parents[2]
ROWS, COLUMNS = 24, 80
DEADLINE_S = 20.0


class Terminal:
    """A terminal of 80 x 24 with the app in it."""

    def __init__(self, state: str, **environment: str) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)
        self.written = b""
        self.process = ptyprocess.PtyProcess.spawn(
            [sys.executable, "-m", "tests.ui.terminal_app", state],
            cwd=str(ROOT),
            dimensions=(ROWS, COLUMNS),
            env={
                **os.environ,
                "TERM": "xterm-256color",
                "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
                **environment,
            },
        )

    def read(self, timeout_s: float) -> bool:
        """Take what the app wrote; False when it closed the terminal."""
        if not select.select([self.process.fd], [], [], timeout_s)[0]:
            return True
        try:
            data = os.read(self.process.fd, 65_536)
        except OSError:
            return False
        self.written += data
        self._stream.feed(data)
        return bool(data)

    def read_for(self, seconds: float) -> int:
        """Read for a time and count the bytes."""
        before = len(self.written)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.read(left)
        return len(self.written) - before

    def until(self, holds: Callable[[], bool]) -> None:
        """Read until `holds`, or fail."""
        end = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < end, "\n".join(self.screen.display)
            self.read(0.05)

    def until_closed(self) -> None:
        """Read until the app has left."""
        end = time.monotonic() + DEADLINE_S
        while self.read(0.05):
            assert time.monotonic() < end, "the app did not leave"
        self.process.wait()

    def shows(self, text: str) -> bool:
        return any(text in row for row in self.screen.display)


@pytest.fixture
def open_terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def make(state: str, **environment: str) -> Terminal:
        terminal = Terminal(state, **environment)
        opened.append(terminal)
        return terminal

    yield make
    for terminal in opened:
        terminal.process.close(force=True)


def test_an_idle_terminal_gets_less_than_a_kilobyte_a_second(
    open_terminal: Callable[..., Terminal],
) -> None:
    terminal = open_terminal("stopped")
    terminal.until(lambda: terminal.shows("q quit") and terminal.shows("line 39"))
    terminal.read_for(1.0)
    assert terminal.read_for(3.0) < 3 * 1024


def test_the_windows_title_names_the_state_and_comes_back_at_the_end(
    open_terminal: Callable[..., Terminal],
) -> None:
    terminal = open_terminal("ready")
    terminal.until(lambda: terminal.shows("q quit"))
    assert b"\x1b[22;2t\x1b]2;READY qwen-27b-nvfp4 - AgentServe\x07" in terminal.written
    terminal.process.write(b"qq")
    terminal.until_closed()
    assert terminal.written.count(b"\x1b]2;") == 1
    assert terminal.written.count(b"\x1b[23;2t") == 1


@pytest.mark.parametrize("key", ["q", "\x03"], ids=["q", "ctrl+c"])
def test_quitting_restores_the_terminal_and_says_that_the_engine_is_being_stopped(
    open_terminal: Callable[..., Terminal], key: str
) -> None:
    terminal = open_terminal("ready")
    terminal.until(lambda: terminal.shows("q quit"))
    terminal.process.write(key.encode())
    terminal.until(lambda: terminal.shows("Quit and abort 2 requests?"))
    terminal.process.write(key.encode())
    terminal.until_closed()
    assert terminal.process.exitstatus == 0
    after = terminal.written.rpartition(b"\x1b[?1049l")[2]
    assert b"\x1b[?25h" in after
    assert "Stopping the engine…".encode() in after


def test_the_whole_screen_is_drawn_again_after_a_stop_and_a_continue(
    open_terminal: Callable[..., Terminal],
) -> None:
    terminal = open_terminal("stopped")
    terminal.until(lambda: terminal.shows("q quit"))
    process = psutil.Process(terminal.process.pid)
    os.kill(process.pid, signal.SIGTSTP)
    terminal.until(lambda: process.status() == psutil.STATUS_STOPPED)
    terminal.read_for(0.2)
    terminal.screen.reset()
    os.kill(process.pid, signal.SIGCONT)
    terminal.until(lambda: terminal.shows("STOPPED") and terminal.shows("q quit"))
    assert terminal.shows("1 cpu-tiny")


def test_without_colour_states_and_outcomes_are_still_words(
    open_terminal: Callable[..., Terminal],
) -> None:
    terminal = open_terminal("ready", NO_COLOR="1", COLORTERM="truecolor")
    terminal.until(lambda: terminal.shows("q quit"))
    assert terminal.shows("READY")
    assert terminal.shows("▸ prefill")
    # Only greys: the three parts of every colour are the same.
    # The last one may have been read in part.
    parts = terminal.written.split(b"8;2;")[1:-1]
    colours = [part.split(b"m")[0].split(b";")[:3] for part in parts]
    assert colours
    assert all(len(set(colour)) == 1 for colour in colours)
