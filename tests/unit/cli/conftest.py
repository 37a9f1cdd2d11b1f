"""Isolation of the command line from the developer's own files."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTSERVE_HOME", str(tmp_path))
    monkeypatch.delenv("AGENTSERVE_API_KEY", raising=False)
    return tmp_path
