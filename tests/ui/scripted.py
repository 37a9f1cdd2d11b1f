"""A scripted product for the user interface: real values, no engine, every request remembered."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from agentserve.domain.control import PresetSummary, SwitchMode
from agentserve.domain.failure import Failure
from agentserve.domain.gpu import GpuSample, ProcessSample
from agentserve.domain.history import RequestHistoryReport
from agentserve.domain.lifecycle import PHASE_ORDER, EngineState, PhaseTime, StartPhase
from agentserve.domain.log import LogBatch, LogLine
from agentserve.domain.pending import (
    CheckState,
    Consequence,
    DrainView,
    PendingChange,
    PendingView,
    ToggleOption,
)
from agentserve.domain.request import InFlightRequest, RequestOutcome, RequestRecord
from agentserve.domain.snapshot import (
    EngineView,
    HistoryView,
    KvView,
    LatencyView,
    Percentiles,
    PrefixCacheView,
    SettingsView,
    Snapshot,
    SpecDecodeView,
    ThroughputView,
)

from .scripted_history import nothing_stored
from .scripted_presets import ScriptedPresetFiles

START_UNIX_S = 1_700_000_000.0
GIB = 2**30

PRESETS = (
    PresetSummary(
        name="cpu-tiny",
        title="Small hybrid on the CPU, to try things",
        source="shipped",
        slot=1,
        evidence="Run by our own tests on the CPU engine (vLLM 0.32).",
        evidence_level="cpu engine",
        device="cpu",
        max_model_len=8_192,
        max_num_seqs=4,
        max_num_batched_tokens=2_048,
    ),
    PresetSummary(
        name="qwen-27b-nvfp4",
        title="27B hybrid, NVFP4, two 16 GB cards, 96k context",
        source="shipped",
        slot=2,
        evidence="reported by an owner of two cards",
        evidence_level="owner report",
        device="cuda",
        max_model_len=98_304,
        max_num_seqs=4,
        max_num_batched_tokens=2_048,
    ),
    PresetSummary(
        name="qwen-27b-mtp",
        title="the same with MTP",
        source="user",
        slot=3,
        device="cuda",
        max_model_len=98_304,
        max_num_seqs=2,
        max_num_batched_tokens=2_048,
        speculative_tokens=2,
        has_overlay=True,
    ),
)

FAILURE = Failure(
    kind="out_of_memory",
    title="Not enough GPU memory",
    cause="GPU 1 has 13.2 GiB free, the preset asks for 14.4 GiB: another process holds 1.9 GiB.",
    hint="Close that process, or start a preset that asks for less memory.",
    phase="profile",
    raw=(
        "(Worker_TP1 pid=4242) ERROR torch.OutOfMemoryError: CUDA out of memory.",
        "ValueError: Free memory on device (13.2/15.9 GiB) on startup is less than desired",
    ),
)


class ScriptedControl:
    """A `ControlPort` whose snapshot, log and presets are set by a test."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.current = snapshot if snapshot is not None else stopped()
        self.requests: list[tuple[str, ...]] = []
        self.lines: list[LogLine] = []
        self.missed = 0
        self.known_presets: tuple[PresetSummary, ...] = PRESETS
        self.problems: tuple[str, ...] = ()
        self.missing: str | None = None
        self.preset_files = ScriptedPresetFiles(self)
        self.request_history: Callable[[int], RequestHistoryReport] = nothing_stored

    @property
    def engine_missing(self) -> str | None:
        return self.missing

    def snapshot(self) -> Snapshot:
        return self.current

    def log_since(self, number: int) -> LogBatch:
        missed, self.missed = self.missed, 0
        return LogBatch(tuple(self.lines[number:]), len(self.lines), missed)

    def presets(self) -> tuple[PresetSummary, ...]:
        return self.known_presets

    def preset_problems(self) -> tuple[str, ...]:
        return self.problems

    def start(self, preset: str | None = None) -> None:
        self.requests.append(("start",) if preset is None else ("start", preset))

    def stop(self) -> None:
        self.requests.append(("stop",))

    def restart(self, mode: SwitchMode = SwitchMode.ABORT) -> None:
        self.requests.append(("restart", mode.value))

    def switch(self, preset: str, mode: SwitchMode = SwitchMode.ABORT) -> None:
        self.requests.append(("switch", preset, mode.value))

    def cancel_switch(self) -> None:
        self.requests.append(("cancel_switch",))

    def propose(self, option: ToggleOption, value: int) -> None:
        """Remember the request, and show it as pending as the product would."""
        self.requests.append(("propose", option.value, str(value)))
        view = self.current.engine
        before = running_value(view, option)
        changes = {change.option: change for change in view.pending.changes} if view.pending else {}
        changes.pop(option, None)
        if value != before:
            changes[option] = PendingChange(option=option, before=before, after=value)
        pending = (
            PendingView(preset=view.preset or "cpu-tiny", changes=tuple(changes.values()))
            if changes
            else None
        )
        self.change_engine(pending=pending)

    def drop_pending(self) -> None:
        self.requests.append(("drop_pending",))
        self.change_engine(pending=None)

    def remember_theme(self, name: str) -> None:
        self.requests.append(("remember_theme", name))

    def change_engine(self, **changes: object) -> None:
        """Replace fields of the engine in the current snapshot."""
        view = msgspec.structs.replace(self.current.engine, **changes)
        self.current = msgspec.structs.replace(self.current, engine=view)

    def log(self, *texts: str) -> None:
        for text in texts:
            number = len(self.lines)
            self.lines.append(LogLine(number, START_UNIX_S + number, text))


