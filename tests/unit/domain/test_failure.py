from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.failure import Failure, explain_failure, mask_secrets
from agentserve.domain.raised import find_raised, read_line

CORE_WRAPPER = (
    "Exception: WorkerProc initialization failed due to an exception in a background process."
)
APP_WRAPPER = (
    "RuntimeError: Engine core initialization failed. See root cause above."
    " Failed core proc(s): {'EngineCore': 1}"
)


def logged(
    process: str, pid: int, *bodies: str, level: str = "ERROR", place: str = "x.py:1"
) -> list[str]:
    prefix = f"({process} pid={pid}) {level} 11-29 19:00:00 [{place}] "
    return [prefix + body for body in bodies]


def trace(*exception: str) -> list[str]:
    return [
        "Traceback (most recent call last):",
        '  File "/venv/vllm/worker.py", line 55, in run',
        "    output = func(*args)",
        "             ^^^^^^^^^^^",
        *exception,
    ]


def core_and_app() -> list[str]:
    """What the engine core and the app print after a worker has failed."""
    return [
        *logged("EngineCore", 10, "EngineCore failed to start.", *trace(CORE_WRAPPER)),
        "Process EngineCore:",
        *trace(CORE_WRAPPER),
        *trace(APP_WRAPPER),
        "/usr/lib/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: leaked",
    ]


def worker_failure(*exception: str) -> list[str]:
    return [
        *logged("Worker_TP0", 11, "Starting to load model m...", level="INFO"),
        *logged("Worker_TP1", 12, "WorkerProc failed to start.", *trace(*exception)),
        *core_and_app(),
    ]


def explain(lines: Iterable[str], phase: str | None = "load") -> Failure:
    return explain_failure(list(lines), phase=phase, exception_text="\n".join(trace(APP_WRAPPER)))


KNOWN = [
    (
        "ValueError: Free memory on device cuda:0 (19.77/22.05 GiB) on startup is less than desired"
        " GPU memory utilization (0.95, 20.95 GiB). Decrease GPU memory utilization.",
        "free_memory",
        ["19.77", "22.05", "cuda:0", "20.95"],
        "0.89",
    ),
    (
        "ValueError: Free memory on device (31.44/47.38 GiB) on startup is less than desired GPU"
        " memory utilization (0.95, 45.01 GiB).",
        "free_memory",
        ["31.44", "47.38", "45.01"],
        "0.66",
    ),
    (
        "ValueError: Available memory on node 0 (7.42/9.59 GiB) on kv cache allocation is less than"
        " requested memory for kv (400.0 GiB). Decrease --kv-cache-memory-bytes.",
        "host_memory",
        ["400.0", "7.42", "9.59"],
        "VLLM_CPU_KVCACHE_SPACE",
    ),
    (
        "ValueError: To serve at least one request with the model's max seq len (122880), (3.75 GiB"
        " KV cache is needed, which is larger than the available KV cache memory (2.97 GiB). Based"
        " on the available memory, the estimated maximum model length is 97216. Try increasing",
        "kv_cache_too_small",
        ["122880", "3.75", "2.97"],
        "97216",
    ),
    (
        "ValueError: To serve at least one request with the models's max seq len (8192), 1.5 GiB KV"
        " cache is needed, which is larger than the available KV cache memory (0.01 GiB). Based on"
        " the available memory, the estimated maximum model length is 256.",
        "kv_cache_too_small",
        ["8192", "1.5", "0.01"],
        "max_num_batched_tokens",
    ),
    (
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens"
        " that can be stored in KV cache (14352). Try increasing",
        "kv_cache_too_small",
        ["32768", "14352"],
        "max_model_len",
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing",
        "kv_cache_too_small",
        ["Nothing is left"],
        "max_model_len",
    ),
    (
        "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (161). Each decode"
        " sequence requires one Mamba cache block. Please lower max_num_seqs to at most 161",
        "mamba_blocks",
        ["256", "161"],
        "at most 161",
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total"
        " capacity of 15.48 GiB of which 13.25 MiB is free.",
        "out_of_memory",
        ["20.00 MiB", "13.25 MiB", "loading the weights"],
        "quantized",
    ),
    (
        "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address"
        " already in use",
        "port_in_use",
        ["8000"],
        "another port",
    ),
    (
        "OSError: You are trying to access a gated repo. Cannot access gated repo for url"
        " https://huggingface.co/org/model/resolve/main/config.json.",
        "model_gated",
        ["org/model"],
        "HF_TOKEN",
    ),
    (
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot"
        " folder for the specified revision and outgoing traffic has been disabled.",
        "model_offline",
        ["local cache"],
        "HF_HUB_OFFLINE",
    ),
    (
        "OSError: org/nothing is not a local folder and is not a valid model identifier",
        "model_missing",
        ["not found"],
        "preset",
    ),
    (
        "HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name':"
        " '/no/such/folder'. Use `repo_type` argument if needed.",
        "model_missing",
        ["/no/such/folder"],
        "preset",
    ),
    (
        "RuntimeError: Cannot find any model weights with `/models/empty`",
        "model_missing",
        ["/models/empty"],
        "folder",
    ),
    (
        "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
        "nvcc_missing",
        ["nvcc"],
        "CUDA toolkit",
    ),
    (
        "torch.AcceleratorError: CUDA error: an illegal instruction was encountered",
        "illegal_instruction",
        ["instruction"],
        "Update",
    ),
    (
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "illegal_address",
        ["memory"],
        "speculative",
    ),
    (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, unhandled"
        " system error",
        "nccl",
        ["NCCL error"],
        "NCCL_P2P_DISABLE",
    ),
    (
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with",
        "cuda_fork",
        ["forked"],
        "spawn",
    ),
    (
        "AssertionError: Not enough allowed NUMA nodes to bind threads of 2 CPUWorkers",
        "cpu_binding",
        ["NUMA"],
        "VLLM_CPU_OMP_THREADS_BIND",
    ),
]


