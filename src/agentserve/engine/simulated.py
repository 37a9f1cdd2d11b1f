"""An engine without a model: seeded, scriptable, and able to misbehave on command.

It goes through everything that the real one goes through (log lines through the captured file
descriptors, processes with the marker, the front, the observer) and computes nothing. It drives the
tests of the app and `--simulate`; what it shows is marked SIMULATED. It must never be used to claim
anything about vLLM.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import msgspec

from agentserve.domain.errors import StartAbortedError
from agentserve.domain.lifecycle import EngineFacts, StartPhase
from agentserve.domain.request import InFlightRequest
from agentserve.domain.sample import SchedulerFacts
from agentserve.engine.backend import (
    AsgiApp,
    Launch,
    PhaseListener,
    Receive,
    RunningEngine,
    Scope,
    Send,
    StartOrder,
)
from agentserve.engine.simulated_traffic import SimulatedTraffic

_BLOCK_TOKENS = 16
_BLOCKS = 6688
_STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.close(1)
while True:
    signal.pause()
"""
_PHASE_LINES: dict[StartPhase, str] = {
    StartPhase.LOAD: "(Worker_TP0 pid=0) INFO Starting to load model simulated...",
    StartPhase.PROFILE: "(Worker_TP0 pid=0) INFO Model loading took 9.71 GiB and 1.0 seconds",
    StartPhase.KV_CACHE: "(EngineCore pid=0) INFO Available KV cache memory: 1.63 GiB",
    StartPhase.GRAPHS: "(Worker_TP0 pid=0) INFO Capturing CUDA graphs (decode, FULL)",
}


class SimulationScript(msgspec.Struct, frozen=True, kw_only=True):
    """How the simulated engine behaves."""

    phase_s: float = 0.4
    """Length of each start phase, in seconds."""
    fail_in: StartPhase | None = None
    """Fail in this phase, after `failure_lines` were logged."""
    failure_lines: tuple[str, ...] = (
        "(Worker_TP1 pid=0) ERROR 01-01 00:00:00 [simulated.py:1] torch.OutOfMemoryError: CUDA out"
        " of memory. Tried to allocate 1.20 GiB.",
        "(EngineCore pid=0) ERROR 01-01 00:00:00 [simulated.py:1] RuntimeError: Engine core"
        " initialization failed.",
    )
    hang_in: StartPhase | None = None
    """Wait in this phase until aborted."""
    ignore_abort: bool = False
    """Let an abort pass unheard, as an import does."""
    ignore_stop: bool = False
    """Block in shut-down, and keep a process that ignores TERM."""
    flood_lines: int = 0
    """Log lines written at once while loading."""
    bad_answer: bool = False
    """Answer the smoke prompt with an error."""
    traffic: bool = False
    """Play agents that work."""
    seed: int = 1


class SimulatedBackend:
    """Makes simulated engines.

    Args:
        script: How they behave; may be replaced between starts.
    """

    simulated = True
    smoke_route = "/v1/completions"

    def __init__(self, script: SimulationScript) -> None:
        self.script = script
        self.engine: SimulatedEngine | None = None
        self.request_numbers = itertools.count(1)
        """One row for all engines."""

    def launch(self, order: StartOrder) -> Launch:
        """Prepare a start; does no work yet."""
        return SimulatedLaunch(self, order)


class SimulatedLaunch:
    """One start of a simulated engine; see `Launch`."""

    def __init__(self, backend: SimulatedBackend, order: StartOrder) -> None:
        self._backend = backend
        self._script = backend.script
        self._order = order
        self._aborted = threading.Event()

    def load(self, on_phase: PhaseListener) -> RunningEngine:
        """Walk through the phases as the script says.

        Raises:
            StartAbortedError: `abort` was called.
            AgentServeError: The script says so.
        """
        for phase in StartPhase:
            if phase is StartPhase.WARM_UP:
                break
            if phase in _PHASE_LINES:
                _log(_PHASE_LINES[phase])
            else:
                on_phase(phase)
            if phase is StartPhase.LOAD:
                for number in range(self._script.flood_lines):
                    _log(f"(Worker_TP0 pid=0) INFO simulated line {number}")
            self._pass_phase(phase)
        engine = SimulatedEngine(self._script, self._order, self._backend.request_numbers)
        self._backend.engine = engine
        return engine

    def abort(self) -> None:
        """Make `load` end soon, unless the script ignores it."""
        if not self._script.ignore_abort:
            self._aborted.set()

    def _pass_phase(self, phase: StartPhase) -> None:
        length_s = None if self._script.hang_in is phase else self._script.phase_s
        if self._aborted.wait(length_s):
            raise StartAbortedError("The start was aborted.")
        if self._script.fail_in is phase:
            _log_failure(self._script)
            raise RuntimeError("Engine core initialization failed. See root cause above.")


