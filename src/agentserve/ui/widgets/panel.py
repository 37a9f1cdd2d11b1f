"""A rectangle of styled lines that writes to the screen only the cells that changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.app import RenderResult
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from agentserve.ui.frame import Frame
from agentserve.ui.glyphs import to_ascii
from agentserve.ui.lines import Line, Lines, Role, Span, cells, marked_first

ROLE_CLASSES = {f"role--{role}" for role in Role}
_UNLIMITED_ROWS = 999


class LineStyles:
    """Turns lines into strips in the styles that the style sheet gives to each role.

    Args:
        widget: The widget whose component classes are asked; must list `ROLE_CLASSES`.
    """

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._styles: dict[Role, Style] = {}

    @property
    def ascii_only(self) -> bool:
        """Whether the app draws with ASCII signs."""
        return bool(getattr(self._widget.app, "ascii_only", False))

    def forget(self) -> None:
        """Ask the style sheet again, after a change of theme."""
        self._styles.clear()

    def strip(self, line: Line) -> Strip:
        """Render one line."""
        ascii_only = self.ascii_only
        return Strip(
            [
                Segment(to_ascii(text) if ascii_only else text, self._style(role))
                for text, role in line
                if text
            ],
            cells(line),
        ).simplify()

    def _style(self, role: Role) -> Style:
        style = self._styles.get(role)
        if style is None:
            style = self._widget.get_component_rich_style(f"role--{role}")
            self._styles[role] = style
        return style


class Panel(Widget):
    """Draws a part of a frame.

    Args:
        draw: Pure function from the selected parts, a width and a height to lines.
        select: Picks from a frame what `draw` needs; nothing is drawn while it stays equal.
        title: Text for the top edge, or a function of the frame; ours, never from outside.
    """

    COMPONENT_CLASSES = ROLE_CLASSES
    ALLOW_SELECT = False
    DEFAULT_CSS = "Panel { height: auto; }"

    def __init__(
        self,
        draw: Callable[..., Lines],
        select: Callable[[Frame], tuple[Any, ...]],
        title: str | Callable[[Frame], str] = "",
        *,
        id: str | None = None,  # noqa: A002 - Textual's name
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._draw = draw
        self._select = select
        self._title = title
        self._shown_title = ""
        self._parts: tuple[Any, ...] | None = None
        self._lines: Lines = ()
        self._drawn_size = Size(0, 0)
        self._natural_rows = 0
        self._is_marked: Callable[[Span], bool] | None = None
        self._styles_of_roles = LineStyles(self)
        self.rows_written = 0
        """Counts rows given to the screen since the start; for measurements."""

    @property
    def lines(self) -> Lines:
        """What is shown."""
        return self._lines

    def show(self, frame: Frame) -> None:
        """Draw `frame`, as far as it differs from what is shown."""
        self._show_title(self._title if isinstance(self._title, str) else self._title(frame))
        parts = self._select(frame)
        if parts == self._parts:
            return
        self._parts = parts
        size = self.size
        if not size:
            # Hidden: what was drawn is old when it is shown again at the same size.
            self._drawn_size = size
            return
        if self.styles.auto_dimensions:
            rows = len(self._draw(*parts, size.width, _UNLIMITED_ROWS))
            if rows != self._natural_rows:
                self._natural_rows = rows
                self.refresh(layout=True)
        before = self._lines
        self._draw_for(size)
        changed = _changed_regions(before, self._lines, size.width)
        if changed:
            self.rows_written += len(changed)
            self.refresh(*changed)

    def mark(self, is_marked: Callable[[Span], bool] | None) -> None:
        """Mark the first piece of text that `is_marked` accepts; None marks nothing."""
        if is_marked is not None or self._is_marked is not None:
            self._is_marked = is_marked
            self.refresh()

    def notify_style_update(self) -> None:
        """Take the colours of a new theme."""
        self._styles_of_roles.forget()
        super().notify_style_update()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Ask the drawing how many rows it wants at this width."""
        if self._parts is None:
            return 0
        self._natural_rows = len(self._draw(*self._parts, width, _UNLIMITED_ROWS))
        return self._natural_rows

    def render(self) -> RenderResult:
        """Give Textual the text for what it does beside `render_line`."""
        return Content("")

    def render_line(self, y: int) -> Strip:
        """Render one row of the content; the first one after a resize draws all of them."""
        if self.size != self._drawn_size:
            self._draw_for(self.size)
        line = self._lines[y] if y < len(self._lines) else ()
        if self._is_marked is not None and y == self._marked_row():
            line = marked_first(line, self._is_marked)
        return self._styles_of_roles.strip(line)

    def _marked_row(self) -> int | None:
        accepts = self._is_marked
        if accepts is None:
            return None
        return next((y for y, line in enumerate(self._lines) if any(map(accepts, line))), None)

    def _show_title(self, title: str) -> None:
        if title == self._shown_title:
            return
        self._shown_title = title
        if self._styles_of_roles.ascii_only:
            title = to_ascii(title)
        self.border_title = Content(title)

    def _draw_for(self, size: Size) -> None:
        self._drawn_size = size
        if self._parts is not None and size:
            self._lines = self._draw(*self._parts, size.width, size.height)


def _changed_regions(before: Lines, after: Lines, width: int) -> list[Region]:
    """Find the cells that differ, at most one run a row."""
    regions: list[Region] = []
    for y in range(max(len(before), len(after))):
        old = before[y] if y < len(before) else ()
        new = after[y] if y < len(after) else ()
        if old == new:
            continue
        same = 0
        for left, right in zip(old, new, strict=False):
            if left != right:
                break
            same += 1
        start = cells(new[:same])
        end = width
        if cells(old) == cells(new):
            tail = 0
            for left, right in zip(reversed(old[same:]), reversed(new[same:]), strict=False):
                if left != right:
                    break
                tail += 1
            end = cells(new) - cells(new[len(new) - tail :]) if tail else cells(new)
        regions.append(Region(start, y, max(1, min(end, width) - start), 1))
    return regions
