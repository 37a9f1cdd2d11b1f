from __future__ import annotations

import pytest

from agentserve.engine import engine_processes, generation, supervisor


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up early: for tests of what happens after a wait, not of how long it is."""
    monkeypatch.setattr(engine_processes, "_KILL_S", 0.5)
    monkeypatch.setattr(supervisor, "_LOG_SETTLE_S", 0.1)
    for name in ("_ABANDON_AFTER_S", "_CLOSE_S", "_SHUT_DOWN_S", "_TERM_GRACE_S", "_CANCEL_S"):
        monkeypatch.setattr(generation, name, 0.3)
    monkeypatch.setattr(generation, "_ABORT_S", 0.6)
