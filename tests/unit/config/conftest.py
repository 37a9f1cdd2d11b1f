"""Isolation of the preset files from the developer's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
