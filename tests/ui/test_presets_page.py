from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App
from textual.events import Paste
from textual.message import Message
from textual.pilot import Pilot
from textual.widgets import Input

from agentserve.domain.control import OptionDifference, PresetDetail, PresetSummary
from agentserve.domain.errors import ConfigError
from agentserve.domain.lifecycle import EngineState
from agentserve.domain.snapshot import EngineView, Snapshot
from agentserve.ui.app import AgentServeApp
from agentserve.ui.glyphs import CURSOR
from agentserve.ui.lines import cells, plain
from agentserve.ui.panels import preset_detail, preset_list
from agentserve.ui.screens.dashboard import DashboardScreen
from agentserve.ui.screens.dialogs import ChoiceDialog, TextDialog
from agentserve.ui.screens.presets import PresetsScreen
from agentserve.ui.widgets.panel import Panel

from . import scripted
from .test_app import SIZES, make_app, shown, toasts

HOSTILE = "[bold]x[/ \x1b[2J\x1b]0;t\x07\u202eevil\r\n\t 漢字漢字 " + "long " * 60
BROKEN = "/home/me/presets/mine.toml:4: `max_seqs` is no option; did you mean `max_num_seqs`."


def words(app: AgentServeApp, name: str) -> str:
    return "\n".join(plain(line) for line in app.screen.query_one(f"#{name}", Panel).lines)


def chosen(app: AgentServeApp) -> str:
    assert isinstance(app.screen, PresetsScreen)
    assert app.screen.highlighted is not None
    return app.screen.highlighted.name


async def typed(pilot: Pilot[None], text: str) -> None:
    """Replace the text of the open dialog and accept it."""
    pilot.app.screen.query_one(Input).value = text
    await pilot.press("enter")
    await pilot.pause()


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_page_shows_list_and_detail_without_overlap_or_lost_figures(
    size: tuple[int, int],
) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=size) as pilot:
        await pilot.press("p", "down")
        await pilot.pause()
        listed, detail = words(app, "preset-list"), words(app, "preset-detail")
        for part in (
            *("1 cpu-tiny", "▸ 2 qwen-27b-nvfp4", "8,192", "98,304", "2,048", "off", "cuda"),
            *("cpu engine", "owner report", "qwen-27b-mtp          * "),
        ):
            assert part in listed
        for part in (
            *("What qwen-27b-mtp is good for.", "nobody has measured it", "qwen-27b-mtp.toml"),
            *("sequences at once, was 4", "126,812 tok, in its last start", "41 s expected"),
            *("4096 → 2048", "different from qwen-27b-nvfp4", "4 → 2", "engine.tensor_parallel"),
        ):
            assert part in detail
        regions = [each.region for each in shown(app)]
        for index, region in enumerate(regions):
            for other in regions[index + 1 :]:
                # The detail is longer than its window; the bar must not be covered by the list.
                assert not region.overlaps(other) or region.height > size[1] // 2
        bar = words(app, "action-bar")
        assert "esc back" in bar
        assert "q quit" in bar
        assert "enter switch" in bar


async def test_p_opens_on_the_current_preset_and_p_or_esc_goes_back() -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(80, 24)) as pilot:
        for key in ("p", "escape"):
            await pilot.press("p")
            assert chosen(app) == "qwen-27b-nvfp4"
            await pilot.press(key)
            assert isinstance(app.screen, DashboardScreen)


async def test_keys_and_mouse_move_the_highlight_and_stop_at_the_ends() -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p")
        for key, name in (
            *(("j", "qwen-27b-mtp"), ("down", "qwen-27b-mtp"), ("k", "qwen-27b-nvfp4")),
            *(("home", "cpu-tiny"), ("up", "cpu-tiny"), ("end", "qwen-27b-mtp")),
        ):
            await pilot.press(key)
            assert chosen(app) == name
        await pilot.pause()
        corner = app.screen.query_one("#preset-list").content_region.offset
        await pilot.click(offset=(corner.x + 4, corner.y + 1))
        assert chosen(app) == "cpu-tiny"
        assert "What cpu-tiny is good for." in words(app, "preset-detail")


async def test_the_detail_scrolls() -> None:
    app = make_app(scripted.ScriptedControl(scripted.serving()))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p", "end")
        await pilot.pause()
        scroll = app.screen.query_one("#preset-scroll")
        await pilot.press("pagedown")
        await pilot.pause()
        assert scroll.scroll_offset.y > 0
        await pilot.press("pageup", "pageup")
        await pilot.pause()
        assert scroll.scroll_offset.y == 0


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (scripted.stopped(), ("start", "qwen-27b-mtp")),
        (scripted.idle(), ("switch", "qwen-27b-mtp", "abort")),
    ],
)
async def test_enter_starts_or_switches(snapshot: Snapshot, expected: tuple[str, ...]) -> None:
    control = scripted.ScriptedControl(snapshot)
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p", "end", "enter")
        assert control.requests == [expected]
        assert isinstance(app.screen, DashboardScreen)


