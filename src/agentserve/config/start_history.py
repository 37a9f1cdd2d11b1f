"""What earlier starts took and gave, for the estimate at the next one.

Owns one small file in the state folder: durations for each preset, and for each set of settings its
durations and the KV capacity that came out. It is a convenience: a file that is missing, broken or
not writable means no estimate, never a failed start.
"""

from __future__ import annotations

import contextlib
import hashlib
import statistics
import threading
from collections.abc import MutableMapping
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from agentserve.config.atomic_file import write_atomically
from agentserve.config.paths import AppPaths
from agentserve.domain.preset import Preset, vllm_arguments

_FILE_NAME = "start-times.json"
_KEPT_STARTS = 10
_KEPT_PRESETS = 100
_KEPT_SETTINGS = 200
_MAX_BYTES = 256 * 1024

T = TypeVar("T")
_Duration = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
_Tokens = Annotated[int, msgspec.Meta(ge=0)]


class _Outcome(msgspec.Struct):
    """What starts with one set of settings took and gave."""

    durations_s: list[_Duration] = msgspec.field(default_factory=list)
    capacity_tokens: _Tokens | None = None


class _Content(msgspec.Struct):
    schema: int = 1
    starts_s: dict[str, list[_Duration]] = msgspec.field(default_factory=dict)
    settings: dict[str, _Outcome] = msgspec.field(default_factory=dict)
    """By fingerprint; files of earlier versions have none."""


class StartHistory:
    """Durations and outcomes of successful starts; any thread may use it.

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

    def expected_start_s(self, preset: str, fingerprint: str | None = None) -> float | None:
        """Return the median of the last starts in seconds, or None without any.

        Args:
            preset: Name of the preset.
            fingerprint: Of its settings; starts with exactly these count before all others.
        """
        content = self._read()
        outcome = content.settings.get(fingerprint) if fingerprint is not None else None
        durations = outcome.durations_s if outcome is not None else []
        durations = durations or content.starts_s.get(preset, [])
        return statistics.median(durations) if durations else None

    def capacity_tokens(self, fingerprint: str) -> int | None:
        """Return the KV capacity of the last start with exactly these settings, or None."""
        outcome = self._read().settings.get(fingerprint)
        return None if outcome is None else outcome.capacity_tokens

    def record_start(
        self,
        preset: str,
        duration_s: float,
        fingerprint: str | None = None,
        capacity_tokens: int | None = None,
    ) -> None:
        """Remember a start.

        Args:
            preset: Name of the preset.
            duration_s: From the request to READY, in seconds.
            fingerprint: Of the preset's settings, see `settings_fingerprint`.
            capacity_tokens: KV capacity that the engine reports; needs the fingerprint.
        """
        duration_s = max(0.0, duration_s)
        with self._lock:
            content = self._read()
            durations = content.starts_s.get(preset, [])
            _put_last(
                content.starts_s, preset, [*durations, duration_s][-_KEPT_STARTS:], _KEPT_PRESETS
            )
            if fingerprint is not None:
                before = content.settings.get(fingerprint, _Outcome())
                outcome = _Outcome(
                    [*before.durations_s, duration_s][-_KEPT_STARTS:],
                    before.capacity_tokens if capacity_tokens is None else capacity_tokens,
                )
                _put_last(content.settings, fingerprint, outcome, _KEPT_SETTINGS)
            with contextlib.suppress(OSError):
                write_atomically(self._path, msgspec.json.encode(content))

    def _read(self) -> _Content:
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(_MAX_BYTES), type=_Content)
        except (OSError, msgspec.DecodeError):
            return _Content()


def settings_fingerprint(preset: Preset) -> str:
    """Name everything that decides what a start takes and gives.

    Args:
        preset: The preset as it is started, overlay and pending changes included.

    Returns:
        16 hexadecimal digits over vLLM's arguments and the environment. The version of vLLM and the
        hardware are not in it.
    """
    arguments = vllm_arguments(preset, preset.engine.model)
    settings = msgspec.json.encode([arguments, sorted(preset.env.items())])
    return hashlib.sha256(settings).hexdigest()[:16]


def _put_last(kept: MutableMapping[str, T], key: str, value: T, most: int) -> None:
    """Written last means used last: the oldest entries are forgotten first."""
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > most:
        del kept[next(iter(kept))]
