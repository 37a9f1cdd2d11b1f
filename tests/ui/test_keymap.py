from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.command import DiscoveryHit
from textual.message import Message
from textual.notifications import Notify

import agentserve
from agentserve.ui.actions import ACTIONS, BY_ID
from agentserve.ui.app import AgentServeApp
from agentserve.ui.frame import Frame
from agentserve.ui.keymap import check, normalized
from agentserve.ui.lines import plain
from agentserve.ui.palette import ActionProvider
from agentserve.ui.screens.dashboard import DashboardScreen
from agentserve.ui.screens.log import LogScreen
from agentserve.ui.screens.text import GpuScreen, HelpScreen
from agentserve.ui.widgets.panel import Panel

from . import scripted

IDS = [action.id for action in ACTIONS]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("x", "x"),
        ("X", "X"),
        ("?", "question_mark"),
        ("/", "slash"),
        ("+", "plus"),
        (",", "comma"),
        ("F5", "f5"),
        ("ctrl+r", "ctrl+r"),
        ("Ctrl+Right", "ctrl+right"),
        ("question_mark", "question_mark"),
        ("space", "space"),
        ("hyper+", None),
        ("bogus", None),
        ("ctrl+bogus", None),
        ("\x1b", None),
    ],
)
def test_keys_may_be_written_as_people_do(key: str, name: str | None) -> None:
    assert normalized(key) == name


def test_valid_keys_are_taken() -> None:
    checked = check({"view.log": "L", "view.gpus": ["f2", "G"], "log.follow": "end,F"})
    assert checked.problems == ()
    assert checked.keys_of == {
        "view.log": ("L",),
        "view.gpus": ("f2", "G"),
        "log.follow": ("end", "F"),
    }


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"view.lgo": "x"}, "There is no action view.lgo. Did you mean view.log?"),
        ({"view.log": "g"}, "Key g cannot be view.log: it is view.gpus already."),
        (
            {"view.log": "q"},
            "Key q cannot be view.log: it is app.quit already. Nobody could leave or find help.",
        ),
        ({"log.follow": "s"}, "Key s cannot be log.follow: it is engine.toggle already."),
        ({"view.log": "nonsense"}, "Key 'nonsense' for view.log: there is no such key."),
        ({"app.quit": ""}, "Key '(empty)' for app.quit: there is no such key."),
        ({"view.log": "ctrl+b"}, "Key ctrl+b for view.log cannot be used: tmux uses it."),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence_and_not_used(
    keys: dict[str, str], sentence: str
) -> None:
    checked = check(keys)
    assert checked.problems == (sentence,)
    assert checked.keys_of == {}


def test_two_actions_may_swap_their_keys() -> None:
    checked = check({"view.log": "g", "view.gpus": "l"})
    assert checked.problems == ()
    assert checked.keys_of == {"view.log": ("g",), "view.gpus": ("l",)}


def test_of_two_that_want_one_key_one_is_refused_with_both_names() -> None:
    checked = check({"view.log": "z", "view.gpus": "z"})
    [problem] = checked.problems
    assert "view.log" in problem
    assert "view.gpus" in problem
    assert len(checked.keys_of) == 1


def test_the_same_key_in_two_views_is_no_conflict() -> None:
    assert check({"log.copy": "y", "agents.copy": "y"}).problems == ()


KEYS = st.sampled_from([*"abqsx?/:", "escape", "f1", "ctrl+b", "no such", "", "tab"])


@settings(max_examples=150)
@given(
    wanted=st.dictionaries(
        st.sampled_from([*IDS, "no.such"]), KEYS | st.lists(KEYS, max_size=3), max_size=8
    )
)
def test_no_key_ever_belongs_to_two_actions_within_reach_and_help_and_quit_keep_one(
    wanted: dict[str, str | list[str]],
) -> None:
    keys_of = check(wanted).keys_of
    for scope in {action.scope for action in ACTIONS}:
        reach = [action for action in ACTIONS if action.scope in ("", scope)]
        keys = [key for action in reach for key in keys_of.get(action.id, action.keys)]
        assert len(keys) == len(set(keys))
    assert all(keys_of.get(name, ("built in",)) for name in ("app.quit", "view.help", "view.back"))


