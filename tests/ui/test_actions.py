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
    "view.log",
    "view.gpus",
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


def test_no_key_is_bound_twice() -> None:
    keys = [key for action in ACTIONS for key in action.keys]
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
        (EngineState.STARTING, "abort", True, True, False),
        (EngineState.WARMING, "abort", True, True, False),
        (EngineState.READY, "stop", True, True, False),
        (EngineState.STOPPING, "stop", False, False, False),
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


def test_a_slot_key_says_stop_first_while_an_engine_runs() -> None:
    reason = BY_CALL["start_slot(2)"].against(frame_in(EngineState.READY))
    assert reason == "Stop the engine first (s), then press 2."


def test_without_an_engine_a_start_names_what_to_install() -> None:
    frame = frame_in(EngineState.STOPPED, missing="install agentserve-tui[cpu]")
    assert BY_CALL["toggle_engine"].against(frame) == "install agentserve-tui[cpu]"
    assert BY_CALL["start_slot(1)"].against(frame) == "install agentserve-tui[cpu]"


def test_an_empty_slot_says_so() -> None:
    assert BY_CALL["start_slot(9)"].against(frame_in(EngineState.STOPPED)) == (
        "There is no preset in slot 9."
    )
