"""The user's own editor on one file, in the terminal that the app has left for a while."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping

from textual.app import App, SuspendNotSupported

_FALLBACK = "vi"
_TERMINAL = "/dev/tty"

# The names are the engine's, which the screen does not import. A process that carries them is
# taken for one of the engine's own and ends with it.
_ENGINE_VARIABLES = ("AGENTSERVE_ENGINE", "AGENTSERVE_GROUP_DIR")
_ENGINE_PREFIX = "VLLM_"
_ENGINE_SITE = "/engine/vllm/child_site"


def editor_command(environment: Mapping[str, str]) -> list[str]:
    """Return the words of $VISUAL, else of $EDITOR, else `vi`.

    Raises:
        ValueError: The quotes in the variable do not match.
    """
    for name in ("VISUAL", "EDITOR"):
        if environment.get(name, "").strip():
            return shlex.split(environment[name])
    return [_FALLBACK]


def editor_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for the editor, without what is there for the engine's processes.

    Args:
        environment: That of the app, in which an engine may run.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _ENGINE_VARIABLES and not name.startswith(_ENGINE_PREFIX)
    }
    if "PYTHONPATH" in kept:
        entries = kept.pop("PYTHONPATH").split(os.pathsep)
        others = [entry for entry in entries if not entry.endswith(_ENGINE_SITE)]
        if path := os.pathsep.join(others):
            kept["PYTHONPATH"] = path
    return kept


def edit_file(app: App[None], path: str) -> str | None:
    """Open a file in the user's editor and wait until it ends.

    Args:
        app: Leaves the screen meanwhile.
        path: The file.

    Returns:
        One sentence when the editor did not do its work, else None.
    """
    try:
        command = editor_command(os.environ)
    except ValueError:
        return "The quotes in $VISUAL or $EDITOR do not match."
    try:
        # `suspend` comes back only when nothing is raised within it.
        with app.suspend():
            return _run([*command, path])
    except SuspendNotSupported:
        return "An editor cannot be opened from here."


def _run(command: list[str]) -> str | None:
    try:
        with _signals_ignored(), _terminal() as terminal:
            status = subprocess.run(
                command,
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
                env=editor_environment(os.environ),
                check=False,
            ).returncode
    except FileNotFoundError:
        return f"There is no program {command[0]!r}; set VISUAL or EDITOR to your editor."
    except OSError as error:
        return f"{command[0]!r} could not be started: {error.strerror}."
    return f"{command[0]!r} ended with status {status}." if status else None


@contextlib.contextmanager
def _terminal() -> Iterator[int | None]:
    """Open the terminal itself: the app's own standard output is a pipe into its log."""
    try:
        descriptor = os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Leave signals of keys to the editor, which inherits SIG_IGN but no handler."""
    before = {
        signum: signal.signal(signum, lambda *_: None) for signum in (signal.SIGINT, signal.SIGQUIT)
    }
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