async def test_the_users_keys_work_and_the_built_in_ones_do_not() -> None:
    keys = {"view.log": "g", "view.gpus": "l", "view.help": "f1", "log.follow": "z"}
    control = scripted.ScriptedControl(scripted.serving())
    control.log(*(f"line {number}" for number in range(80)))
    app = AgentServeApp(control, keys=keys)
    async with app.run_test(size=(120, 40)) as pilot:
        for key, screen in (("g", LogScreen), ("l", GpuScreen), ("f1", HelpScreen)):
            await pilot.press(key)
            assert isinstance(app.screen, screen), key
            await pilot.press("escape")
        await pilot.press("question_mark")
        assert isinstance(app.screen, DashboardScreen)
        await pilot.press("g", "home")
        await pilot.pause()
        assert isinstance(app.screen, LogScreen)
        await pilot.press("f")
        await pilot.pause()
        assert not app.screen.view.following
        await pilot.press("z")
        await pilot.pause()
        assert app.screen.view.following


KEYLESS = [action.id for action in ACTIONS if not action.keys and not action.scope]


@pytest.mark.parametrize("action_id", KEYLESS)
async def test_a_users_key_works_for_an_action_without_a_built_in_one(
    action_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    method = f"action_{BY_ID[action_id].call.partition('(')[0]}"
    monkeypatch.setattr(AgentServeApp, method, lambda *_: called.append(action_id))
    # Some are possible only while something is pending or drains.
    monkeypatch.setattr(AgentServeApp, "check_action", lambda *_: True)
    app = AgentServeApp(scripted.ScriptedControl(scripted.serving()), keys={action_id: "f12"})
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f12")
        await pilot.pause()
    assert called == [action_id]


async def test_bar_palette_and_help_show_the_users_keys() -> None:
    app = AgentServeApp(
        scripted.ScriptedControl(scripted.serving()),
        keys={"view.log": "f4", "log.search": "ctrl+f", "preset.1": "f7"},
    )
    async with app.run_test(size=(160, 90)) as pilot:
        await pilot.pause()
        [bar] = app.screen.query_one("#action-bar", Panel).lines
        assert " f4 log " in plain(bar)
        provider = ActionProvider(app.screen)
        offered = [hit.text async for hit in provider.discover() if isinstance(hit, DiscoveryHit)]
        assert "log  (f4)" in offered
        await pilot.press("question_mark")
        await pilot.pause()
        rows = [plain(line).split() for line in app.screen.query_one("#help", Panel).lines]
        assert ["f4", "log"] in [row[:2] for row in rows]
        assert ["ctrl+f", "search"] in [row[:2] for row in rows]
        assert ["f7"] in [row[:1] for row in rows]


async def test_problems_are_said_at_the_start_and_stand_in_the_help() -> None:
    messages: list[Message] = []
    app = AgentServeApp(
        scripted.ScriptedControl(), keys={"view.log": "g", "view.help": ["f1"], "nope[": "x"}
    )
    async with app.run_test(
        size=(100, 40), notifications=True, message_hook=messages.append
    ) as pilot:
        await pilot.pause()
        said = [each.notification.message for each in messages if isinstance(each, Notify)]
        assert "Key g cannot be view.log: it is view.gpus already." in said
        await pilot.press("f1")
        await pilot.pause()
        text = " ".join(plain(line) for line in app.screen.query_one("#help", Panel).lines)
        assert "Key g cannot be view.log: it is view.gpus already." in text
        assert "There is no action nope[." in text


def test_reasons_name_the_users_own_keys() -> None:
    keys_of = {"engine.toggle": ("f2",), "engine.restart": ("f3",)}
    stopped = Frame(snapshot=scripted.stopped(), presets=scripted.PRESETS, keys_of=keys_of)
    assert BY_ID["engine.restart"].against(stopped) == "Nothing is running; press f2 to start."
    serving = Frame(snapshot=scripted.serving(), presets=scripted.PRESETS, keys_of=keys_of)
    assert str(BY_ID["preset.2"].against(serving)).endswith("press f3 to restart it.")


NAMED_KEY = re.compile(
    r"\bpress (?:[a-z0-9]|esc|enter)\b|`[a-z0-9:?/]`|\bwith [a-z]\.|\([a-z]\)\.|\besc\b",
    re.IGNORECASE,
)
OWN_KEYS = {"esc", "enter accepts, esc cancels"}
"""How a key is written, and the keys of a line to write, which nobody can change."""


def test_no_sentence_names_a_key_that_the_user_may_have_changed() -> None:
    found = set()
    for file in Path(agentserve.__file__).parent.rglob("*.py"):
        tree = ast.parse(file.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found |= {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if id(node) not in docstrings and NAMED_KEY.search(node.value)
        }
    assert found == OWN_KEYS
