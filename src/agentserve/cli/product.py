"""Everything that lives as long as the app, wired together.

Owns construction and the order of closing. It is the `ControlPort` of the screen and of the
headless command, and the only place that knows engine, telemetry and configuration at once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import msgspec

from agentserve.cli.history_report import HistoryReader
from agentserve.cli.pending_changes import PendingChanges, Situation, warm_tokens
from agentserve.cli.preset_choice import PresetChoice
from agentserve.cli.remembered_starts import RememberedStarts
from agentserve.cli.reports import EngineReports, session_tracker
from agentserve.cli.runtime_folder import make_runtime_folder
from agentserve.config.listen_address import resolve_listen_address
from agentserve.config.paths import AppPaths, app_paths
from agentserve.config.preset_files import PresetFiles
from agentserve.config.problem import ConfigProblem
from agentserve.config.settings import load_settings
from agentserve.config.start_history import StartHistory
from agentserve.domain.control import PresetPort, PresetSummary, SwitchMode
from agentserve.domain.errors import AgentServeError, ConfigError
from agentserve.domain.history import RequestHistoryReport
from agentserve.domain.lifecycle import EngineState, StateChanged
from agentserve.domain.log import LogBatch, LogLine
from agentserve.domain.pending import CheckState, PendingView, ToggleOption
from agentserve.domain.preset import Preset
from agentserve.domain.request import InFlightRequest
from agentserve.domain.sample import SchedulerFacts
from agentserve.domain.snapshot import Snapshot, encode_snapshot
from agentserve.domain.toggles import with_changes
from agentserve.engine.app_log import log_exception, log_line
from agentserve.engine.backend import EngineBackend
from agentserve.engine.draining import DRAIN_S
from agentserve.engine.front import Front
from agentserve.engine.guardian_link import GuardianLink
from agentserve.engine.listening import base_url, bind_listener
from agentserve.engine.output import OutputCapture
from agentserve.engine.serve_loop import ServeLoop
from agentserve.engine.supervisor import EngineSupervisor
from agentserve.engine.vllm.backend import VllmBackend, vllm_missing
from agentserve.engine.vllm.preflight import Preflight
from agentserve.telemetry.collector import SnapshotCollector
from agentserve.telemetry.engine_stats import EngineStats
from agentserve.telemetry.gpu import GpuSampler
from agentserve.telemetry.process_memory import ProcessMemory
from agentserve.telemetry.request_history import RequestHistory

STOP_TIMEOUT_S = 8.6
"""An engine is gone within this time, or the guardian ends it; quit takes 10 s at most."""

StateListener = Callable[[StateChanged], None]


class ProductOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says."""

    preset: str | None = None
    first_preset: str | None = None
    """Stands in for `preset` when nothing was chosen in an earlier run."""
    host: str | None = None
    port: int | None = None
    simulate: bool = False


