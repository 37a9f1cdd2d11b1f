from __future__ import annotations

import pytest

from agentserve.domain.lifecycle import EngineState
from agentserve.ui.app import AgentServeApp
from agentserve.ui.notifications import (
    NotifyOptions,
    TerminalNotifier,
    desktop_sequence,
    title_of,
)

from . import scripted
from .drawn_panels import HOSTILE


def notifier(
    options: NotifyOptions, *, in_tmux: bool = False
) -> tuple[TerminalNotifier, list[str]]:
    written: list[str] = []
    return TerminalNotifier(written.append, options, in_tmux=in_tmux), written


def test_the_title_begins_with_the_state_and_is_written_only_when_it_changes() -> None:
    told, written = notifier(NotifyOptions())
    told.show(scripted.serving().engine)
    told.show(scripted.serving().engine)
    assert written == ["\x1b[22;2t", "\x1b]2;READY qwen-27b-nvfp4 - AgentServe\x07"]
    told.show(scripted.failed().engine)
    assert written[2:] == ["\x1b]2;FAILED qwen-27b-nvfp4 - AgentServe\x07"]
    told.close()
    told.close()
    assert written[3:] == ["\x1b[23;2t"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (NotifyOptions(bell=True, desktop=False), ["\x07"]),
        (NotifyOptions(bell=False, desktop=True), ["\x1b]9;It is ready.\x07"]),
        (NotifyOptions(bell=False, desktop=False), []),
    ],
)
def test_only_what_is_wanted_is_done(options: NotifyOptions, expected: list[str]) -> None:
    told, written = notifier(options)
    told.announce("It is ready.")
    assert written == expected


def test_nothing_is_written_about_titles_that_are_not_wanted() -> None:
    told, written = notifier(NotifyOptions(title=False))
    told.show(scripted.serving().engine)
    told.close()
    assert written == []


def test_text_from_outside_cannot_end_a_sequence() -> None:
    title = title_of(scripted.engine(EngineState.READY, preset=HOSTILE))
    assert title.isprintable()
    body = desktop_sequence(HOSTILE, in_tmux=False)[len("\x1b]9;") : -1]
    assert body.isprintable()


def test_in_tmux_a_desktop_notification_is_wrapped() -> None:
    assert desktop_sequence("x", in_tmux=True) == "\x1bPtmux;\x1b\x1b]9;x\x07\x1b\\"


async def test_a_change_of_state_reaches_the_terminal_through_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control = scripted.ScriptedControl(scripted.starting())
    app = AgentServeApp(control, notify=NotifyOptions(bell=True, title=True, desktop=True))
    written: list[str] = []
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert app._driver is not None
        monkeypatch.setattr(app._driver, "write", written.append)
        control.current = scripted.serving()
        app.tick()
        await pilot.pause()
    assert written[:3] == [
        "\x1b]2;READY qwen-27b-nvfp4 - AgentServe\x07",
        "\x07",
        "\x1b]9;qwen-27b-nvfp4 is ready after 34 s.\x07",
    ]
    assert written[-1] == "\x1b[23;2t"
