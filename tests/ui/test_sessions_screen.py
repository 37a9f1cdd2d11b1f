"""The view of agent sessions: keys, what stays chosen, and what a tick costs."""

from __future__ import annotations

import statistics
import time

import msgspec
import pytest

from agentserve.domain.session import (
    EVICTIONS_KEPT,
    CacheMonitorView,
    EvictionView,
    SessionView,
)
from agentserve.domain.snapshot import Snapshot
from agentserve.domain.theme import ThemeSpec
from agentserve.ui.app import AgentServeApp
from agentserve.ui.explanations import EXPLANATIONS, figure_key
from agentserve.ui.lines import Role, plain
from agentserve.ui.panels.pool_bar import COLOURS
from agentserve.ui.screens.requests import RequestsScreen
from agentserve.ui.screens.sessions import SessionsScreen
from agentserve.ui.widgets.explaining import ExplainBox
from agentserve.ui.widgets.panel import Panel

from . import scripted, scripted_sessions
from .scripted_sessions import many, session, three

SIZES = [(80, 24), (120, 40), (200, 60)]
BARS = {(0, "session-pool")}
HEADINGS = {(0, "session-table"), (2, "session-timeline")}
NO_FIGURES = {
    *(
        "",
        "session",
        "agent",
        "turn",
        "turn began",
        "max tok",
        "max k tok",
        "known by",
        "common cache",
    ),
    *("═", "╍", "·"),
}
"""Words beside the figures, in headings and labels."""


def control_of(
    sessions: tuple[SessionView, ...] | None = None, **changes: object
) -> scripted.ScriptedControl:
    return scripted.ScriptedControl(scripted_sessions.snapshot(sessions, **changes))


def opened(app: AgentServeApp) -> SessionsScreen:
    assert isinstance(app.screen, SessionsScreen)
    return app.screen


def panel(app: AgentServeApp, name: str) -> Panel:
    return app.screen.query_one(f"#{name}", Panel)


def text_of(app: AgentServeApp, name: str) -> str:
    return "\n".join(plain(line) for line in panel(app, name).lines)


def chosen_row(app: AgentServeApp) -> str:
    return next(row for row in text_of(app, "session-table").splitlines() if row.startswith("▸"))


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_panels_neither_overlap_nor_leave_the_screen(size: tuple[int, int]) -> None:
    app = AgentServeApp(control_of())
    async with app.run_test(size=size) as pilot:
        for keys in (["c"], ["down", "enter"]):
            await pilot.press(*keys)
            await pilot.pause()
            regions = [each.region for each in app.screen.query(Panel) if each.is_on_screen]
            for index, region in enumerate(regions):
                assert app.screen.region.contains_region(region)
                assert not any(region.overlaps(other) for other in regions[index + 1 :])


async def test_the_key_opens_and_closes_it_and_esc_goes_back_step_by_step() -> None:
    app = AgentServeApp(control_of())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("c")
        await pilot.pause()
        assert "OpenCode 1" in chosen_row(app)
        await pilot.press("down", "enter")
        await pilot.pause()
        assert not panel(app, "session-table").is_on_screen
        assert "Claude Code 3" in text_of(app, "session-timeline")
        assert "turn 12 " in text_of(app, "session-turn")
        await pilot.press("escape")
        await pilot.pause()
        assert "Claude Code 3" in chosen_row(app)
        assert not panel(app, "session-timeline").is_on_screen
        await pilot.press("escape")
        assert len(app.screen_stack) == 1
        await pilot.press("c", "c")
        assert len(app.screen_stack) == 1


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_every_hint_of_the_bar_works_in_the_list_and_in_a_session(
    size: tuple[int, int],
) -> None:
    app = AgentServeApp(control_of((*many(2), three()[1], *many(90)[4:])))
    async with app.run_test(size=size) as pilot:
        await pilot.press("c", "down", "down")
        await pilot.pause()
        bar = text_of(app, "action-bar")
        for hint in ("enter turns", "↑/↓ move", "pgdn page", "x explain", "? help", "esc back"):
            assert f" {hint} " in bar
        for opened_first in (False, True):
            if opened_first:
                await pilot.press("enter")
            for keys, undone_by in (
                (["down"], "up"),
                (["enter"], "enter"),
                (["pagedown"], "pageup"),
                (["x"], "escape"),
            ):
                await pilot.pause()
                before = app.export_screenshot()
                await pilot.press(*keys)
                await pilot.pause()
                assert app.export_screenshot() != before, (keys, opened_first)
                await pilot.press(undone_by)
                await pilot.pause()
            assert text_of(app, "action-bar") == bar
        await pilot.press("escape")
        await pilot.pause()
        assert panel(app, "session-table").is_on_screen
        await pilot.press("escape")
        assert len(app.screen_stack) == 1


