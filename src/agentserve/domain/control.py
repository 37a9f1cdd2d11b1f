"""What a front end may ask of the running product.

The user interface, the command line and the HTTP front all hold a `ControlPort`; none of them sees
a supervisor, a thread or vLLM. Every method returns at once: results arrive as new snapshots.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from agentserve.domain.log import LogBatch
from agentserve.domain.snapshot import Snapshot


class PresetSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One preset as a list shows it."""

    name: str
    title: str
    source: str
    """`shipped` or `user`."""
    slot: int | None = None
    """The digit key that selects it, 1 to 9."""
    evidence: str = ""
    """Who measured what, in one sentence; empty when nobody did."""


class ControlPort(Protocol):
    """The product, as seen by a front end."""

    @property
    def engine_missing(self) -> str | None:
        """One sentence naming the extra to install when there is no vLLM here, else None."""

    def snapshot(self) -> Snapshot:
        """Everything known now; cheap enough for twice a second; callable from any thread."""

    def log_since(self, number: int) -> LogBatch:
        """Log lines from `number` on."""

    def presets(self) -> tuple[PresetSummary, ...]:
        """All usable presets in display order."""

    def preset_problems(self) -> tuple[str, ...]:
        """One sentence for each preset file that cannot be used: file, line, remedy."""

    def start(self, preset: str | None = None) -> None:
        """Ask for a start with `preset`, or the last chosen; ignored unless stopped or failed."""

    def stop(self) -> None:
        """Ask for a stop; aborts a start in any phase; ignored when there is nothing to stop."""

    def restart(self) -> None:
        """Ask for a stop followed by a start with the current preset."""
