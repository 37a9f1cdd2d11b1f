"""Textual messages around domain events; the only thing that other threads may post to the app."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from agentserve.domain.lifecycle import EngineStatus


@dataclass
class EngineStateChanged(Message):
    """The engine entered another state or start phase."""

    status: EngineStatus
    """The new status, as the supervisor published it."""
