"""How long earlier starts took, per preset, for the estimate at the next one.

Owns one small file in the state folder. It is a convenience: a file that is missing, broken or not
writable means no estimate, never a failed start.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
from pathlib import Path
from typing import Annotated

import msgspec

from agentserve.config.atomic_file import write_atomically
from agentserve.config.paths import AppPaths

_FILE_NAME = "start-times.json"
_KEPT_STARTS = 10
_KEPT_PRESETS = 100
_MAX_BYTES = 256 * 1024

_Duration = Annotated[float, msgspec.Meta(ge=0, le=86_400)]


class _Content(msgspec.Struct):
    schema: int = 1
    starts_s: dict[str, list[_Duration]] = msgspec.field(default_factory=dict)


class StartHistory:
    """Durations of successful starts; any thread may use it.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    @classmethod
    def in_folder_of(cls, paths: AppPaths) -> StartHistory:
        """Use the file in the state folder of an instance."""
        return cls(paths.state / _FILE_NAME)

    def expected_start_s(self, preset: str) -> float | None:
        """Return the median of the last starts of a preset in seconds, or None without any."""
        durations = self._read().starts_s.get(preset)
        return statistics.median(durations) if durations else None

    def record_start(self, preset: str, duration_s: float) -> None:
        """Remember a start.

        Args:
            preset: Name of the preset.
            duration_s: From the request to READY, in seconds.
        """
        with self._lock:
            content = self._read()
            durations = content.starts_s.pop(preset, [])
            # Written last means used last: the oldest presets are forgotten first.
            content.starts_s[preset] = [*durations, max(0.0, duration_s)][-_KEPT_STARTS:]
            while len(content.starts_s) > _KEPT_PRESETS:
                del content.starts_s[next(iter(content.starts_s))]
            with contextlib.suppress(OSError):
                write_atomically(self._path, msgspec.json.encode(content))

    def _read(self) -> _Content:
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(_MAX_BYTES), type=_Content)
        except (OSError, msgspec.DecodeError):
            return _Content()
