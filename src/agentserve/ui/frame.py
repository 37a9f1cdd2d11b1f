"""Everything that one drawing of the screen shows."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agentserve.domain.adviser import Advice
from agentserve.domain.control import PresetSummary
from agentserve.domain.lifecycle import EngineState
from agentserve.domain.log import LogLine
from agentserve.domain.pending import Consequence, DrainView, PendingView
from agentserve.domain.snapshot import EMPTY_SNAPSHOT, EngineView, Snapshot

RUNNING_STATES = frozenset(
    {EngineState.STARTING, EngineState.WARMING, EngineState.READY, EngineState.STOPPING}
)


class Highlighted(msgspec.Struct, frozen=True, kw_only=True):
    """The row of the presets page that its actions work on."""

    name: str
    source: str = "user"
    has_overlay: bool = False
    problem: str | None = None
    """Why the file cannot be used."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot and what surrounds it, taken at one tick."""

    snapshot: Snapshot = EMPTY_SNAPSHOT
    engine_missing: str | None = None
    """What to install when there is no vLLM here."""
    presets: tuple[PresetSummary, ...] = ()
    preset_problems: tuple[str, ...] = ()
    log: tuple[LogLine, ...] = ()
    """The last lines, oldest first."""
    log_missed: int = 0
    """Lines that were written faster than they could be read."""
    keys_of: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """The keys of the actions that the user gave other keys, by action id."""
    key_problems: tuple[str, ...] = ()
    """Why keys of the user were not taken, one sentence each."""
    advice: Advice | None = None
    """The one most useful hint, or None when all is well."""

    highlighted: Highlighted | None = None
    """Set on the presets page only."""

    @property
    def engine(self) -> EngineView:
        """The engine's part of the snapshot."""
        return self.snapshot.engine

    @property
    def state(self) -> EngineState:
        """The engine's state."""
        return self.snapshot.engine.state

    @property
    def serving(self) -> bool:
        """Whether the screen shows measurements rather than the way to them."""
        if self.state is EngineState.STOPPING:
            # An engine that is stopped on its way to READY has measured nothing.
            return self.engine.uptime_s is not None
        return self.state is EngineState.READY

    @property
    def requests_at_work(self) -> int:
        """Requests that a stop would end: running or waiting in an engine that serves."""
        if self.state is not EngineState.READY:
            return 0
        # The scheduler's own count is of its last step, and after an abort there may be none.
        return len(self.snapshot.in_flight)

    def without_measurements(self) -> Frame:
        """Keep only what decides about actions, so that it stays equal while values change."""
        engine = EngineView(
            state=self.state,
            endpoint=self.engine.endpoint,
            preset=self.engine.preset,
            settings=self.engine.settings,
            pending=self.engine.pending and pending_changes(self.engine.pending),
            drain=self.engine.drain
            and DrainView(
                target_preset=self.engine.drain.target_preset, remaining_s=0.0, requests_left=0
            ),
            previous_preset=self.engine.previous_preset,
        )
        return Frame(
            snapshot=Snapshot(engine=engine),
            engine_missing=self.engine_missing,
            presets=self.presets,
            keys_of=self.keys_of,
            key_problems=self.key_problems,
            highlighted=self.highlighted,
        )

    def preset_in_slot(self, slot: int) -> PresetSummary | None:
        """Find the preset that the digit key `slot` selects."""
        return next((preset for preset in self.presets if preset.slot == slot), None)


def pending_changes(pending: PendingView) -> PendingView:
    """Keep of pending changes what does not follow measurements."""
    return msgspec.structs.replace(pending, consequence=Consequence())


EMPTY_FRAME = Frame()