def running_value(view: EngineView, option: ToggleOption) -> int | None:
    """What the engine runs with, or nothing where it does not say."""
    return {
        ToggleOption.TOKEN_BUDGET: view.settings.max_num_batched_tokens,
        ToggleOption.DRAFT_TOKENS: view.settings.speculative_tokens,
        ToggleOption.SEATS: view.settings.max_num_seqs,
        ToggleOption.CONTEXT: view.settings.max_model_len,
    }[option]


def pending(**changes: object) -> PendingView:
    """A smaller budget, checked, with every consequence known."""
    view = PendingView(
        preset="qwen-27b-nvfp4",
        changes=(PendingChange(option=ToggleOption.TOKEN_BUDGET, before=2_048, after=1_024),),
        consequence=Consequence(
            expected_restart_s=94.0,
            capacity_tokens_before=126_812,
            capacity_tokens_after=131_040,
            warm_tokens_lost=47_824,
            requests_interrupted=3,
        ),
        check=CheckState.PASSED,
    )
    return msgspec.structs.replace(view, **changes)


def draining(**changes: object) -> DrainView:
    view = DrainView(target_preset="qwen-27b-mtp", remaining_s=93.4, requests_left=2)
    return msgspec.structs.replace(view, **changes)


def engine(state: EngineState, **changes: object) -> EngineView:
    """An engine in `state`, running the second preset."""
    fields: dict[str, object] = {
        "state": state,
        "preset": "qwen-27b-nvfp4",
        "endpoint": "http://127.0.0.1:8000",
        "generation": 3,
        **changes,
    }
    return msgspec.convert(fields, EngineView)


def stopped() -> Snapshot:
    return Snapshot(
        time=START_UNIX_S,
        engine=engine(EngineState.STOPPED, preset="cpu-tiny", generation=0),
        gpus_unavailable="NVML is not available: no NVIDIA driver on this machine.",
    )


def starting(phase: StartPhase = StartPhase.LOAD, expected_s: float | None = 41.0) -> Snapshot:
    index = PHASE_ORDER.index(phase)
    finished = tuple(
        PhaseTime(each, 1.3 * (number + 1)) for number, each in enumerate(PHASE_ORDER[:index])
    )
    elapsed = sum(time.duration_s for time in finished) + 2.4
    view = EngineView(
        state=EngineState.STARTING,
        phase=phase,
        phase_elapsed_s=2.4,
        start_elapsed_s=elapsed,
        expected_start_s=expected_s,
        remaining_start_s=None if expected_s is None else expected_s - elapsed,
        finished_phases=finished,
        generation=3,
        preset="qwen-27b-nvfp4",
        endpoint="http://127.0.0.1:8000",
    )
    return Snapshot(time=START_UNIX_S, engine=view, gpus=two_gpus(0.4))


def failed() -> Snapshot:
    return Snapshot(
        time=START_UNIX_S,
        engine=EngineView(
            state=EngineState.FAILED,
            generation=3,
            preset="qwen-27b-nvfp4",
            endpoint="http://127.0.0.1:8000",
            failure=FAILURE,
        ),
        gpus=two_gpus(0.2),
    )


def two_gpus(share: float = 0.9) -> tuple[GpuSample, ...]:
    return tuple(
        GpuSample(
            index=index,
            uuid=f"GPU-0000000{index}",
            name="NVIDIA GeForce RTX 5060 Ti",
            memory_used_bytes=int((share - 0.02 * index) * 15.9 * GIB),
            memory_reserved_bytes=380 * 2**20,
            memory_total_bytes=int(15.9 * GIB),
            utilization_percent=96 - 5 * index,
            temperature_c=64 + index,
            power_w=131.5,
            power_limit_w=180.0,
            pcie_rx_bytes_per_s=1_240_000_000,
            pcie_tx_bytes_per_s=310_000_000,
            pcie_gen=5,
            pcie_width=8,
            sm_clock_mhz=2407,
        )
        for index in range(2)
    )


def cpu_processes() -> tuple[ProcessSample, ...]:
    return tuple(
        ProcessSample(pid=100 + number, role=role, resident_bytes=size)
        for number, (role, size) in enumerate(
            (
                ("app", 612 * 2**20),
                ("engine core", 588 * 2**20),
                ("worker 0", 1_310 * 2**20),
                ("worker 1", 1_297 * 2**20),
            )
        )
    )


