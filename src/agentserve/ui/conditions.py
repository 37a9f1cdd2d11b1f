"""When an engine can be started or replaced, for every action that would do it. Pure."""

from __future__ import annotations

from agentserve.domain.lifecycle import EngineState
from agentserve.domain.text import printable
from agentserve.ui.action import key_for
from agentserve.ui.frame import RUNNING_STATES, Frame


def against_start(frame: Frame) -> str | None:
    """Say why nothing can be started now; None when something can."""
    if frame.engine_missing:
        return frame.engine_missing
    if not frame.presets:
        return "There is no usable preset to start."
    return None


def against_switch(frame: Frame, name: str) -> str | None:
    """Say why a preset cannot be started or switched to now; None when it can."""
    if name == frame.engine.preset and frame.state in RUNNING_STATES:
        shown = printable(name, 40)
        if frame.engine.drain is not None:
            return (
                f"{shown} is running; press {key_for('view.back', frame.keys_of)} to stay with it."
            )
        if frame.state is EngineState.STOPPING:
            starts = key_for("engine.toggle", frame.keys_of)
            return f"{shown} is stopping; press {starts} when it has stopped."
        restarts = key_for("engine.restart", frame.keys_of)
        doing = "running" if frame.state is EngineState.READY else "starting"
        return f"{shown} is {doing} already; press {restarts} to restart it."
    return against_start(frame)


def switch_verb(frame: Frame) -> str:
    """Say what choosing a preset means now."""
    return "switch to" if frame.state in RUNNING_STATES else "start"
