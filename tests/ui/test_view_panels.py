"""The drawings of the views: inside their rectangle, and text from outside stays data."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentserve.ui.frame import Frame
from agentserve.ui.lines import Lines
from agentserve.ui.panels import advice, agents, explanation, log, request_detail, request_table
from agentserve.ui.request_list import ListView, SortKey, chosen, rows_of

from .drawn_panels import FRAMES, HOSTILE, Draw, assert_inside, assert_prints_only
from .test_advice_line import ADVICE


def detail(frame: Frame, width: int, height: int) -> Lines:
    rows = rows_of(frame.snapshot.in_flight, frame.snapshot.recent_requests, {}, ListView())
    return request_detail.draw(chosen(rows, None), HOSTILE, "c", width, height)


def table(frame: Frame, width: int, height: int) -> Lines:
    recent = tuple(
        msgspec.structs.replace(record, session="s1") for record in frame.snapshot.recent_requests
    )
    view = ListView(sort=SortKey.TTFT)
    in_flight = frame.snapshot.in_flight
    return request_table.draw(in_flight, recent, {"s1": HOSTILE}, view, width, height)


PANELS: dict[str, Draw] = {
    "request table": table,
    "request detail": detail,
    "agents": lambda f, w, h: agents.draw_list(agents.seen_here(f.snapshot), 1, w, h),
    "agent settings": lambda f, w, h: agents.draw_settings(f.snapshot, 0, False, w, h),
    "explanation": lambda f, w, h: explanation.draw("kv", "in use", w, h),
    "advice": lambda f, w, h: advice.draw(ADVICE, "m", w, h),
    "log rows": lambda f, w, h: tuple(
        row for line in f.log for row in log.wrapped(line, w, log.severity(line.text))
    )[:h],
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("panel", PANELS)
@settings(max_examples=25)
@given(width=st.integers(0, 220), height=st.integers(0, 40))
def test_a_panel_stays_inside_its_rectangle(
    panel: str, frame: str, width: int, height: int
) -> None:
    assert_inside(PANELS[panel](FRAMES[frame], width, height), width, height)


@pytest.mark.parametrize("draw", PANELS.values(), ids=PANELS.keys())
def test_hostile_text_is_data_in_every_panel(draw: Draw) -> None:
    assert_prints_only(draw(FRAMES["hostile"], 120, 60))