@pytest.mark.parametrize(
    ("answer", "requests", "screen"),
    [
        ("d", [("switch", "qwen-27b-mtp", "drain")], DashboardScreen),
        ("escape", [], PresetsScreen),
    ],
)
async def test_enter_asks_while_requests_run_and_stays_on_the_page_after_a_no(
    answer: str, requests: list[tuple[str, ...]], screen: type[object]
) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p", "end", "enter")
        assert isinstance(app.screen, ChoiceDialog)
        await pilot.press(answer)
        assert control.requests == requests
        assert isinstance(app.screen, screen)


@pytest.mark.parametrize(
    ("keys", "explanation"),
    [
        (["enter"], "qwen-27b-nvfp4 is running already; press r to restart it."),
        (["R"], "A shipped preset cannot be renamed; press n to make a copy of your own."),
        (["d"], "A shipped preset cannot be deleted; press n to make a copy of your own."),
        (["o"], "No changes are kept for qwen-27b-nvfp4."),
    ],
)
async def test_what_is_impossible_for_a_row_is_said(keys: list[str], explanation: str) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    messages: list[Message] = []
    app = make_app(control)
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await pilot.press("p", *keys)
        await pilot.pause()
        assert toasts(messages) == [explanation]
        assert control.preset_files.calls == []
        assert isinstance(app.screen, PresetsScreen)


async def test_a_copy_is_made_under_the_name_that_is_asked_for_and_highlighted() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p", "n")
        await pilot.pause()
        assert app.screen.query_one(Input).value == "my-qwen-27b-nvfp4"
        await pilot.press("enter")
        await pilot.pause()
        assert control.preset_files.calls == [("duplicate", "qwen-27b-nvfp4", "my-qwen-27b-nvfp4")]
        assert chosen(app) == "my-qwen-27b-nvfp4"


async def test_a_name_that_is_taken_is_said_in_the_dialog_and_can_be_corrected() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    control.preset_files.refusal = ConfigError("There is one [bold]already.", "Choose another.")
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p", "n", "enter")
        await pilot.pause()
        assert isinstance(app.screen, TextDialog)
        rows = app.screen.query_one(Panel).lines
        assert "There is one [bold]already. Choose another." in " ".join(map(plain, rows))
        await typed(pilot, "other")
        assert chosen(app) == "other"


@pytest.mark.parametrize("leave", ["escape", "enter"])
async def test_no_name_means_no_copy(leave: str) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p", "n")
        app.screen.query_one(Input).value = " "
        await pilot.press(leave)
        assert isinstance(app.screen, PresetsScreen)
        assert control.preset_files.calls == []


async def test_a_users_file_is_renamed_and_stays_highlighted() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p", "end", "R")
        await typed(pilot, "mtp-2")
        assert control.preset_files.calls == [("rename", "qwen-27b-mtp", "mtp-2")]
        assert chosen(app) == "mtp-2"


@pytest.mark.parametrize(("answer", "calls"), [("d", 1), ("enter", 0), ("escape", 0)])
async def test_a_file_is_deleted_only_when_that_was_said_twice(answer: str, calls: int) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p", "end", "delete")
        assert isinstance(app.screen, ChoiceDialog)
        await pilot.press(answer)
        await pilot.pause()
        assert control.preset_files.calls == [("delete", "qwen-27b-mtp")] * calls
        assert isinstance(app.screen, PresetsScreen)
        assert chosen(app) == ("qwen-27b-nvfp4" if calls else "qwen-27b-mtp")


async def test_kept_changes_are_shown_and_forgotten_after_a_question() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p", "end", "o")
        await pilot.pause()
        assert "engine.max_num_batched_tokens: 2048 → 4096" in words(app, "dialog")
        await pilot.press("o")
        await pilot.pause()
        assert control.preset_files.calls == [("reset_overlay", "qwen-27b-mtp")]
        assert "kept on top" not in words(app, "preset-detail")


async def test_an_error_of_a_file_operation_is_shown_with_its_remedy() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    control.preset_files.refusal = ConfigError("The disk is full.", "Make room.")
    messages: list[Message] = []
    app = make_app(control)
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await pilot.press("p", "end", "d", "d")
        await pilot.pause()
        assert toasts(messages) == ["The disk is full. Make room."]
        assert chosen(app) == "qwen-27b-mtp"


