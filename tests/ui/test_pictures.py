"""Four pictures of the whole screen; facts are tested elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from agentserve.domain.snapshot import Snapshot
from agentserve.domain.theme import ThemeSpec
from agentserve.ui.app import AgentServeApp

from . import scripted

SnapCompare = Callable[..., bool]

LOG = (
    "(EngineCore pid=4101) INFO [core.py:708] Initializing a V1 LLM engine",
    "(Worker_TP1 pid=4103) WARNING [cache.py:214] prefix caching in align mode",
    "(Worker_TP0 pid=4102) ERROR [multiproc.py:77] [bold]not markup[/ \x1b[31mred\x1b[0m 漢字",
)


def on_the_cpu() -> Snapshot:
    return msgspec.structs.replace(
        scripted.serving(mtp=False),
        gpus=(),
        gpus_unavailable="NVML is not available: no NVIDIA driver on this machine.",
        processes=scripted.cpu_processes(),
    )


@pytest.mark.parametrize(
    ("screen", "theme", "size"),
    [
        (scripted.serving(), "agentserve-dark", (80, 24)),
        (on_the_cpu(), "agentserve-light", (120, 40)),
        (scripted.starting(), "agentserve-dark", (80, 24)),
        (scripted.failed(), "agentserve-dark", (120, 40)),
    ],
    ids=["serving-80x24", "serving-on-cpu-120x40", "starting-80x24", "failed-120x40"],
)
def test_the_screen_looks_as_before(
    snap_compare: SnapCompare,
    theme_specs: tuple[ThemeSpec, ...],
    screen: Snapshot,
    theme: str,
    size: tuple[int, int],
) -> None:
    control = scripted.ScriptedControl(screen)
    control.log(*LOG)
    app = AgentServeApp(control, theme_specs=theme_specs, initial_theme=theme)
    assert snap_compare(app, terminal_size=size)
