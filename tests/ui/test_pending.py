from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.message import Message

from agentserve.domain.errors import ConfigError
from agentserve.domain.pending import (
    CheckState,
    Consequence,
    PendingChange,
    PendingView,
    ToggleOption,
)
from agentserve.domain.snapshot import Snapshot
from agentserve.ui.app import AgentServeApp
from agentserve.ui.formatting import DASH
from agentserve.ui.lines import Role, cells, plain
from agentserve.ui.panels import pending
from agentserve.ui.screens.dashboard import DashboardScreen
from agentserve.ui.screens.dialogs import ChoiceDialog, TextDialog
from agentserve.ui.widgets.panel import Panel

from . import scripted
from .test_app import SIZES, make_app, panel, shown, text_of, toasts

FOUR = (
    PendingChange(option=ToggleOption.TOKEN_BUDGET, before=2_048, after=1_024),
    PendingChange(option=ToggleOption.DRAFT_TOKENS, before=0, after=2),
    PendingChange(option=ToggleOption.SEATS, before=None, after=8),
    PendingChange(option=ToggleOption.CONTEXT, before=98_304, after=131_072),
)
KEYS = ("r", "esc")
HOSTILE = "[bold]x[/ \x1b[2J\u202eevil 漢字 " + "long " * 60


def with_pending(snapshot: Snapshot, view: PendingView | None) -> Snapshot:
    engine = msgspec.structs.replace(snapshot.engine, pending=view)
    return msgspec.structs.replace(snapshot, engine=engine)


def drawn(view: PendingView | None, width: int = 116, height: int = 3, *, runs: bool = True) -> str:
    return "\n".join(
        plain(line) for line in pending.draw(view, width, height, runs=runs, keys=KEYS)
    )


def test_a_change_is_shown_as_before_and_after_with_all_its_consequences() -> None:
    text = drawn(scripted.pending(changes=FOUR))
    for part in (
        *("budget 2,048 → 1,024", "MTP off → 2", f"seats {DASH} → 8", "context 98,304 → 131,072"),
        *("restarts the engine, about 94 s", "KV 127k → 131k tok", "loses 47.8k warm tok"),
        *("interrupts 3 requests", "✓ vLLM accepts it", "r apply", "esc drop"),
    ):
        assert part in text


def test_at_78_cells_no_figure_is_lost() -> None:
    text = drawn(scripted.pending(changes=FOUR), 78)
    for part in ("98,304 → 131,072", "94 s", "127k → 131k tok", "47.8k warm tok", "ends 3 req"):
        assert part in text


def test_what_is_not_known_is_a_dash_or_said_in_words() -> None:
    text = drawn(scripted.pending(consequence=Consequence(), check=CheckState.NONE))
    assert "time not known yet" in text
    assert "KV not known yet" in text
    assert f"loses     {DASH} warm tok" in text
    assert "not checked" in text
    half = Consequence(capacity_tokens_before=1_000)
    assert f"KV 1000 → {DASH} tok" in drawn(scripted.pending(consequence=half))


@pytest.mark.parametrize(("after", "role"), [(131_040, Role.READY), (90_000, Role.WARNING)])
def test_more_and_less_kv_differ_in_colour(after: int, role: Role) -> None:
    view = scripted.pending(
        consequence=Consequence(capacity_tokens_before=126_812, capacity_tokens_after=after)
    )
    lines = pending.draw(view, 116, 3, runs=True, keys=KEYS)
    roles = {span.text: span.role for line in lines for span in line}
    assert roles[f"{after / 1000:.0f}k" if after > 99_999 else "90.0k"] is role


def test_without_an_engine_the_next_start_uses_the_changes() -> None:
    text = drawn(scripted.pending(), runs=False)
    assert "used by the next start" in text
    assert "interrupts" not in text
    assert "r start with it" in text
    live = scripted.pending(consequence=Consequence(needs_restart=False))
    assert "applied without a restart" in drawn(live)


