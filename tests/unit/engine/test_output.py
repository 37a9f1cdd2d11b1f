"""The capture takes descriptors 1 and 2, so each test runs it in a process of its own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import stat
import struct
import subprocess
import sys
import termios
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

PREAMBLE = """
import json, os, subprocess, sys, threading, time
from pathlib import Path
from agentserve.engine.log_ring import LogRing
from agentserve.engine.output import OutputCapture

folder = Path(sys.argv[1])

def child(code):
    return subprocess.run([sys.executable, "-c", "import os, sys\\n" + code], check=True)

def report(**values):
    (folder / "report.json").write_text(json.dumps(values))

def wait_for(predicate, seconds=20):
    deadline = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > deadline:
            raise TimeoutError
        threading.Event().wait(0.005)

def texts():
    return [line.text for line in capture.ring.since(0).lines]
"""


class Result(msgspec.Struct, frozen=True):
    """What a script left behind."""

    terminal: str
    """What reached the terminal, or standard error without one."""
    stdout: str
    report: dict[str, Any]
    returncode: int


def command(script: str, folder: Path) -> list[str]:
    path = folder / "script.py"
    path.write_text(PREAMBLE + textwrap.dedent(script))
    return [sys.executable, str(path), str(folder)]


def read_report(folder: Path) -> dict[str, Any]:
    path = folder / "report.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def run_in_terminal(script: str, folder: Path) -> Result:
    """Run a script whose three standard streams are a terminal of 123 x 45."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 123, 0, 0))
    process = subprocess.Popen(
        command(script, folder),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "", "LINES": ""},
    )
    os.close(theirs)
    output = b""
    # Reading fails when the last process has closed the terminal.
    with contextlib.suppress(OSError):
        while data := os.read(ours, 65_536):
            output += data
    os.close(ours)
    code = process.wait(timeout=30)
    return Result(output.decode(), "", read_report(folder), code)


def run_with_pipes(script: str, folder: Path) -> Result:
    done = subprocess.run(
        command(script, folder), capture_output=True, text=True, timeout=50, check=False
    )
    return Result(done.stderr, done.stdout, read_report(folder), done.returncode)


def test_nothing_that_others_write_reaches_the_terminal(tmp_path: Path) -> None:
    result = run_in_terminal(
        """
        capture = OutputCapture(folder / "log")
        capture.start()
        child("os.write(1, b'child out\\\\n'); os.write(2, b'child err\\\\n')")
        os.write(1, b"library out\\n")
        print("python out")
        print("python err", file=sys.stderr)
        sys.__stdout__.write("handler\\n")
        sys.__stderr__.write("SCREEN")
        sys.__stderr__.flush()
        wait_for(lambda: len(texts()) >= 6)
        report(lines=texts())
        capture.restore()
        print("AFTER")
        """,
        tmp_path,
    )
    assert result.terminal == "SCREENAFTER\r\n"
    assert sorted(result.report["lines"]) == [
        "child err",
        "child out",
        "handler",
        "library out",
        "python err",
        "python out",
    ]
    log = (tmp_path / "log" / "engine.log").read_text().splitlines()
    assert sorted(log) == sorted(result.report["lines"])


def test_the_screen_can_ask_for_the_size_of_the_terminal(tmp_path: Path) -> None:
    result = run_in_terminal(
        """
        import shutil
        with OutputCapture(None) as capture:
            report(
                size=shutil.get_terminal_size(),
                screen_is_terminal=sys.__stderr__.isatty(),
                output_is_terminal=sys.stdout.isatty(),
            )
        """,
        tmp_path,
    )
    assert result.report == {
        "size": [123, 45],
        "screen_is_terminal": True,
        "output_is_terminal": False,
    }


def test_a_traceback_after_the_app_is_seen(tmp_path: Path) -> None:
    result = run_in_terminal(
        """
        with OutputCapture(None) as capture:
            print("hidden")
            raise ValueError("seen by the person")
        """,
        tmp_path,
    )
    assert result.returncode == 1
    assert "ValueError: seen by the person" in result.terminal
    assert "hidden" not in result.terminal


def test_restoring_twice_leaves_descriptors_streams_and_threads_as_they_were(
    tmp_path: Path,
) -> None:
    result = run_in_terminal(
        """
        def state():
            names = {number: os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)}
            descriptors = len(os.listdir("/proc/self/fd"))
            return [names, descriptors, id(sys.__stdout__), id(sys.__stderr__)]
        before = state()
        for _ in range(3):
            capture = OutputCapture(folder / "log")
            capture.start()
            capture.start()
            print("line")
            capture.restore()
            capture.restore()
        wait_for(lambda: threading.active_count() == 1)
        report(before=str(before), after=str(state()), lines=texts())
        """,
        tmp_path,
    )
    assert result.report["before"] == result.report["after"]
    assert result.report["lines"] == ["line"]


def test_children_inherit_no_way_to_the_terminal_but_their_input(tmp_path: Path) -> None:
    result = run_in_terminal(
        """
        capture = OutputCapture(folder / "log")
        capture.start()
        child(
            "for name in os.listdir('/proc/self/fd'):\\n"
            "    try: print(name, os.readlink(f'/proc/self/fd/{name}'))\\n"
            "    except OSError: pass"
        )
        tty = os.readlink("/proc/self/fd/0")
        capture.restore()
        report(terminal=[line for line in texts() if tty in line], number=len(texts()))
        """,
        tmp_path,
    )
    assert result.report["number"] >= 3
    assert [line.split()[0] for line in result.report["terminal"]] == ["0"]


