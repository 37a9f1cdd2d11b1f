from __future__ import annotations

import msgspec
import pytest

from agentserve.domain.adviser import Advice, AdviceKind, Direction
from agentserve.domain.pending import ToggleOption
from agentserve.domain.snapshot import Snapshot
from agentserve.ui.actions import ACTIONS
from agentserve.ui.app import AgentServeApp
from agentserve.ui.frame import Frame
from agentserve.ui.lines import cells, plain
from agentserve.ui.panels import advice as advice_panel
from agentserve.ui.widgets.panel import Panel

from . import scripted

ADVICE = Advice(
    kind=AdviceKind.ACCEPTANCE,
    text="MTP acceptance is 20 % (n 900 drafts): drafting hardly pays.",
    remedy="fewer draft tokens, or none",
    option=ToggleOption.DRAFT_TOKENS,
    direction=Direction.DOWN,
)


def troubled() -> Snapshot:
    healthy = scripted.serving()
    assert healthy.spec_decode is not None
    spec = msgspec.structs.replace(healthy.spec_decode, acceptance_rate=0.2)
    return msgspec.structs.replace(healthy, spec_decode=spec)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=str)
async def test_a_hint_comes_and_goes_without_moving_anything(size: tuple[int, int]) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = AgentServeApp(control)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        line = app.screen.query_one("#advice", Panel)
        assert line.is_on_screen
        assert not line.lines
        before = {each.id: each.region for each in app.screen.query(Panel)}
        control.current = troubled()
        app.tick()
        await pilot.pause()
        [row] = line.lines
        assert "fewer draft tokens" in plain(row)
        assert plain(row).endswith("  m")
        assert {each.id: each.region for each in app.screen.query(Panel)} == before


def test_every_option_that_advice_names_has_a_key() -> None:
    frame = Frame()
    ids = {action.id for action in ACTIONS}
    for (option, direction), action_id in advice_panel._ACTIONS.items():
        assert action_id in ids
        advice = msgspec.structs.replace(ADVICE, option=option, direction=direction)
        assert advice_panel.key_for(advice, frame)
    assert advice_panel.key_for(None, frame) == ""
    assert advice_panel.key_for(msgspec.structs.replace(ADVICE, option=None), frame) == ""


def test_a_hint_names_the_users_own_key() -> None:
    frame = Frame(keys_of={"change.draft_tokens": ("f5",)})
    assert advice_panel.key_for(ADVICE, frame) == "f5"


@pytest.mark.parametrize("width", [10, 40, 78, 200])
def test_what_was_seen_stays_whole_where_there_is_no_room_for_all(width: int) -> None:
    [line] = advice_panel.draw(ADVICE, "m", width, 1)
    assert cells(line) <= width
    if width >= 40:
        assert "MTP acceptance is 20 % (n 900 drafts)" in plain(line)
    if width >= 78:
        assert "fewer draft tokens, or none  m" in plain(line)


def test_the_remedy_is_shortened_before_it_is_left_out() -> None:
    advice = msgspec.structs.replace(ADVICE, text="3.5 % of this: why.", remedy="do that, or this")
    rows = [plain(advice_panel.draw(advice, "m", width, 1)[0]) for width in (60, 44, 30, 20)]
    assert rows == [
        "! 3.5 % of this: why.  ▸ do that, or this  m",
        "! 3.5 % of this: why.  ▸ do that, or this  m",
        "! 3.5 % of this  ▸ do that  m",
        "! 3.5 % of this  m",
    ]
