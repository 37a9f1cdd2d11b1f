from __future__ import annotations

import msgspec
import pytest

from agentserve.domain.snapshot import Snapshot
from agentserve.ui.app import AgentServeApp
from agentserve.ui.explanations import EXPLANATIONS, figure_key
from agentserve.ui.lines import Role, plain
from agentserve.ui.panels import explanation
from agentserve.ui.screens.dashboard import DashboardScreen
from agentserve.ui.screens.log import LogScreen
from agentserve.ui.widgets.explaining import ExplainBox
from agentserve.ui.widgets.panel import Panel

from . import scripted, scripted_sessions

SIZES = [(80, 24), (120, 40), (200, 60)]
ON_THE_DASHBOARD = [name for name in EXPLANATIONS if not name.startswith("session-")]


def on_the_cpu() -> Snapshot:
    return msgspec.structs.replace(
        scripted.serving(mtp=False),
        sessions=scripted_sessions.three(),
        gpus=(),
        gpus_unavailable="no driver",
        processes=scripted.cpu_processes(),
    )


def box_of(app: AgentServeApp) -> ExplainBox:
    return app.screen.query_one(ExplainBox)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    "snapshot", [scripted_sessions.snapshot(), on_the_cpu()], ids=["gpu", "cpu"]
)
async def test_every_figure_on_the_dashboard_has_an_explanation(
    size: tuple[int, int], snapshot: Snapshot
) -> None:
    app = AgentServeApp(scripted.ScriptedControl(snapshot))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        missing = []
        for name in ON_THE_DASHBOARD:
            panel = app.screen.query_one(f"#{name}", Panel)
            assert panel.is_on_screen
            missing += [
                (name, span.text)
                for line in panel.lines
                for span in line
                if span.role is Role.LABEL
                and span.text.strip()
                and not span.text.endswith("…")
                and figure_key(span.text) not in EXPLANATIONS[name]
            ]
        assert missing == []


def test_every_explanation_is_complete_and_short_enough_for_the_smallest_screen() -> None:
    for panel, figures in EXPLANATIONS.items():
        for key, parts in figures.items():
            assert all(text.endswith(".") for text in parts), (panel, key)
            assert len(explanation.draw(panel, key, 76, 99)) <= 9, (panel, key)


@pytest.mark.parametrize(
    ("label", "key"),
    [
        ("MTP accepted, 60 s", "MTP accepted"),
        ("    n   4120 drafts", "n drafts"),
        ("GPU 0", "GPU"),
        ("prefill, cached", "prefill, cached"),
        ("in use   ", "in use"),
    ],
)
def test_a_key_is_the_label_without_numbers(label: str, key: str) -> None:
    assert figure_key(label) == key


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_focus_walks_over_all_figures_and_the_box_never_covers_the_one_it_explains(
    size: tuple[int, int],
) -> None:
    app = AgentServeApp(scripted.ScriptedControl(scripted_sessions.snapshot()))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        seen = []
        for key in ["x", *(["tab"] * 60)]:
            await pilot.press(key)
            await pilot.pause()
            figure = box_of(app).figure
            assert figure is not None
            if (figure.panel, figure.key) in seen:
                break
            seen.append((figure.panel, figure.key))
            panel = app.screen.query_one(f"#{figure.panel}", Panel)
            box = box_of(app).region
            row = panel.content_region.y + figure.row
            assert not box.y <= row < box.bottom, figure
            assert app.screen.region.contains_region(box)
            strip = panel.render_line(figure.row)
            marked = app.screen.query_one("#kv").get_component_rich_style("role--marked")
            styles = [segment.style for segment in strip if segment.text.strip()]
            assert any(style and style.bgcolor == marked.bgcolor for style in styles), figure
        assert {panel for panel, _ in seen} == set(ON_THE_DASHBOARD)
        assert len(seen) > 25


async def test_the_box_says_what_where_from_window_good_and_change() -> None:
    app = AgentServeApp(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("x", "x")
        await pilot.pause()
        assert "KV pool · capacity" in str(box_of(app).border_title)
        text = "\n".join(plain(line) for line in box_of(app).lines)
        for word in ("what", "from", "window", "good", "change"):
            assert f"\n{word} " in f"\n{text}"
        assert str(box_of(app).border_subtitle) == "tab next, esc close"


async def test_esc_closes_it_unmarks_and_other_keys_still_work() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = AgentServeApp(control)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("x", "shift+tab")
        await pilot.pause()
        figure = box_of(app).figure
        assert figure is not None
        assert figure.panel == "requests"
        await pilot.press("escape")
        await pilot.pause()
        assert not app.screen.query(ExplainBox)
        assert isinstance(app.screen, DashboardScreen)
        await pilot.press("x", "l")
        assert isinstance(app.screen, LogScreen)
        await pilot.press("x")
        await pilot.pause()
        assert isinstance(app.screen, DashboardScreen)
        control.current = scripted.stopped()
        app.tick()
        await pilot.pause()
        assert not app.screen.query(ExplainBox)


async def test_it_says_so_when_there_is_nothing_to_explain() -> None:
    app = AgentServeApp(scripted.ScriptedControl(scripted.stopped()))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("x")
        await pilot.pause()
        assert not app.screen.query(ExplainBox)