def test_processes_are_spawned_while_the_output_is_captured(tmp_path: Path) -> None:
    result = run_in_terminal(
        """
        import multiprocessing
        if __name__ == "__main__":
            with OutputCapture(None) as capture:
                context = multiprocessing.get_context("spawn")
                lock = context.Lock()
                process = context.Process(target=print, args=("spawned",))
                process.start()
                process.join()
                wait_for(lambda: "spawned" in texts())
                report(code=process.exitcode)
        """,
        tmp_path,
    )
    assert result.report == {"code": 0}
    assert result.terminal == ""


def test_serve_keeps_standard_output_for_itself(tmp_path: Path) -> None:
    result = run_with_pipes(
        """
        with OutputCapture(None) as capture:
            child("print('noise'); print('noise', file=sys.stderr)")
            print("noise")
            print('{"state": "ready"}', file=capture.terminal_stdout)
            print("a word to the person", file=capture.terminal_stderr)
            wait_for(lambda: texts().count("noise") == 3)
        print("{}")
        """,
        tmp_path,
    )
    assert result.stdout == '{"state": "ready"}\n{}\n'
    assert result.terminal == "a word to the person\n"


def test_a_flood_is_bounded_and_a_stuck_listener_does_not_stop_it(tmp_path: Path) -> None:
    result = run_with_pipes(
        """
        import resource
        capture = OutputCapture(folder / "log", LogRing(1_000))
        stuck = threading.Event()
        capture.add_listener(lambda line: stuck.wait())
        capture.start()
        child("print('warm')")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        child("for number in range(200_000): print(f'line {number} ' + 'x' * 80)")
        took = time.monotonic() - began
        wait_for(lambda: capture.ring.next_number == 200_001)
        capture.restore()
        report(
            kept=len(texts()),
            last=texts()[-1][:11],
            took=took,
            grown_kib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before,
            file_bytes=sum(file.stat().st_size for file in (folder / "log").iterdir()),
        )
        """,
        tmp_path,
    )
    assert result.returncode == 0, result.terminal
    assert (result.report["kept"], result.report["last"]) == (1_000, "line 199999")
    assert result.report["took"] < 20
    assert result.report["grown_kib"] < 20_000
    assert result.report["file_bytes"] < 4 * 8 * 1024 * 1024 + 1


def test_listeners_see_each_line_in_order_and_their_errors_are_counted(tmp_path: Path) -> None:
    result = run_with_pipes(
        """
        capture = OutputCapture(None)
        seen = []
        def broken(line):
            raise RuntimeError("a bug in a listener")
        capture.add_listener(broken)
        capture.add_listener(lambda line: seen.append([line.number, line.text]))
        capture.start()
        for number in range(3):
            print(f"line {number}")
        wait_for(lambda: len(seen) == 3)
        capture.restore()
        report(seen=seen, errors=capture.listener_errors)
        """,
        tmp_path,
    )
    assert result.report == {"seen": [[0, "line 0"], [1, "line 1"], [2, "line 2"]], "errors": 3}


def test_what_ends_a_thread_is_in_the_log_whatever_replaced_the_streams(tmp_path: Path) -> None:
    result = run_in_terminal(
        """
        import io
        capture = OutputCapture(None)
        capture.start()
        sys.stderr = io.StringIO()
        def fail():
            raise ValueError("in a thread")
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        print("by name", file=capture.log_stream)
        wait_for(lambda: "by name" in texts())
        capture.restore()
        report(lines=texts())
        """,
        tmp_path,
    )
    assert "ValueError: in a thread" in result.report["lines"]
    assert result.terminal == ""


def test_a_crash_of_the_process_is_written_to_a_private_file(tmp_path: Path) -> None:
    result = run_in_terminal(
        """
        import ctypes
        OutputCapture(folder / "log").start()
        ctypes.string_at(0)
        """,
        tmp_path,
    )
    assert result.returncode < 0
    assert result.terminal == ""
    crash = tmp_path / "log" / "crash.log"
    assert "Segmentation fault" in crash.read_text()
    assert stat.S_IMODE(crash.stat().st_mode) == 0o600


def test_a_log_that_cannot_be_written_does_not_stop_the_app(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    result = run_with_pipes(
        """
        capture = OutputCapture(folder / "file" / "log")
        with capture:
            print("line")
            wait_for(lambda: texts() == ["line"])
            wait_for(lambda: capture.failed_file_writes == 1)
        report(ok=True)
        """,
        tmp_path,
    )
    assert result.report == {"ok": True}, result.terminal


@pytest.mark.parametrize("last", ["no end", "\\rBar: 10%\\rBar: 20%"])
def test_the_last_words_without_a_newline_are_kept(tmp_path: Path, last: str) -> None:
    result = run_with_pipes(
        f"""
        capture = OutputCapture(None)
        with capture:
            os.write(1, b"first\\n{last}")
        report(lines=texts())
        """,
        tmp_path,
    )
    assert result.report["lines"][0] == "first"
    assert result.report["lines"][-1] == last.rpartition("\\r")[2]
