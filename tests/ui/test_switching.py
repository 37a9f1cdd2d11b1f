from __future__ import annotations

import msgspec
import pytest
from textual.command import DiscoveryHit, Hit
from textual.events import Key
from textual.message import Message
from textual.widgets import Input

from agentserve.domain.control import PresetSummary, SwitchMode
from agentserve.domain.errors import ConfigError
from agentserve.domain.lifecycle import EngineState
from agentserve.domain.snapshot import Snapshot
from agentserve.ui.app import AgentServeApp
from agentserve.ui.lines import Role, plain
from agentserve.ui.palette import ActionProvider, PresetProvider
from agentserve.ui.screens.dashboard import DashboardScreen
from agentserve.ui.screens.dialogs import ChoiceDialog, TextDialog
from agentserve.ui.widgets.panel import Panel

from . import scripted
from .test_app import SIZES, make_app, panel, text_of, toasts, until

DRAIN = ("switch", "qwen-27b-mtp", "drain")
ABORT = ("switch", "qwen-27b-mtp", "abort")


def changed(snapshot: Snapshot, **changes: object) -> Snapshot:
    engine = msgspec.structs.replace(snapshot.engine, **changes)
    return msgspec.structs.replace(snapshot, engine=engine)


def dialog_text(app: AgentServeApp) -> str:
    box = app.screen.query_one("#dialog", Panel)
    return "\n".join((str(box.border_title), *(plain(line) for line in box.lines)))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (["enter"], [DRAIN]),
        (["d"], [DRAIN]),
        (["a"], [ABORT]),
        (["down", "enter"], [ABORT]),
        (["up", "enter"], []),
        (["tab", "tab", "enter"], []),
        (["escape"], []),
    ],
    ids=["enter", "d", "a", "down", "up", "tab", "esc"],
)
async def test_a_digit_asks_while_requests_run_and_does_what_is_answered(
    answer: list[str], expected: list[tuple[str, ...]]
) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("3")
        await pilot.pause()
        assert control.requests == []
        text = dialog_text(app)
        assert "Switch to qwen-27b-mtp?" in text
        assert "2 requests run or wait on qwen-27b-nvfp4." in text
        await pilot.press(*answer)
        assert control.requests == expected
        assert isinstance(app.screen, DashboardScreen)


@pytest.mark.parametrize(
    ("key", "answer", "expected"),
    [
        ("r", "enter", ("restart", "drain")),
        ("r", "a", ("restart", "abort")),
        ("s", "enter", ("stop",)),
        ("s", "s", ("stop",)),
    ],
)
async def test_restart_and_stop_ask_while_requests_run(
    key: str, answer: str, expected: tuple[str, ...]
) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        assert isinstance(app.screen, ChoiceDialog)
        assert control.requests == []
        await pilot.press(answer)
        assert control.requests == [expected]


def left(app: AgentServeApp) -> bool:
    return not app.is_running


async def test_leaving_asks_while_requests_run_and_says_what_it_would_abort() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("q")
        await pilot.pause()
        text = dialog_text(app)
        assert "Quit and abort 2 requests?" in text
        assert "2 requests run or wait on qwen-27b-nvfp4." in text
        assert "q    quit now  Their clients see an error." in text
        await pilot.press("escape")
        assert isinstance(app.screen, DashboardScreen)
        assert app.is_running
        await pilot.press("q", "enter")
        await until(pilot, lambda: left(app))
    assert app.return_code == 0
    assert control.requests == []


@pytest.mark.parametrize(
    ("keys", "pressed"),
    [
        ({}, ["q", "q"]),
        ({}, ["ctrl+c", "ctrl+c"]),
        ({}, ["q", "ctrl+c"]),
        ({}, ["l", "q", "q"]),
        ({"app.quit": "f10"}, ["f10", "f10"]),
        ({"app.quit": "f10,f9"}, ["f9", "f9"]),
    ],
    ids=["q", "ctrl+c", "both", "from a view", "own", "own second"],
)
async def test_a_second_press_leaves_whatever_the_question_says(
    keys: dict[str, str], pressed: list[str]
) -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()), keys=keys)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(*pressed[:-1])
        await pilot.pause()
        assert isinstance(app.screen, ChoiceDialog)
        assert app.is_running
        await pilot.press(pressed[-1])
        await until(pilot, lambda: left(app))


