"""Everything that one drawing of the screen shows."""

from __future__ import annotations

import msgspec

from agentserve.domain.control import PresetSummary
from agentserve.domain.lifecycle import EngineState
from agentserve.domain.log import LogLine
from agentserve.domain.snapshot import EMPTY_SNAPSHOT, EngineView, Snapshot

RUNNING_STATES = frozenset(
    {EngineState.STARTING, EngineState.WARMING, EngineState.READY, EngineState.STOPPING}
)


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

    def without_measurements(self) -> Frame:
        """Keep only what decides about actions, so that it stays equal while values change."""
        engine = EngineView(state=self.state, endpoint=self.engine.endpoint)
        return Frame(
            snapshot=Snapshot(engine=engine),
            engine_missing=self.engine_missing,
            presets=self.presets,
        )

    def preset_in_slot(self, slot: int) -> PresetSummary | None:
        """Find the preset that the digit key `slot` selects."""
        return next((preset for preset in self.presets if preset.slot == slot), None)


EMPTY_FRAME = Frame()
