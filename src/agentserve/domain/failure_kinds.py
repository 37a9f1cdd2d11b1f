"""The failures that we know, by what their messages look like.

Owns the table and nothing else. Patterns are loose, because wordings change between versions of
vLLM. It must not know where a message was found.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from agentserve.domain.failure_explanations import (
    Explanation,
    Message,
    as_printed,
    fixed,
    free_memory,
    host_memory,
    invalid_arguments,
    kv_too_small,
    mamba_blocks,
    model_kind,
    out_of_memory,
    port_in_use,
    signal_death,
    validation,
)


class _Kind(NamedTuple):
    pattern: re.Pattern[str]
    explain: Callable[[Message], Explanation]


def explain_text(text: str, phase: str | None) -> Explanation | None:
    """Explain one message, or one exception with its further lines.

    Args:
        text: The message as it was printed.
        phase: Start phase that was running, or `ready`.

    Returns:
        The explanation, or None when the message is not a known one.
    """
    for kind in _KINDS:
        if found := kind.pattern.search(text):
            return kind.explain(Message(found, text, phase))
    return None


_NCCL_HINT = (
    'Set NCCL_P2P_DISABLE = "1" under [env] and disable_custom_all_reduce = true in the preset.'
)
_RAISE_READY_TIMEOUT = (
    "The first start after an update builds kernels and is slow: start again,"
    " or raise VLLM_ENGINE_READY_TIMEOUT_S under [env]."
)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


_KINDS: tuple[_Kind, ...] = (
    _Kind(
        _pattern(
            r"free memory on device(?: (?P<device>\S{1,20}))? \((?P<free>[\d.]+)/(?P<total>[\d.]+)"
            r" GiB\)(?:.{0,200}?utili[sz]ation \((?P<util>[\d.]+), (?P<want>[\d.]+) GiB\))?"
        ),
        free_memory,
    ),
    _Kind(
        _pattern(r"less than desired GPU memory utili[sz]ation"),
        free_memory,
    ),
    _Kind(
        _pattern(
            r"available memory on node \S+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\)"
            r".{0,200}?requested memory for kv \((?P<want>[\d.]+)"
        ),
        host_memory,
    ),
    _Kind(
        _pattern(
            r"to serve at least one request|tokens that can be stored in KV cache"
            r"|no available memory for the cache blocks"
        ),
        kv_too_small,
    ),
    _Kind(
        _pattern(
            r"max_num_seqs \(?(?P<seats>\d+)\)? exceeds.{0,80}?mamba.{0,60}?\(?(?P<blocks>\d+)"
        ),
        mamba_blocks,
    ),
    _Kind(
        _pattern(
            r"OutOfMemoryError|\bout of memory\b|not enough GPU memory|can't allocate memory"
            r"|cannot allocate memory|(?<![A-Za-z])MemoryError\b|CUDA_ERROR_OUT_OF_MEMORY"
        ),
        out_of_memory,
    ),
    _Kind(
        _pattern(r"Errno 98\b|address already in use|EADDRINUSE"),
        port_in_use,
    ),
    _Kind(
        _pattern(
            r"gated repo|GatedRepoError|access to model .{0,200} is restricted|401 Client Error"
        ),
        model_kind(
            "model_gated",
            "Access to the model is refused",
            "may only be loaded with an access token that has been granted access.",
            "Ask for access on the hub, set HF_TOKEN in the environment, and start again.",
        ),
    ),
    _Kind(
        _pattern(
            r"offline mode is enabled|OfflineModeIsEnabled|LocalEntryNotFound"
            r"|outgoing traffic has been disabled|failed to resolve '?huggingface"
            r"|couldn't connect to|failure in name resolution"
            r"|huggingface.{0,200}max retries exceeded"
        ),
        model_kind(
            "model_offline",
            "Model not on this machine",
            "is not in the local cache, and the hub cannot be reached.",
            "Check the name in the preset, or connect (and unset HF_HUB_OFFLINE) and start again.",
        ),
    ),
    _Kind(
        _pattern(
            r"RepositoryNotFound|is not a valid model identifier|repository not found"
            r"|invalid repository ID|HFValidationError|does not appear to have a file"
            r"|cannot find any model weights|404 Client Error|EntryNotFoundError"
        ),
        model_kind(
            "model_missing",
            "Model not found",
            "was not found, or has no weights.",
            "Check the model's name or folder in the preset.",
        ),
    ),
    _Kind(
        _pattern(
            r"model architectures? .{0,200} (?:are|is) not supported"
            r"|does not recognize this architecture"
        ),
        as_printed(
            "model_unsupported",
            "Model not supported",
            "Choose a model that this vLLM version supports, or update vLLM.",
        ),
    ),
    _Kind(
        _pattern(
            r"could not find nvcc|nvcc: (?:not found|command not found)|'nvcc'"
            r"|CUDA_HOME environment variable is not set"
        ),
        fixed(
            "nvcc_missing",
            "CUDA compiler missing",
            "A kernel must be compiled for this GPU, and nvcc was not found.",
            "Install the CUDA toolkit, 12.9 or newer, or set CUDA_HOME.",
        ),
    ),
    _Kind(
        _pattern(
            r"ninja: (?:build stopped|not found|error)|error building extension|ninja is required"
        ),
        as_printed(
            "kernel_build",
            "A kernel could not be compiled",
            "Check the CUDA toolkit (12.9 or newer) and ninja; the log has the compiler's message.",
        ),
    ),
    _Kind(
        _pattern(r"cudaErrorIllegalInstruction|illegal instruction"),
        fixed(
            "illegal_instruction",
            "Illegal instruction",
            "A kernel used an instruction that this GPU or CPU does not have.",
            "Update vLLM and its kernel packages to versions made for this hardware.",
        ),
    ),
    _Kind(
        _pattern(r"cudaErrorIllegalAddress|illegal memory access"),
        fixed(
            "illegal_address",
            "Illegal memory access on the GPU",
            "A kernel read or wrote outside its memory; the engine cannot go on.",
            "Start again; if it comes back, switch speculative decoding off in the preset.",
        ),
    ),
    _Kind(
        _pattern(r"does not support current device|no kernel image is available"),
        as_printed(
            "gpu_unsupported",
            "GPU not supported by a kernel",
            "Install a vLLM build made for this GPU, or choose another quantization.",
        ),
    ),
    _Kind(
        _pattern(r"fallen off the bus|GPU is lost|\bXid\b.{0,60}\b79\b"),
        fixed(
            "gpu_lost",
            "GPU lost",
            "The driver has lost a GPU.",
            "Reboot, and check the card's power supply and its seat before the next start.",
        ),
    ),
    _Kind(
        _pattern(
            r"driver/library version mismatch|CUDA driver version is insufficient"
            r"|no CUDA-capable device|found no NVIDIA driver|failed to infer device type"
        ),
        as_printed(
            "gpu_driver",
            "No usable GPU driver",
            "Check nvidia-smi; after a driver update the machine must be rebooted.",
        ),
    ),
    _Kind(
        _pattern(r"cannot re-initialize CUDA in forked subprocess"),
        fixed(
            "cuda_fork",
            "CUDA in a forked process",
            "A process of the engine was forked after CUDA had been used.",
            "Unset VLLM_WORKER_MULTIPROC_METHOD in your environment: the app needs `spawn`.",
        ),
    ),
    _Kind(
        _pattern(
            r"\bNCCL error|\bnccl(?:Unhandled|System|Internal|Invalid|Remote)\w+|DistBackendError"
        ),
        as_printed("nccl", "The GPUs cannot talk to each other", _NCCL_HINT),
    ),
    _Kind(
        _pattern(r"not enough allowed NUMA nodes"),
        fixed(
            "cpu_binding",
            "Not enough NUMA nodes",
            "There are more tensor-parallel ranks than NUMA nodes on this machine.",
            'Set VLLM_CPU_OMP_THREADS_BIND under [env], for example "0|1" for two ranks.',
        ),
    ),
    _Kind(
        _pattern(r"Errno 28\b|no space left on device"),
        fixed(
            "disk_full",
            "No space left",
            "A disk, or /dev/shm, is full.",
            "Make room in the cache folder and in /dev/shm, and start again.",
        ),
    ),
    _Kind(
        _pattern(r"validation errors? for \w+"),
        validation,
    ),
    _Kind(
        _pattern(
            r"error: (?:unrecognized arguments|argument |the following arguments|ambiguous option)"
        ),
        invalid_arguments,
    ),
    _Kind(
        _pattern(
            r"Worker proc (?P<process>\S+) died unexpectedly \(exit code: (?P<code>-\d{1,3})\)"
        ),
        signal_death,
    ),
    _Kind(
        _pattern(r"Failed core proc\(s\): \{'?(?P<process>[\w.-]+)'?: (?P<code>-\d{1,3})"),
        signal_death,
    ),
    _Kind(
        _pattern(
            r"VLLM_ENGINE_READY_TIMEOUT_S|timed out waiting for engine|Failed core proc\(s\): \{\}"
        ),
        fixed(
            "ready_timeout",
            "Start took too long",
            "The engine was not ready within the time limit and gave no other reason.",
            _RAISE_READY_TIMEOUT,
        ),
    ),
    _Kind(
        _pattern(r"EngineDeadError|EngineCore encountered an issue"),
        fixed(
            "engine_died",
            "The engine died",
            "The engine's core process ended and printed no reason.",
            "Start it again; if it ends again, read the last lines of the log.",
        ),
    ),
)
