"""All requests: sorted, filtered, and one of them in detail."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.widgets import Input

from agentserve.domain.request import InFlightRequest, RequestRecord
from agentserve.ui.action import key_for
from agentserve.ui.actions import bindings
from agentserve.ui.frame import EMPTY_FRAME, Frame
from agentserve.ui.panels import request_detail, request_table
from agentserve.ui.request_list import ListView, Request, chosen, rows_of, session_label
from agentserve.ui.screens.base import FrameScreen
from agentserve.ui.session_list import Labels, labels_of
from agentserve.ui.widgets.action_bar import ActionBar
from agentserve.ui.widgets.panel import Panel
from agentserve.ui.widgets.search_box import SearchBox

SCOPE = "requests"
_BY_WIDTH = [(0, "-narrow"), (100, "-medium"), (160, "-wide")]


class RequestsScreen(FrameScreen):
    """A table with a cursor, and beside or below it the request under the cursor."""

    SCOPE: ClassVar[str] = SCOPE
    CSS_PATH = "requests.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE)]
    HORIZONTAL_BREAKPOINTS = _BY_WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.view = ListView()
        self._frame = EMPTY_FRAME
        self._labels: Labels = {}
        self._table = Panel(
            request_table.draw,
            lambda frame: (*_requests(frame), self._labels, self.view),
            lambda frame: request_table.title(*_requests(frame), self._labels, self.view),
            id="request-table",
        )
        self._detail = Panel(
            request_detail.draw,
            self._detail_parts,
            "Request",
            id="request-detail",
        )
        self._bar = ActionBar(SCOPE)

    def compose(self) -> ComposeResult:
        """Lay out the table, the detail and the bar; the style sheet decides how."""
        with Container(id="request-panes"):
            yield self._table
            yield self._detail
        yield self._bar

    @property
    def request(self) -> Request | None:
        """The request under the cursor."""
        return chosen(self._rows(self._frame), self.view.cursor)

    def show(self, frame: Frame) -> None:
        """Draw `frame`, as far as it differs from what is shown."""
        self._frame = frame
        self._labels = _labels(frame)
        room = self._table.size.height - request_table.HEADING_ROWS
        self.view = self.view.scrolled(self._rows(frame), max(1, room))
        for panel in (self._table, self._detail, self._bar):
            panel.show(frame)

    def step_back(self) -> bool:
        """Close the detail, then take the filter away, before the screen itself is left."""
        if self.has_class("-detail"):
            self.remove_class("-detail")
        elif self.view.text:
            self._look(self.view._replace(text=""))
        else:
            return False
        return True

    def action_move(self, steps: int) -> None:
        """Move the cursor."""
        self._look(self.view.moved(self._rows(self._frame), steps))

    def action_cycle_sort(self) -> None:
        """Sort by the next column."""
        self._look(self.view.next_sort())

    def action_toggle_detail(self) -> None:
        """Show or hide the request under the cursor."""
        # From now on the cursor stays with this request, even while new ones arrive above it.
        request = self.request
        if request is not None and not self.has_class("-detail"):
            self._look(self.view._replace(cursor=request.request_id))
        self.toggle_class("-detail")

    async def action_start_filter(self) -> None:
        """Open the line to type a filter into."""
        if not self.query(SearchBox):
            box = SearchBox("agent, session, route or outcome", self.view.text)
            await self.mount(box)
            box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while somebody types."""
        event.stop()
        self._look(self.view._replace(text=event.value.strip(), cursor=None, top=0))

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter and close the line."""
        event.stop()
        await self.query(SearchBox).remove()

    async def on_search_box_left(self, event: SearchBox.Left) -> None:
        """Forget the filter and close the line."""
        event.stop()
        await self.query(SearchBox).remove()
        self._look(self.view._replace(text=""))

    def _look(self, view: ListView) -> None:
        self.view = view
        self.show(self._frame)

    def _detail_parts(self, frame: Frame) -> tuple[Request | None, str | None, str]:
        request = chosen(self._rows(frame), self.view.cursor)
        label = None if request is None else session_label(request, self._labels)
        return request, label, key_for("view.sessions", frame.keys_of)

    def _rows(self, frame: Frame) -> tuple[Request, ...]:
        return rows_of(*_requests(frame), self._labels, self.view)


def _requests(
    frame: Frame,
) -> tuple[tuple[InFlightRequest, ...], tuple[RequestRecord, ...]]:
    return frame.snapshot.in_flight, frame.snapshot.recent_requests


def _labels(frame: Frame) -> Labels:
    """Return the labels that the requests need."""
    wanted = {request.session for requests in _requests(frame) for request in requests}
    return labels_of(frame.snapshot.sessions, wanted)