async def test_the_command_is_copied_and_shown() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p", "y")
        await pilot.pause()
        assert app.clipboard == "vllm serve example/Hybrid-27B-NVFP4 --max-num-seqs 4"
        assert app.clipboard in words(app, "dialog")
        await pilot.press("enter")
        assert isinstance(app.screen, PresetsScreen)


async def test_a_command_pasted_over_several_lines_becomes_a_preset() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p", "i")
        await pilot.pause()
        field = app.screen.query_one(Input)
        pasted = "vllm serve some/model \\\n   --max-num-seqs 4\x1b[2J \\\n -tp 2\n"
        field.post_message(Paste(pasted))
        await pilot.pause()
        assert field.value == "vllm serve some/model --max-num-seqs 4 -tp 2"
        await pilot.press("enter")
        await pilot.pause()
        await typed(pilot, "imported")
        assert control.preset_files.calls == [
            ("import_command", "vllm serve some/model --max-num-seqs 4 -tp 2", "imported")
        ]
        assert chosen(app) == "imported"


class Editor:
    """Writes what a test says into each file that is opened."""

    def __init__(self, *texts: str, trouble: str | None = None) -> None:
        self.texts = list(texts)
        self.opened: list[str] = []
        self.trouble = trouble

    def __call__(self, _app: App[None], path: str) -> str | None:
        self.opened.append(path)
        if self.texts:
            Path(path).write_text(self.texts.pop(0))
        return self.trouble


async def test_a_users_file_is_edited_and_found_good(tmp_path: Path) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    control.preset_files.folder = tmp_path
    editor = Editor("good")
    messages: list[Message] = []
    app = make_app(control, edit_file=editor)
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await pilot.press("p", "end", "e")
        await pilot.pause()
        assert editor.opened == [str(tmp_path / "qwen-27b-mtp.toml")]
        assert control.preset_files.calls == [("reload",)]
        assert toasts(messages) == ["qwen-27b-mtp: no problems found."]
        assert isinstance(app.screen, PresetsScreen)


async def test_a_shipped_file_is_copied_before_it_is_edited(tmp_path: Path) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    control.preset_files.folder = tmp_path
    editor = Editor("good")
    app = make_app(control, edit_file=editor)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p", "e")
        assert editor.opened == []
        await typed(pilot, "mine")
        assert control.preset_files.calls == [("duplicate", "qwen-27b-nvfp4", "mine"), ("reload",)]
        assert editor.opened == [str(tmp_path / "mine.toml")]
        assert chosen(app) == "mine"


async def test_a_mistake_is_shown_kept_and_can_be_edited_again(tmp_path: Path) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    control.preset_files.folder = tmp_path
    editor = Editor("broken = 1", "good")
    app = make_app(control, edit_file=editor)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("p", "end", "e")
        await pilot.pause()
        text = words(app, "dialog")
        assert "qwen-27b-mtp.toml:1: broken is no key; write a table." in " ".join(text.split())
        assert "The file is kept as you wrote it." in text
        assert (tmp_path / "qwen-27b-mtp.toml").read_text() == "broken = 1"
        await pilot.press("e")
        await pilot.pause()
        assert len(editor.opened) == 2
        assert isinstance(app.screen, PresetsScreen)
        assert chosen(app) == "qwen-27b-mtp"


async def test_a_mistake_can_be_left_and_stays_in_the_list(tmp_path: Path) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    control.preset_files.folder = tmp_path
    app = make_app(control, edit_file=Editor("broken = 1"))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("p", "end", "e", "escape")
        await pilot.pause()
        assert chosen(app) == "qwen-27b-mtp"
        assert "line 1: broken is no key" in words(app, "preset-list")
        assert "e edit the file" in words(app, "preset-detail")


async def test_an_editor_that_fails_leaves_the_file_and_says_so(tmp_path: Path) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    control.preset_files.folder = tmp_path
    messages: list[Message] = []
    app = make_app(control, edit_file=Editor(trouble="'vi' ended with status 1."))
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await pilot.press("p", "end", "e")
        await pilot.pause()
        assert toasts(messages) == ["'vi' ended with status 1. The file is as it was left."]
        assert list(tmp_path.iterdir()) == []


async def test_a_broken_file_is_listed_with_its_sentence_and_edited_by_its_path() -> None:
    control = scripted.ScriptedControl(scripted.stopped())
    control.problems = (BROKEN, "config.toml says something odd.")
    control.preset_files.broken = {"mine": BROKEN}
    editor = Editor()
    messages: list[Message] = []
    app = make_app(control, edit_file=editor)
    async with app.run_test(size=(120, 40), message_hook=messages.append) as pilot:
        await pilot.press("p", "end")
        await pilot.pause()
        assert chosen(app) == "mine"
        assert "line 4: `max_seqs` is no option" in words(app, "preset-list")
        assert BROKEN in " ".join(words(app, "preset-detail").split())
        await pilot.press("enter")
        await pilot.pause()
        assert toasts(messages) == ["mine cannot be used; press e to edit it."]
        assert control.requests == []
        await pilot.press("e")
        assert editor.opened == ["/home/me/presets/mine.toml"]