async def test_the_palette_leaves_with_the_same_question() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        provider = ActionProvider(app.screen)
        hits = [hit async for hit in provider.search("quit") if isinstance(hit, Hit)]
        hit = max(hits, key=lambda each: each.score)
        assert hit.text == "quit  (q)"
        await hit.command()
        await pilot.pause()
        assert "Quit and abort 2 requests?" in dialog_text(app)
        control.current = scripted.idle()
        await pilot.press("escape")
        await hit.command()
        await until(pilot, lambda: left(app))


async def test_leaving_looks_at_the_requests_of_this_moment() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        control.current = scripted.idle()
        # What is drawn still has two requests.
        assert app.frame.requests_at_work == 2
        await pilot.press("q")
        await until(pilot, lambda: left(app))


async def test_the_question_about_leaving_follows_the_requests() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("q")
        serving = scripted.serving()
        control.current = msgspec.structs.replace(serving, in_flight=serving.in_flight[:1])
        app.tick()
        await pilot.pause()
        assert "Quit and abort 1 request?" in dialog_text(app)
        control.current = scripted.idle()
        app.tick()
        await pilot.pause()
        text = dialog_text(app)
        assert text.startswith("Quit?")
        assert "No request runs any more." in text
        assert app.is_running


async def test_leaving_can_be_asked_for_in_another_question_and_taken_back() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("s", "q")
        await pilot.pause()
        assert "Quit and abort" in dialog_text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "Stop the engine?" in dialog_text(app)
        assert control.requests == []
        await pilot.press("q", "escape", "s")
        assert control.requests == [("stop",)]
        assert app.is_running


async def test_leaving_a_line_that_is_being_written_asks_and_keeps_the_line() -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(80, 24)) as pilot:
        app.action_ask_value("max_model_len")
        await pilot.press(*"12", "ctrl+c")
        await pilot.pause()
        assert "Quit and abort 2 requests?" in dialog_text(app)
        await pilot.press("escape")
        assert app.screen.query_one(Input).value.endswith("12")
        await pilot.press("ctrl+c", "ctrl+c")
        await until(pilot, lambda: left(app))


@pytest.mark.parametrize("keys", [[], ["q"]], ids=["dashboard", "while it is asked"])
async def test_a_signal_asks_for_nothing(keys: list[str]) -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(*keys)
        # What the command line's handler of TERM, HUP and INT does.
        app.call_later(app.exit)
        await until(pilot, lambda: left(app))


async def test_the_users_own_key_stops_at_the_second_press() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control, keys={"engine.toggle": "ctrl+e"})
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+e")
        await pilot.pause()
        assert "ctrl+e stop now" in dialog_text(app)
        await pilot.press("ctrl+e")
        assert control.requests == [("stop",)]


@pytest.mark.parametrize("key", ["r", "s", "3"])
async def test_a_question_left_with_esc_asks_for_nothing(key: str) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key, "escape")
        assert control.requests == []
        assert isinstance(app.screen, DashboardScreen)


async def test_other_keys_do_nothing_while_a_question_is_open() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("3", "1", "s", "r", "b", "l", "p")
        assert isinstance(app.screen, ChoiceDialog)
        assert control.requests == []


async def test_an_answer_can_be_clicked_and_a_click_beside_changes_nothing() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("3")
        await pilot.pause()
        box = app.screen.query_one("#dialog", Panel)
        await pilot.click(offset=(1, 1))
        assert isinstance(app.screen, ChoiceDialog)
        y = next(y for y, line in enumerate(box.lines) if "switch now" in plain(line))
        corner = box.content_region.offset
        await pilot.click(offset=(corner.x + 5, corner.y + y))
        assert control.requests == [ABORT]


async def test_an_open_question_follows_the_requests() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("3")
        control.current = scripted.idle()
        app.tick()
        await pilot.pause()
        assert "No request runs any more." in dialog_text(app)


