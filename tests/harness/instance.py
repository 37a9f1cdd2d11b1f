"""A running `agentserve-tui` in a pseudo terminal or without one, as a user would run it."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import psutil
import ptyprocess
import pyte

from agentserve.domain.lifecycle import EngineState
from agentserve.domain.snapshot import Snapshot, decode_snapshot
from tests.harness.waiting import wait_until

COMMAND = [sys.executable, "-m", "agentserve"]
START_TIMEOUT_S = 150.0
"""A first start on two busy cores, with imports and the demo model to be made."""


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def isolated_environment(home: Path) -> dict[str, str]:
    """The environment for an instance that sees nothing of the developer's own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AGENTSERVE_", "VLLM_", "TEXTUAL", "NO_COLOR"))
    }
    return {**kept, "AGENTSERVE_HOME": str(home), "TERM": "xterm-256color", "HF_HUB_OFFLINE": "1"}


class Instance:
    """What every running instance can be asked, over HTTP and from the system."""

    def __init__(self, pid: int, port: int, home: Path) -> None:
        self.process = psutil.Process(pid)
        self.url = f"http://127.0.0.1:{port}"
        self.home = home
        # Without TLS contexts, which are slow to make.
        self.client = httpx.Client(base_url=self.url, verify=False, trust_env=False, timeout=120)

    def close(self) -> None:
        self.client.close()

    def snapshot(self) -> Snapshot:
        return decode_snapshot(self.client.get("/agentserve/v1/snapshot").content)

    def state(self) -> EngineState | None:
        """The engine's state, or None while nobody listens."""
        try:
            return self.snapshot().engine.state
        except httpx.TransportError:
            return None

    def wait_for_state(self, *wanted: EngineState, deadline_s: float = START_TIMEOUT_S) -> None:
        def reached() -> bool:
            try:
                engine = self.snapshot().engine
            except httpx.TransportError:
                if not self.process.is_running():
                    raise AssertionError("The app has ended.") from None
                return False
            if engine.state in wanted:
                return True
            failed = engine.state is EngineState.FAILED and EngineState.STOPPED not in wanted
            if failed and (failure := engine.failure) is not None:
                raise AssertionError(f"{failure.title}: {failure.cause}\n{failure.raw}")
            return False

        wait_until(reached, deadline_s, f"state {wanted}", describe=lambda: f"It is {self.state()}")

    def engine_processes(self) -> list[psutil.Process]:
        """EngineCore and workers below this instance, by their titles."""
        return [p for p in self.process.children(recursive=True) if _title(p).startswith("VLLM::")]

    def worker(self, rank: int) -> psutil.Process:
        (found,) = [p for p in self.engine_processes() if _title(p).endswith(f"Worker_TP{rank}")]
        return found

    def engine_core(self) -> psutil.Process:
        (found,) = [p for p in self.engine_processes() if "EngineCore" in _title(p)]
        return found


class PtyInstance(Instance):
    """An instance with its screen in a pseudo terminal that a thread keeps reading."""

    def __init__(
        self,
        home: Path,
        *words: str,
        port: int | None = None,
        size: tuple[int, int] = (120, 40),
        variables: Mapping[str, str] | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        columns, rows = size
        port = port or free_port()
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.pty = ptyprocess.PtyProcess.spawn(
            [*command, "--port", str(port), *words],
            env={**isolated_environment(home), **(variables or {})},
            dimensions=(rows, columns),
        )
        self.output = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        super().__init__(self.pty.pid, port, home)

    def _read(self) -> None:
        while True:
            try:
                data = self.pty.read(65536)
            except (EOFError, OSError, ValueError):  # ended, or closed under us
                return
            self.output += data
            self._stream.feed(data)

    def press(self, keys: str) -> None:
        self.pty.write(keys.encode())

    def start_by_key(self) -> None:
        """Press the start key and wait for a ready engine of a new generation."""
        before = self.snapshot().engine.generation
        self.press("s")
        wait_until(lambda: self.snapshot().engine.generation > before, 10, "a new generation")
        self.wait_for_state(EngineState.READY)

    def text(self) -> str:
        return "\n".join(self.screen.display)

    def wait_for_text(self, text: str, deadline_s: float = 20.0) -> None:
        wait_until(
            lambda: text in self.text(), deadline_s, f"{text!r} on screen", describe=self.text
        )

    def wait_for_exit(self, deadline_s: float) -> int:
        """Wait for the end of the app and its output.

        Returns:
            The exit status; negative after a signal.
        """
        wait_until(lambda: not self.pty.isalive(), deadline_s, "exit", describe=self.text)
        self._reader.join(5)
        return -self.pty.signalstatus if self.pty.signalstatus else int(self.pty.exitstatus)

    def close(self) -> None:
        """End the app whatever state it is in."""
        super().close()
        if self.pty.isalive():
            with contextlib.suppress(OSError):
                # A dialog or a view may be open. A lone escape key is told by the pause after it.
                self.press("\x1b\x1b\x1b")
                time.sleep(0.3)
                # The second one answers the question about requests, if there is one.
                self.press("qq")
            end_s = time.monotonic() + 12
            while self.pty.isalive() and time.monotonic() < end_s:
                time.sleep(0.05)
        if self.pty.isalive():
            # The guardian ends the engine.
            self.process.kill()
            self.process.wait(10)
        self.pty.close(force=True)


@contextlib.contextmanager
def pty_instance(
    home: Path,
    *words: str,
    port: int | None = None,
    size: tuple[int, int] = (120, 40),
    variables: Mapping[str, str] | None = None,
    command: Sequence[str] = COMMAND,
) -> Iterator[PtyInstance]:
    instance = PtyInstance(home, *words, port=port, size=size, variables=variables, command=command)
    try:
        yield instance
    finally:
        instance.close()


def living_vllm_processes() -> set[int]:
    """All vLLM processes on this machine, by their titles."""
    return {p.pid for p in psutil.process_iter() if _title(p).startswith("VLLM::")}


def _title(process: psutil.Process) -> str:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""
