from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.command import CommandList, DiscoveryHit, Hit
from textual.message import Message
from textual.notifications import Notify
from textual.pilot import Pilot

from agentserve.domain.failure import Failure
from agentserve.domain.lifecycle import EngineState, EngineStatus, PhaseTime, StartPhase
from agentserve.domain.snapshot import Snapshot
from agentserve.domain.theme import ThemeSpec
from agentserve.ui.actions import ACTIONS
from agentserve.ui.app import AgentServeApp
from agentserve.ui.lines import Role, plain
from agentserve.ui.messages import EngineStateChanged
from agentserve.ui.palette import ActionProvider, Palette
from agentserve.ui.screens.dashboard import DashboardScreen
from agentserve.ui.screens.dialogs import ChoiceDialog
from agentserve.ui.screens.log import LogScreen
from agentserve.ui.screens.requests import RequestsScreen
from agentserve.ui.screens.text import GpuScreen, HelpScreen
from agentserve.ui.widgets.panel import Panel

from . import scripted

SIZES = [(80, 24), (120, 40), (200, 60)]
METRICS = ("kv", "prefix-cache", "latency", "throughput")


def make_app(control: scripted.ScriptedControl, **changes: Any) -> AgentServeApp:
    return AgentServeApp(control, **changes)


def panel(app: AgentServeApp, name: str) -> Panel:
    return app.screen_stack[0].query_one(f"#{name}", Panel)


def text_of(app: AgentServeApp, name: str) -> str:
    return "\n".join(plain(line) for line in panel(app, name).lines)


def shown(app: AgentServeApp) -> list[Panel]:
    return [each for each in app.screen.query(Panel) if each.is_on_screen and each.size]


def busy(state: EngineState) -> Snapshot:
    """An engine in `state` with requests in flight."""
    return msgspec.structs.replace(scripted.serving(), engine=scripted.engine(state))


async def until(pilot: Pilot[None], holds: Callable[[], bool], deadline_s: float = 10.0) -> None:
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, "did not happen in time"
        await pilot.pause(0.01)


def toasts(messages: list[Message]) -> list[str]:
    return [
        f"{message.notification.title} {message.notification.message}".strip()
        for message in messages
        if isinstance(message, Notify)
    ]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    "snapshot",
    [scripted.serving(), scripted.starting(), scripted.failed(), scripted.stopped()],
    ids=["serving", "starting", "failed", "stopped"],
)
async def test_panels_neither_overlap_nor_leave_the_screen(
    snapshot: Snapshot, size: tuple[int, int]
) -> None:
    control = scripted.ScriptedControl(snapshot)
    control.log(*(f"line {number}" for number in range(80)))
    app = make_app(control)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        regions = [each.region for each in shown(app)]
        assert len(regions) >= 5
        for index, region in enumerate(regions):
            assert app.screen.region.contains_region(region)
            assert not any(region.overlaps(other) for other in regions[index + 1 :])
        for each in shown(app):
            assert all(len(plain(line)) <= each.size.width for line in each.lines)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_every_figure_is_whole_at_every_size(size: tuple[int, int]) -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        text = "\n".join(text_of(app, name) for name in (*METRICS, "gpus", "requests", "header"))
        for figure in (
            *("READY", "qwen-27b-nvfp4", "http://127.0.0.1:8000", "1:13:09", "gen 3"),
            *("42.1 %", "127k tok", "1.29 x", "784 tok"),
            *("91.2 %", "n    50", "87.4 %", "14.3k tok/s", "1184 tok/s", "3.41M tok"),
            *("412 ms", "2.31 s", "21.4 ms", "37.7 ms", "112 ms", "10412"),
            *("2 req", "1 req", "61.4 tok/s", "71.3 %", "1.43 tok/step"),
            *("14.3/15.9 GiB", "96 %", "64 °C", "132/180 W", "↓1.24 ↑0.31 GB/s"),
            *("41.3k", "40.0k", "412 ms"),
        ):
            assert figure in text


