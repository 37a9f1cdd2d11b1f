"""Two pictures: the list of agent sessions, and one session; facts are tested elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentserve.domain.theme import ThemeSpec
from agentserve.ui.app import AgentServeApp

from . import scripted, scripted_sessions

SnapCompare = Callable[..., bool]


@pytest.mark.parametrize(
    ("keys", "theme"),
    [(["c"], "agentserve-dark"), (["c", "down", "enter"], "agentserve-light")],
    ids=["list-120x40", "one-120x40"],
)
def test_sessions_look_as_before(
    snap_compare: SnapCompare, theme_specs: tuple[ThemeSpec, ...], keys: list[str], theme: str
) -> None:
    control = scripted.ScriptedControl(scripted_sessions.snapshot())
    app = AgentServeApp(control, theme_specs=theme_specs, initial_theme=theme)
    assert snap_compare(app, press=keys, terminal_size=(120, 40))
