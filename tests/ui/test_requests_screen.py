from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest
from textual.pilot import Pilot

from agentserve.ui.app import AgentServeApp
from agentserve.ui.lines import plain
from agentserve.ui.request_list import SortKey
from agentserve.ui.screens.requests import RequestsScreen
from agentserve.ui.widgets.panel import Panel
from agentserve.ui.widgets.search_box import SearchBox

from . import scripted, scripted_sessions

SIZES = [(80, 24), (120, 40), (200, 60)]


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 10.0
    while not holds():
        assert time.monotonic() < end, "did not happen in time"
        await pilot.pause(0.01)


def opened(app: AgentServeApp) -> RequestsScreen:
    assert isinstance(app.screen, RequestsScreen)
    return app.screen


def text_of(app: AgentServeApp, name: str) -> str:
    return "\n".join(plain(line) for line in app.screen.query_one(f"#{name}", Panel).lines)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_enter_shows_the_request_under_the_cursor_and_esc_goes_back_step_by_step(
    size: tuple[int, int],
) -> None:
    app = AgentServeApp(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=size) as pilot:
        await pilot.press("v", "down", "j", "down", "enter")
        await pilot.pause()
        screen = opened(app)
        assert screen.request is not None
        assert screen.request.request_id == "r1"
        detail = screen.query_one("#request-detail", Panel)
        assert detail.is_on_screen
        assert app.screen.region.contains_region(detail.region)
        assert "claude-cli" in text_of(app, "request-detail")
        await pilot.press("k")
        await pilot.pause()
        assert "opencode" in text_of(app, "request-detail")
        await pilot.press("escape")
        await pilot.pause()
        assert not screen.query_one("#request-detail", Panel).is_on_screen
        assert len(app.screen_stack) == 2
        await pilot.press("escape")
        assert len(app.screen_stack) == 1


async def test_a_plain_key_sorts_and_the_heading_follows() -> None:
    app = AgentServeApp(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("v", "o")
        await pilot.pause()
        assert opened(app).view.sort is SortKey.PROMPT
        assert "by prompt" in str(app.screen.query_one("#request-table").border_title)
        first = text_of(app, "request-table").splitlines()[1]
        assert "41.3k" in first


async def test_a_filter_works_while_typing_stays_after_enter_and_leaves_with_esc() -> None:
    app = AgentServeApp(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("v", "slash", "c", "o", "d", "e", "x", "s", "q")
        await pilot.pause()
        # The letters of other actions are text here.
        assert app.is_running
        assert opened(app).view.text == "codexsq"
        assert "no request matches" in text_of(app, "request-table")
        await pilot.press("backspace", "backspace", "enter")
        await until(pilot, lambda: not app.screen.query(SearchBox))
        assert opened(app).view.text == "codex"
        assert "opencode" not in text_of(app, "request-table")
        await pilot.press("escape")
        assert opened(app).view.text == ""
        await pilot.press("slash", "x")
        await pilot.press("escape")
        await until(pilot, lambda: not app.screen.query(SearchBox))
        assert opened(app).view.text == ""
        assert isinstance(app.screen, RequestsScreen)


async def test_a_finished_request_names_its_session_and_the_user_s_key_to_the_sessions() -> None:
    snapshot = scripted_sessions.snapshot()
    newest, *others = snapshot.recent_requests
    sessions = snapshot.sessions
    snapshot = msgspec.structs.replace(
        snapshot,
        in_flight=(),
        recent_requests=(msgspec.structs.replace(newest, session=sessions[0].id), *others),
    )
    control = scripted.ScriptedControl(snapshot)
    app = AgentServeApp(control, keys={"view.sessions": "f9"})
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("v", "enter")
        await pilot.pause()
        label = sessions[0].label
        assert label in text_of(app, "request-detail")
        assert "f9 shows the sessions" in text_of(app, "request-detail")
        assert label in text_of(app, "request-table").splitlines()[1]
        await pilot.press("slash", *("space" if sign == " " else sign for sign in label), "enter")
        await until(pilot, lambda: not app.screen.query(SearchBox))
        assert len(text_of(app, "request-table").splitlines()) == 2
        control.current = msgspec.structs.replace(snapshot, sessions=sessions[1:])
        app.tick()
        await pilot.press("escape", "escape")
        await pilot.pause()
        # The session was forgotten.
        assert label not in text_of(app, "request-table")


async def test_nothing_is_written_while_no_request_changes() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = AgentServeApp(control)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("v", "enter")
        await pilot.pause()
        panels = list(app.screen.query(Panel))
        before = [each.rows_written for each in panels]
        for second in range(4):
            control.current = msgspec.structs.replace(control.current, time=float(second))
            app.tick()
        await pilot.pause()
        assert [each.rows_written for each in panels] == before


async def test_poor_terminals_get_ascii() -> None:
    app = AgentServeApp(scripted.ScriptedControl(scripted.serving()), ascii_only=True)
    async with app.run_test(size=(120, 40)) as pilot:
        for key in ("v", "g", "a", "l"):
            await pilot.press(key)
            await pilot.press("enter" if key == "v" else "down")
            await pilot.pause()
            assert app.export_screenshot().isascii(), key
        await pilot.press("escape", "x")
        await pilot.pause()
        assert app.export_screenshot().isascii()
