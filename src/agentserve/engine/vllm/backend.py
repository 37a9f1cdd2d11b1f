"""Loading, serving and ending a vLLM engine in this process.

Imports vLLM only inside a launch. `AsyncLLM`'s constructor blocks for the whole load, so it runs on
the launch's thread; vLLM allows that, and starts its own tasks with the first request on the
serving loop. An aborted load cannot be cancelled, but ending the engine's processes makes it raise.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import msgspec

from agentserve.domain.errors import AgentServeError, EngineMissingError, StartAbortedError
from agentserve.domain.lifecycle import CacheGroup, EngineFacts, StartPhase
from agentserve.domain.preset import vllm_arguments
from agentserve.domain.request import InFlightRequest
from agentserve.domain.sample import SchedulerFacts
from agentserve.engine.backend import (
    AsgiApp,
    Launch,
    PhaseListener,
    RunningEngine,
    StartOrder,
)
from agentserve.engine.engine_processes import end_processes
from agentserve.engine.guardian_link import GuardianLink
from agentserve.engine.vllm import compat, environment, torchvision_ops
from agentserve.engine.vllm.cache_reports import (
    CacheReports,
    kv_events_endpoint,
    kv_replay_endpoint,
)
from agentserve.engine.vllm.plugin import FACTS_METHOD, plugin_loaded

_FACTS_INTERVAL_S = 1.0
MISSING_SENTENCE = (
    "vLLM is not installed here: install agentserve-tui[cuda] for GPUs, or agentserve-tui[cpu] for "
    "a machine without."
)


def vllm_missing() -> str | None:
    """One sentence that names the extra to install, or None when vLLM is there; imports nothing."""
    return MISSING_SENTENCE if importlib.util.find_spec("vllm") is None else None


class VllmBackend:
    """Makes vLLM engines.

    Args:
        cache_dir: Where demo models are kept.
        guardian: Ends the engine when this app dies.
    """

    simulated = False
    smoke_route = "/v1/completions"

    def __init__(self, cache_dir: Path, guardian: GuardianLink) -> None:
        self._cache_dir = cache_dir
        self._guardian = guardian

    def launch(self, order: StartOrder) -> Launch:
        """Prepare a start; does no work yet."""
        return VllmLaunch(order, self._cache_dir, self._guardian)


class VllmLaunch:
    """One start of a vLLM engine; see `Launch`."""

    def __init__(self, order: StartOrder, cache_dir: Path, guardian: GuardianLink) -> None:
        self._order = order
        self._runtime_dir = order.mark.runtime_dir
        self._cache_dir = cache_dir
        self._guardian = guardian
        self._aborted = threading.Event()

    def load(self, on_phase: PhaseListener) -> RunningEngine:
        """Load the engine; blocks.

        Raises:
            StartAbortedError: `abort` was called.
            EngineMissingError: There is no vLLM here.
            AgentServeError: vLLM refuses the preset.
        """
        if (missing := vllm_missing()) is not None:
            raise EngineMissingError(missing, "Then start the app again.")
        self._guardian.ensure()
        self._order.mark.prepare()
        variables = environment.engine_variables(self._order.preset.env, self._order.mark)
        environment.prepare_spawning(self._runtime_dir)
        with contextlib.ExitStack() as on_failure:
            on_failure.enter_context(environment.variables_set(variables))
            try:
                engine = self._load(on_phase)
            except BaseException:
                self._check_aborted()
                raise
            if self._aborted.is_set():
                engine.shut_down()
                raise StartAbortedError("The start was aborted.")
            engine.restore_environment = on_failure.pop_all()
        return engine

    def abort(self) -> None:
        """Make `load` end soon, by ending the processes that it waits for."""
        self._aborted.set()
        end_processes(self._order.mark, grace_s=0.0)

    def _check_aborted(self) -> None:
        if self._aborted.is_set():
            raise StartAbortedError("The start was aborted.") from None

    def _load(self, on_phase: PhaseListener) -> VllmEngine:
        on_phase(StartPhase.IMPORT)
        torchvision_ops.install()
        from vllm.engine.arg_utils import AsyncEngineArgs

        from agentserve.engine.vllm.async_llm import WatchedAsyncLLM
        from agentserve.engine.vllm.stat_logger import stat_logger_factory

        self._check_aborted()
        on_phase(StartPhase.CONFIG)
        arguments = self._arguments()
        config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
        self._check_aborted()
        on_phase(StartPhase.SPAWN)
        steps = StepRelay(self._order)
        llm = WatchedAsyncLLM.from_vllm_config(
            config,
            stat_loggers=[stat_logger_factory(steps)],
            disable_log_stats=True,  # vLLM's log lines per step; ours and Prometheus' remain
        )
        llm.watch(self._order.observer, self._order.mark.generation)
        steps.llm = llm
        reports = CacheReports(llm, self._order)
        return VllmEngine(llm, config, arguments, self._runtime_dir, reports)

    def _arguments(self) -> Any:
        preset = self._order.preset
        model_path = None
        if preset.demo_model is not None:
            model_path = self._demo_model(preset.demo_model)
        words = vllm_arguments(preset, model_path=model_path)
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": kv_events_endpoint(self._runtime_dir),
            "replay_endpoint": kv_replay_endpoint(self._runtime_dir),
        }
        words += [
            "--kv-events-config",
            msgspec.json.encode(events).decode(),
            "--enable-logging-iteration-details",
            "--disable-uvicorn-access-log",
        ]
        arguments = compat.serve_parser().parse_args(words)
        compat.validate_arguments(arguments)
        return arguments

    def _demo_model(self, name: str) -> str:
        """Build a demo model in a child, which can be killed and gives its memory back."""
        command = [
            sys.executable,
            "-m",
            "agentserve.engine.demo_models",
            name,
            str(self._cache_dir),
        ]
        # Its messages go to the log with those of all children.
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            output, _ = child.communicate()
        self._check_aborted()
        if child.returncode != 0:
            raise AgentServeError(f"The demo model {name!r} could not be built.", "Read the log.")
        return output.strip().splitlines()[-1]


class StepRelay:
    """Hands each step to the observer; made before the engine client that it needs."""

    def __init__(self, order: StartOrder) -> None:
        self._observer = order.observer
        self.llm: Any = None

    def __call__(self, sample: Any, first_tokens: bool) -> None:
        """Take one step (`StepListener`)."""
        self._observer.step(sample)
        if first_tokens and self.llm is not None:
            self.llm.observe_first_tokens()


class VllmEngine:
    """A loaded vLLM engine; see `RunningEngine`."""

    def __init__(
        self,
        llm: Any,
        config: Any,
        arguments: Any,
        runtime_dir: Path,
        cache_reports: CacheReports,
    ) -> None:
        self._llm = llm
        self._arguments = arguments
        self._runtime_dir = runtime_dir
        self._cache_reports = cache_reports
        self._facts = _facts(config, arguments)
        self._app: Any = None
        self._lifespan = contextlib.AsyncExitStack()
        self._asking: asyncio.Task[None] | None = None
        self._scheduler_facts: SchedulerFacts | None = None
        self.restore_environment = contextlib.ExitStack()

    @property
    def facts(self) -> EngineFacts:
        """What the engine says about itself."""
        return self._facts

    @property
    def app(self) -> AsgiApp:
        """vLLM's FastAPI application."""
        app: AsgiApp = self._app
        return app

    @property
    def scheduler_facts(self) -> SchedulerFacts | None:
        """The newest answer of the scheduler, about a second old; None where it cannot be asked."""
        return self._scheduler_facts

    def death(self) -> str | None:
        """One line about why the engine is dead, or None while it lives."""
        return "The engine has died." if self._llm.errored else None

    def in_flight(self) -> tuple[InFlightRequest, ...]:
        """Requests that are not finished, in order of arrival."""
        requests: tuple[InFlightRequest, ...] = self._llm.in_flight()
        return tuple(_with_progress(request, self._scheduler_facts) for request in requests)

    async def open(self) -> None:
        """Build vLLM's application and run its start-up."""
        llm = self._llm
        await self._cache_reports.open()
        await llm.reset_mm_cache()
        tasks = await llm.get_supported_tasks()
        build_app, init_app_state = compat.http_application_parts()
        app = build_app(self._arguments, tasks, llm.model_config)
        await init_app_state(llm, app.state, self._arguments, tasks)
        # On engine death vLLM's handlers tell "the server" to exit; ours must not.
        app.state.server = types.SimpleNamespace(should_exit=False)
        groups = await llm.engine_core.call_utility_async("get_kv_cache_group_metadata")
        self._facts = msgspec.structs.replace(
            self._facts,
            cache_groups=tuple(CacheGroup(str(g["kind"]), int(g["block_size"])) for g in groups),
        )
        await self._lifespan.enter_async_context(app.router.lifespan_context(app))
        self._app = app
        if plugin_loaded():
            self._asking = asyncio.create_task(self._ask_scheduler())

    async def close(self) -> None:
        """Run the shut-down of vLLM's application."""
        if self._asking is not None:
            self._asking.cancel()
        self._cache_reports.end()
        await self._lifespan.aclose()

    def shut_down(self) -> None:
        """End the engine; its processes may live a moment longer."""
        try:
            self._llm.shutdown()
        finally:
            self._cache_reports.close()
            self.restore_environment.close()
            for leftover in self._runtime_dir.iterdir():
                if leftover.is_socket():
                    leftover.unlink(missing_ok=True)

    async def _ask_scheduler(self) -> None:
        while True:
            try:
                answer = await self._llm.engine_core.call_utility_async(FACTS_METHOD)
            except Exception:  # noqa: BLE001 - a dead engine: the facts are unknown
                self._scheduler_facts = None
                return
            if answer is None:
                return
            self._scheduler_facts = msgspec.convert(answer, SchedulerFacts)
            await asyncio.sleep(_FACTS_INTERVAL_S)


