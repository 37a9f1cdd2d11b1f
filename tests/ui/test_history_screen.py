from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from textual.containers import VerticalScroll
from textual.pilot import Pilot

from agentserve.domain.errors import AgentServeError
from agentserve.domain.history import RequestHistoryReport
from agentserve.ui.app import AgentServeApp
from agentserve.ui.lines import plain
from agentserve.ui.screens.history import HistoryScreen
from agentserve.ui.widgets.panel import Panel

from . import scripted
from .scripted_history import some_weeks
from .test_requests_screen import SIZES, until


class Readings:
    """Answers when it is told to; every question is remembered."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.may_answer = threading.Semaphore(0)
        self.error: AgentServeError | None = None

    def __call__(self, days: int) -> RequestHistoryReport:
        self.asked.append(days)
        assert self.may_answer.acquire(timeout=20)
        if self.error is not None:
            raise self.error
        return some_weeks(days)


def app_with(
    read: Callable[[int], RequestHistoryReport], *, ascii_only: bool = False
) -> AgentServeApp:
    control = scripted.ScriptedControl(scripted.serving())
    control.request_history = read
    return AgentServeApp(control, ascii_only=ascii_only)


def shown(app: AgentServeApp) -> Panel:
    return app.screen.query_one("#request-history", Panel)


def text_of(app: AgentServeApp) -> str:
    return "\n".join(plain(line) for line in shown(app).lines)


async def until_read(app: AgentServeApp, pilot: Pilot[None]) -> None:
    await until(pilot, lambda: "read at" in str(shown(app).border_title))
    await pilot.pause()


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_h_shows_past_requests_and_h_goes_back(size: tuple[int, int]) -> None:
    app = app_with(some_weeks)
    async with app.run_test(size=size) as pilot:
        await pilot.press("h")
        await until_read(app, pilot)
        assert "by day" in text_of(app)
        assert "by session" in text_of(app)
        assert app.screen.region.contains_region(app.screen.query_one("#action-bar").region)
        await pilot.press("h")
        assert len(app.screen_stack) == 1


async def test_the_screen_lives_while_the_history_is_read() -> None:
    read = Readings()
    app = app_with(read)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("h")
        await until(pilot, lambda: read.asked == [7])
        assert "reading…" in str(shown(app).border_title)
        assert "reading…" in text_of(app)
        app.tick()
        await pilot.press("question_mark")
        await until(pilot, lambda: not isinstance(app.screen, HistoryScreen))
        read.may_answer.release()
        await pilot.press("h")
        read.may_answer.release()
        await until_read(app, pilot)
        assert read.asked == [7, 7]


async def test_other_days_chosen_while_reading_are_read_next_and_only_they_are_shown() -> None:
    read = Readings()
    app = app_with(read)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("h")
        await until(pilot, lambda: read.asked == [7])
        await pilot.press("right", "plus", "right")
        read.may_answer.release()
        await until(pilot, lambda: read.asked == [7, 90])
        assert "by day" not in text_of(app)
        assert "last 90 days · reading…" in str(shown(app).border_title)
        read.may_answer.release()
        await until_read(app, pilot)
        assert "2026-04-01" in text_of(app)


async def test_fewer_days_have_their_own_reading_and_the_ends_have_none() -> None:
    asked: list[int] = []

    def read(days: int) -> RequestHistoryReport:
        asked.append(days)
        return some_weeks(days)

    app = app_with(read)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("h")
        await until_read(app, pilot)
        for key in ("left", "right", "minus", "left", "minus"):
            await pilot.press(key)
            await until_read(app, pilot)
        assert asked == [7, 30, 7]


async def test_a_problem_is_one_sentence_with_the_next_key_and_enter_tries_again() -> None:
    read = Readings()
    read.error = AgentServeError("The history is damaged.", "Move it away.")
    read.may_answer.release()
    app = app_with(read)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("h")
        await until_read(app, pilot)
        assert "The history is damaged. Move it away." in text_of(app)
        assert "enter read again" in text_of(app)
        read.error = None
        read.may_answer.release()
        await pilot.press("enter")
        await until(pilot, lambda: "by day" in text_of(app))
        assert "damaged" not in text_of(app)


async def test_leaving_before_the_answer_comes_does_no_harm() -> None:
    read = Readings()
    app = app_with(read)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("h")
        await until(pilot, lambda: read.asked == [7])
        (thread,) = [each for each in threading.enumerate() if each.name == "history-reader"]
        await pilot.press("escape")
        await pilot.pause()
        read.may_answer.release()
        await until(pilot, lambda: not thread.is_alive())
        await pilot.pause()
        assert len(app.screen_stack) == 1


async def test_what_does_not_fit_can_be_scrolled() -> None:
    app = app_with(some_weeks)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("h")
        await until_read(app, pilot)
        await pilot.press("end")
        await pilot.pause()
        scroll = app.screen.query_one(VerticalScroll)
        assert scroll.max_scroll_y > 0
        assert scroll.scroll_y == scroll.max_scroll_y


async def test_poor_terminals_get_ascii() -> None:
    app = app_with(some_weeks, ascii_only=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("h")
        await until_read(app, pilot)
        assert app.export_screenshot().isascii()