async def test_enter_shows_the_turns_and_hides_them_again() -> None:
    app = AgentServeApp(control_of())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("c", "down", "enter", "x")
        await pilot.pause()
        assert opened(app).opened == "s3"
        await pilot.press("enter")
        await pilot.pause()
        assert opened(app).opened is None
        assert not app.screen.query(ExplainBox)
        assert "Claude Code 3" in chosen_row(app)


async def test_enter_without_sessions_says_why_nothing_opens() -> None:
    app = AgentServeApp(scripted.ScriptedControl(scripted.serving()))
    said: list[str] = []
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("c")
        app.screen.notify = lambda message, **_: said.append(message)  # type: ignore[method-assign]
        await pilot.press("enter")
        await pilot.pause()
        assert said == ["There is no agent session yet."]


@pytest.mark.parametrize(("size", "shown"), [*zip(SIZES, (1, 4, 8), strict=True)], ids=str)
async def test_evictions_fill_the_rows_kept_for_them_and_move_no_row_of_the_table(
    size: tuple[int, int], shown: int
) -> None:
    evictions = tuple(
        EvictionView(
            at_unix_s=scripted.START_UNIX_S - n, loser="s1", winner="s3", blocks=n, tokens=n
        )
        for n in range(1, EVICTIONS_KEPT + 1)
    )
    regions = []
    for number in (0, EVICTIONS_KEPT):
        monitor = msgspec.structs.replace(scripted_sessions.MONITOR, evictions=evictions[:number])
        app = AgentServeApp(control_of(cache_monitor=monitor))
        async with app.run_test(size=size) as pilot:
            await pilot.press("c")
            await pilot.pause()
            table, footer = panel(app, "session-table"), text_of(app, "session-footer")
            regions.append(table.region)
            assert footer.count(" lost ") == min(number, shown)
            assert table.size.height >= 13
            if number:
                assert "OpenCode 1 lost 1 token to Claude Code 3" in footer
    assert regions[0] == regions[1]


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_keys_move_over_all_rows_and_the_cursor_stays_in_view(size: tuple[int, int]) -> None:
    app = AgentServeApp(control_of(many(90)))
    async with app.run_test(size=size) as pilot:
        await pilot.press("c")
        await pilot.pause()
        for key, label in (
            ("end", "Codex 89"),
            ("k", "OpenCode 88"),
            ("home", "Claude Code 0"),
            ("j", "OpenCode 1"),
            ("down", "Codex 2"),
            ("up", "OpenCode 1"),
        ):
            await pilot.press(key)
            await pilot.pause()
            assert label in chosen_row(app), key
        rows = panel(app, "session-table").size.height - 1
        await pilot.press("pagedown")
        await pilot.pause()
        assert f" {1 + rows} " in chosen_row(app)
        await pilot.press("pageup")
        await pilot.pause()
        assert "OpenCode 1" in chosen_row(app)


