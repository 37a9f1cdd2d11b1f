from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.errors import AgentServeError
from agentserve.domain.lifecycle import EngineState
from agentserve.domain.pending import PendingChange, PendingView, ToggleOption
from agentserve.domain.snapshot import Snapshot
from agentserve.ui.formatting import DASH
from agentserve.ui.frame import Frame
from agentserve.ui.toggles import (
    current_value,
    next_budget,
    next_draft_tokens,
    number_in,
    written,
)

from . import scripted


def frame(snapshot: Snapshot, pending: PendingView | None = None) -> Frame:
    engine = msgspec.structs.replace(snapshot.engine, pending=pending)
    return Frame(
        snapshot=msgspec.structs.replace(snapshot, engine=engine), presets=scripted.PRESETS
    )


def changed(option: ToggleOption, after: int) -> PendingView:
    change = PendingChange(option=option, before=None, after=after)
    return PendingView(preset="qwen-27b-nvfp4", changes=(change,))


def test_a_toggle_starts_from_what_is_pending_then_what_runs_then_the_preset() -> None:
    option = ToggleOption.DRAFT_TOKENS
    assert current_value(frame(scripted.serving(), changed(option, 4)), option) == 4
    assert current_value(frame(scripted.serving()), option) == 2
    stopped = Snapshot(engine=scripted.engine(EngineState.STOPPED, preset="qwen-27b-mtp"))
    assert current_value(frame(stopped), option) == 2
    unknown = Snapshot(engine=scripted.engine(EngineState.STOPPED, preset="gone"))
    assert current_value(frame(unknown), option) is None


@pytest.mark.parametrize("option", list(ToggleOption))
def test_every_option_has_a_running_and_a_configured_value(option: ToggleOption) -> None:
    assert current_value(frame(scripted.serving()), option) is not None
    assert current_value(frame(scripted.stopped()), option) is not None


def test_the_budget_goes_down_and_up_and_stays_at_its_ends() -> None:
    assert next_budget(frame(scripted.stopped()), -1) == 1_024
    assert next_budget(frame(scripted.stopped()), 1) == 4_096
    lowest = frame(scripted.stopped(), changed(ToggleOption.TOKEN_BUDGET, 256))
    assert next_budget(lowest, -1) == 256


def test_the_budget_of_a_running_engine_follows_its_blocks() -> None:
    assert next_budget(frame(scripted.serving()), -1) == 1_568  # two blocks of 784


def test_draft_tokens_go_round_through_off() -> None:
    values = []
    now = frame(scripted.serving())
    for _ in range(5):
        values.append(next_draft_tokens(now))
        now = frame(scripted.serving(), changed(ToggleOption.DRAFT_TOKENS, values[-1]))
    assert values == [3, 4, 0, 1, 2]


def test_values_are_written_for_people() -> None:
    assert written(ToggleOption.DRAFT_TOKENS, 0) == "off"
    assert written(ToggleOption.TOKEN_BUDGET, 2_048) == "2,048"
    assert written(ToggleOption.CONTEXT, None) == DASH


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4_096), (" 98,304 ", 98_304), ("98 304", 98_304), ("96k", 98_304), ("96 K", 98_304)],
)
def test_numbers_are_read_as_people_write_them(text: str, value: int) -> None:
    assert number_in(text, 1) == value


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "k", "٣", "9" * 10, "0"])
def test_what_is_no_number_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(AgentServeError):
        number_in(text, 1)


@given(st.text(max_size=30), st.integers(0, 1))
def test_any_text_is_a_number_or_a_sentence(text: str, least: int) -> None:
    try:
        value = number_in(text, least)
    except AgentServeError:
        return
    assert value >= least


@given(st.integers(0, 10**9))
def test_a_written_value_reads_back(value: int) -> None:
    if value < 10**9:
        assert number_in(written(ToggleOption.CONTEXT, value), 0) == value