def test_a_refusal_takes_the_place_of_the_consequence_and_only_esc_is_offered() -> None:
    view = scripted.pending(check=CheckState.REFUSED, refusal="This model has no MTP head.")
    text = drawn(view, 78)
    assert "This model has no MTP head." in text
    assert "restart" not in text
    assert "r apply" not in text
    assert "esc drop" in text
    long = scripted.pending(check=CheckState.REFUSED, refusal="a reason in many words " * 6)
    assert drawn(long, 78).count("reason") == 6


def test_warnings_are_shown_as_far_as_there_are_rows_and_counted_beyond() -> None:
    view = scripted.pending(warnings=("First thing.", "Second thing."))
    assert "! 2 warnings, r shows all before it applies" in drawn(view, 78, 3)
    tall = drawn(view, 116, 5)
    assert "! First thing." in tall
    assert "! Second thing." in tall
    assert "✓ vLLM accepts it" in tall
    assert "! 2 warnings, r shows all" in drawn(view, 116, 4)


VIEWS = st.builds(
    PendingView,
    preset=st.text(max_size=20),
    changes=st.lists(
        st.builds(
            PendingChange,
            option=st.sampled_from(ToggleOption),
            before=st.none() | st.integers(0, 10**7),
            after=st.integers(0, 10**7),
        ),
        max_size=4,
    ).map(tuple),
    consequence=st.builds(
        Consequence,
        needs_restart=st.booleans(),
        expected_restart_s=st.none() | st.floats(0, 10**5),
        capacity_tokens_before=st.none() | st.integers(0, 10**8),
        capacity_tokens_after=st.none() | st.integers(0, 10**8),
        warm_tokens_lost=st.none() | st.integers(0, 10**8),
        requests_interrupted=st.integers(0, 300),
    ),
    check=st.sampled_from(CheckState),
    refusal=st.none() | st.just(HOSTILE) | st.text(max_size=300),
    warnings=st.lists(st.just(HOSTILE) | st.text(max_size=200), max_size=3).map(tuple),
)


@given(VIEWS, st.integers(70, 200), st.integers(3, 5), st.booleans())
def test_it_always_fills_its_rows_and_never_leaves_them(
    view: PendingView, width: int, height: int, runs: bool
) -> None:
    lines = pending.draw(view, width, height, runs=runs, keys=KEYS)
    assert len(lines) == height
    assert all(cells(line) <= width for line in lines)
    assert "".join(plain(line) for line in lines).isprintable()


def regions(app: AgentServeApp) -> dict[str | None, Any]:
    return {each.id: each.region for each in shown(app) if each.id != "pending"}


@pytest.mark.parametrize("size", [*SIZES, (80, 34), (120, 34)], ids=str)
@pytest.mark.parametrize("snapshot", [scripted.serving(), scripted.stopped()], ids=["up", "down"])
async def test_the_strip_moves_no_panel_when_it_comes_changes_and_goes(
    snapshot: Snapshot, size: tuple[int, int]
) -> None:
    control = scripted.ScriptedControl(snapshot)
    control.log(*(f"line {number}" for number in range(80)))
    app = make_app(control)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        before = regions(app)
        for view in (
            scripted.pending(check=CheckState.RUNNING, consequence=Consequence()),
            scripted.pending(changes=FOUR, warnings=("One.", "Two.")),
            scripted.pending(check=CheckState.REFUSED, refusal="no " * 60),
        ):
            control.current = with_pending(snapshot, view)
            app.tick()
            await pilot.pause()
            strip = panel(app, "pending")
            assert strip.is_on_screen
            assert app.screen.region.contains_region(strip.region)
            assert strip.region.bottom == app.screen.region.bottom - 1
            assert regions(app) == before
            for name in ("header", "gpus", "kv", "action-bar"):
                assert not panel(app, name).is_on_screen or not (
                    panel(app, name).region.overlaps(strip.region)
                )
        control.current = snapshot
        app.tick()
        await pilot.pause()
        assert not panel(app, "pending").is_on_screen
        assert regions(app) == before


