"""Everything that lives as long as the app, wired together.

Owns construction and the order of closing. It is the `ControlPort` of the screen and of the
headless command, and the only place that knows engine, telemetry and configuration at once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import msgspec

from agentserve.config.listen_address import resolve_listen_address
from agentserve.config.paths import AppPaths, app_paths
from agentserve.config.presets import PresetLibrary
from agentserve.config.problem import ConfigProblem
from agentserve.config.settings import (
    RememberedState,
    load_settings,
    load_state,
    save_state,
)
from agentserve.config.start_history import StartHistory
from agentserve.domain.control import PresetSummary
from agentserve.domain.errors import ConfigError
from agentserve.domain.lifecycle import StateChanged
from agentserve.domain.log import LogBatch, LogLine
from agentserve.domain.preset import Preset, summarize
from agentserve.domain.request import InFlightRequest
from agentserve.domain.sample import SchedulerFacts
from agentserve.domain.snapshot import Snapshot, encode_snapshot
from agentserve.engine.backend import EngineBackend
from agentserve.engine.front import Front
from agentserve.engine.guardian_link import GuardianLink
from agentserve.engine.listening import base_url, bind_listener
from agentserve.engine.output import OutputCapture
from agentserve.engine.serve_loop import ServeLoop
from agentserve.engine.simulated import SimulatedBackend, SimulationScript
from agentserve.engine.supervisor import EngineSupervisor
from agentserve.engine.vllm.backend import VllmBackend, vllm_missing
from agentserve.telemetry.collector import SnapshotCollector
from agentserve.telemetry.engine_stats import EngineStats
from agentserve.telemetry.gpu import GpuSampler
from agentserve.telemetry.process_memory import ProcessMemory

STOP_TIMEOUT_S = 8.6
"""An engine is gone within this time, or the guardian ends it; quit takes 10 s at most."""

StateListener = Callable[[StateChanged], None]


class ProductOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says."""

    preset: str | None = None
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
        self._library = PresetLibrary.load(self._paths)
        self._remembered, state_problems = load_state(self._paths)
        self._setting_problems += state_problems
        if options.preset is not None:
            self._library.get(options.preset)
        self._chosen = options.preset
        self.address = resolve_listen_address(
            self.settings.server, host=options.host, port=options.port
        )
        self._listener = bind_listener(self.address.host, self.address.port)
        self._app_id = secrets.token_hex(8)
        self._runtime_dir = self._paths.ensure_runtime() / self._app_id
        self._runtime_dir.mkdir(mode=0o700)
        self.output = OutputCapture(self._paths.log)
        self._listeners: tuple[StateListener, ...] = ()
        self._guardian = GuardianLink(self._app_id, self._runtime_dir, dict(os.environ))
        self._simulated = options.simulate
        self._engine_missing = None if options.simulate else vllm_missing()
        self._stats = EngineStats()
        self._gpus = GpuSampler()
        self._front = Front(self._snapshot_json, self.address.api_key)
        self._loop = ServeLoop(self._front, self._listener)
        self._supervisor = EngineSupervisor(
            backend=self._backend(),
            front=self._front,
            observer=self._stats,
            app_id=self._app_id,
            runtime_dir=self._runtime_dir,
            on_change=self._state_changed,
            history=self._start_history(),
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
        )
        self._supervising: Future[None] | None = None

    def open(self) -> None:
        """Take the standard output, start the threads, and serve.

        Must be called before the screen opens and before vLLM is imported.
        """
        self.output.add_listener(self._line_logged)
        self.output.start()
        self._gpus.start()
        self._loop.start()
        self._supervising = self._loop.submit(self._supervisor.run())

    def close(self) -> bool:
        """End the engine and everything else; bounded by `STOP_TIMEOUT_S`.

        Returns:
            False when something did not end in time; the guardian ends what is left.
        """
        in_time = True
        if self._supervising is not None:
            self._supervisor.request_close()
            try:
                self._supervising.result(STOP_TIMEOUT_S)
            except TimeoutError:
                in_time = False
        in_time = self._loop.close(0.3) and in_time
        self._gpus.stop(0.2)
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
        return tuple(summarize(preset) for preset in self._library.presets)

    def preset_problems(self) -> tuple[str, ...]:
        """What is wrong in the user's files, one sentence each."""
        problems = (*self._library.problems, *self._setting_problems)
        return tuple(problem.sentence for problem in problems)

    def start(self, preset: str | None = None) -> None:
        """Ask for a start with `preset`, or with the last chosen one."""
        self._supervisor.request_start(self._choose(preset))

    def start_at_open(self) -> None:
        """Start what the command line says, or what ran last; nothing on a first visit."""
        if self._chosen is not None or self._remembered.last_preset is not None or self._simulated:
            self.start()

    def stop(self) -> None:
        """Ask for a stop."""
        self._supervisor.request_stop()

    def restart(self) -> None:
        """Ask for a stop followed by a start with the current preset."""
        self._supervisor.request_restart(self._choose(self._supervisor.status.preset))

    @property
    def default_preset(self) -> str | None:
        """Name of the preset that `start` without a name takes, or None when there are none."""
        with contextlib.suppress(ConfigError):
            return self._default().name
        return None

    def _default(self) -> Preset:
        """Take what was asked for, else the last one, else the first that fits this machine."""
        for name in (self._chosen, self._remembered.last_preset):
            with contextlib.suppress(ConfigError):
                if name is not None:
                    return self._library.get(name)
        if not self._library.presets:
            raise ConfigError("There is no usable preset.", "Run agentserve-tui presets validate.")
        device = "cuda" if self._gpus.current_report().gpus else "cpu"
        fitting = [p for p in self._library.presets if p.device in {device, "any"}]
        return (fitting or list(self._library.presets))[0]

    def _choose(self, name: str | None) -> Preset:
        preset = self._default() if name is None else self._library.get(name)
        self._chosen = preset.name
        if self._remembered.last_preset != preset.name and not self._simulated:
            self._remembered = RememberedState(last_preset=preset.name)
            try:
                save_state(self._paths, self._remembered)
            except OSError as error:
                print(f"The choice of preset could not be kept: {error}", file=sys.stderr)
        return preset

    def _start_history(self) -> StartHistory:
        if self._simulated:
            return StartHistory(self._runtime_dir / "starts.toml")
        return StartHistory.in_folder_of(self._paths)

    def _backend(self) -> EngineBackend:
        if self._simulated:
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
