"""What the supervisor asks of others: memory of earlier starts, and the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentserve.domain.lifecycle import EngineFacts
from agentserve.domain.preset import Preset


class StartHistory(Protocol):
    """Remembers starts."""

    def expected_start_s(self, preset: Preset) -> float | None:
        """Expected length of a start in seconds, or None."""

    def record_start(self, preset: Preset, duration_s: float, facts: EngineFacts) -> None:
        """A start took this long and ended with this engine; on a thread of its own."""


class LogSource(Protocol):
    """The log, as far as failures are explained from it."""

    @property
    def next_number(self) -> int:
        """Number of the next line."""

    def texts_since(self, number: int) -> Sequence[str]:
        """Texts of the lines from `number` on."""