async def test_the_choice_stays_with_its_session_while_rows_move() -> None:
    control = control_of(many(5))
    app = AgentServeApp(control)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("c", "down", "down")
        await pilot.pause()
        assert "Codex 2" in chosen_row(app)
        rows = control.current.sessions
        moved = (session(9), rows[4], *rows[:4])
        control.current = msgspec.structs.replace(control.current, sessions=moved)
        app.tick()
        assert "Codex 2" in chosen_row(app)
        assert text_of(app, "session-table").splitlines()[5].startswith("▸")
        await pilot.press("enter")
        control.current = msgspec.structs.replace(control.current, sessions=moved[::-1])
        app.tick()
        assert "Codex 2" in text_of(app, "session-timeline")
        control.current = msgspec.structs.replace(control.current, sessions=())
        app.tick()
        assert "left the list" in text_of(app, "session-timeline")
        await pilot.press("down", "pagedown", "enter")
        await pilot.pause()
        assert "No agent session yet" in text_of(app, "session-table")


async def test_a_turn_stays_chosen_while_newer_ones_arrive_and_the_newest_is_followed() -> None:
    turns = scripted_sessions.history()
    control = control_of((session(1, history=turns[2:]),))
    app = AgentServeApp(control)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("c", "enter")
        await pilot.pause()
        assert "turn 10 " in text_of(app, "session-turn")
        control.current = scripted_sessions.snapshot((session(1, history=turns[1:]),))
        app.tick()
        assert "turn 11 " in text_of(app, "session-turn")
        await pilot.press("down", "down")
        await pilot.pause()
        assert "turn 9 " in text_of(app, "session-turn")
        control.current = scripted_sessions.snapshot((session(1, history=turns),))
        app.tick()
        assert "turn 9 " in text_of(app, "session-turn")
        await pilot.press("end")
        await pilot.pause()
        assert "first request" in text_of(app, "session-turn")


async def test_what_does_not_fit_is_reached_by_pages() -> None:
    app = AgentServeApp(control_of())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("c", "down", "enter")
        await pilot.pause()
        assert "more lines" in text_of(app, "session-turn")
        await pilot.press("pagedown", "space", "pagedown", "pagedown")
        await pilot.pause()
        assert "9.4 s a turn" in text_of(app, "session-turn")
        assert "more lines" not in text_of(app, "session-turn")
        await pilot.press("pageup", "pageup", "pageup")
        await pilot.pause()
        assert text_of(app, "session-turn").startswith("turn 12 ")


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        (scripted.serving(), ("shows with its first request", "(a)")),
        (scripted.stopped(), ("start an engine (s)", "(a)")),
    ],
)
async def test_without_sessions_it_says_what_must_happen_and_the_next_key(
    snapshot: Snapshot, words: tuple[str, ...]
) -> None:
    app = AgentServeApp(scripted.ScriptedControl(snapshot))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("c", "enter", "down", "end")
        await pilot.pause()
        for each in words:
            assert each in text_of(app, "session-table")


async def test_unknown_residency_is_said() -> None:
    monitor = CacheMonitorView(residency_problem="Cache events were lost: rebuilding.")
    app = AgentServeApp(control_of(cache_monitor=monitor))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("c")
        await pilot.pause()
        assert "! Cache events were lost: rebuilding." in text_of(app, "session-footer")
        assert "owners not known" in text_of(app, "session-pool")


async def test_nothing_is_written_while_nothing_changes() -> None:
    sessions = tuple(
        msgspec.structs.replace(each, last_seen_unix_s=scripted.START_UNIX_S - 7_200)
        for each in three()
    )
    monitor = msgspec.structs.replace(scripted_sessions.MONITOR, evictions=())
    control = control_of(sessions, cache_monitor=monitor)
    app = AgentServeApp(control)
    async with app.run_test(size=(120, 40)) as pilot:
        for keys in (["c"], ["down", "enter"]):
            await pilot.press(*keys)
            await pilot.pause()
            panels = list(app.screen.query(Panel)) + list(app.screen_stack[0].query(Panel))
            before = [each.rows_written for each in panels]
            for second in range(4):
                now = scripted.START_UNIX_S + second
                control.current = msgspec.structs.replace(control.current, time=now)
                app.tick()
            await pilot.pause()
            assert [each.rows_written for each in panels] == before


async def test_only_the_row_of_the_session_that_changed_is_written() -> None:
    control = control_of(many(5))
    app = AgentServeApp(control)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("c")
        await pilot.pause()
        table = panel(app, "session-table")
        before = table.rows_written
        rows = list(control.current.sessions)
        rows[3] = msgspec.structs.replace(rows[3], prompt_tokens=50_000)
        control.current = msgspec.structs.replace(control.current, sessions=tuple(rows))
        app.tick()
        assert table.rows_written - before == 1


