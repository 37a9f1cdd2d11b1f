from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

# Textual reads its environment when it is imported.
os.environ["TEXTUAL_ANIMATIONS"] = "none"
os.environ.pop("NO_COLOR", None)

import msgspec
import pytest
from hypothesis import settings

from agentserve.domain.theme import ThemeSpec

# The machine is shared with engines: how long one example takes says nothing.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

THEME_FOLDER = Path(__file__).parents[2] / "themes"


@pytest.fixture(autouse=True)
def fixed_time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def theme_specs() -> tuple[ThemeSpec, ...]:
    return tuple(
        msgspec.structs.replace(
            msgspec.toml.decode(path.read_bytes(), type=ThemeSpec), name=path.stem
        )
        for path in sorted(THEME_FOLDER.glob("*.toml"))
    )
