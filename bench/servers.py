"""The two sides of the comparison: our app in a terminal, and the plain vLLM server.

Both are started the same way, in the benchmark's own session, on the same core binding, with the
same arguments from the same preset. The app adds KV events and iteration details to them, which its
screen needs; the plain server gets exactly the preset's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec

from agentserve.domain.lifecycle import EngineState
from agentserve.domain.preset import Preset, vllm_arguments
from agentserve.domain.snapshot import Snapshot, decode_snapshot
from agentserve.engine.engine_processes import shared_memory_of, unlink_shared_memory
from agentserve.engine.vllm.torchvision_ops import child_python_path
from bench.probed_app import PROBE_VARIABLE, CallbackTimes
from bench.processes import descendants, end_tree
from bench.terminal import Terminal
from bench.waiting import BenchError, wait_for
from tests.harness.instance import free_port, isolated_environment

ROOT = Path(__file__).parents[1]
READY_DEADLINE_S = 180.0
STOP_DEADLINE_S = 20.0
_POLL_S = 0.05
_PLAIN_MODULE = "vllm.entrypoints.openai.api_server"


class AppServer:
    """Our app, with its screen open in a terminal.

    Args:
        home: Its `AGENTSERVE_HOME`.
        *words: Arguments beside the port.
        probed: Whether the callbacks of the screen are timed.
        keep_output: Whether what it writes to the terminal is kept with its times.
    """

    def __init__(
        self, home: Path, *words: str, probed: bool = False, keep_output: bool = False
    ) -> None:
        self.port = free_port()
        self.home = home
        """Its `AGENTSERVE_HOME`."""
        self._probe_file = home / "callbacks.json"
        self.terminal = Terminal(keep=keep_output)
        module = "bench.probed_app" if probed else "agentserve"
        self.spawned_s = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, "--port", str(self.port), *words],
            cwd=ROOT,
            env={**_environment(home), PROBE_VARIABLE: str(self._probe_file)},
            stdin=self.terminal.slave,
            stdout=self.terminal.slave,
            stderr=self.terminal.slave,
            # A group of its own keeps our Ctrl+C from it; it stays in our session.
            process_group=0,
        )
        self.terminal.hand_over()
        self._client = _client(self.port)

    def snapshot(self) -> Snapshot | None:
        """The app's public snapshot; None while nobody listens.

        Raises:
            BenchError: The app has ended.
        """
        if self.process.poll() is not None:
            raise BenchError(f"the app ended with status {self.process.returncode}")
        try:
            return decode_snapshot(self._client.get("/agentserve/v1/snapshot").content)
        except httpx.TransportError:
            return None

    def wait_ready(self, generation: int) -> Snapshot:
        """Wait until the engine of a generation is ready.

        Raises:
            BenchError: It failed, or was not ready in time.
        """

        def ready() -> Snapshot | None:
            snapshot = self.snapshot()
            if snapshot is None or snapshot.engine.generation < generation:
                return None
            if (failure := snapshot.engine.failure) is not None:
                raise BenchError(f"the app's engine failed: {failure.cause}")
            return snapshot if snapshot.engine.state is EngineState.READY else None

        return wait_for(ready, READY_DEADLINE_S, "READY of the app", poll_s=_POLL_S)

    def callback_times(self) -> CallbackTimes:
        """What the probe has seen since the last question."""
        self._probe_file.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        wait_for(self._probe_file.exists, 5.0, "an answer of the probe")
        return msgspec.json.decode(self._probe_file.read_bytes(), type=CallbackTimes)

    def close(self) -> None:
        """End the app and its engine."""
        self._client.close()
        end_tree(self.process, STOP_DEADLINE_S)
        self.terminal.close()


class PlainServer:
    """vLLM's own API server, with the arguments of a preset.

    Args:
        preset: What to serve.
        model_path: Folder of the model.
        home: Folder for its sockets.
    """

    def __init__(self, preset: Preset, model_path: Path, home: Path) -> None:
        self.port = free_port()
        self._command = [
            *(sys.executable, "-m", _PLAIN_MODULE, "--host", "127.0.0.1"),
            *("--port", str(self.port)),
            *vllm_arguments(preset, model_path=str(model_path)),
        ]
        self._environment = {
            **_environment(home),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_COLOR": "0",
            # Sockets and the files that it leaves behind go with the folder.
            "VLLM_RPC_BASE_PATH": str(home),
            "TMPDIR": str(home),
            "PYTHONUNBUFFERED": "1",
            # Without it torchvision's default build cannot be imported beside torch for CPUs.
            "PYTHONPATH": child_python_path(os.environ.get("PYTHONPATH")),
            **preset.env,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._log: list[tuple[float, str]] = []
        self.spawned_s = 0.0
        self._client = _client(self.port)

    def start(self) -> None:
        """Start the server; does not wait for it."""
        log: list[tuple[float, str]] = []
        self._log = log
        self.spawned_s = time.monotonic()
        process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        self._process = process

        def read() -> None:
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    text = line.decode("utf-8", "replace").rstrip()
                    log.append((time.monotonic(), text))

        threading.Thread(target=read, name="bench-plain-log", daemon=True).start()

    def log(self) -> tuple[tuple[float, str], ...]:
        """The lines since the start, with the monotonic time of each."""
        return tuple(self._log)

    def wait_answer(self, model: str, tokens: int) -> None:
        """Wait until a completion is answered.

        Args:
            model: Served name.
            tokens: How many tokens it must have.

        Raises:
            BenchError: The server has ended, or did not answer in time.
        """
        body = {
            "model": model,
            "prompt": "def add(a, b):\n    return",
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }

        def answered() -> bool:
            if self._process is None or self._process.poll() is not None:
                tail = "\n".join(text for _, text in self._log[-20:])
                raise BenchError(f"the plain server has ended:\n{tail}")
            try:
                answer = self._client.post("/v1/completions", json=body)
            except httpx.TransportError:
                return False
            return answer.is_success

        wait_for(answered, READY_DEADLINE_S, "an answer of the plain server", poll_s=_POLL_S)

    def stop(self) -> None:
        """End the server; returns when every process of it is gone."""
        if self._process is None:
            return
        pid = self._process.pid
        segments = shared_memory_of([pid, *(each.pid for each in descendants(pid))])
        end_tree(self._process, STOP_DEADLINE_S)
        self._process = None
        # vLLM leaves it behind when it is ended by a signal.
        unlink_shared_memory(segments)

    def close(self) -> None:
        """End the server for good."""
        self._client.close()
        self.stop()


@contextlib.contextmanager
def app_server(
    home: Path, *words: str, probed: bool = False, keep_output: bool = False
) -> Iterator[AppServer]:
    """Run an app for the length of a block; the arguments are those of `AppServer`."""
    server = AppServer(home, *words, probed=probed, keep_output=keep_output)
    with contextlib.closing(server):
        yield server


def _environment(home: Path) -> dict[str, str]:
    """An environment like a user's, whatever is set in the one that we run in."""
    environment = isolated_environment(home)
    # Byte code is on disk from the second start on, as it is after an installation.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def _client(port: int) -> httpx.Client:
    # Without TLS contexts, which are slow to make.
    return httpx.Client(
        base_url=f"http://127.0.0.1:{port}", verify=False, trust_env=False, timeout=60.0
    )
