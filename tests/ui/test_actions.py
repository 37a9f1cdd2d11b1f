from __future__ import annotations

import pytest

from agentserve.domain.lifecycle import EngineState
from agentserve.domain.snapshot import Snapshot
from agentserve.ui.actions import ACTIONS, BY_CALL, documentation_table
from agentserve.ui.frame import Frame

from . import scripted

ACTION_IDS = {
    "engine.toggle",
    "engine.restart",
    *(f"preset.{slot}" for slot in range(1, 10)),
    "engine.previous",
    "engine.stay",
    *(f"change.{verb}" for verb in ("budget_down", "budget_up", "draft_tokens", "drop")),
    *(f"change.set_{what}" for what in ("seats", "context", "budget", "draft_tokens")),
    "view.presets",
    *(f"presets.{verb}" for verb in ("next", "previous", "use", "duplicate", "edit", "rename")),
    *(f"presets.{verb}" for verb in ("delete", "reset", "command", "import")),
    "view.log",
    "view.gpus",
    *(f"view.{name}" for name in ("requests", "agents", "explain")),
    *(f"requests.{verb}" for verb in ("detail", "sort", "filter", "next", "previous")),
    *(f"log.{verb}" for verb in ("follow", "search", "next", "previous")),
    *(f"log.{what}" for what in ("level", "wrap", "copy")),
    *(f"agents.{verb}" for verb in ("copy", "next", "previous", "page_down", "page_up")),
    "view.history",
    *(f"history.{verb}" for verb in ("more", "fewer", "reload")),
    "view.sessions",
    *(f"sessions.{verb}" for verb in ("open", "next", "previous", "first", "last")),
    *(f"sessions.{verb}" for verb in ("page_down", "page_up")),
    *(f"explain.{verb}" for verb in ("next", "previous")),
    "view.help",
    "view.back",
    "app.palette",
    "app.copy_address",
    "app.theme",
    "app.screenshot",
    "app.quit",
}


def frame_in(state: EngineState, missing: str | None = None) -> Frame:
    return Frame(
        snapshot=Snapshot(engine=scripted.engine(state)),
        presets=scripted.PRESETS,
        engine_missing=missing,
    )


def test_the_ids_are_the_public_keymap() -> None:
    assert {action.id for action in ACTIONS} == ACTION_IDS
    assert len(BY_CALL) == len(ACTIONS)


@pytest.mark.parametrize("scope", sorted({action.scope for action in ACTIONS}))
def test_no_key_is_bound_twice_in_any_view(scope: str) -> None:
    keys = [key for action in ACTIONS if action.scope in ("", scope) for key in action.keys]
    assert len(keys) == len(set(keys))


def test_nothing_is_reachable_by_ctrl_only_and_the_terminals_keys_are_left_alone() -> None:
    for action in ACTIONS:
        assert not action.keys or not action.keys[0].startswith("ctrl+")
        assert not {"ctrl+b", "ctrl+s", "ctrl+q", "ctrl+z"} & set(action.keys)


def test_the_documentation_names_every_action() -> None:
    table = documentation_table()
    assert all(f"`{action_id}`" in table for action_id in ACTION_IDS)
    assert "| `view.help` | `?` |" in table


@pytest.mark.parametrize(
    ("state", "title", "possible", "restart", "slot"),
    [
        (EngineState.STOPPED, "start", True, False, True),
        (EngineState.STARTING, "abort", True, True, True),
        (EngineState.WARMING, "abort", True, True, True),
        (EngineState.READY, "stop", True, True, True),
        (EngineState.STOPPING, "stop", False, False, True),
        (EngineState.FAILED, "start", True, False, True),
    ],
)
def test_what_is_possible_follows_the_state(
    state: EngineState, title: str, possible: bool, restart: bool, slot: bool
) -> None:
    frame = frame_in(state)
    toggle = BY_CALL["toggle_engine"]
    assert toggle.title_at(frame) == title
    assert (toggle.against(frame) is None) is possible
    assert (BY_CALL["restart_engine"].against(frame) is None) is restart
    assert (BY_CALL["start_slot(1)"].against(frame) is None) is slot


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (EngineState.READY, "qwen-27b-nvfp4 is running already; press r to restart it."),
        (EngineState.STARTING, "qwen-27b-nvfp4 is starting already; press r to restart it."),
        (EngineState.STOPPING, "qwen-27b-nvfp4 is stopping; press s when it has stopped."),
    ],
)
def test_the_digit_of_the_running_preset_says_so(state: EngineState, reason: str) -> None:
    assert BY_CALL["start_slot(2)"].against(frame_in(state)) == reason


def test_without_an_engine_a_start_names_what_to_install() -> None:
    frame = frame_in(EngineState.STOPPED, missing="install agentserve-tui[cpu]")
    assert BY_CALL["toggle_engine"].against(frame) == "install agentserve-tui[cpu]"
    assert BY_CALL["start_slot(1)"].against(frame) == "install agentserve-tui[cpu]"


def test_an_empty_slot_says_so() -> None:
    assert BY_CALL["start_slot(9)"].against(frame_in(EngineState.STOPPED)) == (
        "There is no preset in slot 9."
    )
