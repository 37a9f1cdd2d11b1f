"""The live view: one frame, drawn in panels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Container
from textual.geometry import Size
from textual.widgets import Static

from agentserve.domain.control import PresetSummary
from agentserve.domain.log import LogLine
from agentserve.domain.pending import PendingView
from agentserve.domain.snapshot import EngineView
from agentserve.ui.action import key_for
from agentserve.ui.frame import EMPTY_FRAME, RUNNING_STATES, Frame
from agentserve.ui.lines import Lines
from agentserve.ui.panels import (
    advice,
    gpus,
    header,
    kv,
    latency,
    log,
    pending,
    prefix_cache,
    requests,
    session_table,
    stage,
    throughput,
)
from agentserve.ui.screens.base import FrameScreen
from agentserve.ui.widgets.action_bar import ActionBar
from agentserve.ui.widgets.panel import Panel

if TYPE_CHECKING:
    from agentserve.ui.widgets.explaining import Explaining

_SESSIONS_SHOWN = 12
_BY_WIDTH = [(0, "-too-narrow"), (72, "-narrow"), (100, "-medium"), (160, "-wide")]
_BY_HEIGHT = [(0, "-too-short"), (20, "-short"), (34, "-medium-height"), (50, "-tall")]


class DashboardScreen(FrameScreen):
    """Shows the engine, its way to READY or its failure, the GPUs, requests and the log.

    Args:
        size: Of the terminal, so that already the first layout is the right one.
    """

    HORIZONTAL_BREAKPOINTS = _BY_WIDTH
    VERTICAL_BREAKPOINTS = _BY_HEIGHT

    def __init__(self, size: Size) -> None:
        super().__init__()
        for breakpoints, cells in ((_BY_WIDTH, size.width), (_BY_HEIGHT, size.height)):
            self.add_class([name for least, name in breakpoints if cells >= least][-1])
        self._panels = (
            Panel(
                _draw_header,
                lambda f: (f.engine, key_for("view.back", f.keys_of)),
                id="header",
            ),
            Panel(
                advice.draw,
                lambda f: (f.advice, advice.key_for(f.advice, f)),
                id="advice",
            ),
            Panel(
                _draw_stage,
                lambda f: (f.engine, f.engine_missing, f.presets, f.preset_problems, f.keys_of),
                lambda f: stage.title(f.engine, f.engine_missing),
                id="stage",
            ),
            Panel(
                kv.draw,
                lambda f: (f.snapshot.kv, f.snapshot.history),
                "KV pool",
                id="kv",
                classes="metric",
            ),
            Panel(
                prefix_cache.draw,
                lambda f: (f.snapshot.prefix_cache, f.snapshot.throughput, f.snapshot.history),
                "Prefix cache",
                id="prefix-cache",
                classes="metric",
            ),
            Panel(
                latency.draw,
                lambda f: (f.snapshot.latency, f.snapshot.history),
                lambda f: latency.title(
                    f.snapshot.latency, per_event=f.snapshot.spec_decode is not None
                ),
                id="latency",
                classes="metric",
            ),
            Panel(
                throughput.draw,
                lambda f: (f.snapshot.throughput, f.snapshot.spec_decode, f.snapshot.history),
                lambda f: throughput.title(f.snapshot.throughput),
                id="throughput",
                classes="metric",
            ),
            Panel(
                gpus.draw,
                lambda f: (f.snapshot.gpus, f.snapshot.gpus_unavailable, f.snapshot.processes),
                lambda f: gpus.title(f.snapshot.gpus, f.snapshot.processes),
                id="gpus",
            ),
            Panel(
                session_table.draw_compact,
                _sessions,
                lambda f: session_table.title(len(f.snapshot.sessions)),
                id="sessions",
            ),
            Panel(
                requests.draw,
                lambda f: (f.snapshot.in_flight, f.snapshot.recent_requests),
                "Requests",
                id="requests",
            ),
            Panel(
                _draw_log,
                lambda f: (f.log, self._log_rows_covered(f)),
                lambda f: log.title(f.log_missed),
                id="log",
            ),
            Panel(
                _draw_pending,
                lambda f: (
                    f.engine.pending,
                    f.state in RUNNING_STATES,
                    (key_for("engine.restart", f.keys_of), key_for("view.back", f.keys_of)),
                ),
                lambda f: pending.title(f.engine.pending),
                id="pending",
            ),
            ActionBar(),
        )
        self._by_id = {panel.id: panel for panel in self._panels}
        self._frame = EMPTY_FRAME
        self._explaining: Explaining | None = None

    def compose(self) -> ComposeResult:
        """Lay the panels out; the style sheet decides how for each size."""
        by_id = self._by_id
        yield Static("Make the window larger: at least 72 x 20.", id="too-small", markup=False)
        yield by_id["header"]
        yield by_id["advice"]
        yield by_id["stage"]
        with Container(id="metrics"):
            for name in ("kv", "prefix-cache", "latency", "throughput"):
                yield by_id[name]
        yield by_id["gpus"]
        yield by_id["sessions"]
        with Container(id="lower"):
            yield by_id["requests"]
            yield by_id["log"]
        yield by_id["pending"]
        yield by_id["action-bar"]

    def show(self, frame: Frame) -> None:
        """Draw `frame`, as far as it differs from what is shown."""
        if frame.serving != self.has_class("-serving"):
            self.set_class(frame.serving, "-serving")
        has_requests = bool(frame.snapshot.recent_requests or frame.snapshot.in_flight)
        if has_requests != self.has_class("-has-requests"):
            self.set_class(has_requests, "-has-requests")
        is_pending = frame.engine.pending is not None
        if is_pending != self.has_class("-pending"):
            self.set_class(is_pending, "-pending")
        self._frame = frame
        for panel in self._panels:
            panel.show(frame)
        if self._explaining is not None and not frame.serving:
            self._explaining.close()

    def explain(self) -> bool:
        """Explain the first figure, or the next one."""
        if self._explaining is None:
            # Imported late: most starts of the app never explain anything.
            from agentserve.ui.widgets.explaining import Explaining

            self._explaining = Explaining(self, self._panels)
        self._explaining.step(1, self._frame)
        return True

    def action_explain_step(self, steps: int) -> None:
        """Explain the next or the previous figure."""
        if self._explaining is not None:
            self._explaining.step(steps, self._frame)

    def step_back(self) -> bool:
        """Close the explanation, if one is open."""
        return self._explaining is not None and self._explaining.close()

    def _log_rows_covered(self, frame: Frame) -> int:
        """Count the rows of the log that the strip of pending changes lies over."""
        height = self._by_id["pending"].styles.height
        if frame.engine.pending is None or height is None:
            return 0
        return int(height.value) - self._by_id["log"].gutter.bottom


def _sessions(frame: Frame) -> tuple[object, ...]:
    """Pick what the sessions panel shows; the time only while it can show it."""
    sessions = frame.snapshot.sessions
    return (
        sessions[:_SESSIONS_SHOWN],
        len(sessions),
        *session_table.losses_of(sessions),
        key_for("view.sessions", frame.keys_of),
        int(frame.snapshot.time) if sessions else 0,
    )


def _draw_header(engine: EngineView, back_key: str, width: int, height: int) -> Lines:
    return header.draw(engine, width, height, back_key=back_key)


def _draw_stage(
    engine: EngineView,
    engine_missing: str | None,
    presets: tuple[PresetSummary, ...],
    problems: tuple[str, ...],
    keys_of: Mapping[str, tuple[str, ...]],
    width: int,
    height: int,
) -> Lines:
    return stage.draw(engine, engine_missing, presets, problems, width, height, keys_of=keys_of)


def _draw_log(lines: tuple[LogLine, ...], covered: int, width: int, height: int) -> Lines:
    """Draw the newest lines above the rows that are covered, as far as there are others."""
    return log.draw(lines, width, height - covered if height > covered else height)


def _draw_pending(
    view: PendingView | None, runs: bool, keys: tuple[str, str], width: int, height: int
) -> Lines:
    return pending.draw(view, width, height, runs=runs, keys=keys)
