"""Textual messages around domain values; the only things that other threads may post."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from agentserve.domain.history import RequestHistoryReport
from agentserve.domain.lifecycle import EngineStatus


@dataclass
class EngineStateChanged(Message):
    """The engine entered another state or start phase."""

    status: EngineStatus
    """The new status, as the supervisor published it."""


@dataclass
class HistoryRead(Message):
    """A reading of past requests has ended."""

    days: int
    """The days that were asked for."""
    report: RequestHistoryReport | None
    problem: str | None
    """Why there is no report."""