async def test_a_window_that_is_too_small_says_so_and_recovers() -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(60, 15)) as pilot:
        await pilot.pause()
        assert app.screen.query_one("#too-small").is_on_screen
        assert shown(app) == []
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert not app.screen.query_one("#too-small").is_on_screen
        assert "42.1 %" in text_of(app, "kv")


async def test_nothing_is_written_while_nothing_changes() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    control.log("one line")
    app = make_app(control)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        panels = list(app.screen.query(Panel))
        before = {each.id: each.rows_written for each in panels}
        for second in range(5):
            control.current = msgspec.structs.replace(control.current, time=float(second))
            app.tick()
        await pilot.pause()
        assert {each.id: each.rows_written for each in panels} == before


async def test_only_the_row_that_changed_is_written() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        before = {each.id: each.rows_written for each in app.screen.query(Panel)}
        engine = msgspec.structs.replace(control.current.engine, uptime_s=9_999.0)
        control.current = msgspec.structs.replace(control.current, engine=engine)
        app.tick()
        after = {each.id: each.rows_written for each in app.screen.query(Panel)}
        changed = {name: after[name] - rows for name, rows in before.items() if after[name] > rows}
        assert changed == {"header": 1}


@pytest.mark.parametrize(
    ("snapshot", "key", "expected"),
    [
        (scripted.stopped(), "s", ("start",)),
        (scripted.failed(), "s", ("start",)),
        (scripted.starting(), "s", ("stop",)),
        (scripted.idle(), "s", ("stop",)),
        (scripted.idle(), "r", ("restart", "abort")),
        (scripted.idle(), "3", ("switch", "qwen-27b-mtp", "abort")),
        (scripted.stopped(), "2", ("start", "qwen-27b-nvfp4")),
        (scripted.failed(), "1", ("start", "cpu-tiny")),
    ],
)
async def test_keys_ask_for_what_fits_the_state(
    snapshot: Snapshot, key: str, expected: tuple[str, ...]
) -> None:
    control = scripted.ScriptedControl(snapshot)
    async with make_app(control).run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        assert control.requests == [expected]


@pytest.mark.parametrize(
    ("snapshot", "key", "explanation"),
    [
        (scripted.serving(), "2", "qwen-27b-nvfp4 is running already; press r to restart it."),
        (scripted.stopped(), "r", "Nothing is running; press s to start."),
        (scripted.stopped(), "9", "There is no preset in slot 9."),
    ],
)
async def test_an_impossible_key_asks_for_nothing_and_says_why(
    snapshot: Snapshot, key: str, explanation: str
) -> None:
    control = scripted.ScriptedControl(snapshot)
    messages: list[Message] = []
    app = make_app(control)
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await pilot.press(key)
        await pilot.pause()
        assert control.requests == []
        assert toasts(messages) == [explanation]


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
@pytest.mark.parametrize(
    "snapshot",
    [
        scripted.idle(),
        scripted.starting(),
        busy(EngineState.WARMING),
        busy(EngineState.STOPPING),
        scripted.failed(),
        scripted.stopped(),
    ],
    ids=["idle", "starting", "warming", "stopping", "failed", "stopped"],
)
async def test_quit_keys_leave_at_once_where_no_request_would_be_lost(
    snapshot: Snapshot, key: str
) -> None:
    control = scripted.ScriptedControl(snapshot)
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        await until(pilot, lambda: not app.is_running)
    assert app.return_code == 0
    assert control.requests == []


@pytest.mark.parametrize(
    ("key", "screen"), [("l", LogScreen), ("g", GpuScreen), ("question_mark", HelpScreen)]
)
async def test_view_keys_open_and_close_their_screen(key: str, screen: type[object]) -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        assert isinstance(app.screen, screen)
        await pilot.press(key)
        assert isinstance(app.screen, DashboardScreen)
        await pilot.press(key)
        await pilot.press("escape")
        assert isinstance(app.screen, DashboardScreen)


