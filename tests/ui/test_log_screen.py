from __future__ import annotations

import time
from collections.abc import Callable

from textual.pilot import Pilot

from agentserve.ui.app import AgentServeApp
from agentserve.ui.lines import Role, Span, plain
from agentserve.ui.panels import log as log_panel
from agentserve.ui.panels.log import Level
from agentserve.ui.screens.log import LogScreen
from agentserve.ui.widgets.log_view import LogView
from agentserve.ui.widgets.search_box import SearchBox

from . import scripted


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 10.0
    while not holds():
        assert time.monotonic() < end, "did not happen in time"
        await pilot.pause(0.01)


def view_of(app: AgentServeApp) -> LogView:
    assert isinstance(app.screen, LogScreen)
    return app.screen.view


def shown(app: AgentServeApp) -> list[str]:
    return [plain(row)[9:] for row in view_of(app).rows]


def app_with(*lines: str) -> tuple[AgentServeApp, scripted.ScriptedControl]:
    control = scripted.ScriptedControl(scripted.serving())
    control.log(*lines)
    return AgentServeApp(control), control


async def test_scrolling_up_stops_following_and_a_key_follows_again() -> None:
    app, control = app_with(*(f"line {number}" for number in range(100)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        await pilot.press("up")
        await until(pilot, lambda: not view_of(app).following)
        app.tick()
        assert "paused, f follows" in str(view_of(app).border_title)
        top = view_of(app).scroll_offset.y
        control.log("newest")
        app.tick()
        await pilot.pause()
        assert view_of(app).scroll_offset.y == top
        await pilot.press("f")
        await pilot.pause()
        assert view_of(app).following
        assert view_of(app).is_vertical_scroll_end
        assert "paused" not in str(view_of(app).border_title)


async def test_a_level_hides_what_is_less_and_keeps_what_belongs_to_an_error() -> None:
    app, control = app_with(
        "INFO fine", "WARNING slow", "ERROR broken", "  File core.py line 3", "INFO fine again"
    )
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "e")
        await pilot.pause()
        assert view_of(app).level is Level.WARNING
        assert shown(app) == ["WARNING slow", "ERROR broken", "  File core.py line 3"]
        await pilot.press("e")
        await pilot.pause()
        assert shown(app) == ["ERROR broken", "  File core.py line 3"]
        assert "only errors" in str(view_of(app).border_title)
        control.log("INFO more", "CRITICAL worse")
        app.tick()
        await pilot.pause()
        assert shown(app)[-1] == "CRITICAL worse"
        assert "INFO more" not in shown(app)
        await pilot.press("e")
        await pilot.pause()
        assert len(shown(app)) == 7


async def test_a_search_marks_finds_newest_first_and_goes_round() -> None:
    lines = [f"line {number}" for number in range(90)]
    lines[10] = lines[50] = lines[80] = "here is the [Needle"
    app, _ = app_with(*lines)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "slash", *"needle")
        await pilot.pause()
        view = view_of(app)
        assert view.matches == (10, 50, 80)
        assert view.found == 80
        await pilot.press("enter")
        await until(pilot, lambda: not app.screen.query(SearchBox))
        assert "needle: 3 of 3 lines" in str(view.border_title)
        for key, expected in (("N", 50), ("N", 10), ("N", 80), ("n", 10)):
            await pilot.press(key)
            await pilot.pause()
            assert view.found == expected
            assert expected in {line.number for line in view.lines_in_view()}
            assert not view.following
        await pilot.press("escape")
        assert view.wanted == ""
        assert isinstance(app.screen, LogScreen)


async def test_a_search_without_a_result_says_so_and_moves_nothing() -> None:
    app, _ = app_with("one", "two")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "slash", *"zz", "enter")
        await pilot.pause()
        assert "zz: not found" in str(view_of(app).border_title)
        await pilot.press("n")
        assert view_of(app).found is None


def test_marks_are_put_around_each_place_and_nothing_is_lost() -> None:
    line = (Span("12:00:00 ", Role.MUTED), Span("Cache and cache.", Role.TEXT))
    marked = log_panel.marked(line, "cache")
    assert plain(marked) == plain(line)
    assert [span.text for span in marked if span.role is Role.MARKED] == ["Cache", "cache"]
    assert log_panel.marked(line, "") is line
    assert plain(log_panel.marked(line, "(")) == plain(line)


async def test_wide_lines_wrap_or_are_moved_along() -> None:
    app, _ = app_with("short", "wide " + "x" * 150 + " end")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        assert len(shown(app)) > 2
        await pilot.press("w")
        await pilot.pause()
        view = view_of(app)
        assert len(shown(app)) == 2
        assert view.virtual_size.width > 150
        for _ in range(4):
            await pilot.press("right")
        await until(pilot, lambda: view.scroll_offset.x > 0)
        await pilot.press("w")
        await pilot.pause()
        assert len(shown(app)) > 2


async def test_the_lines_in_view_are_copied_whole_and_as_data() -> None:
    app, _ = app_with(
        *(f"line {number}" for number in range(60)), "\x1b[31mred\x1b[0m " + "y" * 200
    )
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        await pilot.press("y")
        copied = app.clipboard.splitlines()
        assert copied[-1].endswith("red " + "y" * 200)
        assert "\x1b" not in app.clipboard
        assert "line 0" not in copied[0]
        assert 10 < len(copied) < 23


async def test_the_log_stays_bounded_at_every_level() -> None:
    app, control = app_with(*(f"ERROR {number}" for number in range(1_500)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l", "e")
        await pilot.pause()
        control.log(*(f"INFO {number}" for number in range(1_900)))
        app.tick()
        await pilot.pause()
        assert len(shown(app)) == 100
        await pilot.press("e", "e")
        await pilot.pause()
        assert len(shown(app)) == 2_000
