"""The Textual app: takes one frame per tick, hands it to the screens, turns keys into requests.

It knows a `ControlPort` and nothing behind it. Other threads may only post `EngineStateChanged`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from textual.actions import ActionParseResult
from textual.app import App
from textual.binding import BindingType
from textual.dom import DOMNode
from textual.notifications import SeverityLevel
from textual.screen import Screen

from agentserve.domain.control import ControlPort
from agentserve.domain.lifecycle import EngineState
from agentserve.domain.log import LogLine
from agentserve.domain.text import printable
from agentserve.domain.theme import ThemeSpec
from agentserve.ui.actions import BY_CALL, bindings, call_text
from agentserve.ui.formatting import about_seconds
from agentserve.ui.frame import EMPTY_FRAME, RUNNING_STATES, Frame
from agentserve.ui.messages import EngineStateChanged
from agentserve.ui.palette import ActionProvider
from agentserve.ui.screens.dashboard import DashboardScreen
from agentserve.ui.screens.log import LogScreen
from agentserve.ui.screens.text import GpuScreen, HelpScreen, TextScreen
from agentserve.ui.themes import role_defaults, to_textual

TICK_S = 0.5
LOG_LINES_KEPT = 2_000
_UI = Path(__file__).parent
_STYLE_SHEETS = ("app.tcss", "screens/dashboard.tcss", "screens/log.tcss", "screens/text.tcss")
_LOG_LINES_IN_FRAME = 60


class AgentServeApp(App[None], inherit_bindings=False):
    """The control panel.

    Args:
        control: The product to show and to steer.
        theme_specs: Validated themes with unique names; the first is the default.
        initial_theme: Name of the theme to start with.
        ascii_only: Draw with ASCII signs, for terminals and fonts without block characters.
    """

    TITLE = "AgentServe"
    # The default screen's own CSS_PATH would not be read; all sheets are parsed once, at the start.
    CSS_PATH: ClassVar = [_UI / name for name in _STYLE_SHEETS]
    COMMANDS: ClassVar = {ActionProvider}
    BINDINGS: ClassVar[list[BindingType]] = [*bindings()]

    def __init__(
        self,
        control: ControlPort,
        *,
        theme_specs: Sequence[ThemeSpec] = (),
        initial_theme: str | None = None,
        ascii_only: bool = False,
    ) -> None:
        super().__init__()
        # The screen holds still, and a scroll costs one frame over ssh.
        self.animation_level = "none"
        self.control = control
        self.ascii_only = ascii_only
        self._frame = EMPTY_FRAME
        self._lines: deque[LogLine] = deque(maxlen=LOG_LINES_KEPT)
        self._log_tail: tuple[LogLine, ...] = ()
        self._log_next = 0
        self._log_missed = 0
        self._has_ticked = False
        for spec in theme_specs:
            self.register_theme(to_textual(spec))
        self._unknown_theme = initial_theme if initial_theme not in self.available_themes else None
        if initial_theme is not None and self._unknown_theme is None:
            self.theme = initial_theme
        elif theme_specs:
            self.theme = theme_specs[0].name

    @property
    def frame(self) -> Frame:
        """What is shown now."""
        return self._frame

    def get_default_screen(self) -> Screen[Any]:
        """Make the dashboard the bottom of the screen stack."""
        return DashboardScreen(self.size)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Give every colour of ours a value in themes that do not know it."""
        return role_defaults(self.current_theme)

    def on_mount(self) -> None:
        """Draw the first frame at once, then one at each tick."""
        if self.ascii_only:
            self.add_class("-ascii")
        # After a stop signal and `fg` the terminal shows the shell; Textual redraws only changes.
        self.app_resume_signal.subscribe(self, self._redraw_everything)
        self.tick()
        self.set_interval(TICK_S, self.tick)
        if self._unknown_theme is not None:
            name = printable(self._unknown_theme, 60)
            self._say(f"There is no theme {name}; using {self.theme}.", severity="warning")

    def tick(self) -> None:
        """Take one frame and show what changed."""
        previous = self._frame
        lines = self._read_log()
        self._frame = Frame(
            snapshot=self.control.snapshot(),
            engine_missing=self.control.engine_missing,
            presets=self.control.presets(),
            preset_problems=self.control.preset_problems(),
            log=self._log_tail,
            log_missed=self._log_missed,
        )
        for screen in self.screen_stack:
            if isinstance(screen, LogScreen):
                screen.extend(lines)
            if isinstance(screen, DashboardScreen | TextScreen | LogScreen):
                screen.show(self._frame)
        if self._has_ticked:
            self._announce(previous)
        self._has_ticked = True

    def on_engine_state_changed(self, _message: EngineStateChanged) -> None:
        """Show a change of state at once."""
        self.tick()

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Perform an action, or say why it is impossible now."""
        if await super().run_action(action, default_namespace, namespaces):
            return True
        known = BY_CALL.get(action.removeprefix("app.")) if isinstance(action, str) else None
        reason = known.against(self._frame) if known else None
        if reason is None:
            return False
        self._say(printable(reason), severity="warning")
        return True

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Dim and block the actions that are impossible now."""
        known = BY_CALL.get(call_text(action, parameters))
        if known is None or known.against(self._frame) is None:
            return True
        return None

    def action_toggle_engine(self) -> None:
        """Start, stop or abort, whichever fits the state."""
        if self._frame.state in RUNNING_STATES:
            self.control.stop()
        else:
            self.control.start()
        self.tick()

    def action_restart_engine(self) -> None:
        """Stop and start again with the same preset."""
        self.control.restart()
        self.tick()

    def action_start_slot(self, slot: int) -> None:
        """Start the preset in a slot."""
        preset = self._frame.preset_in_slot(slot)
        if preset is not None:
            self.control.start(preset.name)
            self.tick()

    def action_show_log(self) -> None:
        """Show the whole log, or go back from it."""
        self._toggle_screen(LogScreen, lambda: LogScreen(tuple(self._lines), LOG_LINES_KEPT))

    def action_show_gpus(self) -> None:
        """Show the details of the GPUs, or go back from them."""
        self._toggle_screen(GpuScreen, GpuScreen)

    def action_show_help(self) -> None:
        """Show the help, or go back from it."""
        self._toggle_screen(HelpScreen, HelpScreen)

    def action_go_back(self) -> None:
        """Go back to the dashboard."""
        if len(self.screen_stack) > 1:
            self.pop_screen()

    def action_copy_address(self) -> None:
        """Copy the API's address."""
        self.copy_to_clipboard(self._frame.engine.endpoint)
        self._say(f"Copied {printable(self._frame.engine.endpoint, 80)}")

    def action_screenshot(self, filename: str | None = None, path: str | None = None) -> None:
        """Save the screen as an SVG file; in the working folder unless told otherwise."""
        name = filename or f"agentserve-{datetime.now():%Y-%m-%d-%H%M%S}.svg"
        try:
            saved = self.save_screenshot(name, path or str(Path.cwd()))
        except OSError as error:
            self._say(f"The picture could not be saved: {error.strerror}.", severity="error")
        else:
            self._say(f"Saved {printable(saved, 200)}")

    async def action_quit(self) -> None:
        """Leave; whoever ran the app stops the engine."""
        running = self._frame.state in RUNNING_STATES
        self.exit(message="Stopping the engine…" if running else None)

    def _redraw_everything(self, _app: App[Any]) -> None:
        self.refresh(layout=True)

    def _read_log(self) -> tuple[LogLine, ...]:
        batch = self.control.log_since(self._log_next)
        self._log_next = batch.next_number
        self._log_missed += batch.missed
        if batch.lines:
            self._lines.extend(batch.lines)
            self._log_tail = tuple(self._lines)[-_LOG_LINES_IN_FRAME:]
        return batch.lines

    def _toggle_screen(self, kind: type[Screen[None]], make: Callable[[], Screen[None]]) -> None:
        was_shown = isinstance(self.screen, kind)
        self.action_go_back()
        if not was_shown:
            screen = make()
            self.push_screen(screen)
            if isinstance(screen, TextScreen | LogScreen):
                screen.show(self._frame)

    def _announce(self, previous: Frame) -> None:
        engine = self._frame.engine
        if (engine.state, engine.generation) == (previous.state, previous.engine.generation):
            return
        if engine.state is EngineState.READY:
            took = sum(time.duration_s for time in engine.finished_phases)
            after = f" after {about_seconds(took)}" if took else ""
            self._say(f"{printable(engine.preset or 'The engine', 60)} is ready{after}.")
            self.bell()
        elif engine.state is EngineState.FAILED:
            failure = engine.failure
            title = printable(failure.title, 80) if failure else "The engine failed"
            cause = printable(failure.cause, 200) if failure else ""
            self._say(cause or "Press l to read the log.", title=title, severity="error")
            self.bell()

    def _say(self, text: str, *, title: str = "", severity: SeverityLevel = "information") -> None:
        self.notify(text, title=title, severity=severity, markup=False)
