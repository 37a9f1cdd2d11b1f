"""How the product ends with a real engine in it: signals, kill -9, headless, failed starts."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from agentserve.domain.lifecycle import EngineState
from tests.e2e.conftest import make_home
from tests.harness.completions import assert_same_answer, chat, complete, long_prompt
from tests.harness.instance import (
    COMMAND,
    START_TIMEOUT_S,
    Instance,
    free_port,
    isolated_environment,
    pty_instance,
)
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


@pytest.mark.pty
def test_kill_minus_nine_leaves_no_engine_process(home: Path) -> None:
    before = _shared_memory()
    with pty_instance(home, "--preset", "cpu-tiny") as app:
        app.wait_for_state(EngineState.READY)
        processes = app.engine_processes()
        assert len(processes) == 3
        shared = _shared_memory() - before
        assert {name.partition(".")[0] for name in shared} >= {"sem"}, "locks of the workers"
        app.process.kill()
        killed_at_s = time.monotonic()
        wait_until(lambda: not _alive(processes), 5, "the end of the engine")
        assert time.monotonic() - killed_at_s < 5
        wait_until(lambda: not list(home.glob("runtime/*")), 5, "an empty runtime folder")
        assert not shared & _shared_memory()


@pytest.mark.pty
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_app_and_restores_the_terminal(
    home: Path, signum: signal.Signals
) -> None:
    with pty_instance(home, "--preset", "cpu-tiny") as app:
        wait_until(app.engine_processes, START_TIMEOUT_S, "engine processes")
        processes = app.engine_processes()
        app.process.send_signal(signum)
        assert app.wait_for_exit(10) == 128 + signum, app.text()
        assert not _alive(processes)
        assert b"\x1b[?1049l" in app.output


def test_headless_serving_reports_states_and_ends_with_success(home: Path, tmp_path: Path) -> None:
    port = free_port()
    with (tmp_path / "err").open("wb") as errors:
        server = subprocess.Popen(
            [*COMMAND, "serve", "--preset", "cpu-tiny-mtp", "--port", str(port), "--json"],
            env=isolated_environment(home),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    instance = Instance(server.pid, port, home)
    try:
        instance.wait_for_state(EngineState.READY)
        _check_speculative_decoding(instance)
        processes = instance.engine_processes()
        server.send_signal(signal.SIGTERM)
        output, _ = server.communicate(timeout=12)
    finally:
        instance.close()
        server.kill()
        server.wait()
    assert server.returncode == 0
    assert not _alive(processes)
    states = [json.loads(line)["state"] for line in output.splitlines()]
    assert states[0] == "starting"
    assert states[-3:] == ["ready", "stopping", "stopped"]
    assert (tmp_path / "err").read_text() == ""


def _check_speculative_decoding(instance: Instance) -> None:
    """Warm equals cold, and acceptance lies strictly between none and all."""
    prompt = long_prompt("amber", 80)
    cold = complete(instance.client, "demo-mtp", prompt)
    warm = complete(instance.client, "demo-mtp", prompt)
    assert (cold.cached_tokens, warm.cached_tokens > 0) == (0, True)
    assert_same_answer(cold, warm)
    view = instance.snapshot().spec_decode
    assert view is not None
    assert view.acceptance_rate is not None
    assert 0 < view.acceptance_rate < 1
    assert view.mean_accepted_tokens is not None
    assert len(view.per_position) == 2
    # Sampling sees the temperature: the CPU build needs our repair for that.
    sampled = chat(instance.client, "demo-mtp", "What is a prefix?", temperature=1.0)
    text = sampled.json()["choices"][0]["message"]["content"]
    assert re.fullmatch(r"[A-Za-z ,.]+", text), text


def test_a_failed_start_exits_with_three_and_its_cause(tmp_path: Path, shared_cache: Path) -> None:
    home = make_home(tmp_path, shared_cache)
    presets = home / "config" / "presets"
    presets.mkdir(parents=True)
    (presets / "broken.toml").write_text(
        'extends = "cpu-tiny"\n[engine]\nmodel = "/no/such/folder"\n'
    )
    result = subprocess.run(
        [*COMMAND, "serve", "--preset", "broken", "--port", str(free_port()), "--json"],
        env=isolated_environment(home),
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 3
    last = json.loads(result.stdout.splitlines()[-1])
    assert last["state"] == "failed"
    assert "/no/such/folder" in last["cause"]
    assert last["hint"]


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def _shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}