@pytest.mark.parametrize(
    "size", [*SIZES[1:], (80, 40), (80, 60), (120, 49), (120, 60), (200, 40)], ids=str
)
async def test_the_newest_log_line_stays_in_view_above_the_strip(size: tuple[int, int]) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    control.log(*(f"line {number}" for number in range(80)))
    app = make_app(control)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        log = panel(app, "log")
        assert len(log.lines) == log.content_size.height
        control.current = with_pending(scripted.serving(), scripted.pending())
        app.tick()
        await pilot.pause()
        assert "line 79" in plain(log.lines[-1])
        newest = log.content_region.y + len(log.lines) - 1
        assert newest == panel(app, "pending").region.y - 1
        control.current = scripted.serving()
        app.tick()
        assert len(log.lines) == log.content_size.height
        assert "line 79" in plain(log.lines[-1])


async def test_the_strip_is_ascii_where_the_terminal_has_nothing_else() -> None:
    control = scripted.ScriptedControl(with_pending(scripted.serving(), scripted.pending()))
    for size in SIZES:
        app = make_app(control, ascii_only=True)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            assert app.export_screenshot().isascii()


async def test_only_rows_of_the_strip_are_written_while_its_check_goes_on() -> None:
    running = scripted.pending(check=CheckState.RUNNING)
    control = scripted.ScriptedControl(with_pending(scripted.idle(), running))
    control.log("one line")
    app = make_app(control)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        before = {each.id: each.rows_written for each in app.screen.query(Panel)}
        app.tick()
        assert {each.id: each.rows_written for each in app.screen.query(Panel)} == before
        control.current = with_pending(scripted.idle(), scripted.pending())
        app.tick()
        after = {each.id: each.rows_written for each in app.screen.query(Panel)}
        changed = {name: after[name] - rows for name, rows in before.items() if after[name] > rows}
        assert changed == {"pending": 1}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["b"], ("propose", "max_num_batched_tokens", "1568")),
        (["B"], ("propose", "max_num_batched_tokens", "3136")),
        (["m"], ("propose", "num_speculative_tokens", "3")),
        (["m", "m", "m"], ("propose", "num_speculative_tokens", "0")),
    ],
)
async def test_toggle_keys_propose_and_touch_nothing_else(
    keys: list[str], expected: tuple[str, ...]
) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(*keys)
        assert control.requests[-1] == expected
        assert {request[0] for request in control.requests} == {"propose"}
        assert panel(app, "pending").is_on_screen
        assert "1 pending" in text_of(app, "header")
        await pilot.press("escape")
        assert control.requests[-1] == ("drop_pending",)
        assert "pending" not in text_of(app, "header")


async def test_going_round_takes_the_change_back() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(*"mmmmm")
        assert app.frame.engine.pending is None
        assert not panel(app, "pending").is_on_screen


async def test_esc_closes_a_view_before_it_drops_anything() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("b", "l", "escape")
        assert isinstance(app.screen, DashboardScreen)
        assert ("drop_pending",) not in control.requests
        await pilot.press("l", "l")
        assert ("drop_pending",) not in control.requests
        await pilot.press("escape")
        assert control.requests[-1] == ("drop_pending",)


async def test_r_applies_at_once_when_nothing_speaks_against_it() -> None:
    control = scripted.ScriptedControl(with_pending(scripted.idle(), scripted.pending()))
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "r apply" in text_of(app, "action-bar")
        await pilot.press("r")
        assert control.requests == [("restart", "abort")]


async def test_r_shows_all_warnings_before_it_applies() -> None:
    view = scripted.pending(warnings=("First thing.", "Second thing."))
    control = scripted.ScriptedControl(with_pending(scripted.idle(), view))
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("r")
        assert isinstance(app.screen, ChoiceDialog)
        text = "\n".join(plain(line) for line in app.screen.query_one("#dialog", Panel).lines)
        assert "! First thing." in text
        assert "! Second thing." in text
        assert control.requests == []
        await pilot.press("enter")
        assert control.requests == [("restart", "abort")]


async def test_r_says_why_a_refused_change_is_not_applied() -> None:
    view = scripted.pending(check=CheckState.REFUSED, refusal="This model has no MTP head.")
    control = scripted.ScriptedControl(with_pending(scripted.idle(), view))
    messages: list[Message] = []
    app = make_app(control)
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await pilot.press("r")
        await pilot.pause()
        assert control.requests == []
        assert toasts(messages) == ["This model has no MTP head."]


