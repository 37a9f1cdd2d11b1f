"""What a front end may ask of the running product.

The user interface, the command line and the HTTP front all hold a `ControlPort`; none of them sees
a supervisor, a thread or vLLM. Requests return at once: results arrive as new snapshots. Work on
preset files (`PresetPort`) is small and done before the call returns; `request_history` blocks.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from agentserve.domain.history import RequestHistoryReport
from agentserve.domain.log import LogBatch
from agentserve.domain.pending import ToggleOption
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
    evidence_level: str | None = None
    device: str = "any"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    speculative_tokens: int = 0
    has_overlay: bool = False
    """True when toggles from the screen are kept on top of the file."""

    def value_of(self, option: ToggleOption) -> int | None:
        """Return what the preset says about a toggle; None leaves it to vLLM."""
        match option:
            case ToggleOption.TOKEN_BUDGET:
                return self.max_num_batched_tokens
            case ToggleOption.DRAFT_TOKENS:
                return self.speculative_tokens
            case ToggleOption.SEATS:
                return self.max_num_seqs
            case ToggleOption.CONTEXT:
                return self.max_model_len


class OptionDifference(msgspec.Struct, frozen=True):
    """One option in which two presets differ; an empty text means "not given"."""

    key: str
    """Dotted, as in the file, for example `engine.max_num_seqs`."""
    left: str
    right: str


class PresetDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One preset as its page shows it."""

    summary: PresetSummary
    description: str
    path: str
    options: tuple[tuple[str, str], ...]
    """Dotted key and value of everything that is set, with the overlay applied."""
    overlay: tuple[OptionDifference, ...]
    """What the overlay changes: the file's value left, the kept one right."""
    differences: tuple[OptionDifference, ...]
    """Against the preset that is running, or ran last: that one left, this one right."""
    command: str
    """The equivalent `vllm serve` command, one line."""
    expected_start_s: float | None = None
    capacity_tokens: int | None = None
    """KV capacity that the last start with these settings had."""


class PresetPort(Protocol):
    """Work on preset files; each method raises AgentServeError with one sentence and a remedy."""

    def detail(self, name: str) -> PresetDetail:
        """Everything about one preset."""

    def reload(self) -> None:
        """Read all files again, for example after an editor."""

    def duplicate(self, name: str, new_name: str) -> None:
        """Write a user's file that extends `name`."""

    def rename(self, name: str, new_name: str) -> None:
        """Rename a user's file."""

    def delete(self, name: str) -> None:
        """Delete a user's file, and its overlay; shipped ones cannot be deleted."""

    def reset_overlay(self, name: str) -> None:
        """Forget the toggles kept on top of a preset."""

    def import_command(self, command: str, new_name: str) -> None:
        """Write a user's file from a `vllm serve` command line."""

    def problems_of(self, name: str) -> tuple[str, ...]:
        """What is wrong with one file, one sentence each."""


class SwitchMode(StrEnum):
    """What happens to requests that are running when the engine is to be replaced."""

    DRAIN = "drain"
    """Wait for them, with a countdown; new ones get 503."""
    ABORT = "abort"
    """End them."""


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
        """One sentence for each file that cannot be used: file, line, remedy."""

    @property
    def preset_files(self) -> PresetPort:
        """Work on preset files."""

    def start(self, preset: str | None = None) -> None:
        """Ask for a start with `preset`, or the last chosen; ignored unless stopped or failed."""

    def stop(self) -> None:
        """Ask for a stop; aborts a start in any phase; ignored when there is nothing to stop."""

    def restart(self, mode: SwitchMode = SwitchMode.ABORT) -> None:
        """Ask for a restart of the current preset; applies and keeps pending changes first.

        Ignored while a pending change is refused; waits while one is being checked.
        """

    def switch(self, preset: str, mode: SwitchMode = SwitchMode.ABORT) -> None:
        """Ask for another preset: starts it, after ending what runs."""

    def cancel_switch(self) -> None:
        """Give up a switch or restart that still waits for requests; the engine serves on."""

    def propose(self, option: ToggleOption, value: int) -> None:
        """Make `option` pending with `value`; the running value takes it back."""

    def drop_pending(self) -> None:
        """Forget all pending changes."""

    def request_history(self, days: int) -> RequestHistoryReport:
        """Past requests of the last `days` days, today included.

        The one method that blocks, for up to ten seconds: call it on a thread of its own.

        Raises:
            AgentServeError: There is no report; one sentence and what to do.
        """

    def remember_theme(self, name: str) -> None:
        """Keep the chosen theme for the next start."""
