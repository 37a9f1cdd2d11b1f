"""Toggles that wait for `r`: what is pending, whether vLLM would take it, and what it would mean.

Owns the pending changes of the current preset and their check, which runs on a thread because it
takes about ten seconds. It decides nothing about the engine: the product applies what is ready.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import msgspec

from agentserve.domain.errors import CheckNotMadeError
from agentserve.domain.lifecycle import EngineFacts
from agentserve.domain.pending import (
    CheckState,
    Consequence,
    PendingChange,
    PendingView,
    ToggleOption,
)
from agentserve.domain.preset import Preset
from agentserve.domain.sample import SchedulerFacts
from agentserve.domain.toggles import refusals, value_of, warnings, with_changes
from agentserve.engine.app_log import log_line

PresetCheck = Callable[[Preset], str | None]
"""Says in one sentence why vLLM would refuse a preset, or None; blocks; CheckNotMadeError."""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What consequences depend on, at one moment."""

    facts: EngineFacts | None
    running: bool
    expected_restart_s: float | None
    capacity_tokens_of: Callable[[Preset], int | None]
    warm_tokens: int | None
    requests_in_flight: int


class PendingChanges:
    """The pending changes of one preset at a time; any thread may use it.

    Args:
        check: Asks vLLM; None where there is none.
        on_checked: Called when a check has ended, on its thread.
    """

    def __init__(self, check: PresetCheck | None, on_checked: Callable[[], None]) -> None:
        self._check = check
        self._on_checked = on_checked
        self._lock = threading.Lock()
        self._preset: Preset | None = None
        self._facts: EngineFacts | None = None
        self._changes: dict[ToggleOption, int] = {}
        self._state = CheckState.NONE
        self._refusal: str | None = None
        self._version = 0
        self._checking: Preset | None = None

    @property
    def state(self) -> CheckState:
        """How far the check is."""
        return self._state

    @property
    def changes(self) -> Mapping[ToggleOption, int]:
        """What is pending."""
        return dict(self._changes)

    def propose(
        self, preset: Preset, facts: EngineFacts | None, option: ToggleOption, value: int
    ) -> None:
        """Make an option pending; the value that is in force takes it back.

        Args:
            preset: The current preset as it is in force; another one than before starts anew.
            facts: The running engine's, for defaults that the preset leaves to vLLM.
            option: What to change.
            value: To what.
        """
        with self._lock:
            if self._preset != preset:
                self._changes = {}
            self._preset, self._facts = preset, facts
            if value == in_force(preset, facts, option):
                self._changes.pop(option, None)
            else:
                self._changes[option] = value
            self._begin_check()

    def drop(self) -> None:
        """Forget everything that is pending."""
        with self._lock:
            self._changes = {}
            self._begin_check()

    def view(self, situation: Situation) -> PendingView | None:
        """Describe what is pending, or None."""
        with self._lock:
            preset, changes = self._preset, dict(self._changes)
            state, refused = self._state, self._refusal
        if preset is None or not changes:
            return None
        changed = with_changes(preset, changes)
        return PendingView(
            preset=preset.name,
            changes=tuple(
                PendingChange(
                    option=option, before=in_force(preset, situation.facts, option), after=value
                )
                for option, value in changes.items()
            ),
            consequence=Consequence(
                needs_restart=situation.running,
                expected_restart_s=situation.expected_restart_s,
                capacity_tokens_before=situation.facts.capacity_tokens if situation.facts else None,
                capacity_tokens_after=situation.capacity_tokens_of(changed),
                warm_tokens_lost=situation.warm_tokens if situation.running else None,
                requests_interrupted=situation.requests_in_flight,
            ),
            check=state,
            refusal=refused,
            # Only what the changes bring: the rest was accepted when the preset was started.
            warnings=tuple(
                warning
                for warning in warnings(changed, situation.facts)
                if warning not in warnings(preset, situation.facts)
            ),
        )

    def _begin_check(self) -> None:
        """Check the newest changes; at most one child runs, and older verdicts are dropped."""
        self._version += 1
        self._state, self._refusal = CheckState.NONE, None
        if self._preset is None or not self._changes:
            return
        changed = with_changes(self._preset, self._changes)
        self._refusal = refusals(changed, self._facts)
        if self._refusal is not None:
            self._state = CheckState.REFUSED
        elif self._check is not None:
            self._state = CheckState.RUNNING
            if self._checking is None:
                self._checking = changed
                threading.Thread(
                    target=self._run_checks,
                    args=(self._check,),
                    name="agentserve-check",
                    daemon=True,
                ).start()

    def _run_checks(self, check: PresetCheck) -> None:
        while True:
            with self._lock:
                version = self._version
                if self._preset is None or not self._changes or self._refusal is not None:
                    self._checking = None
                    return
                changed = self._checking = with_changes(self._preset, self._changes)
            refused, state = None, CheckState.PASSED
            try:
                refused = check(changed)
            except CheckNotMadeError as error:
                log_line(error.message)
                state = CheckState.NONE
            with self._lock:
                if self._version != version:
                    continue
                self._state = state if refused is None else CheckState.REFUSED
                self._refusal = refused
                self._checking = None
            self._on_checked()
            return


def in_force(preset: Preset, facts: EngineFacts | None, option: ToggleOption) -> int | None:
    """The value of an option: the preset's, else what the running engine took by default."""
    value = value_of(preset, option)
    if value is not None or facts is None:
        return value
    match option:
        case ToggleOption.TOKEN_BUDGET:
            return facts.max_num_batched_tokens
        case ToggleOption.DRAFT_TOKENS:
            return facts.speculative_tokens
        case ToggleOption.SEATS:
            return facts.max_num_seqs
        case ToggleOption.CONTEXT:
            return facts.max_model_len


def warm_tokens(facts: EngineFacts | None, scheduler: SchedulerFacts | None) -> int | None:
    """Tokens that a restart forgets: the warm share of the capacity.

    Blocks times block size would be wrong on hybrids, whose state checkpoints share the pool.
    """
    if facts is None or scheduler is None or not facts.blocks_total or not facts.capacity_tokens:
        return None
    return scheduler.blocks_warm * facts.capacity_tokens // facts.blocks_total