async def test_r_during_the_check_says_that_it_waits() -> None:
    view = scripted.pending(check=CheckState.RUNNING)
    control = scripted.ScriptedControl(with_pending(scripted.idle(), view))
    messages: list[Message] = []
    app = make_app(control)
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await pilot.press("r")
        await pilot.pause()
        assert control.requests == [("restart", "abort")]
        assert "still checks" in toasts(messages)[0]


@pytest.mark.parametrize("key", ["r", "s"])
async def test_a_stopped_engine_starts_with_what_is_pending(key: str) -> None:
    view = scripted.pending(preset="cpu-tiny")
    control = scripted.ScriptedControl(with_pending(scripted.stopped(), view))
    async with make_app(control).run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        assert control.requests == [("restart", "abort")]


@pytest.mark.parametrize(
    ("key", "expected"),
    [("1", ("restart", "abort")), ("2", ("switch", "qwen-27b-nvfp4", "abort"))],
)
async def test_a_digit_applies_pending_changes_of_its_own_preset_only(
    key: str, expected: tuple[str, ...]
) -> None:
    view = scripted.pending(preset="cpu-tiny")
    control = scripted.ScriptedControl(with_pending(scripted.stopped(), view))
    async with make_app(control).run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        assert control.requests == [expected]


async def test_a_number_is_asked_for_until_it_is_one() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        app.action_ask_value(ToggleOption.CONTEXT.value)
        await pilot.pause()
        assert isinstance(app.screen, TextDialog)
        await pilot.press(*"x", "enter")
        await pilot.pause()
        assert isinstance(app.screen, TextDialog)
        text = "\n".join(plain(row) for row in app.screen.query_one(Panel).lines)
        assert "That is not a whole number." in text
        await pilot.press("backspace", *"64k", "enter")
        await pilot.pause()
        assert isinstance(app.screen, DashboardScreen)
        assert control.requests == [("propose", "max_model_len", "65536")]


async def test_a_proposal_that_is_refused_at_once_is_explained() -> None:
    class Refusing(scripted.ScriptedControl):
        def propose(self, option: ToggleOption, value: int) -> None:
            raise ConfigError(f"No {option}.", "Choose a preset.")

    messages: list[Message] = []
    app = make_app(Refusing(scripted.serving()))
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await pilot.press("b")
        await pilot.pause()
        assert toasts(messages) == ["No max_num_batched_tokens. Choose a preset."]


@pytest.mark.parametrize(("keys", "palette"), [({}, ":"), ({"app.palette": "f2"}, "f2")])
async def test_the_end_of_the_steps_is_said(keys: dict[str, str], palette: str) -> None:
    control = scripted.ScriptedControl(scripted.stopped())
    messages: list[Message] = []
    app = make_app(control, keys=keys)
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await pilot.press(*"bbbbb")
        await pilot.pause()
        values = [request[2] for request in control.requests]
        assert values == ["1024", "512", "256"]
        assert toasts(messages) == [
            f"A budget of 256 is the smallest step; press {palette} to set any number."
        ]


async def test_without_a_preset_the_users_own_key_of_the_presets_is_named() -> None:
    view = msgspec.structs.replace(scripted.stopped().engine, preset=None)
    control = scripted.ScriptedControl(msgspec.structs.replace(scripted.stopped(), engine=view))
    messages: list[Message] = []
    app = make_app(control, keys={"view.presets": "f3"})
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await pilot.press("b")
        await pilot.pause()
        assert toasts(messages) == ["Choose a preset first (f3)."]


def test_one_warning_is_whole_or_named_with_the_key_that_shows_it() -> None:
    assert "! Short thing." in drawn(scripted.pending(warnings=("Short thing.",)), 78, 3)
    long = drawn(scripted.pending(warnings=("A long thing to say. " * 9,)), 78, 3)
    assert "! a warning, r shows it first" in long
    assert "A long" not in long
