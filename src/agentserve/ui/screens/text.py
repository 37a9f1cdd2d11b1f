"""Screens that show one long drawing to scroll through: help, and the details of the GPUs."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from agentserve.ui.frame import Frame
from agentserve.ui.panels import gpu_detail
from agentserve.ui.panels import help as help_panel
from agentserve.ui.screens.base import FrameScreen
from agentserve.ui.widgets.action_bar import ActionBar
from agentserve.ui.widgets.panel import Panel


class TextScreen(FrameScreen):
    """A scrolling panel over the whole screen.

    Args:
        panel: What to show.
    """

    CSS_PATH = "text.tcss"
    AUTO_FOCUS = "VerticalScroll"

    def __init__(self, panel: Panel) -> None:
        super().__init__()
        self._panel = panel
        self._bar = ActionBar(self.SCOPE or "text")

    def compose(self) -> ComposeResult:
        """Put the panel in a scrolling container above the action bar."""
        with VerticalScroll():
            yield self._panel
        yield self._bar

    def show(self, frame: Frame) -> None:
        """Draw `frame`, as far as it differs from what is shown."""
        self._panel.show(frame)
        self._bar.show(frame)


class HelpScreen(TextScreen):
    """Lists every action and explains the numbers."""

    def __init__(self) -> None:
        super().__init__(
            Panel(
                help_panel.draw,
                lambda frame: (frame.without_measurements(),),
                "Help",
                id="help",
            )
        )


class GpuScreen(TextScreen):
    """Shows all readings of all GPUs and the memory of the engine's processes."""

    def __init__(self) -> None:
        super().__init__(
            Panel(
                gpu_detail.draw,
                lambda f: (f.snapshot.gpus, f.snapshot.gpus_unavailable, f.snapshot.processes),
                "GPUs",
                id="gpu-detail",
            )
        )
