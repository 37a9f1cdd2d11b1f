"""The whole log, bounded, following its end until somebody scrolls up or searches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from textual.events import Resize
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from agentserve.domain.log import LogLine
from agentserve.ui.lines import Line, Role, cells
from agentserve.ui.panels import log as log_panel
from agentserve.ui.panels.log import Level
from agentserve.ui.widgets.panel import ROLE_CLASSES, LineStyles


class _Entry(NamedTuple):
    line: LogLine
    role: Role


class LogView(ScrollView, can_focus=True):
    """Shows log lines as data.

    Args:
        most_lines: Lines to keep; older ones leave.
    """

    COMPONENT_CLASSES = ROLE_CLASSES
    ALLOW_SELECT = False

    def __init__(self, most_lines: int) -> None:
        super().__init__()
        self._most_lines = most_lines
        self._entries: deque[_Entry] = deque()
        self._rows: deque[Line] = deque()
        self._owners: deque[int] = deque()
        """The number of the log line that each row belongs to."""
        self._wrap_width = 0
        self._longest = 0
        self._follows = True
        self.wraps = True
        self.level = Level.ALL
        self.wanted = ""
        """What is marked, in any case; empty marks nothing."""
        self._found: int | None = None
        self._styles_of_roles = LineStyles(self)

    @property
    def rows(self) -> tuple[Line, ...]:
        """All rows, for the present width, level and wrapping."""
        return tuple(self._rows)

    @property
    def following(self) -> bool:
        """Whether the newest line stays in view."""
        return self._follows

    @property
    def matches(self) -> tuple[int, ...]:
        """Numbers of the shown lines that contain what is wanted, oldest first."""
        if not self.wanted:
            return ()
        wanted = self.wanted.casefold()
        return tuple(
            entry.line.number for entry in self._shown() if wanted in entry.line.text.casefold()
        )

    @property
    def found(self) -> int | None:
        """Number of the line that the search stands on."""
        return self._found

    def extend(self, lines: Iterable[LogLine]) -> None:
        """Add lines at the end."""
        gone = 0
        added = False
        for line in lines:
            before = self._entries[-1].role if self._entries else Role.TEXT
            entry = _Entry(line, log_panel.severity_after(line.text, before))
            self._entries.append(entry)
            self._append_rows(entry)
            added = True
            if len(self._entries) > self._most_lines:
                gone += self._drop_first()
        if added and self._wrap_width > 0:
            self._place(rows_gone=gone)

    def follow(self) -> None:
        """Go to the newest line and stay there."""
        self._follows = True
        self._place(rows_gone=0)

    def show_level(self, level: Level) -> None:
        """Show only lines of `level`."""
        self.level = level
        self._rebuild()

    def show_wrapped(self, *, wraps: bool) -> None:
        """Wrap long lines, or let them run out of view."""
        self.wraps = wraps
        self._rebuild()

    def search(self, wanted: str) -> None:
        """Mark `wanted` and go to its newest place at or above the end of what is in view."""
        self.wanted = wanted
        self._found = None
        numbers = self.matches
        if numbers:
            bottom = self._last_number_in_view()
            above = [number for number in numbers if number <= bottom]
            self._go_to(above[-1] if above else numbers[0])
        self.refresh()

    def find(self, steps: int) -> None:
        """Go to the next (1) or the previous (-1) line found, around the ends."""
        numbers = self.matches
        if not numbers:
            return
        if self._found is None:
            self.search(self.wanted)
            return
        if steps > 0:
            target = next((number for number in numbers if number > self._found), numbers[0])
        else:
            before = [number for number in numbers if number < self._found]
            target = before[-1] if before else numbers[-1]
        self._go_to(target)

    def lines_in_view(self) -> tuple[LogLine, ...]:
        """Return the log lines of which at least one row is in view."""
        top = self.scroll_offset.y
        height = self.scrollable_content_region.height
        wanted = set(list(self._owners)[top : top + height])
        return tuple(entry.line for entry in self._entries if entry.line.number in wanted)

    def on_resize(self, _event: Resize) -> None:
        """Wrap again when the width changed."""
        width = self.scrollable_content_region.width
        if width != self._wrap_width and width > 0:
            self._wrap_width = width
            self._rebuild()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Stop following when somebody scrolls up, and go on at the end."""
        super().watch_scroll_y(old_value, new_value)
        self._follows = self.is_vertical_scroll_end

    def notify_style_update(self) -> None:
        """Take the colours of a new theme."""
        self._styles_of_roles.forget()
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        """Render one row of the part in view."""
        left, top = self.scroll_offset
        row = y + top
        line = self._rows[row] if row < len(self._rows) else ()
        if self.wanted:
            line = log_panel.marked(line, self.wanted)
        width = self.size.width
        return self._styles_of_roles.strip(line).crop_extend(left, left + width, self.rich_style)

    def _shown(self) -> Iterable[_Entry]:
        return (entry for entry in self._entries if log_panel.passes(entry.role, self.level))

    def _append_rows(self, entry: _Entry) -> None:
        if self._wrap_width <= 0 or not log_panel.passes(entry.role, self.level):
            return
        if self.wraps:
            rows = log_panel.wrapped(entry.line, self._wrap_width, entry.role)
        else:
            rows = [log_panel.long_row(entry.line, entry.role)]
            self._longest = max(self._longest, cells(rows[0]))
        self._rows.extend(rows)
        self._owners.extend([entry.line.number] * len(rows))

    def _drop_first(self) -> int:
        number = self._entries.popleft().line.number
        gone = 0
        while self._owners and self._owners[0] == number:
            self._owners.popleft()
            self._rows.popleft()
            gone += 1
        return gone

    def _rebuild(self) -> None:
        follows = self._follows
        top = self._owners[self.scroll_offset.y] if self.scroll_offset.y < len(self._owners) else -1
        self._rows.clear()
        self._owners.clear()
        self._longest = 0
        while len(self._entries) > self._most_lines:
            self._entries.popleft()
        for entry in self._entries:
            self._append_rows(entry)
        self._follows = follows
        self._place(rows_gone=0)
        if not follows:
            self._scroll_to_row(self._first_row_of(top))

    def _go_to(self, number: int) -> None:
        self._found = number
        self._follows = False
        row = self._first_row_of(number)
        height = self.scrollable_content_region.height
        top = self.scroll_offset.y
        if not top <= row < top + height:
            self._scroll_to_row(max(0, row - height // 2))
        self._follows = False

    def _first_row_of(self, number: int) -> int:
        for row, owner in enumerate(self._owners):
            if owner >= number:
                return row
        return max(0, len(self._owners) - 1)

    def _last_number_in_view(self) -> int:
        row = self.scroll_offset.y + self.scrollable_content_region.height - 1
        return self._owners[min(row, len(self._owners) - 1)] if self._owners else 0

    def _scroll_to_row(self, row: int) -> None:
        self.scroll_to(y=row, animate=False, immediate=True, force=True)

    def _place(self, *, rows_gone: int) -> None:
        follows = self._follows
        width = self._wrap_width if self.wraps else max(self._wrap_width, self._longest)
        self.virtual_size = Size(width, len(self._rows))
        if follows:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
        elif rows_gone:
            self._scroll_to_row(max(0, self.scroll_offset.y - rows_gone))
        self._follows = follows
        self.refresh()
