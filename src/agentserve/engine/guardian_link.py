"""The app's end of the pipe to its guardian.

Owns the guardian process. The guardian is started with the first engine, so that an app that only
watches does not pay for it, and ends when the app closes the pipe or dies.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from agentserve.engine import guardian
from agentserve.engine.engine_processes import MARKER_VARIABLE

_END_TIMEOUT_S = 3.0


class GuardianLink:
    """Keeps one guardian alive for the life of the app.

    Args:
        app_id: Identifies this app in the marker of its engines.
        runtime_dir: Folder that the guardian removes at the end.
        environment: Environment for the guardian; the marker is taken out of it.
    """

    def __init__(self, app_id: str, runtime_dir: Path, environment: dict[str, str]) -> None:
        self._marker_prefix = f"{app_id}:"
        self._runtime_dir = runtime_dir
        self._environment = {k: v for k, v in environment.items() if k != MARKER_VARIABLE}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the living guardian, or None."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    def ensure(self) -> None:
        """Start the guardian unless it is alive."""
        if self.pid is not None:
            return
        self._let_go()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                str(Path(guardian.__file__)),
                self._marker_prefix,
                str(self._runtime_dir),
            ],
            # A hang-up of our terminal or ctrl+c must not reach it.
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._environment,
        )

    def close(self) -> None:
        """Let the guardian do its last round and end."""
        if self._process is None:
            return
        self._let_go()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _let_go(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