def _with_progress(request: InFlightRequest, facts: SchedulerFacts | None) -> InFlightRequest:
    """Add what only the scheduler knows of a request before its first token."""
    if facts is None or request.phase == "decode":
        return request
    computed = facts.computed_prompt_tokens.get(request.request_id)
    return msgspec.structs.replace(
        request, phase="queued" if computed is None else "prefill", computed_tokens=computed
    )


def _facts(config: Any, arguments: Any) -> EngineFacts:
    from vllm.platforms import current_platform

    cache, scheduler, model = config.cache_config, config.scheduler_config, config.model_config
    speculative = config.speculative_config
    concurrency = getattr(cache, "kv_cache_max_concurrency", None)
    served = arguments.served_model_name
    return EngineFacts(
        vllm_version=compat.vllm_version(),
        device=str(current_platform.device_type),
        model=str(model.model),
        served_model_name=served[0] if served else str(model.model),
        tensor_parallel_size=config.parallel_config.tensor_parallel_size,
        max_model_len=model.max_model_len,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        speculative_tokens=speculative.num_speculative_tokens if speculative is not None else 0,
        kv_cache_dtype=str(cache.cache_dtype),
        prefix_caching=cache.enable_prefix_caching,
        block_tokens=cache.block_size,
        # One is a placeholder that never holds anything.
        blocks_total=None if cache.num_gpu_blocks is None else cache.num_gpu_blocks - 1,
        capacity_tokens=None if concurrency is None else int(concurrency * model.max_model_len),
        max_concurrency=concurrency,
    )