@pytest.mark.parametrize(("exception", "kind", "words", "hint"), KNOWN)
def test_a_known_exception_of_a_worker_is_explained_with_its_numbers(
    exception: str, kind: str, words: list[str], hint: str
) -> None:
    failure = explain(worker_failure(exception))
    assert failure.kind == kind
    assert all(word in failure.cause for word in words), failure.cause
    assert hint in failure.hint
    assert failure.phase == "load"
    assert failure.raw[0] == exception


def test_an_absurd_estimate_of_vllm_is_not_offered() -> None:
    failure = explain(worker_failure(KNOWN[4][0]))
    assert "256" not in failure.hint


@pytest.mark.parametrize(
    ("phase", "title", "hint"),
    [
        ("graphs", "capturing CUDA graphs", "max_cudagraph_capture_size"),
        ("profile", "measuring memory", "max_num_batched_tokens"),
        ("ready", "serving requests", "max_num_batched_tokens"),
        (None, "Out of GPU memory", "gpu_memory_utilization"),
    ],
)
def test_out_of_memory_names_the_phase(phase: str | None, title: str, hint: str) -> None:
    failure = explain(worker_failure("torch.OutOfMemoryError: CUDA out of memory."), phase)
    assert title in failure.title
    assert hint in failure.hint


def test_an_unknown_exception_is_kept_as_it_was_printed() -> None:
    failure = explain(worker_failure("vllm.SomethingNewError: the flux is out of phase (3)"))
    assert failure.kind == "unknown"
    assert failure.cause == "vllm.SomethingNewError: the flux is out of phase (3)"
    assert "in the log" in failure.hint


def test_the_first_exception_of_a_chain_counts() -> None:
    failure = explain(
        worker_failure(
            "KeyError: 'first'",
            "",
            "The above exception was the direct cause of the following exception:",
            "",
            *trace("ValueError: second"),
            "",
            "During handling of the above exception, another exception occurred:",
            "",
            *trace("RuntimeError: third"),
        )
    )
    assert failure.cause == "KeyError: 'first'"


def test_of_two_workers_the_first_counts_and_its_lines_may_be_interleaved() -> None:
    first = logged("Worker_TP1", 12, *trace("ValueError: first"))
    second = logged("Worker_TP0", 11, *trace("ValueError: second"))
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    assert explain([*mixed, *core_and_app()]).cause == "ValueError: first"


def test_what_a_worker_says_after_another_one_has_gone_is_not_the_cause() -> None:
    lines = [
        *logged("Worker_TP0", 11, *trace("RuntimeError: [gloo] Connection closed by peer [::1]:3")),
        *logged("Worker_TP1", 12, *trace("ValueError: the cause")),
        *core_and_app(),
    ]
    assert explain(lines).cause == "ValueError: the cause"