@pytest.mark.parametrize("back", ["question_mark", "escape"])
async def test_help_goes_back_to_the_view_that_it_was_asked_for_in(back: str) -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("v")
        before = app.screen
        assert isinstance(before, RequestsScreen)
        await pilot.press("question_mark")
        shown: list[object] = [app.screen]
        await pilot.press(back)
        shown.append(app.screen)
        await pilot.press("question_mark", "g")
        shown.append(app.screen)
        assert [type(screen) for screen in shown] == [HelpScreen, RequestsScreen, GpuScreen]
        assert shown[1] is before
        assert len(app.screen_stack) == 2


async def test_one_view_replaces_another() -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(80, 24)) as pilot:
        for key in ("l", "question_mark", "g", "l"):
            await pilot.press(key)
        assert isinstance(app.screen, LogScreen)
        assert len(app.screen_stack) == 2


async def test_the_remaining_keys_do_what_the_registry_says() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    messages: list[Message] = []
    app = make_app(control)
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await pilot.press("u")
        await pilot.pause()
        assert app.clipboard == "http://127.0.0.1:8000"
        assert toasts(messages) == ["Copied http://127.0.0.1:8000"]
        for key in ("colon", "ctrl+p", "t"):
            await pilot.press(key)
            await until(pilot, lambda: app.screen.has_class("--textual-command-palette"))
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, DashboardScreen))


async def test_the_bar_dims_what_is_impossible_and_stays_in_place() -> None:
    control = scripted.ScriptedControl(scripted.stopped())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        [stopped] = panel(app, "action-bar").lines
        assert {text.strip(): role for text, role in stopped}["restart"] is Role.DIMMED
        assert app.check_action("restart_engine", ()) is None
        control.current = scripted.serving()
        app.tick()
        [ready] = panel(app, "action-bar").lines
        assert {text.strip(): role for text, role in ready}["restart"] is Role.LABEL
        assert app.check_action("restart_engine", ()) is True
        assert app.check_action("start_slot", (2,)) is None
        assert plain(stopped).replace("start ", "stop  ", 1) == plain(ready)
        assert "q quit" in plain(ready)


async def test_the_bar_can_be_clicked() -> None:
    control = scripted.ScriptedControl(scripted.idle())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        x = text_of(app, "action-bar").index("restart")
        await pilot.click("#action-bar", offset=(x, 0))
        assert control.requests == [("restart", "abort")]


async def test_the_palette_offers_exactly_what_is_possible() -> None:
    control = scripted.ScriptedControl(scripted.stopped())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        provider = ActionProvider(app.screen)
        offered = [hit.text async for hit in provider.discover() if isinstance(hit, DiscoveryHit)]
        assert "start  (s)" in offered
        assert "start qwen-27b-mtp  (3)" in offered
        assert not [title for title in offered if title and title.startswith("restart")]
        [*hits] = [hit async for hit in provider.search("nvfp4") if isinstance(hit, Hit)]
        assert len(hits) == 1
        await hits[0].command()
        assert control.requests == [("start", "qwen-27b-nvfp4")]


async def test_the_help_lists_every_action_with_its_key() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(120, 60)) as pilot:
        await pilot.press("question_mark")
        await pilot.pause()
        lines = app.screen.query_one("#help", Panel).lines
        text = " ".join("".join(plain(line) for line in lines).split())
        for action in ACTIONS:
            if action.id.startswith("preset.") and int(action.keys[0]) > len(scripted.PRESETS):
                continue
            assert action.title_at(app.frame) in text
            assert (action.key_label or "palette") in text


async def test_a_state_change_posted_from_a_thread_is_shown_at_once() -> None:
    control = scripted.ScriptedControl(scripted.starting(StartPhase.WARM_UP))
    messages: list[Message] = []
    app = make_app(control)
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await pilot.pause()
        ready = scripted.serving()
        control.current = ready
        status = EngineStatus(state=EngineState.READY, generation=3)
        thread = threading.Thread(target=app.post_message, args=(EngineStateChanged(status),))
        thread.start()
        thread.join()
        await until(pilot, lambda: app.frame.state is EngineState.READY)
        await pilot.pause()
        assert [m.status for m in messages if isinstance(m, EngineStateChanged)] == [status]
        assert "READY" in text_of(app, "header")
        assert toasts(messages) == ["qwen-27b-nvfp4 is ready after 34 s."]