async def test_starting_engines_are_replaced_without_a_question() -> None:
    control = scripted.ScriptedControl(scripted.starting())
    async with make_app(control).run_test(size=(80, 24)) as pilot:
        await pilot.press("3")
        assert control.requests == [ABORT]


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_a_waiting_switch_is_in_the_header_and_esc_gives_it_up(
    size: tuple[int, int],
) -> None:
    control = scripted.ScriptedControl(changed(scripted.serving(), drain=scripted.draining()))
    app = make_app(control)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        text = text_of(app, "header")
        for part in ("DRAINING", "then qwen-27b-mtp", "  2 req left", "  1:33", "esc cancels"):
            assert part in text
        await pilot.press("escape")
        assert control.requests == [("cancel_switch",)]


async def test_the_countdown_keeps_its_width() -> None:
    control = scripted.ScriptedControl(changed(scripted.serving(), drain=scripted.draining()))
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        column = text_of(app, "header").splitlines()[1].index("req left")
        for seconds, left in ((9.0, 1), (0.0, 0), (3_600.0, 12), (-1.0, 3)):
            drain = scripted.draining(remaining_s=seconds, requests_left=left)
            control.current = changed(scripted.serving(), drain=drain)
            app.tick()
            assert text_of(app, "header").splitlines()[1].index("req left") == column


async def test_a_stop_that_waits_names_no_preset() -> None:
    drain = scripted.draining(target_preset=None)
    control = scripted.ScriptedControl(changed(scripted.serving(), drain=drain))
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "then stop" in text_of(app, "header")


async def test_esc_cancels_a_waiting_switch_before_it_drops_changes() -> None:
    snapshot = changed(scripted.serving(), drain=scripted.draining(), pending=scripted.pending())
    control = scripted.ScriptedControl(snapshot)
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("escape")
        control.change_engine(drain=None)
        app.tick()
        await pilot.press("escape")
        assert control.requests == [("cancel_switch",), ("drop_pending",)]


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_a_failed_switch_offers_the_previous_preset_at_one_key(
    size: tuple[int, int],
) -> None:
    control = scripted.ScriptedControl(changed(scripted.failed(), previous_preset="cpu-tiny"))
    app = make_app(control)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert "press 0 start cpu-tiny again" in text_of(app, "stage")
        assert "0 previous preset" in text_of(app, "action-bar")
        assert "q quit" in text_of(app, "action-bar")
        await pilot.press("0")
        assert control.requests == [("start", "cpu-tiny")]


async def test_0_goes_back_to_the_previous_preset_of_a_running_engine() -> None:
    control = scripted.ScriptedControl(changed(scripted.idle(), previous_preset="cpu-tiny"))
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "previous preset" not in text_of(app, "action-bar")
        await pilot.press("0")
        assert control.requests == [("switch", "cpu-tiny", "abort")]


@pytest.mark.parametrize(
    ("snapshot", "key", "words"),
    [
        (scripted.serving(), "2", "qwen-27b-nvfp4 is running already; press r to restart it."),
        (scripted.serving(), "0", "No other preset was ready since the app started."),
        (
            changed(scripted.serving(), drain=scripted.draining()),
            "2",
            "qwen-27b-nvfp4 is running; press esc to stay with it.",
        ),
    ],
    ids=["running", "no previous", "draining"],
)
async def test_what_makes_no_sense_is_said(snapshot: Snapshot, key: str, words: str) -> None:
    control = scripted.ScriptedControl(snapshot)
    messages: list[Message] = []
    app = make_app(control)
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await pilot.press(key)
        await pilot.pause()
        assert control.requests == []
        assert toasts(messages) == [words]


async def test_a_switch_that_the_product_refuses_is_explained() -> None:
    class Refusing(scripted.ScriptedControl):
        def switch(self, preset: str, mode: SwitchMode = SwitchMode.ABORT) -> None:
            raise ConfigError(f"{preset} is gone.", "Press p.")

    messages: list[Message] = []
    app = make_app(Refusing(scripted.idle()))
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await pilot.press("3")
        await pilot.pause()
        assert toasts(messages) == ["qwen-27b-mtp is gone. Press p."]


async def test_the_bar_offers_digits_while_any_of_them_is_possible() -> None:
    control = scripted.ScriptedControl(changed(scripted.serving(), preset="cpu-tiny"))
    app = make_app(control)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        roles = {span.text.strip(): span.role for span in panel(app, "action-bar").lines[0]}
        assert roles["switch"] is Role.LABEL
        control.known_presets = scripted.PRESETS[:1]
        app.tick()
        roles = {span.text.strip(): span.role for span in panel(app, "action-bar").lines[0]}
        assert roles["switch"] is Role.DIMMED


