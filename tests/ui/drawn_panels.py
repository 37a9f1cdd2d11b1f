"""Frames that every panel is drawn from, and what must hold for every drawing."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import msgspec

from agentserve.domain.control import PresetSummary
from agentserve.domain.log import LogLine
from agentserve.ui.frame import Frame
from agentserve.ui.lines import Lines, cells, plain

from . import scripted

HOSTILE = "[bold]x[/ \x1b[2J\x1b]0;t\x07\u202eevil\r\n\t 漢字漢字 " + "long " * 200

Draw = Callable[[Frame, int, int], Lines]


def hostile_frame() -> Frame:
    snapshot = scripted.failed()
    failure = msgspec.structs.replace(
        scripted.FAILURE, title=HOSTILE, cause=HOSTILE, hint=HOSTILE, phase=HOSTILE, raw=(HOSTILE,)
    )
    engine = msgspec.structs.replace(
        snapshot.engine,
        preset=HOSTILE,
        model=HOSTILE,
        endpoint=HOSTILE,
        vllm_version=HOSTILE,
        failure=failure,
        simulated=True,
    )
    gpu = msgspec.structs.replace(scripted.two_gpus()[0], name=HOSTILE, notes=(HOSTILE,))
    return Frame(
        snapshot=msgspec.structs.replace(
            snapshot,
            engine=engine,
            gpus=(gpu,),
            recent_requests=(scripted.request(1, agent=HOSTILE, route=HOSTILE),),
        ),
        engine_missing=HOSTILE,
        presets=(PresetSummary(name=HOSTILE, title=HOSTILE, source=HOSTILE, slot=1),),
        preset_problems=(HOSTILE,),
        log=(LogLine(0, 0.0, HOSTILE),),
    )


FRAMES: dict[str, Frame] = {
    "nothing known": Frame(),
    "serving": Frame(snapshot=scripted.serving(), presets=scripted.PRESETS),
    "starting": Frame(snapshot=scripted.starting()),
    "failed": Frame(snapshot=scripted.failed(), presets=scripted.PRESETS),
    "hostile": hostile_frame(),
}


def text_of(lines: Lines) -> str:
    return "\n".join(plain(line) for line in lines)


def assert_inside(lines: Lines, width: int, height: int) -> None:
    """Below 34 columns the window is too small for a dashboard; there only rows are counted."""
    assert len(lines) <= height
    if width >= 34:
        assert [plain(line) for line in lines if cells(line) > width] == []


def assert_prints_only(lines: Lines) -> None:
    """Nothing in a drawing may control the terminal or change the direction of text."""
    text = "".join(plain(line) for line in lines)
    assert not {unicodedata.category(character) for character in text} & {"Cc", "Cf"}
