"""Commands that need no engine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from agentserve import __version__
from agentserve.cli import exit_codes
from agentserve.cli.main import run
from agentserve.domain.snapshot import Snapshot


def write_preset(home: Path, name: str, text: str) -> Path:
    folder = home / "config" / "presets"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.strip() == f"agentserve-tui {__version__}"


def test_presets_are_listed_with_their_slots(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["presets", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["1", "cpu-tiny"]
    assert run(["presets", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [preset["name"] for preset in listed[:2]] == ["cpu-tiny", "cpu-tiny-mtp"]


def test_a_preset_is_shown_as_vllm_gets_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["presets", "show", "qwen38-100k"]) == 0
    shown = capsys.readouterr().out
    assert "--tensor-parallel-size 2" in shown
    assert "--max-num-batched-tokens 2048" in shown
    assert "[owner report]" in shown


def test_an_unknown_preset_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["presets", "show", "cpu-tini"]) == 1
    assert "Did you mean 'cpu-tiny'?" in capsys.readouterr().err


def test_validate_exits_two_and_names_file_line_and_remedy(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["presets", "validate"]) == 0
    path = write_preset(home, "mine", '[engine]\nmodel = "x"\nmax_num_seq = 4\n')
    assert run(["presets", "validate"]) == 2
    problem = capsys.readouterr().err
    assert f"{path}:3" in problem
    assert "max_num_seqs" in problem
    assert run(["presets", "validate", str(path), "--json"]) == 2
    (found,) = json.loads(capsys.readouterr().out)
    assert found["line"] == 3


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[server]\nporte = 9000\n", 2, "did you mean `port`"),
        ("ascii = 7\n", 1, "`ascii`"),
        ("[server\n", 1, ""),
    ],
    ids=["stops a start", "does not stop it", "no TOML"],
)
def test_validate_checks_the_settings_too(
    home: Path, capsys: pytest.CaptureFixture[str], text: str, line: int, words: str
) -> None:
    config = home / "config" / "config.toml"
    config.parent.mkdir()
    config.write_text(text)
    for files in ([], [str(config)]):
        assert run(["presets", "validate", *files]) == 2
        said = capsys.readouterr().err
        assert f"{config}:{line}: " in said
        assert words in said
        assert said.count("\n") == 1
        assert run(["presets", "validate", *files, "--json"]) == 2
        (found,) = json.loads(capsys.readouterr().out)
        assert (found["path"], found["line"]) == (str(config), line)


def test_settings_and_presets_are_checked_in_one_go(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_preset(home, "mine", '[engine]\nmodel = "x"\nmax_num_seq = 4\n')
    config = home / "config" / "config.toml"
    config.write_text("[server]\nporte = 9000\n")
    assert run(["presets", "validate"]) == 2
    said = capsys.readouterr().err
    assert f"{config}:2" in said
    assert f"{path}:3" in said


def test_the_equivalent_command_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["presets", "command", "qwen38-100k"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("vllm serve unsloth/Qwen3.8-27B-NVFP4 ")
    assert printed.count("\n") == 1


def test_a_command_becomes_a_preset(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["A=1", "vllm", "serve", "org/m", "--max-num-seqs", "3", "--port", "9000"]
    assert run(["presets", "import", "mine", "--", *words]) == 0
    printed = capsys.readouterr().out
    assert str(home / "config" / "presets" / "mine.toml") in printed
    assert "--port" in printed
    monkeypatch.setattr("sys.stdin", io.StringIO("vllm serve org/m \\\n --max-num-seqs 5\n"))
    assert run(["presets", "import", "piped"]) == 0
    assert run(["presets", "show", "piped"]) == 0
    assert "--max-num-seqs 5" in capsys.readouterr().out


def test_a_command_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["presets", "import", "mine", "--", "ls", "-l"]) == 1
    assert "not a `vllm serve` command" in capsys.readouterr().err


def test_kept_toggles_are_marked(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overlay = home / "state" / "overlays" / "cpu-tiny.toml"
    overlay.parent.mkdir(parents=True)
    overlay.write_text("[engine]\nmax_num_batched_tokens = 1024\n")
    assert run(["presets", "list"]) == 0
    tiny, other, *_ = capsys.readouterr().out.splitlines()
    assert "kept from the screen: max_num_batched_tokens 1024" in tiny
    assert "kept" not in other
    assert run(["presets", "show", "cpu-tiny"]) == 0
    shown = capsys.readouterr().out
    assert "overlay   kept from the screen" in shown
    assert "--max-num-batched-tokens 1024" in shown
    overlay.write_text("[engine]\nmax_num_batched_token = 1024\n")
    assert run(["presets", "validate"]) == 2
    assert f"{overlay}:2: " in capsys.readouterr().err


def test_one_broken_preset_does_not_hide_the_others(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_preset(home, "broken", "[engine\n")
    assert run(["presets", "list"]) == 0
    captured = capsys.readouterr()
    assert "cpu-tiny" in captured.out
    assert "broken.toml:1" in captured.err


@contextlib.contextmanager
def answering(host: str) -> Iterator[int]:
    """Play an instance that is stopped; yields its port."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = msgspec.json.encode(Snapshot())
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Stay silent."""

    with ThreadingHTTPServer((host, 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def test_status_says_when_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert run(["status", "--url", f"http://127.0.0.1:{port}"]) == 1
    assert "Nobody answers" in capsys.readouterr().err


def test_an_address_that_others_can_reach_needs_a_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["serve", "--simulate", "--host", "0.0.0.0", "--preset", "cpu-tiny"]) == 1
    assert "AGENTSERVE_API_KEY" in capsys.readouterr().err


def test_the_screen_needs_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 1
    assert "agentserve-tui serve" in capsys.readouterr().err


def test_doctor_reports_each_thing_it_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    run(["doctor", "--json"])
    checks = json.loads(capsys.readouterr().out)
    assert {"python", "vllm", "gpu", "address", "config", "files", "orphans"} <= {
        check["name"] for check in checks
    }
    assert all(check["finding"] for check in checks)


def test_doctor_fails_on_a_broken_file(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_preset(home, "broken", "[engine\n")
    assert run(["doctor"]) == 1
    assert "broken.toml:1" in capsys.readouterr().out


def test_doctor_names_what_is_wrong_in_the_config(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = home / "config" / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("ascii = 7\n")
    assert run(["doctor"]) == 1
    assert f"{config}:1" in capsys.readouterr().out


def test_an_address_without_a_scheme_is_refused_in_whole_sentences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["status", "--url", "foo"]) == 1
    said = capsys.readouterr().err
    assert "'foo' is not an address." in said
    assert ".." not in said


@pytest.mark.parametrize("before", [True, False], ids=["before the command", "after it"])
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_status_asks_the_port_that_is_named_on_the_configured_host(
    home: Path, capsys: pytest.CaptureFixture[str], host: str, before: bool
) -> None:
    config = home / "config" / "config.toml"
    config.parent.mkdir()
    config.write_text(f'[server]\nhost = "{host}"\nport = 1\n')
    with answering(host) as port:
        port_words = ["--port", str(port)]
        words = [*port_words, "status"] if before else ["status", *port_words]
        assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["engine"]["state"] == "stopped"


def test_status_asks_the_configured_port_unless_told_otherwise(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering("127.0.0.1") as port:
        config = home / "config" / "config.toml"
        config.parent.mkdir()
        config.write_text(f"[server]\nport = {port}\n")
        assert run(["status"]) == 0
    assert "engine    stopped" in capsys.readouterr().out


@pytest.mark.parametrize("port", ["0", "65536", "-1"])
def test_status_says_what_is_no_port(capsys: pytest.CaptureFixture[str], port: str) -> None:
    assert run(["status", "--port", port]) == 1
    assert f"{port} is not a port. Choose a port from 1 to 65535." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "x"], "argument --port: invalid int value: 'x'"),
        (["--port", "8001", "--url", "http://127.0.0.1:8001"], "not allowed with argument --port"),
    ],
)
def test_status_refuses_arguments_that_make_no_sense(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as end:
        run(["status", *words])
    assert end.value.code == exit_codes.USAGE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "hint"), [(401, "Set AGENTSERVE_API_KEY."), (403, "to the owner's key")]
)
def test_status_with_another_key_says_which_one_is_needed(
    capsys: pytest.CaptureFixture[str], code: int, hint: str
) -> None:
    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Stay silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            assert run(["status", "--url", f"http://127.0.0.1:{server.server_address[1]}"]) == 1
        finally:
            server.shutdown()
    said = capsys.readouterr().err
    assert f"answered HTTP {code}." in said
    assert hint in said


def run_without_reader(words: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose standard output is a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            [sys.executable, "-m", "agentserve", *words],
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)


PRINTING = (
    *("history", "history --json", "doctor", "doctor --json"),
    *("presets list", "presets list --json", "presets validate", "presets validate --json"),
    *("presets show cpu-tiny", "presets show cpu-tiny --json", "presets command cpu-tiny"),
    "presets import mine -- vllm serve org/m",
)


@pytest.mark.parametrize("command", PRINTING)
def test_a_command_ends_quietly_when_its_reader_has_gone(command: str) -> None:
    ended = run_without_reader(command.split())
    assert ended.stderr == b""
    assert ended.returncode == exit_codes.READER_GONE


def test_a_reader_of_both_streams_that_has_gone_is_no_traceback(home: Path) -> None:
    write_preset(home, "broken", "[engine\n")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "agentserve", "presets", "list"],
            stdout=writing,
            stderr=writing,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert ended.returncode == exit_codes.READER_GONE


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_status_ends_quietly_when_its_reader_has_gone(words: list[str]) -> None:
    with answering("127.0.0.1") as port:
        ended = run_without_reader(["status", "--url", f"http://127.0.0.1:{port}", *words])
    assert ended.stderr == b""
    assert ended.returncode == exit_codes.READER_GONE
