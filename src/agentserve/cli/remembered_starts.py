"""Earlier starts, told apart by the settings that they had."""

from __future__ import annotations

from agentserve.config.start_history import StartHistory, settings_fingerprint
from agentserve.domain.lifecycle import EngineFacts
from agentserve.domain.preset import Preset


class RememberedStarts:
    """Joins the supervisor's starts with the history on disk.

    Args:
        history: The file.
    """

    def __init__(self, history: StartHistory) -> None:
        self._history = history

    def expected_start_s(self, preset: Preset) -> float | None:
        """Median of earlier starts of this preset, in seconds, or None."""
        return self._history.expected_start_s(preset.name)

    def record_start(self, preset: Preset, duration_s: float, facts: EngineFacts) -> None:
        """Remember how long a start took and how much KV it got."""
        self._history.record_start(
            preset.name,
            duration_s,
            fingerprint=settings_fingerprint(preset),
            capacity_tokens=facts.capacity_tokens,
        )

    def capacity_tokens_of(self, preset: Preset) -> int | None:
        """KV capacity of the last start with exactly these settings, or None."""
        return self._history.capacity_tokens(settings_fingerprint(preset))