async def fail(
    pilot: Pilot[None], app: AgentServeApp, control: scripted.ScriptedControl, failure: Failure
) -> None:
    """Let the engine fail, and show that."""
    await pilot.pause()
    failed = scripted.failed()
    engine = msgspec.structs.replace(failed.engine, failure=failure)
    control.current = msgspec.structs.replace(failed, engine=engine)
    app.tick()
    await pilot.pause()


async def test_a_failure_rings_with_title_and_cause_as_data() -> None:
    hostile = msgspec.structs.replace(scripted.FAILURE, title="[bold]x[/", cause="\x1b[2Jwhy [/")
    control = scripted.ScriptedControl(scripted.starting())
    messages: list[Message] = []
    app = make_app(control)
    async with app.run_test(
        size=(80, 24), notifications=True, message_hook=messages.append
    ) as pilot:
        await fail(pilot, app, control, hostile)
        assert toasts(messages) == ["[bold]x[/ why [/"]
        assert "✗ [bold]x[/" in text_of(app, "stage")


async def test_a_start_is_not_announced_for_an_engine_that_was_ready_before() -> None:
    messages: list[Message] = []
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        app.tick()
        await pilot.pause()
        assert toasts(messages) == []


async def test_the_log_screen_follows_until_somebody_scrolls_up() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    control.log(*(f"line {number}" for number in range(100)))
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        assert isinstance(app.screen, LogScreen)
        view = app.screen.view
        assert view.following
        control.log("[bold]newest[/ \x1b[31m")
        app.tick()
        await pilot.pause()
        assert view.following
        assert plain(view.rows[-1]).endswith("[bold]newest[/ ")
        await pilot.press("home")
        await until(pilot, lambda: not view.following)
        top = view.scroll_offset.y
        control.log("more", "and more")
        app.tick()
        await pilot.pause()
        assert view.scroll_offset.y == top
        await pilot.press("end")
        await until(pilot, lambda: view.following)


async def test_a_flood_of_log_lines_stays_bounded_and_the_gap_is_shown() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    control.log(*("x" * 300 for _ in range(3_000)))
    control.missed = 41
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        assert isinstance(app.screen, LogScreen)
        control.log(*(f"late {number}" for number in range(2_500)))
        app.tick()
        await pilot.pause()
        view = app.screen.view
        assert len(view.rows) == 2_000
        assert "41 lines not shown" in str(view.border_title)
        assert "late 2499" in plain(view.rows[-1])


async def test_the_dashboards_log_shows_the_last_lines_as_data() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    control.log("[core.py:708] \x1b[31mred\x1b[0m [/bold] 漢字")
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "[core.py:708] red [/bold] 漢字" in text_of(app, "log")


async def test_the_screen_goes_from_start_to_measurements_and_back_to_the_presets() -> None:
    control = scripted.ScriptedControl(scripted.starting())
    app = make_app(control)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert panel(app, "stage").is_on_screen
        assert not panel(app, "kv").is_on_screen
        control.current = scripted.serving()
        app.tick()
        await pilot.pause()
        assert panel(app, "kv").is_on_screen
        assert not panel(app, "stage").is_on_screen
        control.current = scripted.stopped()
        app.tick()
        await pilot.pause()
        assert "1 cpu-tiny" in text_of(app, "stage")