class Product:
    """The running product (`ControlPort`).

    Args:
        options: What the command line says.
        paths: The folders of this instance; those of the environment by default.

    Raises:
        ConfigError: `config.toml` cannot be used, or there is no preset of the given name.
        AddressRefusedError: Listening beyond this machine without an API key.
        PortTakenError: Somebody else listens there.
    """

    def __init__(self, options: ProductOptions, paths: AppPaths | None = None) -> None:
        self._paths = paths or app_paths()
        self.settings, self._setting_problems = load_settings(self._paths)
        self.address = resolve_listen_address(
            self.settings.server, host=options.host, port=options.port
        )
        self._app_id = secrets.token_hex(8)
        self._runtime_dir = self._paths.ensure_runtime() / self._app_id
        if options.simulate:
            # What an invented engine did must not be remembered for a real one.
            self._paths = msgspec.structs.replace(self._paths, state=self._runtime_dir / "state")
        self._gpus = GpuSampler()
        history = StartHistory.in_folder_of(self._paths)
        self._starts = RememberedStarts(history)
        files = self._preset_files = PresetFiles(
            self._paths,
            running=lambda: self._supervisor.status.preset,
            history=history,
            changed=lambda library: self._choice.adopt(library),
            renamed=lambda old, new: self._choice.follow_rename(old, new),
        )
        self._choice = PresetChoice(
            self._paths, files.library, options.preset, options.first_preset, self._device
        )
        self._listener = bind_listener(self.address.host, self.address.port)
        make_runtime_folder(self._runtime_dir.parent, self._app_id)
        self.output = OutputCapture(self._paths.log)
        self._listeners: tuple[StateListener, ...] = ()
        self._guardian = GuardianLink(self._app_id, self._runtime_dir, dict(os.environ))
        self._simulated = options.simulate
        self._engine_missing = None if options.simulate else vllm_missing()
        self._stats = EngineStats()
        self._preflight: Preflight | None = None
        self._pending = PendingChanges(self._check(), self._pending_checked)
        self._kept_problems: tuple[str, ...] = ()
        self._restart_when_checked: SwitchMode | None = None
        self._history_reader = HistoryReader(simulated=options.simulate)
        kept = self.settings.history
        self._history = (
            RequestHistory(self._paths.request_history, kept.retention_days, run_id=self._app_id)
            if kept.enabled and not options.simulate
            else None
        )
        self._sessions = session_tracker()
        self._front = Front(
            self._snapshot_json, self.address.api_keys, isolate=self.address.isolate
        )
        self._loop = ServeLoop(self._front, self._listener)
        self._supervisor = EngineSupervisor(
            backend=self._backend(),
            front=self._front,
            observer=EngineReports(
                self._stats, self._sessions, self._history, lambda: self._supervisor.status
            ),
            app_id=self._app_id,
            runtime_dir=self._runtime_dir,
            on_change=self._state_changed,
            history=self._starts,
            log=self.output.ring,
        )
        self._collector = SnapshotCollector(
            endpoint=base_url(self._listener),
            status=lambda: self._supervisor.status,
            stats=self._stats,
            gpu_report=self._gpus.current_report,
            processes=ProcessMemory(self._process_roles).samples,
            in_flight=self._in_flight,
            log_dropped_lines=lambda: self.output.ring.dropped_lines,
            scheduler_facts=self._scheduler_facts,
            pending=self._pending_view,
            sessions=self._sessions.view,
        )
        self._supervising: Future[None] | None = None

    def open(self) -> None:
        """Take the standard output, start the threads, and serve.

        Must be called before the screen opens and before vLLM is imported.
        """
        self.output.add_listener(self._line_logged)
        self.output.start()
        self._gpus.start()
        if self._history is not None:
            self._history.start()
        self._sessions.start()
        self._loop.start()
        self._supervising = self._loop.submit(self._supervisor.run())

    def close(self) -> bool:
        """End the engine and everything else; bounded by `STOP_TIMEOUT_S`.

        Returns:
            False when something did not end in time; the guardian ends what is left.
        """
        in_time = True
        self._history_reader.close()
        if self._preflight is not None:
            self._preflight.close()
        if self._supervising is not None:
            self._supervisor.request_close()
            try:
                self._supervising.result(STOP_TIMEOUT_S)
            except TimeoutError:
                in_time = False
        in_time = self._loop.close(0.3) and in_time
        self._gpus.stop(0.2)
        # It gives the last requests to the history.
        self._sessions.close(0.3)
        if self._history is not None:
            self._history.close(0.5)
        self._guardian.close()
        self.output.restore()
        shutil.rmtree(self._runtime_dir, ignore_errors=True)
        return in_time

    def on_state_change(self, listener: StateListener) -> None:
        """Call `listener` at each change of state or phase, on the serving thread."""
        self._listeners = (*self._listeners, listener)

    def add_problems(self, problems: Sequence[ConfigProblem]) -> None:
        """Report more problems in the user's files."""
        self._setting_problems += tuple(problems)

    @property
    def engine_missing(self) -> str | None:
        """One sentence naming the extra to install when there is no vLLM here, else None."""
        return self._engine_missing

    def snapshot(self) -> Snapshot:
        """Everything known now."""
        return self._collector.snapshot()

    def log_since(self, number: int) -> LogBatch:
        """Log lines from `number` on."""
        return self.output.ring.since(number)

    def presets(self) -> tuple[PresetSummary, ...]:
        """All usable presets in display order."""
        return self._choice.summaries

    def preset_problems(self) -> tuple[str, ...]:
        """What is wrong in the user's files, one sentence each."""
        settings = tuple(problem.sentence for problem in self._setting_problems)
        history = self._history.problem if self._history is not None else None
        kept = self._kept_problems
        return (*self._choice.problems, *settings, *kept, *((history,) if history else ()))

    @property
    def preset_files(self) -> PresetPort:
        """Work on preset files."""
        return self._preset_files

    def start(self, preset: str | None = None) -> None:
        """Ask for a start with `preset`, or with the last chosen one."""
        chosen = self._choice.find(preset) if preset is not None else self._current()
        if chosen.name != self._current().name:
            self._pending.drop()
        self._restart_when_checked = None
        self._choice.put_in_force(chosen)
        self._supervisor.request_start(chosen)

    def start_at_open(self) -> None:
        """Start what the command line says, or what ran last; nothing on a first visit."""
        if self._choice.is_asked_for or self._simulated:
            self.start()

    def stop(self) -> None:
        """Ask for a stop."""
        self._restart_when_checked = None
        self._supervisor.request_stop()

    def restart(self, mode: SwitchMode = SwitchMode.ABORT) -> None:
        """Ask for a restart; applies and keeps pending changes first, once they were checked."""
        # Set before looking: a check that ends meanwhile finds it.
        self._restart_when_checked = mode
        if self._pending.state is not CheckState.RUNNING:
            self._restart_now()

    def switch(self, preset: str, mode: SwitchMode = SwitchMode.ABORT) -> None:
        """Ask for another preset: starts it, after ending what runs."""
        self._restart_when_checked = None
        chosen = self._choice.find(preset)

        def begin() -> None:
            self._pending.drop()
            self._choice.put_in_force(chosen)

        self._supervisor.request_restart(chosen, _drain_s(mode), begin)

    def cancel_switch(self) -> None:
        """Give up a switch or restart that still waits for requests."""
        self._restart_when_checked = None
        self._supervisor.cancel_drain()

    def propose(self, option: ToggleOption, value: int) -> None:
        """Make an option pending."""
        status = self._supervisor.status
        self._pending.propose(self._current(), status.facts, option, value)

    def drop_pending(self) -> None:
        """Forget all pending changes."""
        self._restart_when_checked = None
        self._pending.drop()

    def request_history(self, days: int) -> RequestHistoryReport:
        """Past requests of the last `days` days; blocks for up to ten seconds."""
        return self._history_reader.read(days)

    def remember_theme(self, name: str) -> None:
        """Keep the chosen theme for the next start."""
        self._choice.remember_theme(name)

    @property
    def theme(self) -> str | None:
        """The theme chosen on the screen, else the one in `config.toml`, else None."""
        return self._choice.theme or self.settings.theme

    def _current(self) -> Preset:
        """The preset that is in force; when nothing runs, as its files say now."""
        current = self._choice.current
        if self._supervisor.status.state in {EngineState.STOPPED, EngineState.FAILED}:
            with contextlib.suppress(ConfigError):
                return self._choice.find(current.name)
        return current

    def _restart_now(self) -> None:
        """Do the restart that was asked for, unless it was taken back or is refused."""
        mode, self._restart_when_checked = self._restart_when_checked, None
        if mode is None or self._pending.state is CheckState.REFUSED:
            return
        current, changes = self._current(), self._pending.changes
        changed = with_changes(current, changes)

        def begin() -> None:
            self._choice.put_in_force(changed)
            self._pending.drop()
            if changes:
                self._keep(changed, changes)

        self._supervisor.request_restart(changed, _drain_s(mode), begin)

    def _keep(self, changed: Preset, changes: Mapping[ToggleOption, int]) -> None:
        """Keep changes for later starts; what runs has them either way."""
        try:
            self._choice.keep(changed, changes)
        except ConfigError as error:
            log_line(f"{error.message} {error.hint}")
            self._kept_problems = (f"{error.message} {error.hint}",)
            return
        self._kept_problems = ()
        self._preset_files.reload()
        # With what is kept now, so that it compares equal to the library's.
        self._choice.put_in_force(self._choice.find(changed.name))

    def _pending_checked(self) -> None:
        """Do what waited for the check; on the thread of the check."""
        if self._pending.state is CheckState.PASSED:
            try:
                self._restart_now()
            except AgentServeError as error:
                log_exception(error)
        else:
            self._restart_when_checked = None

    def _pending_view(self) -> PendingView | None:
        if not self._pending.changes:
            return None
        status, engine = self._supervisor.status, self._supervisor.engine
        scheduler = self._scheduler_facts()
        return self._pending.view(
            Situation(
                facts=status.facts,
                running=status.state not in {EngineState.STOPPED, EngineState.FAILED},
                expected_restart_s=self._starts.expected_start_s(self._current()),
                capacity_tokens_of=self._starts.capacity_tokens_of,
                warm_tokens=warm_tokens(status.facts, scheduler),
                requests_in_flight=len(engine.in_flight()) if engine is not None else 0,
            )
        )

    def _check(self) -> Callable[[Preset], str | None] | None:
        if self._simulated or self._engine_missing is not None:
            return None
        preflight = self._preflight = Preflight(self._paths.cache)
        return lambda preset: preflight.check(preset).refusal

    def _device(self) -> str:
        return "cuda" if self._gpus.current_report().gpus else "cpu"

    def _backend(self) -> EngineBackend:
        if self._simulated:
            # Late: an app without an engine must stay small.
            from agentserve.engine.simulated import SimulatedBackend, SimulationScript

            return SimulatedBackend(SimulationScript(traffic=True))
        return VllmBackend(self._paths.cache, self._guardian)

    def _state_changed(self, change: StateChanged) -> None:
        for listener in self._listeners:
            listener(change)

    def _line_logged(self, line: LogLine) -> None:
        self._supervisor.observe_line(line.text)

    def _snapshot_json(self) -> bytes:
        return encode_snapshot(self.snapshot())

    def _process_roles(self) -> list[tuple[int, str]]:
        engine = [(process.pid, process.role) for process in self._supervisor.processes]
        return [(os.getpid(), "app"), *engine]

    def _in_flight(self) -> tuple[InFlightRequest, ...]:
        engine = self._supervisor.engine
        return () if engine is None else engine.in_flight()

    def _scheduler_facts(self) -> SchedulerFacts | None:
        engine = self._supervisor.engine
        return None if engine is None else engine.scheduler_facts


def _drain_s(mode: SwitchMode) -> float:
    return DRAIN_S if mode is SwitchMode.DRAIN else 0.0
