"""The presets page: compare them, switch, and work on their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, cast

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.events import Click

from agentserve.domain.control import PresetDetail, PresetPort, PresetSummary
from agentserve.domain.errors import AgentServeError
from agentserve.domain.snapshot import EngineView
from agentserve.domain.text import printable
from agentserve.ui.actions import BY_CALL, bindings, call_text
from agentserve.ui.frame import EMPTY_FRAME, Frame, Highlighted
from agentserve.ui.lines import Lines
from agentserve.ui.panels import preset_detail, preset_list
from agentserve.ui.panels.dialog import Choice
from agentserve.ui.screens.base import FrameScreen
from agentserve.ui.screens.dialogs import ChoiceDialog, TextDialog
from agentserve.ui.widgets.action_bar import ActionBar
from agentserve.ui.widgets.panel import Panel

if TYPE_CHECKING:
    from agentserve.ui.app import AgentServeApp

_YES = "yes"
_BY_WIDTH = [(0, "-narrow"), (100, "-medium"), (160, "-wide")]


class PresetsScreen(FrameScreen):
    """Lists all presets, and shows everything about the highlighted one.

    Args:
        files: Work on preset files.
    """

    CSS_PATH = "presets.tcss"
    SCOPE = "presets"
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(SCOPE),
        Binding("home", "choose_row(0)", show=False),
        Binding("end", "choose_row(-1)", show=False),
        Binding("pageup", "scroll_detail(-1)", show=False),
        Binding("pagedown", "scroll_detail(1)", show=False),
    ]
    HORIZONTAL_BREAKPOINTS = _BY_WIDTH

    def __init__(self, files: PresetPort) -> None:
        super().__init__()
        self._files = files
        self._frame = EMPTY_FRAME
        self._chosen = -1
        self._shown_name = ""
        self._detail: PresetDetail | None = None
        self._problems: tuple[str, ...] = ()
        self._detail_of: tuple[object, ...] = ()
        self._list = Panel(
            preset_list.draw,
            lambda f: (f.presets, f.preset_problems, _marks(f), self._chosen),
            "Presets",
            id="preset-list",
        )
        self._page = Panel(
            _draw_detail,
            lambda f: (self._detail, self._problems, _current(f), _marks(f), f.keys_of),
            id="preset-detail",
        )
        self._scroll = VerticalScroll(self._page, id="preset-scroll", can_focus=False)
        self._bar = ActionBar(self.SCOPE)

    def compose(self) -> ComposeResult:
        """Put list and detail above the action bar; the style sheet decides how."""
        with Container(id="presets"):
            yield self._list
            yield self._scroll
        yield self._bar

    @property
    def highlighted(self) -> Highlighted | None:
        """The row that actions work on."""
        rows = self._rows()
        return rows[self._chosen][1] if 0 <= self._chosen < len(rows) else None

    def show(self, frame: Frame) -> None:
        """Draw `frame`, with the same row highlighted as before."""
        before = self.highlighted
        self._frame = frame
        names = [row.name for _, row in self._rows()]
        wanted = frame.engine.preset if before is None else before.name
        if wanted in names:
            self._chosen = names.index(wanted)
        self._chosen = max(0, min(self._chosen, len(names) - 1))
        self._draw()

    def with_choice(self, frame: Frame) -> Frame:
        """Add the highlighted row to a frame."""
        return replace(frame, highlighted=self.highlighted)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Block the actions that are impossible for the highlighted row."""
        known = BY_CALL.get(f"screen.{call_text(action, parameters)}")
        if known is None or known.against(self.with_choice(self._frame)) is None:
            return True
        return None

    def action_choose_preset(self, step: int) -> None:
        """Highlight another row, `step` rows further."""
        self._choose(self._chosen + step)

    def action_choose_row(self, row: int) -> None:
        """Highlight the row with this index; -1 is the last one."""
        self._choose(row if row >= 0 else len(self._rows()) - 1)

    def action_scroll_detail(self, direction: int) -> None:
        """Scroll the detail by a page."""
        if direction < 0:
            self._scroll.scroll_page_up(animate=False)
        else:
            self._scroll.scroll_page_down(animate=False)

    def on_click(self, event: Click) -> None:
        """Highlight the row under the pointer."""
        offset = event.get_content_offset(self._list)
        height = self._list.size.height
        if offset is not None and offset.y >= preset_list.HEADING_ROWS:
            first = preset_list.first_shown(self._chosen, len(self._rows()), height)
            self._choose(first + offset.y - preset_list.HEADING_ROWS)

    def action_use_preset(self) -> None:
        """Start the highlighted preset, or switch to it."""
        if self.highlighted is not None:
            # The dashboard shows the way to READY.
            self._product.switch_to(self.highlighted.name, self._product.action_go_back)

    def action_duplicate_preset(self) -> None:
        """Ask for a name and write a file that extends the highlighted preset."""
        if self.highlighted is not None:
            self._ask_copy(self.highlighted.name, f"Copy {self.highlighted.name}", self._go_to)

    def action_edit_preset(self) -> None:
        """Open the file in an editor; a shipped one is copied first."""
        row = self.highlighted
        if row is None:
            return
        if row.problem is not None:
            found = preset_list.path_in(row.problem)
            if found is not None:
                self._edit(row.name, found[1])
        elif row.source == "shipped":
            self._ask_copy(row.name, f"Edit a copy of {row.name}", self._edit_copy)
        elif self._detail is not None:
            self._edit(row.name, self._detail.path)

    def action_rename_preset(self) -> None:
        """Ask for another name of the user's file."""
        row = self.highlighted
        if row is None:
            return
        self._product.open_dialog(
            TextDialog(
                f"Rename {row.name}",
                ("The file keeps its contents.",),
                lambda new: self._files.rename(row.name, new),
                value=row.name,
                then=self._go_to,
            )
        )

    def action_delete_preset(self) -> None:
        """Delete the user's file, after asking."""
        row = self.highlighted
        if row is None:
            return
        self._confirm(
            f"Delete {row.name}?",
            "The file and the changes kept on top of it are removed from the disk.",
            Choice("d", "delete", "This cannot be undone.", _YES),
            lambda: self._files.delete(row.name),
        )

    def action_reset_overlay(self) -> None:
        """Forget the changes kept on top of the file, after asking."""
        row = self.highlighted
        if row is None:
            return
        kept = self._detail.overlay if self._detail is not None else ()
        texts = [f"{each.key}: {each.right or '-'} → {each.left or '-'}" for each in kept]
        self._confirm(
            f"Reset {row.name}?",
            "What the file says counts again. " + "; ".join(texts),
            Choice("o", "reset", "The next start uses the file alone.", _YES),
            lambda: self._files.reset_overlay(row.name),
        )

    def action_show_command(self) -> None:
        """Copy the equivalent command, and show it."""
        if self._detail is None:
            return
        command = self._detail.command
        self.app.copy_to_clipboard(command)
        self._product.open_dialog(
            ChoiceDialog(
                f"{self._detail.summary.name} as a command",
                lambda _frame: (command,),
                (Choice("escape", "close", "It is in the clipboard of your terminal.", None),),
                wide=True,
            )
        )

    def action_import_command(self) -> None:
        """Ask for a command and a name, and write a file."""

        def ask_name(command: str) -> None:
            self._product.open_dialog(
                TextDialog(
                    "Name of the new preset",
                    ("Letters, digits, dots, dashes; it becomes the name of a file of yours.",),
                    lambda name: self._files.import_command(command, name),
                    then=self._go_to,
                )
            )

        self._product.open_dialog(
            TextDialog(
                "Import a command",
                ("Paste a `vllm serve …` command, also one of several lines.",),
                lambda _command: None,
                then=ask_name,
            )
        )

    @property
    def _product(self) -> AgentServeApp:
        return cast("AgentServeApp", self.app)

    def _rows(self) -> tuple[tuple[PresetSummary | None, Highlighted], ...]:
        return preset_list.rows_of(self._frame.presets, self._frame.preset_problems)

    def _choose(self, row: int) -> None:
        row = max(0, min(row, len(self._rows()) - 1))
        if row != self._chosen:
            self._chosen = row
            self._scroll.scroll_home(animate=False)
            self._draw()

    def _draw(self) -> None:
        frame = self.with_choice(self._frame)
        self._read_detail(frame)
        self._list.show(frame)
        self._page.show(frame)
        name = printable(frame.highlighted.name, 60) if frame.highlighted else ""
        if name != self._shown_name:
            self._shown_name = name
            self._scroll.border_title = Content(name)
        self._bar.show(frame)

    def _read_detail(self, frame: Frame) -> None:
        """Ask for the detail when something changed that it depends on."""
        engine = frame.engine
        depends_on = (
            *(frame.highlighted, frame.presets, frame.preset_problems),
            *(engine.preset, engine.state, engine.generation),
        )
        if depends_on == self._detail_of:
            return
        self._detail_of = depends_on
        self._detail, self._problems = None, ()
        row = frame.highlighted
        if row is None:
            return
        if row.problem is not None:
            self._problems = self._files.problems_of(row.name) or (row.problem,)
            return
        try:
            self._detail = self._files.detail(row.name)
        except AgentServeError as error:
            self._problems = (" ".join(filter(None, (error.message, error.hint))),)

    def _ask_copy(self, name: str, title: str, then: Callable[[str], None]) -> None:
        self._product.open_dialog(
            TextDialog(
                title,
                (f"A name for your own file; it extends {name} and holds only what you change.",),
                lambda new: self._files.duplicate(name, new),
                value=f"my-{name}",
                then=then,
            )
        )

    def _confirm(self, title: str, body: str, yes: Choice, act: Callable[[], None]) -> None:
        def decide(_answer: str) -> None:
            try:
                act()
            except AgentServeError as error:
                self._product.say_error(error)
            self._product.tick()

        no = Choice("escape", "cancel", "Nothing happens.", None)
        # Enter must not destroy anything, so the harmless answer comes first.
        self._product.open_dialog(ChoiceDialog(title, lambda _frame: (body,), (no, yes), decide))

    def _go_to(self, name: str) -> None:
        """Highlight a preset by name after the list was read again."""
        self._product.tick()
        names = [row.name for _, row in self._rows()]
        if name in names:
            self._choose(names.index(name))

    def _edit_copy(self, name: str) -> None:
        self._go_to(name)
        try:
            path = self._files.detail(name).path
        except AgentServeError as error:
            self._product.say_error(error)
        else:
            self._edit(name, path)

    def _edit(self, name: str, path: str) -> None:
        """Let the user edit a file, then say what is wrong with it; the file is never changed."""
        trouble = self._product.edit_file(self.app, path)
        if trouble is not None:
            self._product.notify(
                f"{printable(trouble, 200)} The file is as it was left.",
                severity="warning",
                markup=False,
            )
        try:
            self._files.reload()
        except AgentServeError as error:
            self._product.say_error(error)
        self._go_to(name)
        problems = self._files.problems_of(name)
        if not problems:
            if trouble is None:
                self._product.notify(f"{printable(name, 60)}: no problems found.", markup=False)
            return
        self._product.open_dialog(
            ChoiceDialog(
                f"{name} cannot be used yet",
                lambda _frame: (*problems, "The file is kept as you wrote it."),
                (
                    Choice("e", "edit again", "", _YES),
                    Choice("escape", "leave it so", "The other presets go on.", None),
                ),
                lambda _answer: self._edit(name, path),
                wide=True,
            )
        )


def _current(frame: Frame) -> PresetSummary | None:
    return next((each for each in frame.presets if each.name == frame.engine.preset), None)


def _marks(frame: Frame) -> EngineView:
    """Keep of the engine what the page shows, so that it is not drawn at every tick."""
    return EngineView(state=frame.state, preset=frame.engine.preset)


def _draw_detail(
    detail: PresetDetail | None,
    problems: tuple[str, ...],
    base: PresetSummary | None,
    engine: EngineView,
    keys_of: Mapping[str, tuple[str, ...]],
    width: int,
    height: int,
) -> Lines:
    return preset_detail.draw(detail, problems, base, engine, width, height, keys_of=keys_of)