@pytest.mark.parametrize(("uptime_s", "measurements"), [(12.0, True), (None, False)])
async def test_a_stop_keeps_measurements_only_of_an_engine_that_was_ready(
    uptime_s: float | None, measurements: bool
) -> None:
    engine = scripted.engine(EngineState.STOPPING, uptime_s=uptime_s)
    app = make_app(scripted.ScriptedControl(Snapshot(engine=engine)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert panel(app, "kv").is_on_screen is measurements
        assert panel(app, "stage").is_on_screen is not measurements
        assert "STOPPING" in text_of(app, "header")


async def test_a_terminal_without_block_characters_gets_ascii() -> None:
    control = scripted.ScriptedControl(scripted.serving(mtp=False))
    control.log("plain")
    app = make_app(control, ascii_only=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        for each in shown(app):
            text = "".join(each.render_line(y).text for y in range(each.size.height))
            assert text.isascii(), text
        assert app.export_screenshot().isascii()


async def test_a_phase_change_moves_the_track(theme_specs: tuple[ThemeSpec, ...]) -> None:
    control = scripted.ScriptedControl(scripted.starting(StartPhase.IMPORT))
    app = make_app(control, theme_specs=theme_specs)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "▸ import" in text_of(app, "stage")
        engine = msgspec.structs.replace(
            control.current.engine,
            phase=StartPhase.CONFIG,
            finished_phases=(PhaseTime(StartPhase.IMPORT, 6.5),),
        )
        control.current = msgspec.structs.replace(control.current, engine=engine)
        app.tick()
        assert "✓ import      6.5 s" in text_of(app, "stage")
        assert "▸ config" in text_of(app, "stage")


async def test_the_screen_is_saved_as_a_picture_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        app.action_screenshot()
        await pilot.pause()
        (picture,) = tmp_path.glob("agentserve-*.svg")
        assert "Prefix" in picture.read_text()
        app.action_screenshot(path=str(tmp_path / "missing"))
        await pilot.pause()
    assert len(list(tmp_path.iterdir())) == 1


async def test_page_keys_in_a_palette_that_is_not_laid_out_do_not_end_the_app() -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("colon")
        await until(pilot, lambda: isinstance(app.screen, Palette))
        offered = app.screen.query_one(CommandList)
        await until(pilot, lambda: offered.option_count > 3)
        # Without room it cannot lay its new rows out, as between a refill and the next layout.
        offered.display = False
        await until(pilot, lambda: not offered.scrollable_content_region)
        offered.clear_options()
        offered.add_options(["one", "two", "three"])
        await pilot.press("pagedown", "pageup")
        assert isinstance(app.screen, Palette)
        assert app.is_running


@pytest.mark.parametrize(
    ("keys", "pressed"), [({}, "q"), ({"app.quit": "f10"}, "f10"), ({"app.quit": "f10"}, "ctrl+c")]
)
async def test_q_or_the_users_own_key_leaves_from_a_question_too(
    keys: dict[str, str], pressed: str
) -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()), keys=keys)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        # Leaving is asked about as well; its own answer is a second press.
        await pilot.press(pressed, pressed)
        await until(pilot, lambda: not app.is_running)


async def test_a_failure_without_a_cause_names_the_users_own_key_of_the_log() -> None:
    failure = msgspec.structs.replace(scripted.FAILURE, title="Engine failed", cause="")
    control = scripted.ScriptedControl(scripted.starting())
    messages: list[Message] = []
    app = make_app(control, keys={"view.log": "f6"})
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await fail(pilot, app, control, failure)
        assert toasts(messages) == ["Engine failed Press f6 to read the log."]


async def test_a_toast_in_ascii_has_an_ascii_border() -> None:
    app = make_app(scripted.ScriptedControl(), ascii_only=True)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        for severity in ("information", "warning", "error"):
            app.notify("text", severity=severity)
        await until(pilot, lambda: len(app.screen.query("Toast")) == 3)
        assert {toast.styles.border_left[0] for toast in app.screen.query("Toast")} == {"ascii"}


async def test_a_new_problem_with_a_file_is_said_once_while_an_engine_runs() -> None:
    messages: list[Message] = []
    control = scripted.ScriptedControl()
    control.problems = ("a.toml:1: bad.",)
    app = make_app(control)
    async with app.run_test(notifications=True, message_hook=messages.append) as pilot:
        await pilot.pause()
        assert "a.toml:1: bad." not in toasts(messages)
        control.current = scripted.serving()
        app.tick()
        control.problems = ("a.toml:1: bad.", "b.toml:2: bad.")
        app.tick()
        app.tick()
        await pilot.pause()
        assert toasts(messages).count("a.toml:1: bad.") == 1
        assert toasts(messages).count("b.toml:2: bad.") == 1
        control.problems = tuple(f"c.toml:{line}: bad." for line in range(9))
        app.tick()
        await pilot.pause()
        assert "And 6 more; press p to read all." in toasts(messages)