def test_an_exception_of_the_core_counts_when_the_workers_are_fine() -> None:
    lines = [
        *logged("Worker_TP0", 11, *trace("BrokenPipeError: [Errno 32] Broken pipe")),
        *logged("EngineCore", 10, "EngineCore failed to start.", *trace("ValueError: in the core")),
        "Process EngineCore:",
        *trace("ValueError: in the core"),
        *trace(APP_WRAPPER),
    ]
    assert explain(lines).cause == "ValueError: in the core"


def test_warnings_that_the_engine_survived_are_not_the_cause() -> None:
    lines = [
        *logged(
            "Worker_TP0", 11, "Fallback.", *trace("RuntimeError: oneDNN failed"), level="WARNING"
        ),
        "/venv/x.py:3: FutureWarning: torch.cuda.OutOfMemoryError is deprecated",
        "Exception ignored in: <function x at 0x7f>",
        *trace("OSError: ignored"),
        *worker_failure("ValueError: the cause"),
    ]
    assert explain(lines).cause == "ValueError: the cause"


@pytest.mark.parametrize(
    ("code", "word", "hint"), [(-9, "SIGKILL", "memory"), (-4, "SIGILL", "CPU"), (-99, "99", "log")]
)
def test_a_killed_worker_is_named_with_its_signal(code: int, word: str, hint: str) -> None:
    lines = [
        *logged(
            "EngineCore",
            10,
            f"Worker proc VllmWorker-1 died unexpectedly (exit code: {code}), shutting down.",
            "EngineCore encountered a fatal error.",
            *trace("RuntimeError: Executor failed."),
        ),
        *logged(
            "APIServer",
            9,
            *trace("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered"),
        ),
    ]
    failure = explain(lines, "ready")
    assert failure.kind == "worker_died"
    assert "VllmWorker-1" in failure.cause
    assert word in failure.cause
    assert hint in failure.hint


def test_a_worker_that_ended_because_of_its_exception_is_not_called_killed() -> None:
    lines = [
        *logged("Worker_TP1", 12, *trace("ValueError: the cause")),
        *logged(
            "EngineCore", 10, "Worker proc VllmWorker-1 died unexpectedly (exit code: -15), bye."
        ),
        *core_and_app(),
    ]
    assert explain(lines).cause == "ValueError: the cause"


def test_a_killed_core_is_read_from_the_wrapper() -> None:
    wrapper = APP_WRAPPER.replace("1}", "-9}")
    lines = [
        *logged("Worker_TP0", 11, *trace("BrokenPipeError: [Errno 32] Broken pipe")),
        *trace(wrapper),
    ]
    failure = explain_failure(lines, phase="spawn", exception_text=wrapper)
    assert (failure.kind, failure.cause) == ("worker_died", "EngineCore was ended by SIGKILL.")


def test_an_engine_that_was_not_ready_in_time_is_told_from_a_crash() -> None:
    wrapper = APP_WRAPPER.replace("{'EngineCore': 1}", "{}")
    assert explain_failure([], phase="load", exception_text=wrapper).kind == "ready_timeout"
    timeout = (
        "TimeoutError: Timed out waiting for engine core processes to start. Waited 600s"
        " (configured by VLLM_ENGINE_READY_TIMEOUT_S)."
    )
    failure = explain_failure(trace(timeout), phase="load", exception_text=timeout)
    assert failure.kind == "ready_timeout"
    # The same wrapper also follows an ordinary failure.
    lines = [*logged("EngineCore", 10, *trace("ValueError: the cause")), *trace(wrapper)]
    assert explain(lines).cause == "ValueError: the cause"


def test_a_validation_error_is_reduced_to_its_sentences() -> None:
    failure = explain(
        trace(
            "pydantic_core._pydantic_core.ValidationError: 2 validation errors for SchedulerConfig",
            "max_num_batched_tokens",
            "  Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0]",
            "    For further information visit https://errors.pydantic.dev/2/v/x",
            "max_num_seqs",
            "  Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0]",
        )
    )
    assert failure.kind == "invalid_config"
    assert failure.cause == (
        "max_num_batched_tokens: Input should be greater than or equal to 1;"
        " max_num_seqs: Input should be greater than or equal to 1."
    )
    model_error = trace(
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig",
        "  Value error, Total number of attention heads (4) must be divisible by tensor parallel"
        " size (3). [type=value_error, input_value=ArgsKwargs((), {}), input_type=ArgsKwargs]",
    )
    assert explain_failure([], phase="config", exception_text="\n".join(model_error)).cause == (
        "Total number of attention heads (4) must be divisible by tensor parallel size (3)."
    )


