"""Past requests by day, preset, agent and session; read by another process, never waited for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import ClassVar

from textual.binding import BindingType

from agentserve.domain.errors import AgentServeError
from agentserve.domain.history import RequestHistoryReport
from agentserve.ui.actions import bindings
from agentserve.ui.frame import EMPTY_FRAME, Frame
from agentserve.ui.messages import HistoryRead
from agentserve.ui.panels import request_history
from agentserve.ui.panels.request_history import HistoryPage
from agentserve.ui.screens.text import TextScreen
from agentserve.ui.widgets.panel import Panel

SCOPE = "history"
CHOICES_OF_DAYS = (7, 30, 90)


class HistoryScreen(TextScreen):
    """Shows the report of some days; one reading runs at a time, on a thread.

    Args:
        read: Makes the report of so many days; blocks; AgentServeError when there is none.
    """

    SCOPE: ClassVar[str] = SCOPE
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE)]

    def __init__(self, read: Callable[[int], RequestHistoryReport]) -> None:
        super().__init__(
            Panel(
                request_history.draw_page,
                lambda frame: (self.page, frame.keys_of),
                lambda _frame: request_history.title(self.page),
                id="request-history",
            )
        )
        self.page = HistoryPage(CHOICES_OF_DAYS[0])
        self._read = read
        self._frame = EMPTY_FRAME

    def on_mount(self) -> None:
        """Begin the first reading."""
        self.action_read_again()

    def show(self, frame: Frame) -> None:
        """Draw `frame`, as far as it differs from what is shown."""
        self._frame = frame
        super().show(frame)

    def action_change_days(self, step: int) -> None:
        """Choose a longer or shorter time."""
        index = CHOICES_OF_DAYS.index(self.page.days) + step
        days = CHOICES_OF_DAYS[max(0, min(index, len(CHOICES_OF_DAYS) - 1))]
        if days != self.page.days:
            has_more = days < CHOICES_OF_DAYS[-1]
            self.page = self.page._replace(days=days, has_more_days=has_more)
            self.action_read_again()

    def action_read_again(self) -> None:
        """Begin a reading, unless one runs; that one is followed by another when days changed."""
        if not self.page.is_reading:
            threading.Thread(
                target=self._run, args=(self.page.days,), name="history-reader", daemon=True
            ).start()
        self._look(self.page._replace(is_reading=True))

    def on_history_read(self, message: HistoryRead) -> None:
        """Show what was read, unless other days were chosen meanwhile."""
        message.stop()
        page = self.page._replace(is_reading=False)
        if message.days != page.days:
            self.page = page
            self.action_read_again()
            return
        self._look(
            page._replace(
                report=message.report, problem=message.problem, read_at_unix_s=time.time()
            )
        )

    def _run(self, days: int) -> None:
        report, problem = None, None
        try:
            report = self._read(days)
        except AgentServeError as error:
            problem = " ".join(filter(None, (error.message, error.hint)))
        # The app may have closed meanwhile.
        with contextlib.suppress(RuntimeError):
            self.post_message(HistoryRead(days, report, problem))

    def _look(self, page: HistoryPage) -> None:
        self.page = page
        self.show(self._frame)
