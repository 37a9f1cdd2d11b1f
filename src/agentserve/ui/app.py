"""The Textual app: takes one frame per tick, hands it to the screens, turns keys into requests.

It knows a `ControlPort` and nothing behind it. Other threads may only post `EngineStateChanged`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from textual.actions import ActionParseResult
from textual.app import App
from textual.binding import BindingType
from textual.dom import DOMNode
from textual.screen import Screen
from textual.theme import Theme

from agentserve.domain.adviser import AdviserState, advise
from agentserve.domain.control import ControlPort
from agentserve.domain.lifecycle import EngineState
from agentserve.domain.log import LogLine
from agentserve.domain.text import printable
from agentserve.domain.theme import ThemeSpec
from agentserve.ui import keymap
from agentserve.ui.action import key_for
from agentserve.ui.actions import BY_CALL, bindings, call_text
from agentserve.ui.editor import edit_file
from agentserve.ui.formatting import about_seconds
from agentserve.ui.frame import EMPTY_FRAME, RUNNING_STATES, Frame
from agentserve.ui.messages import EngineStateChanged
from agentserve.ui.notifications import NotifyOptions, TerminalNotifier
from agentserve.ui.palette import ActionProvider, Palette, PresetProvider
from agentserve.ui.screens.base import FrameScreen
from agentserve.ui.screens.dashboard import DashboardScreen
from agentserve.ui.steering import SteeringApp
from agentserve.ui.themes import role_defaults, to_textual

TICK_S = 0.5
LOG_LINES_KEPT = 2_000
_UI = Path(__file__).parent
_STYLE_SHEETS = ("app.tcss", "screens/dashboard.tcss")
_LOG_LINES_IN_FRAME = 60
_MOST_PROBLEMS_SAID = 3


class AgentServeApp(SteeringApp, inherit_bindings=False):
    """The control panel.

    Args:
        control: The product to show and to steer.
        theme_specs: Validated themes with unique names; the first is the default.
        initial_theme: Name of the theme to start with.
        ascii_only: Draw with ASCII signs, for terminals and fonts without block characters.
        keys: The user's own keys by action id: one, several with commas, or a list.
        notify: What a change of the engine's state may do outside the screen.
        api_key_needed: Whether clients must send a key.
        edit_file: Opens a file in an editor and waits; returns what went wrong.
    """

    TITLE = "AgentServe"
    # The default screen's own CSS_PATH would not be read; the others bring theirs when they open.
    CSS_PATH: ClassVar = [_UI / name for name in _STYLE_SHEETS]
    COMMANDS: ClassVar = {ActionProvider, PresetProvider}
    BINDINGS: ClassVar[list[BindingType]] = [*bindings()]

    def __init__(
        self,
        control: ControlPort,
        *,
        theme_specs: Sequence[ThemeSpec] = (),
        initial_theme: str | None = None,
        ascii_only: bool = False,
        keys: Mapping[str, str | Sequence[str]] | None = None,
        notify: NotifyOptions | None = None,
        api_key_needed: bool = False,
        edit_file: Callable[[App[None], str], str | None] = edit_file,
    ) -> None:
        super().__init__()
        # The screen holds still, and a scroll costs one frame over ssh.
        self.animation_level = "none"
        self.control = control
        self.edit_file = edit_file
        self.ascii_only = ascii_only
        self.api_key_needed = api_key_needed
        self._keys = keymap.check(keys or {})
        self.set_keymap(keymap.textual_keymap(self._keys.keys_of))
        self._notifier = TerminalNotifier(
            self._write_to_terminal, notify or NotifyOptions(), in_tmux="TMUX" in os.environ
        )
        self._adviser = AdviserState()
        self._frame = EMPTY_FRAME
        self._lines: deque[LogLine] = deque(maxlen=LOG_LINES_KEPT)
        self._log_tail: tuple[LogLine, ...] = ()
        self._log_next = 0
        self._log_missed = 0
        self._has_ticked = False
        self._said_problems: set[str] = set()
        for spec in theme_specs:
            self.register_theme(to_textual(spec))
        self._unknown_theme = initial_theme if initial_theme not in self.available_themes else None
        if initial_theme is not None and self._unknown_theme is None:
            self.theme = initial_theme
        elif theme_specs:
            self.theme = theme_specs[0].name

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
        self.theme_changed_signal.subscribe(self, self._remember_theme)
        for problem in self._keys.problems:
            self._say(problem, severity="warning")
        if self._unknown_theme is not None:
            name = printable(self._unknown_theme, 60)
            self._say(f"There is no theme {name}; using {self.theme}.", severity="warning")

    def tick(self) -> None:
        """Take one frame and show what changed."""
        previous = self._frame
        lines = self._read_log()
        snapshot = self.control.snapshot()
        advice, self._adviser = advise(snapshot, self._adviser)
        self._frame = Frame(
            snapshot=snapshot,
            engine_missing=self.control.engine_missing,
            presets=self.control.presets(),
            preset_problems=self.control.preset_problems(),
            log=self._log_tail,
            log_missed=self._log_missed,
            keys_of=self._keys.keys_of,
            key_problems=self._keys.problems,
            advice=advice,
        )
        for screen in self.screen_stack:
            if isinstance(screen, FrameScreen):
                screen.extend(lines)
                screen.show(self._frame)
        self._notifier.show(self._frame.engine)
        self._say_new_problems()
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
        reason = known.against(self._frame_here()) if known else None
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

    def action_show_presets(self) -> None:
        """Show the presets, or go back from them."""
        from agentserve.ui.screens.presets import PresetsScreen

        self._toggle_screen(PresetsScreen, lambda: PresetsScreen(self.control.preset_files))

    def action_show_log(self) -> None:
        """Show the whole log, or go back from it."""
        from agentserve.ui.screens.log import LogScreen

        self._toggle_screen(LogScreen, lambda: LogScreen(tuple(self._lines), LOG_LINES_KEPT))

    def action_show_gpus(self) -> None:
        """Show the details of the GPUs, or go back from them."""
        from agentserve.ui.screens.text import GpuScreen

        self._toggle_screen(GpuScreen, GpuScreen)

    def action_show_requests(self) -> None:
        """Show the requests, or go back from them."""
        from agentserve.ui.screens.requests import RequestsScreen

        self._toggle_screen(RequestsScreen, RequestsScreen)

    def action_show_history(self) -> None:
        """Show past requests, or go back from them."""
        from agentserve.ui.screens.history import HistoryScreen

        self._toggle_screen(HistoryScreen, lambda: HistoryScreen(self.control.request_history))

    def action_show_sessions(self) -> None:
        """Show the agent sessions, or go back from them."""
        from agentserve.ui.screens.sessions import SessionsScreen

        self._toggle_screen(SessionsScreen, SessionsScreen)

    def action_show_agents(self) -> None:
        """Show how to connect an agent, or go back."""
        from agentserve.ui.screens.agents import AgentsScreen

        needed = self.api_key_needed
        self._toggle_screen(AgentsScreen, lambda: AgentsScreen(api_key_needed=needed))

    def action_command_palette(self) -> None:
        """Open the palette."""
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def action_explain(self) -> None:
        """Explain the figures of the view, one after the other; else those of the dashboard."""
        if isinstance(self.screen, FrameScreen) and self.screen.explain():
            return
        self._close_views()
        if isinstance(self.screen, DashboardScreen):
            self.screen.explain()

    def action_show_help(self) -> None:
        """Show the help, or go back from it to where it was asked for."""
        from agentserve.ui.screens.text import HelpScreen

        self._toggle_screen(HelpScreen, HelpScreen, over_others=True)

    def action_go_back(self) -> None:
        """Go back; on the dashboard give up what waits: first a switch, then changes."""
        if isinstance(self.screen, FrameScreen) and self.screen.step_back():
            return
        if len(self.screen_stack) > 1:
            self.pop_screen()
        elif self._frame.engine.drain is not None:
            self.action_stay()
        elif self._frame.engine.pending is not None:
            self.action_drop_pending()

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

    def on_unmount(self) -> None:
        """Leave the terminal as it was."""
        self._notifier.close()

    def _frame_here(self) -> Frame:
        screen = self.screen
        return screen.with_choice(self._frame) if isinstance(screen, FrameScreen) else self._frame

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

    def _toggle_screen(
        self,
        kind: type[Screen[None]],
        make: Callable[[], Screen[None]],
        *,
        over_others: bool = False,
    ) -> None:
        if isinstance(self.screen, kind):
            self.pop_screen()
            return
        if not over_others:
            self._close_views()
        screen = make()
        self.push_screen(screen)
        if isinstance(screen, FrameScreen):
            screen.show(self._frame)

    def _close_views(self) -> None:
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def _announce(self, previous: Frame) -> None:
        engine = self._frame.engine
        if (engine.state, engine.generation) == (previous.state, previous.engine.generation):
            return
        if engine.state is EngineState.READY:
            took = sum(time.duration_s for time in engine.finished_phases)
            after = f" after {about_seconds(took)}" if took else ""
            ready = f"{printable(engine.preset or 'The engine', 60)} is ready{after}."
            self._say(ready)
            self._notifier.announce(ready)
        elif engine.state is EngineState.FAILED:
            failure = engine.failure
            title = printable(failure.title, 80) if failure else "The engine failed"
            cause = printable(failure.cause, 200) if failure else ""
            key = key_for("view.log", self._frame.keys_of)
            self._say(cause or f"Press {key} to read the log.", title=title, severity="error")
            self._notifier.announce(f"{title}: {cause}" if cause else title)

    def _say_new_problems(self) -> None:
        """Say each problem with a file once while an engine's figures take its place."""
        if self._frame.state not in RUNNING_STATES:
            return
        new = [each for each in self._frame.preset_problems if each not in self._said_problems]
        self._said_problems.update(new)
        for problem in new[:_MOST_PROBLEMS_SAID]:
            self._say(printable(problem, 400), severity="warning")
        more = len(new) - _MOST_PROBLEMS_SAID
        if more > 0:
            key = key_for("view.presets", self._frame.keys_of)
            self._say(f"And {more} more; press {key} to read all.", severity="warning")

    def _remember_theme(self, theme: Theme) -> None:
        self.control.remember_theme(theme.name)

    def _write_to_terminal(self, sequence: str) -> None:
        # The driver's queue is the only way to the terminal that cannot tear another sequence.
        if self._driver is not None:
            self._driver.write(sequence)
