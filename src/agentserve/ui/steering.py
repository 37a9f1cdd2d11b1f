"""What keys ask of the engine: start, stop, switch, toggle, leave; and the questions before that.

Nothing here stops a request without asking: while requests run or wait, ending the engine is a
question. Dialogs are imported when they are first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.app import App
from textual.notifications import SeverityLevel

from agentserve.domain.control import ControlPort, SwitchMode
from agentserve.domain.errors import AgentServeError
from agentserve.domain.pending import CheckState, ToggleOption
from agentserve.domain.text import printable
from agentserve.ui.action import first_key, key_for
from agentserve.ui.frame import EMPTY_FRAME, RUNNING_STATES, Frame
from agentserve.ui.screens.base import FrameScreen
from agentserve.ui.toggles import (
    LEAST_VALUES,
    NAMES,
    UNITS,
    current_value,
    next_budget,
    next_draft_tokens,
    number_in,
    written,
)

if TYPE_CHECKING:
    from agentserve.ui.panels.dialog import Choice
    from agentserve.ui.screens.dialogs import ChoiceDialog

_WAIT, _NOW = "wait", "now"


class SteeringApp(App[None], inherit_bindings=False):
    """The part of the app that asks the product for something."""

    control: ControlPort
    _frame: Frame = EMPTY_FRAME
    _quit_question: ChoiceDialog | None = None

    @property
    def frame(self) -> Frame:
        """What is shown now."""
        return self._frame

    def tick(self) -> None:
        """Take one frame and show what changed."""
        raise NotImplementedError

    def action_toggle_engine(self) -> None:
        """Start, stop or abort, whichever fits the state."""
        if self._frame.state not in RUNNING_STATES:
            if self._frame.engine.pending is not None:
                self.action_restart_engine()
            else:
                self._start(None)
            return
        self._when_free(
            "Stop the engine?",
            lambda _mode: self.control.stop(),
            now="stop now",
            now_key=first_key("engine.toggle", self._frame.keys_of),
            may_wait=False,
        )

    def action_restart_engine(self) -> None:
        """Apply what is pending by a restart, or restart with the same settings."""
        pending = self._frame.engine.pending is not None
        warnings = self._frame.engine.pending.warnings if self._frame.engine.pending else ()
        self._when_free(
            "Apply and restart?" if pending else "Restart the engine?",
            self._ask_restart,
            now="apply now" if pending else "restart now",
            warnings=warnings,
        )

    def action_start_slot(self, slot: int) -> None:
        """Start the preset in a slot, or switch to it."""
        preset = self._frame.preset_in_slot(slot)
        if preset is not None:
            self.switch_to(preset.name)

    def action_start_previous(self) -> None:
        """Go back to the preset that was ready before."""
        if self._frame.engine.previous_preset is not None:
            self.switch_to(self._frame.engine.previous_preset)

    def switch_to(self, name: str, then: Callable[[], None] = lambda: None) -> None:
        """Start a preset, or end what runs and start it then; asks while requests run.

        Args:
            name: The preset.
            then: Called when it was asked for; not when the question was answered with no.
        """
        pending = self._frame.engine.pending
        if self._frame.state not in RUNNING_STATES:
            if pending is None:
                self._start(name)
            elif pending.preset == name:
                self.action_restart_engine()
            else:
                # A switch leaves the changes of the other preset behind.
                self._ask_switch(name, SwitchMode.ABORT)
                self.tick()
            then()
            return

        def act(mode: SwitchMode) -> None:
            self._ask_switch(name, mode)
            then()

        self._when_free(
            f"Switch to {printable(name, 40)}?",
            act,
            now="switch now",
        )

    async def action_quit(self) -> None:
        """Leave, which ends the engine; asks while requests run, and asked again leaves at once."""
        if self._quit_question is not None and self.screen is self._quit_question:
            self._leave()
            return
        self._quit_question = self._when_free(
            _quit_title,
            lambda _mode: self._leave(),
            now="quit now",
            now_key=first_key("app.quit", self._frame.keys_of),
            may_wait=False,
        )

    def _leave(self) -> None:
        """End the app; whoever ran it stops the engine."""
        running = self._frame.state in RUNNING_STATES
        self.exit(message="Stopping the engine…" if running else None)

    def action_stay(self) -> None:
        """Give up a switch that waits for requests."""
        self.control.cancel_switch()
        self.tick()

    def action_drop_pending(self) -> None:
        """Forget all pending changes."""
        self.control.drop_pending()
        self.tick()

    def action_step_budget(self, direction: int) -> None:
        """Make the next smaller or larger token budget pending."""
        value = next_budget(self._frame, direction)
        if value == current_value(self._frame, ToggleOption.TOKEN_BUDGET):
            end = "smallest" if direction < 0 else "largest"
            key = key_for("app.palette", self._frame.keys_of)
            self._say(f"A budget of {value:,} is the {end} step; press {key} to set any number.")
            return
        self.propose(ToggleOption.TOKEN_BUDGET, value)

    def action_cycle_draft_tokens(self) -> None:
        """Make one more draft token pending, or none after the most."""
        self.propose(ToggleOption.DRAFT_TOKENS, next_draft_tokens(self._frame))

    def action_ask_value(self, name: str) -> None:
        """Ask for a number and make it pending."""
        from agentserve.ui.screens.dialogs import TextDialog

        option = ToggleOption(name)
        value = current_value(self._frame, option)
        least = LEAST_VALUES[option]

        def accept(text: str) -> None:
            self.propose(option, number_in(text, least))

        self.open_dialog(
            TextDialog(
                f"Set {NAMES[option]}",
                (f"In {UNITS[option]}; now {written(option, value)}. It becomes pending.",),
                accept,
                value="" if value is None else str(value),
            )
        )

    def propose(self, option: ToggleOption, value: int) -> None:
        """Make a value pending; nothing happens to the engine."""
        try:
            self.control.propose(option, value)
        except AgentServeError as error:
            self.say_error(error)
        self.tick()

    def _ask_restart(self, mode: SwitchMode) -> None:
        pending = self._frame.engine.pending
        if pending is not None and pending.check is CheckState.RUNNING:
            self._say("vLLM still checks the changes; they are applied when it accepts them.")
        try:
            self.control.restart(mode)
        except AgentServeError as error:
            self.say_error(error)

    def _start(self, name: str | None) -> None:
        try:
            self.control.start(name)
        except AgentServeError as error:
            self.say_error(error)
        self.tick()

    def _ask_switch(self, name: str, mode: SwitchMode) -> None:
        try:
            self.control.switch(name, mode)
        except AgentServeError as error:
            self.say_error(error)

    def _when_free(
        self,
        question: str | Callable[[Frame], str],
        act: Callable[[SwitchMode], None],
        *,
        now: str,
        now_key: str = "a",
        may_wait: bool = True,
        warnings: tuple[str, ...] = (),
    ) -> ChoiceDialog | None:
        """Act at once when nothing speaks against it, else ask what should become of requests.

        Args:
            question: Title of the dialog.
            act: Called with the answer.
            now: Label of the answer that waits for nobody.
            now_key: Key of that answer; Textual's name.
            may_wait: Whether waiting for requests is possible.
            warnings: What is to be read before, one sentence each.

        Returns:
            The question, or None when there was none.
        """
        # What is on screen is up to half a second old, and a request may have begun or ended since.
        self.tick()
        if not self._frame.requests_at_work and not warnings:
            act(SwitchMode.ABORT)
            self.tick()
            return None
        from agentserve.ui.panels.dialog import Choice
        from agentserve.ui.screens.dialogs import ChoiceDialog

        choices: list[Choice] = []
        busy = self._frame.requests_at_work > 0
        if may_wait and busy:
            meaning = f"New ones get 503; {key_for('view.back', self._frame.keys_of)} cancels it."
            choices.append(Choice("d", "wait for them", meaning, _WAIT))
        meaning = "Their clients see an error." if busy else ""
        choices.append(Choice(now_key, now, meaning, _NOW))
        choices.append(Choice("escape", "cancel", "Nothing happens.", None))

        def decide(answer: str) -> None:
            act(SwitchMode.DRAIN if answer == _WAIT else SwitchMode.ABORT)
            self.tick()

        cautions = tuple(f"! {printable(text)}" for text in warnings)
        dialog = ChoiceDialog(
            question,
            lambda frame: (*cautions, *(_requests_at_work(frame) if busy else ())),
            choices,
            decide,
        )
        self.open_dialog(dialog)
        return dialog

    def open_dialog(self, dialog: FrameScreen) -> None:
        """Show a dialog over the present screen."""
        self.push_screen(dialog)
        dialog.show(self._frame)

    def say_error(self, error: AgentServeError) -> None:
        """Show what is wrong and what to do about it."""
        text = " ".join(part for part in (error.message, error.hint) if part)
        self._say(printable(text, 400), severity="error")

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Show a message as Textual does, unless the same one is still shown."""
        # A key that is pressed again and again must not fill the screen with copies.
        if all(one.message != message or one.has_expired for one in self._notifications):
            super().notify(message, title=title, severity=severity, timeout=timeout, markup=markup)

    def _say(self, text: str, *, title: str = "", severity: SeverityLevel = "information") -> None:
        self.notify(text, title=title, severity=severity, markup=False)


def _quit_title(frame: Frame) -> str:
    count = frame.requests_at_work
    if count == 0:
        return "Quit?"
    return f"Quit and abort {count} request{'' if count == 1 else 's'}?"


def _requests_at_work(frame: Frame) -> tuple[str, ...]:
    count = frame.requests_at_work
    if count == 0:
        return ("No request runs any more.",)
    what = "1 request runs or waits" if count == 1 else f"{count} requests run or wait"
    return (f"{what} on {printable(frame.engine.preset or 'the engine', 40)}.",)
