"""Three pictures: what is pending, a question, and the presets page; facts are tested elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from agentserve.domain.snapshot import Snapshot
from agentserve.domain.theme import ThemeSpec
from agentserve.ui.app import AgentServeApp

from . import scripted

SnapCompare = Callable[..., bool]


def with_changes() -> Snapshot:
    snapshot = scripted.serving()
    view = scripted.pending(warnings=("A block of 784 tokens is more than half of the budget.",))
    engine = msgspec.structs.replace(snapshot.engine, pending=view)
    return msgspec.structs.replace(snapshot, engine=engine)


@pytest.mark.parametrize(
    ("screen", "keys", "theme", "size"),
    [
        (with_changes(), [], "agentserve-dark", (80, 24)),
        (scripted.serving(), ["3"], "agentserve-light", (120, 40)),
        (scripted.serving(), ["p", "end"], "agentserve-dark", (120, 40)),
    ],
    ids=["pending-80x24", "question-120x40", "presets-120x40"],
)
def test_changes_look_as_before(
    snap_compare: SnapCompare,
    theme_specs: tuple[ThemeSpec, ...],
    screen: Snapshot,
    keys: list[str],
    theme: str,
    size: tuple[int, int],
) -> None:
    control = scripted.ScriptedControl(screen)
    control.log("(EngineCore pid=4101) INFO [core.py:708] Initializing a V1 LLM engine")
    app = AgentServeApp(control, theme_specs=theme_specs, initial_theme=theme)
    assert snap_compare(app, press=keys, terminal_size=size)
