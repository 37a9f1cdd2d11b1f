"""The whole log, wrapped, bounded, following its end until somebody scrolls up."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from textual.events import Resize
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from agentserve.domain.log import LogLine
from agentserve.ui.lines import Line
from agentserve.ui.panels.log import wrapped
from agentserve.ui.widgets.panel import ROLE_CLASSES, LineStyles


class LogView(ScrollView, can_focus=True):
    """Shows log lines as data.

    Args:
        most_lines: Lines to keep; older ones leave.
    """

    COMPONENT_CLASSES = ROLE_CLASSES
    ALLOW_SELECT = False

    def __init__(self, most_lines: int) -> None:
        super().__init__()
        self._entries: deque[tuple[LogLine, int]] = deque()
        self._rows: deque[Line] = deque()
        self._most_lines = most_lines
        self._wrap_width = 0
        self._styles_of_roles = LineStyles(self)

    @property
    def rows(self) -> tuple[Line, ...]:
        """All rows, wrapped for the present width."""
        return tuple(self._rows)

    @property
    def following(self) -> bool:
        """Whether the newest line is in view."""
        return self.is_vertical_scroll_end

    def extend(self, lines: Iterable[LogLine]) -> None:
        """Add lines at the end."""
        follow = self.following
        before = self._wrap_width
        if before <= 0:
            self._entries.extend((line, 0) for line in lines)
            return
        gone = 0
        added = False
        for line in lines:
            self._append(line)
            added = True
            if len(self._entries) > self._most_lines:
                gone += self._drop_first()
        if added:
            self._place(follow=follow, rows_gone=gone)

    def on_resize(self, _event: Resize) -> None:
        """Wrap again when the width changed."""
        width = self.scrollable_content_region.width
        if width == self._wrap_width or width <= 0:
            return
        follow = self.following or self._wrap_width == 0
        self._wrap_width = width
        lines = [line for line, _ in self._entries]
        self._entries.clear()
        self._rows.clear()
        for line in lines[-self._most_lines :]:
            self._append(line)
        self._place(follow=follow, rows_gone=0)

    def notify_style_update(self) -> None:
        """Take the colours of a new theme."""
        self._styles_of_roles.forget()
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        """Render one row of the part in view."""
        row = y + self.scroll_offset.y
        line = self._rows[row] if row < len(self._rows) else ()
        width = self.size.width
        return self._styles_of_roles.strip(line).crop_extend(0, width, self.rich_style)

    def _append(self, line: LogLine) -> None:
        rows = wrapped(line, self._wrap_width)
        self._entries.append((line, len(rows)))
        self._rows.extend(rows)

    def _drop_first(self) -> int:
        _, rows = self._entries.popleft()
        for _ in range(rows):
            self._rows.popleft()
        return rows

    def _place(self, *, follow: bool, rows_gone: int) -> None:
        self.virtual_size = Size(self._wrap_width, len(self._rows))
        if follow:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
        elif rows_gone:
            self.scroll_to(
                y=max(0, self.scroll_offset.y - rows_gone), animate=False, immediate=True
            )
        self.refresh()