class SimulatedEngine:
    """A simulated engine; see `RunningEngine`."""

    def __init__(
        self, script: SimulationScript, order: StartOrder, request_numbers: Iterator[int]
    ) -> None:
        self._script = script
        self._death: str | None = None
        self.process: subprocess.Popen[bytes] | None = None
        """Lives as long as the engine, if the script ignores stops."""
        if script.ignore_stop:
            self.process = _start_stubborn_process(order)
        options = order.preset.engine
        self._facts = EngineFacts(
            vllm_version="simulated",
            device="simulated",
            model=options.model,
            served_model_name=options.served_model_name or options.model,
            tensor_parallel_size=options.tensor_parallel_size or 2,
            max_model_len=options.max_model_len or 100_000,
            max_num_batched_tokens=options.max_num_batched_tokens or 2048,
            max_num_seqs=options.max_num_seqs or 4,
            speculative_tokens=(options.speculative_config or {}).get("num_speculative_tokens", 0),
            kv_cache_dtype=options.kv_cache_dtype or "auto",
            prefix_caching=True,
            block_tokens=_BLOCK_TOKENS,
            blocks_total=_BLOCKS,
            capacity_tokens=_BLOCKS * _BLOCK_TOKENS,
            max_concurrency=_BLOCKS * _BLOCK_TOKENS / (options.max_model_len or 100_000),
        )
        self.traffic = SimulatedTraffic(
            order.observer,
            self._facts,
            order.mark.generation,
            random.Random(script.seed),
            request_numbers,
        )
        """The agents; they play by themselves if the script wants any."""
        self._playing: asyncio.Task[None] | None = None

    @property
    def facts(self) -> EngineFacts:
        """Invented properties, shaped like the two-card preset's."""
        return self._facts

    @property
    def app(self) -> AsgiApp:
        """Answers completions with fixed words."""
        return self._answer

    @property
    def scheduler_facts(self) -> SchedulerFacts | None:
        """Invented to match the simulated traffic."""
        return self.traffic.scheduler_facts()

    def death(self) -> str | None:
        """The cause given to `die`, or None."""
        return self._death

    def die(self, cause: str) -> None:
        """Play a dead engine process."""
        self._death = cause

    def in_flight(self) -> tuple[InFlightRequest, ...]:
        """Simulated requests that are not finished."""
        return self.traffic.in_flight()

    async def open(self) -> None:
        """Start the traffic if the script wants any."""
        self.traffic.begin()
        if self._script.traffic:
            self._playing = asyncio.create_task(self.traffic.play())

    async def close(self) -> None:
        """Stop the traffic."""
        if self._playing is not None:
            self._playing.cancel()
            await asyncio.wait({self._playing})
        self.traffic.end()

    def shut_down(self) -> None:
        """End; or, if the script ignores stops, block until the process is killed."""
        if self.process is not None:
            self.process.wait()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body", False):
            continue
        if self._script.hang_in is StartPhase.WARM_UP:
            await asyncio.Event().wait()
        if self._script.fail_in is StartPhase.WARM_UP:
            _log_failure(self._script)
        if self._script.bad_answer or self._script.fail_in is StartPhase.WARM_UP:
            status, body = 500, _json({"error": {"message": "simulated failure"}})
        elif scope["path"] == "/v1/models":
            served = self._facts.served_model_name
            status, body = 200, _json({"object": "list", "data": [{"id": served}]})
        else:
            usage = {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12}
            choice = {"index": 0, "text": " a + b", "finish_reason": "length"}
            status, body = 200, _json({"choices": [choice], "usage": usage, "created": 0})
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _start_stubborn_process(order: StartOrder) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-ISc", _STUBBORN],
        env={**os.environ, **order.mark.variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    with process.stdout:
        process.stdout.read()  # ends when the process ignores TERM
    return process


def _log_failure(script: SimulationScript) -> None:
    for line in script.failure_lines:
        _log(line)


def _log(line: str) -> None:
    # Straight to the descriptor, as a child process would.
    os.write(1, f"{line}\n".encode())


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)