async def test_a_tick_with_a_thousand_sessions_is_short() -> None:
    """Each tick brings equal but different objects, as a tracker makes them.

    The bound is far above what it takes (about 5 ms), for the machine is shared.
    """
    control = control_of(many(1_000, turns=12))
    app = AgentServeApp(control)
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.press("c", "end")
        await pilot.pause()
        snapshots = [
            scripted_sessions.snapshot(many(1_000, turns=12), time=scripted.START_UNIX_S + second)
            for second in range(9)
        ]
        times_s = []
        for snapshot in snapshots:
            control.current = snapshot
            begun = time.process_time()
            app.tick()
            times_s.append(time.process_time() - begun)
        assert len(panel(app, "session-table").lines) <= 60
        assert statistics.median(times_s) < 0.05


@pytest.mark.parametrize("size", SIZES[:2], ids=str)
async def test_poor_terminals_get_ascii(size: tuple[int, int]) -> None:
    app = AgentServeApp(control_of(), ascii_only=True)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert app.export_screenshot().isascii()
        for keys in (["c"], ["down", "enter"]):
            await pilot.press(*keys)
            await pilot.pause()
            assert app.export_screenshot().isascii(), keys


def test_the_colours_of_the_shares_differ_in_every_theme(
    theme_specs: tuple[ThemeSpec, ...],
) -> None:
    assert len(theme_specs) >= 6
    for spec in theme_specs:
        colours = {getattr(spec.roles, role.value) for role in COLOURS}
        assert len(colours - {None}) == len(COLOURS) == 5, spec.name


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_every_figure_is_explained_where_it_stands(size: tuple[int, int]) -> None:
    app = AgentServeApp(control_of())
    async with app.run_test(size=size) as pilot:
        for keys, names in (
            (["c"], ("session-pool", "session-table", "session-footer")),
            (["down", "enter"], ("session-timeline",)),
        ):
            await pilot.press(*keys)
            await pilot.pause()
            for name in names:
                words = {
                    figure_key(span.text)
                    for row, line in enumerate(panel(app, name).lines)
                    for span in line
                    if (row, name) not in BARS
                    and (span.role is Role.LABEL or (row, name) in HEADINGS)
                }
                assert words - NO_FIGURES <= set(EXPLANATIONS[name])
            await pilot.press("x")
            await pilot.pause()
            assert isinstance(app.screen, SessionsScreen)
            seen = []
            for _ in range(40):
                figure = app.screen.query_one(ExplainBox).figure
                assert figure is not None
                if figure in seen:
                    break
                seen.append(figure)
                await pilot.press("tab")
                await pilot.pause()
            assert {figure.panel for figure in seen} == set(names)
            await pilot.press("escape")
            await pilot.pause()
            assert not app.screen.query(ExplainBox)


async def test_the_dashboard_shows_a_table_where_there_is_room_and_else_one_line() -> None:
    for size, rows in (((80, 24), 1), ((120, 40), 4), ((200, 60), 4)):
        app = AgentServeApp(control_of())
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            shown = panel(app, "sessions")
            assert shown.is_on_screen
            assert len(shown.lines) == rows
            assert "clock" in text_of(app, "sessions")


async def test_a_running_request_names_its_session() -> None:
    snapshot = scripted_sessions.snapshot()
    first = msgspec.structs.replace(snapshot.in_flight[0], session="s3")
    control = scripted.ScriptedControl(
        msgspec.structs.replace(snapshot, in_flight=(first, *snapshot.in_flight[1:]))
    )
    app = AgentServeApp(control)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("v", "enter")
        await pilot.pause()
        assert isinstance(app.screen, RequestsScreen)
        assert "Claude Code 3" in text_of(app, "request-detail")
        await pilot.press("down")
        await pilot.pause()
        assert "Claude Code 3" not in text_of(app, "request-detail")