def wave(length: int, scale: float, phase: float = 0.0) -> tuple[float | None, ...]:
    return tuple(
        None if index % 37 == 0 else scale * (0.55 + 0.45 * math.sin(index / 4 + phase))
        for index in range(length)
    )


def request(number: int, **changes: object) -> RequestRecord:
    outcome = (RequestOutcome.STOP, RequestOutcome.LENGTH, RequestOutcome.ABORTED)[
        0 if number % 4 else number // 4 % 3
    ]
    record = RequestRecord(
        request_id=f"r{number}",
        generation=3,
        route=("/v1/chat/completions", "/v1/messages", "/v1/responses")[number % 3],
        agent=("opencode", "claude-cli", "codex", None)[number % 4],
        finished_at_unix_s=START_UNIX_S - 7.5 * number,
        outcome=outcome,
        choices=1,
        prompt_tokens=18_240 + 784 * number,
        cached_tokens=17_248 + 700 * number,
        computed_tokens=992 + 84 * number,
        generated_tokens=212,
        queued_s=0.01,
        ttft_s=0.412 + 0.05 * number,
        decode_s=4.4,
        elapsed_s=5.0,
        preemptions=0,
    )
    return msgspec.structs.replace(record, **changes)


def idle() -> Snapshot:
    """An engine that serves and has nothing to do."""
    snapshot = serving()
    throughput = msgspec.structs.replace(
        snapshot.throughput, running_requests=0, waiting_requests=0
    )
    return msgspec.structs.replace(snapshot, throughput=throughput, in_flight=())


def serving(requests: int = 30, *, mtp: bool = True) -> Snapshot:
    return Snapshot(
        time=START_UNIX_S,
        engine=EngineView(
            state=EngineState.READY,
            finished_phases=tuple(PhaseTime(phase, 4.3) for phase in PHASE_ORDER),
            generation=3,
            preset="qwen-27b-nvfp4",
            model="example/Hybrid-27B-NVFP4",
            endpoint="http://127.0.0.1:8000",
            uptime_s=4_389.0,
            vllm_version="0.32.0",
            device="cuda",
            tensor_parallel_size=2,
            settings=SettingsView(
                max_num_batched_tokens=2_048,
                max_model_len=98_304,
                max_num_seqs=4,
                speculative_tokens=2,
            ),
        ),
        kv=KvView(
            usage_fraction=0.421,
            block_tokens=784,
            blocks_total=180,
            blocks_in_use=76,
            blocks_warm=61,
            blocks_free=43,
            capacity_tokens=126_812,
            max_concurrency=1.29,
            preemptions=0,
        ),
        prefix_cache=PrefixCacheView(
            hit_rate_recent=0.912,
            recent_requests=50,
            hit_rate_generation=0.874,
            generation_requests=213,
            cached_tokens=3_412_770,
            computed_tokens=491_220,
        ),
        latency=LatencyView(
            ttft_s=Percentiles(p50=0.412, p95=2.31, p99=3.9, n=48),
            itl_s=Percentiles(p50=0.0214, p95=0.0377, p99=0.112, n=10_412),
            window_s=300,
        ),
        throughput=ThroughputView(
            computed_prefill_tokens_per_s=1_184.0,
            cached_prefill_tokens_per_s=14_310.0,
            decode_tokens_per_s=61.4,
            running_requests=2,
            waiting_requests=1,
            window_s=5,
        ),
        spec_decode=SpecDecodeView(
            acceptance_rate=0.713,
            mean_accepted_tokens=1.43,
            per_position=(0.82, 0.61),
            drafts=4_120,
            window_s=60,
        )
        if mtp
        else None,
        history=HistoryView(
            decode_tokens_per_s=wave(240, 70),
            computed_prefill_tokens_per_s=wave(240, 1_900, 1),
            cached_prefill_tokens_per_s=wave(240, 15_000, 1),
            kv_usage_fraction=wave(240, 0.7, 2),
            ttft_s=wave(240, 1.2, 3),
            itl_s=wave(240, 0.03, 4),
        ),
        gpus=two_gpus(),
        in_flight=(
            InFlightRequest(
                request_id="f1",
                route="/v1/messages",
                phase="prefill",
                prompt_tokens=41_302,
                cached_tokens=39_984,
                computed_tokens=784,
                generated_tokens=0,
                elapsed_s=0.8,
            ),
            InFlightRequest(
                request_id="f2",
                route="/v1/chat/completions",
                phase="decode",
                prompt_tokens=18_240,
                cached_tokens=17_248,
                computed_tokens=992,
                generated_tokens=97,
                elapsed_s=3.1,
            ),
        ),
        recent_requests=tuple(request(number) for number in range(requests)),
    )