def test_an_unknown_argument_is_named() -> None:
    lines = ["usage: api_server.py [-h]", "x.py: error: unrecognized arguments: --max-seats"]
    failure = explain_failure(lines, phase="config", exception_text="SystemExit: 2")
    assert (failure.kind, failure.cause) == (
        "invalid_config",
        "unrecognized arguments: --max-seats.",
    )


def test_the_message_that_a_wrapper_quotes_is_used_when_its_origin_is_lost() -> None:
    failure = explain(
        trace("RuntimeError: Worker failed with error 'a rare thing', please check the stack trace")
    )
    assert (failure.kind, failure.cause) == ("unknown", "a rare thing")


def test_without_any_message_nothing_is_invented() -> None:
    failure = explain_failure([], phase="load", exception_text=None)
    assert failure.kind == "no_message"
    assert failure.raw == ()
    assert explain(core_and_app()).kind == "no_message"


def test_an_exception_without_a_log_is_still_told() -> None:
    failure = explain_failure([], phase=None, exception_text="vllm says no in one sentence")
    assert failure.cause == "vllm says no in one sentence"


def test_keys_are_masked_and_numbers_are_not() -> None:
    failure = explain(
        worker_failure("ValueError: token=abc123 hf_ABCDEFGHIJKL 'api_key': ['sk-x'] max_tokens=12")
    )
    assert "abc123" not in failure.cause
    assert "hf_ABC" not in failure.cause
    assert "sk-x" not in failure.cause
    assert "max_tokens=12" in failure.cause
    assert mask_secrets("Authorization: Bearer abc.def") == "Authorization: Bearer ***"
    assert mask_secrets("No token was given") == "No token was given"


def test_a_bare_traceback_is_attributed_to_the_process_that_its_header_names() -> None:
    lines = ["Process Worker_TP0:", *trace("ValueError: x")]
    (raised,) = find_raised(map(read_line, lines))
    assert (raised.process, raised.depth) == ("Worker_TP0", 2)
    (ranked,) = find_raised(map(read_line, [f"[rank1]: {line}" for line in trace("ValueError: y")]))
    assert ranked.depth == 2


_noise = st.text(max_size=80) | st.sampled_from(
    [
        *worker_failure("torch.OutOfMemoryError: CUDA out of memory."),
        *trace(*KNOWN[0][0].split(" on startup")),
        "Process EngineCore:",
        "ValidationError: 3 validation errors for X",
        "[type=",
        "\x1b[31mError: red\x1b[0m",
    ]
)


@given(st.lists(_noise, max_size=40), st.none() | st.text(max_size=60), st.none() | _noise)
def test_any_log_gives_a_bounded_and_printable_explanation(
    lines: list[str], phase: str | None, exception_text: str | None
) -> None:
    failure = explain_failure(lines, phase=phase, exception_text=exception_text)
    texts = (failure.title, failure.cause, failure.hint, *failure.raw)
    assert failure.kind
    assert failure.title
    assert failure.hint
    assert all(text.isprintable() and len(text) <= 500 for text in texts)
    assert len(failure.raw) <= 12


@given(st.integers(0, 2**32 - 1))
def test_however_the_processes_lines_are_mixed_the_cause_is_the_same(seed: int) -> None:
    streams = [
        logged("Worker_TP0", 11, *trace("RuntimeError: Connection closed by peer")),
        logged("Worker_TP1", 12, *trace("ValueError: the cause")),
        logged("EngineCore", 10, *trace(CORE_WRAPPER)),
        trace(APP_WRAPPER),
    ]
    chooser = random.Random(seed)
    mixed: list[str] = []
    while any(streams):
        mixed.append(chooser.choice([stream for stream in streams if stream]).pop(0))
    assert explain(mixed).cause == "ValueError: the cause"


def test_a_huge_log_is_explained_in_bounded_time() -> None:
    lines = ["x" * 10_000 + " (" * 2_000] * 300 + worker_failure("ValueError: the cause")
    assert explain(lines).cause == "ValueError: the cause"
