"""How to connect an agent to this server."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, VerticalScroll

from agentserve.domain.snapshot import EngineView, SettingsView, Snapshot
from agentserve.ui.actions import bindings
from agentserve.ui.agent_settings import AGENTS, facts_of
from agentserve.ui.frame import EMPTY_FRAME, Frame
from agentserve.ui.panels import agents
from agentserve.ui.screens.base import FrameScreen
from agentserve.ui.widgets.action_bar import ActionBar
from agentserve.ui.widgets.panel import Panel

SCOPE = "agents"
_BY_WIDTH = [(0, "-narrow"), (110, "-medium")]


class AgentsScreen(FrameScreen):
    """Lists the known agents and shows the settings of the chosen one.

    Args:
        api_key_needed: Whether clients must send a key.
    """

    SCOPE: ClassVar[str] = SCOPE
    CSS_PATH = "agents.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE)]
    HORIZONTAL_BREAKPOINTS = _BY_WIDTH

    def __init__(self, *, api_key_needed: bool) -> None:
        super().__init__()
        self.chosen = 0
        self._api_key_needed = api_key_needed
        self._frame = EMPTY_FRAME
        self._list = Panel(
            agents.draw_list,
            lambda frame: (agents.seen_here(frame.snapshot), self.chosen),
            "Agents",
            id="agents",
        )
        self._settings = Panel(
            agents.draw_settings,
            lambda frame: (_server_only(frame), self.chosen, self._api_key_needed),
            id="agent-settings",
        )
        self._pane = VerticalScroll(self._settings, id="agent-pane", can_focus=False)
        self._bar = ActionBar(SCOPE)

    def compose(self) -> ComposeResult:
        """Lay out the list, the settings and the bar; the style sheet decides how."""
        with Container(id="agent-panes"):
            yield self._list
            yield self._pane
        yield self._bar

    def show(self, frame: Frame) -> None:
        """Draw `frame`, as far as it differs from what is shown."""
        self._frame = frame
        title = agents.settings_title(self.chosen)
        if self._pane.border_title != title:
            self._pane.border_title = title
        for panel in (self._list, self._settings, self._bar):
            panel.show(frame)

    def action_choose(self, steps: int) -> None:
        """Show the settings of another agent."""
        self.chosen = (self.chosen + steps) % len(AGENTS)
        self._pane.scroll_home(animate=False, immediate=True)
        self.show(self._frame)

    def action_scroll_settings(self, pages: int) -> None:
        """Scroll the settings by pages."""
        if pages > 0:
            self._pane.scroll_page_down(animate=False)
        else:
            self._pane.scroll_page_up(animate=False)

    def action_copy_settings(self) -> None:
        """Copy the settings of the chosen agent."""
        agent = AGENTS[self.chosen]
        facts = facts_of(self._frame.snapshot, key_needed=self._api_key_needed)
        self.app.copy_to_clipboard(agent.settings(facts) + "\n")
        self.notify(f"Copied the settings for {agent.name}", markup=False)


def _server_only(frame: Frame) -> Snapshot:
    """Keep what the settings are made of, so that nothing is drawn while it stays equal."""
    engine = frame.engine
    return Snapshot(
        engine=EngineView(
            endpoint=engine.endpoint,
            model=engine.model,
            settings=SettingsView(max_model_len=engine.settings.max_model_len),
        )
    )