async def test_names_from_outside_are_data_in_the_question() -> None:
    name = "[bold]x[/ \x1b[2J漢"
    control = scripted.ScriptedControl(changed(scripted.serving(), preset=name))
    control.known_presets = (PresetSummary(name=name + "2", title=name, source="user", slot=1),)
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("1")
        await pilot.pause()
        text = dialog_text(app)
        # Textual writes its own escapes into the title's markup.
        assert r"Switch to \[bold]x[/ 漢2?" in text
        assert "run or wait on [bold]x[/ 漢." in text


async def test_the_palette_switches_to_presets_without_a_slot() -> None:
    control = scripted.ScriptedControl(scripted.idle())
    extra = PresetSummary(name="mine", title="my own", source="user")
    control.known_presets = (*scripted.PRESETS, extra)
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        provider = PresetProvider(app.screen)
        offered = [hit.text async for hit in provider.discover() if isinstance(hit, DiscoveryHit)]
        assert offered == ["switch to mine"]
        [hit] = [hit async for hit in provider.search("my own") if isinstance(hit, Hit)]
        hit.command()
        assert control.requests == [("switch", "mine", "abort")]


async def test_the_palette_offers_numbers_and_hides_what_belongs_to_other_views() -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        provider = ActionProvider(app.screen)
        offered = {hit.text async for hit in provider.discover() if isinstance(hit, DiscoveryHit)}
        assert {"set seats", "set context", "set budget", "set MTP"} <= offered
        assert "import  (i)" not in offered


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_a_question_fits_every_size(size: tuple[int, int]) -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=size) as pilot:
        await pilot.press("3")
        await pilot.pause()
        box = app.screen.query_one("#dialog", Panel)
        assert app.screen.region.contains_region(box.region)
        assert len(box.lines) <= box.content_size.height
        assert "cancel" in dialog_text(app)


async def test_the_state_can_change_under_an_open_question() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("3")
        control.current = scripted.failed()
        app.tick()
        assert app.frame.state is EngineState.FAILED
        await pilot.press("enter")
        assert control.requests == [DRAIN]
        assert panel(app, "stage").is_on_screen


async def test_the_same_message_is_not_shown_twice_at_once() -> None:
    app = make_app(scripted.ScriptedControl(scripted.idle()))
    async with app.run_test(size=(120, 40)) as pilot:
        for text in ("Same.", "Same.", "Other.", "Same."):
            app.notify(text)
            await pilot.pause()
        assert [one.message for one in app._notifications] == ["Same.", "Other."]


def press_at_once(app: AgentServeApp, *keys: str) -> None:
    """Post keys that have come in one packet: none waits until the one before is handled."""
    for key in keys:
        app.screen.post_message(Key(key, key if len(key) == 1 else None))


@pytest.mark.parametrize(
    ("keys", "stays"),
    [(["escape", "escape"], True), (["enter", "enter"], False), (["q"] * 3, False)],
)
async def test_keys_that_come_at_once_answer_a_question_once(keys: list[str], stays: bool) -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("c", "q")
        below = app.screen_stack[-2]
        assert isinstance(app.screen, ChoiceDialog)
        press_at_once(app, *keys)
        if stays:
            await until(pilot, lambda: app.screen is below)
            await pilot.pause()
            assert app.screen is below
        else:
            await until(pilot, lambda: left(app))
    assert app.return_code in (0, None)


@pytest.mark.parametrize("text", [None, "", "a name"])
async def test_a_text_dialog_that_is_answered_twice_closes_once(text: str | None) -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    accepted: list[str] = []
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("c")
        below = app.screen
        dialog = TextDialog("Name?", (), accepted.append)
        await app.push_screen(dialog)
        field = dialog.query_one(Input)
        for _ in range(2):
            if text is None:
                dialog.action_close()
            else:
                dialog.on_input_submitted(Input.Submitted(field, text))
        await pilot.pause()
        assert app.screen is below
    assert accepted == ([text] if text else [])
