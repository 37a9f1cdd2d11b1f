"""Agent sessions: the KV pool divided among them, all of them as rows, and one with its turns."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.events import Resize

from agentserve.domain.session import SessionView
from agentserve.ui.action import key_for
from agentserve.ui.actions import bindings
from agentserve.ui.frame import EMPTY_FRAME, Frame
from agentserve.ui.panels import pool_bar, session_detail, session_table, session_timeline
from agentserve.ui.screens.base import FrameScreen
from agentserve.ui.session_actions import SCOPE
from agentserve.ui.session_list import SessionListView, TurnListView, chosen, labels_of
from agentserve.ui.widgets.action_bar import ActionBar
from agentserve.ui.widgets.explaining import Explaining
from agentserve.ui.widgets.panel import Panel

_BY_WIDTH = [(0, "-narrow"), (100, "-medium"), (160, "-wide")]
_BY_HEIGHT = [(0, "-short"), (34, "-medium-height"), (50, "-tall")]
_ROWS_BEFORE_LAYOUT = 120


class SessionsScreen(FrameScreen):
    """A list of sessions with a cursor; in its place one session when it is opened."""

    SCOPE: ClassVar[str] = SCOPE
    CSS_PATH = "sessions.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE)]
    HORIZONTAL_BREAKPOINTS = _BY_WIDTH
    VERTICAL_BREAKPOINTS = _BY_HEIGHT

    def __init__(self) -> None:
        super().__init__()
        self.view = SessionListView()
        self.turns = TurnListView()
        self.opened: str | None = None
        """Id of the session whose turns are shown."""
        self._letters = pool_bar.Letters()
        self._frame = EMPTY_FRAME
        self._pool = Panel(
            pool_bar.draw,
            self._pool_parts,
            lambda frame: pool_bar.title(frame.snapshot.kv),
            id="session-pool",
        )
        self._table = Panel(
            session_table.draw,
            self._table_parts,
            lambda frame: session_table.title(
                len(frame.snapshot.sessions),
                forgotten=frame.snapshot.cache_monitor.sessions_forgotten,
            ),
            id="session-table",
        )
        self._footer = Panel(session_table.draw_footer, _footer_parts, id="session-footer")
        self._timeline = Panel(
            session_timeline.draw,
            lambda frame: (self._session(frame), self.turns.cursor, self.turns.top),
            lambda frame: session_timeline.title(self._session(frame)),
            id="session-timeline",
        )
        self._turn = Panel(
            session_detail.draw,
            lambda frame: (self._session(frame), self.turns.cursor, self.turns.scroll),
            "Turn",
            id="session-turn",
        )
        self._bar = ActionBar(SCOPE)
        self._explaining = Explaining(self, (self._pool, self._table, self._footer, self._timeline))

    def compose(self) -> ComposeResult:
        """Lay out both views; the style sheet shows one of them."""
        yield self._pool
        yield self._table
        yield self._footer
        with Container(id="session-panes"):
            yield self._timeline
            yield self._turn
        yield self._bar

    def on_resize(self, _event: Resize) -> None:
        """Bring the cursor back into view."""
        self.call_after_refresh(self._show_again)

    def show(self, frame: Frame) -> None:
        """Draw `frame`, as far as it differs from what is shown."""
        self._frame = frame
        self._letters = self._letters.following(frame.snapshot.cache_monitor.shares)
        if self.opened is None:
            room = self._table.size.height - session_table.HEADING_ROWS
            if room > 0:
                self.view = self.view.scrolled(frame.snapshot.sessions, room)
            panels: tuple[Panel, ...] = (self._pool, self._table, self._footer)
        else:
            session = self._session(frame)
            room = self._timeline.size.height - session_timeline.HEAD_ROWS
            if session is not None and room > 0:
                self.turns = self.turns.scrolled(session.history, room)
            panels = (self._timeline, self._turn)
        for panel in (*panels, self._bar):
            panel.show(frame)
        if not frame.serving:
            self._explaining.close()

    def explain(self) -> bool:
        """Explain the first figure, or the next one."""
        self._explaining.step(1, self._frame)
        return True

    def action_explain_step(self, steps: int) -> None:
        """Explain the next or the previous figure."""
        self._explaining.step(steps, self._frame)

    def step_back(self) -> bool:
        """Close the explanation, then the session, before the screen itself is left."""
        if self._explaining.close():
            return True
        if self.opened is None:
            return False
        self.opened = None
        self.remove_class("-detail")
        self._show_again()
        return True

    def action_toggle_session(self) -> None:
        """Show the turns of the session under the cursor, or go back to the list."""
        self._explaining.close()
        if self.opened is not None:
            self.step_back()
            return
        session = chosen(self._frame.snapshot.sessions, self.view.cursor)
        if session is None:
            self.notify("There is no agent session yet.", severity="warning")
            return
        self.view = self.view._replace(cursor=session.id)
        self.opened, self.turns = session.id, TurnListView()
        self.add_class("-detail")
        self._show_again()

    def action_go(self, steps: int) -> None:
        """Move the cursor among the sessions, or among the turns of the opened one."""
        if self.opened is None:
            self.view = self.view.moved(self._frame.snapshot.sessions, steps)
        else:
            session = self._session(self._frame)
            self.turns = self.turns.moved(session.history if session else (), steps)
        self._show_again()

    def action_page(self, pages: int) -> None:
        """Move the cursor by pages; in a session, scroll what of the turn is not all in view."""
        if self.opened is None:
            self.action_go(pages * max(1, self._table.size.height - session_table.HEADING_ROWS))
            return
        size = self._turn.size
        lines = session_detail.text_lines(self._session(self._frame), self.turns.cursor, size.width)
        if len(lines) <= size.height:
            self.action_go(pages * max(1, self._timeline.size.height - session_timeline.HEAD_ROWS))
            return
        wanted = self.turns.scroll + pages * max(1, size.height - 2)
        scroll = session_detail.clipped_scroll(wanted, len(lines), size.height)
        self.turns = self.turns._replace(scroll=scroll)
        self._show_again()

    def _show_again(self) -> None:
        self.show(self._frame)

    def _session(self, frame: Frame) -> SessionView | None:
        return next((each for each in frame.snapshot.sessions if each.id == self.opened), None)

    def _pool_parts(self, frame: Frame) -> tuple[object, ...]:
        labels = labels_of(frame.snapshot.sessions, self._letters.session_ids)
        return frame.snapshot.kv, frame.snapshot.cache_monitor, labels, self._letters

    def _table_parts(self, frame: Frame) -> tuple[object, ...]:
        # Only the rows in view: comparing and drawing a thousand would cost more than a tick has.
        sessions = frame.snapshot.sessions
        rows = self._table.size.height or _ROWS_BEFORE_LAYOUT
        session = chosen(sessions, self.view.cursor)
        return (
            sessions[self.view.top : self.view.top + rows],
            session.id if session is not None else None,
            self._letters,
            int(frame.snapshot.time) if sessions else 0,
            _nothing(frame) if not sessions else "",
        )


def _footer_parts(frame: Frame) -> tuple[object, ...]:
    monitor, sessions = frame.snapshot.cache_monitor, frame.snapshot.sessions
    named = {owner for each in monitor.evictions for owner in (each.loser, each.winner)}
    labels = labels_of(sessions, named)
    return monitor, labels, int(frame.snapshot.time) if monitor.evictions else 0


def _nothing(frame: Frame) -> str:
    """Say what must happen for a session to show, and the next key."""
    connect = key_for("view.agents", frame.keys_of)
    if not frame.serving:
        start = key_for("engine.toggle", frame.keys_of)
        return (
            f"No agent session yet: start an engine ({start}), then connect an agent ({connect})."
        )
    return f"No agent session yet: it shows with its first request. Connect an agent ({connect})."
