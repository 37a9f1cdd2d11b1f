"""The whole app in a pseudo terminal over the simulated engine: wiring, keys, signals, terminal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentserve.domain.lifecycle import EngineState
from tests.harness.instance import (
    COMMAND,
    Instance,
    PtyInstance,
    free_port,
    isolated_environment,
    pty_instance,
)
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.pty


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def app(home: Path) -> Iterator[PtyInstance]:
    with pty_instance(home, "--simulate", "--no-start") as instance:
        instance.wait_for_text("STOPPED")
        yield instance


def test_keys_start_restart_and_stop(app: PtyInstance) -> None:
    app.press("s")
    app.wait_for_state(EngineState.READY)
    app.wait_for_text("SIMULATED")
    app.press("r")
    app.wait_for_state(EngineState.STARTING)
    app.wait_for_state(EngineState.READY)
    assert app.snapshot().engine.generation == 2
    app.press("s")
    app.wait_for_state(EngineState.STOPPED)
    app.wait_for_text("STOPPED")


def test_the_history_of_an_invented_engine_is_none(app: PtyInstance) -> None:
    app.press("h")
    app.wait_for_text("are not recorded")
    app.wait_for_text("esc back")


def test_a_digit_starts_the_preset_in_its_slot(app: PtyInstance) -> None:
    app.press("2")
    app.wait_for_state(EngineState.READY)
    assert app.snapshot().engine.preset == "cpu-tiny-mtp"


def test_a_switch_that_is_given_up_changes_nothing(app: PtyInstance) -> None:
    app.press("s")
    app.wait_for_state(EngineState.READY)
    # One that still runs when the key arrives.
    wait_until(
        lambda: any(request.elapsed_s < 1 for request in app.snapshot().in_flight),
        20,
        "a request that has just begun",
    )
    app.press("2")
    app.wait_for_text("Switch to cpu-tiny-mtp?")
    app.press("d")
    if app.snapshot().engine.drain is None:
        wait_until(lambda: app.snapshot().engine.drain, 5, "a drain")
    app.press("\x1b")
    wait_until(lambda: app.snapshot().engine.drain is None, 5, "no drain")
    app.press("B")
    pending = wait_until(lambda: app.snapshot().engine.pending, 5, "a pending change")
    engine = app.snapshot().engine
    assert (pending.preset, engine.preset, engine.generation) == ("cpu-tiny", "cpu-tiny", 1)


def test_a_running_instance_can_be_asked_from_the_shell(app: PtyInstance) -> None:
    app.press("s")
    app.wait_for_state(EngineState.READY)
    command = [*COMMAND, "status", "--url", app.url]
    environment = isolated_environment(app.home)
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "engine    ready" in shown.stdout
    printed = subprocess.run(
        [*command, "--json"], env=environment, capture_output=True, text=True, check=True
    )
    snapshot = json.loads(printed.stdout)
    assert snapshot["schema"] == 1
    assert snapshot["engine"]["simulated"] is True


def test_a_taken_port_is_an_error_in_a_second_that_names_the_owner(home: Path) -> None:
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        port = owner.getsockname()[1]
        started_at_s = time.monotonic()
        with pty_instance(home, "--simulate", port=port) as app:
            assert app.wait_for_exit(5) == 1
            elapsed_s = time.monotonic() - started_at_s
            assert f"process {os.getpid()}" in app.text()
            assert "--port" in app.text()
    # One second for the product; the rest is for starting Python on a busy machine.
    assert elapsed_s < 2.5


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_the_terminal_as_it_was(home: Path, signum: signal.Signals) -> None:
    with pty_instance(home, "--simulate") as app:
        app.wait_for_state(EngineState.READY)
        app.wait_for_text("READY")
        app.process.send_signal(signum)
        assert app.wait_for_exit(10) == 128 + signum
        assert b"\x1b[?1049l" in app.output
        assert app.output.rfind(b"\x1b[?25h") > app.output.rfind(b"\x1b[?25l")


def test_quit_gives_the_terminal_back(app: PtyInstance) -> None:
    # Invented requests may run, and then the first key asks.
    app.press("qq")
    assert app.wait_for_exit(10) == 0
    flags = termios.tcgetattr(app.pty.fd)[3] if app.pty.fd >= 0 else termios.ECHO
    assert flags & termios.ECHO


def test_a_first_visit_does_not_start_anything(home: Path) -> None:
    with pty_instance(home) as app:
        app.wait_for_text("STOPPED")
        assert app.snapshot().engine.generation == 0


def test_without_vllm_the_app_opens_and_names_the_extras(home: Path) -> None:
    # `find_spec` answers None for a module that is None in `sys.modules`.
    code = "import sys; sys.modules['vllm'] = None; from agentserve.__main__ import main; main()"
    with pty_instance(home, command=[sys.executable, "-c", code]) as app:
        app.wait_for_text("agentserve-tui[cuda]")
        app.wait_for_text("agentserve-tui[cpu]")
        app.wait_for_text("qwen38-100k")
        app.press("s")
        assert app.snapshot().engine.generation == 0


def test_two_cards_of_the_driver_are_shown(home: Path, nvml_stub: Path) -> None:
    variables = {"LD_LIBRARY_PATH": str(nvml_stub)}
    with pty_instance(home, "--simulate", variables=variables, size=(200, 60)) as app:
        app.wait_for_text("GPU 1")
        app.wait_for_text("15.9 GiB")
        app.press("g")
        app.wait_for_text("RTX 5060 Ti")
        gpus = app.snapshot().gpus
        assert [gpu.index for gpu in gpus] == [0, 1]
        assert all(gpu.memory_total_bytes for gpu in gpus)


def test_headless_prints_states_and_ends_cleanly(home: Path) -> None:
    port = free_port()
    server = subprocess.Popen(
        [*COMMAND, "serve", "--simulate", "--preset", "cpu-tiny", "--port", str(port), "--json"],
        env=isolated_environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with contextlib.closing(Instance(server.pid, port, home)) as instance:
            instance.wait_for_state(EngineState.READY)
        server.send_signal(signal.SIGTERM)
        output, errors = server.communicate(timeout=10)
    finally:
        server.kill()
        server.wait()
    assert (server.returncode, errors) == (0, "")
    lines = [json.loads(line) for line in output.splitlines()]
    assert [line["state"] for line in lines][-3:] == ["ready", "stopping", "stopped"]
    assert lines[0]["phase"] == "import"
    assert lines[-1]["endpoint"] == f"http://127.0.0.1:{port}"


def test_the_api_key_guards_our_routes(home: Path) -> None:
    (home / "config").mkdir()
    config = home / "config" / "config.toml"
    config.write_text('[server]\napi_key = "sesame"\n[server.api_keys]\nada = "open"\n')
    config.chmod(0o600)
    with pty_instance(home, "--simulate", "--no-start") as app:
        app.wait_for_text("STOPPED")
        route = "/agentserve/v1/snapshot"
        assert app.client.get(route).status_code == 401
        assert app.client.get(route, headers={"x-api-key": "sesame"}).status_code == 200
        assert app.client.get(route, headers={"authorization": "Bearer sesame"}).status_code == 200
        # Prompts of others can be read there: it is for the first key only.
        assert app.client.get(route, headers={"x-api-key": "open"}).status_code == 403
        assert app.client.get("/metrics", headers={"x-api-key": "open"}).status_code == 503
        assert app.client.get("/metrics", headers={"x-api-key": "wrong"}).status_code == 401
        app.press("q")
        app.wait_for_exit(10)