async def test_without_any_preset_the_page_says_so() -> None:
    control = scripted.ScriptedControl(scripted.stopped())
    control.known_presets = ()
    messages: list[Message] = []
    app = make_app(control)
    async with app.run_test(size=(80, 24), message_hook=messages.append) as pilot:
        await pilot.press("p")
        await pilot.pause()
        assert "no preset can be used" in words(app, "preset-list")
        await pilot.press("down", "up", "home", "end", "e", "n", "enter")
        await pilot.pause()
        assert set(toasts(messages)) == {"There is no preset in the list."}


async def test_names_and_descriptions_from_outside_are_data() -> None:
    control = scripted.ScriptedControl(scripted.stopped())
    bad = PresetSummary(
        name=HOSTILE, title=HOSTILE, source="user", evidence=HOSTILE, evidence_level=HOSTILE
    )
    control.known_presets = (bad,)
    control.preset_files.descriptions = {HOSTILE: HOSTILE}
    control.problems = (HOSTILE, f"/x/{HOSTILE}.toml:1: {HOSTILE}")
    app = make_app(control)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("p")
        await pilot.pause()
        for name in ("preset-list", "preset-detail"):
            text = words(app, name)
            assert "[bold]x[/" in text
            assert "\x1b" not in text
            assert "\u202e" not in text
        for key in ("n", "R", "d", "y"):
            await pilot.press(key)
            await pilot.pause()
            assert "\x1b" not in app.export_screenshot()
            await pilot.press("escape")


async def test_nothing_is_written_or_asked_for_while_nothing_changes() -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = make_app(control)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("p")
        await pilot.pause()
        panels = list(app.screen.query(Panel))
        before = {each.id: each.rows_written for each in panels}
        asked = control.preset_files.details_asked
        for second in range(4):
            engine = msgspec.structs.replace(control.current.engine, uptime_s=float(second))
            control.current = msgspec.structs.replace(control.current, engine=engine)
            app.tick()
        assert {each.id: each.rows_written for each in panels} == before
        assert control.preset_files.details_asked == asked


def test_a_long_list_keeps_the_chosen_row_in_view() -> None:
    presets = tuple(
        PresetSummary(name=f"preset-{number}", title="t", source="user") for number in range(40)
    )
    for row in range(40):
        lines = preset_list.draw(presets, (), EngineView(), row, 76, 10)
        assert len(lines) == 10
        assert any(CURSOR in plain(line) and f"preset-{row} " in plain(line) for line in lines)


@given(st.integers(70, 200), st.integers(1, 30), st.text(max_size=40), st.integers(0, 5))
def test_the_list_never_leaves_its_rectangle(width: int, height: int, text: str, row: int) -> None:
    presets = (
        *scripted.PRESETS,
        PresetSummary(name=text, title=text, source="user", max_model_len=10**8),
    )
    lines = preset_list.draw(presets, (BROKEN, text), EngineView(), row, width, height)
    assert len(lines) <= height
    assert all(cells(line) <= width for line in lines)


@given(
    st.integers(40, 200),
    st.text(max_size=300),
    st.none() | st.sampled_from(scripted.PRESETS),
    st.none() | st.integers(0, 10**8),
)
def test_the_detail_never_leaves_its_width(
    width: int, text: str, base: PresetSummary | None, capacity: int | None
) -> None:
    detail = PresetDetail(
        summary=msgspec.structs.replace(scripted.PRESETS[2], title=text, evidence=text),
        description=text,
        path=text,
        options=((text, text),),
        overlay=(OptionDifference(text, text, ""),),
        differences=(OptionDifference(text, "", text),),
        command=text,
        capacity_tokens=capacity,
    )
    lines = preset_detail.draw(detail, (text,), base, EngineView(), width, 999, keys_of={})
    assert all(cells(line) <= width for line in lines)
    assert "".join(map(plain, lines)).isprintable()


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_page_in_ascii(size: tuple[int, int]) -> None:
    control = scripted.ScriptedControl(Snapshot(engine=scripted.engine(EngineState.FAILED)))
    app = make_app(control, ascii_only=True)
    async with app.run_test(size=size) as pilot:
        await pilot.press("p", "end")
        await pilot.pause()
        for each in app.screen.query(Panel):
            text = "".join(each.render_line(y).text for y in range(each.size.height))
            assert text.isascii(), text
