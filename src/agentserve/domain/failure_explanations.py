"""Sentences about the failures that we know.

Owns how a matched message becomes a cause and a hint; numbers are taken from the message, never
invented. It must not know which messages there are: see `agentserve.domain.failure_kinds`.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable
from typing import NamedTuple


class Explanation(NamedTuple):
    """What a message means."""

    kind: str
    title: str
    cause: str
    hint: str


class Message(NamedTuple):
    """A message that a pattern was found in."""

    found: re.Match[str]
    text: str
    phase: str | None


_DOING = {
    "import": "importing vLLM",
    "config": "reading the configuration",
    "spawn": "starting the processes",
    "load": "loading the weights",
    "profile": "measuring memory",
    "kv cache": "allocating the KV cache",
    "graphs": "capturing CUDA graphs",
    "warm-up": "answering the first prompt",
    "ready": "serving requests",
}


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    name, separator, message = line.partition(": ")
    # The class name in front helps nobody where we explain the message anyway.
    return message if separator and " " not in name and message else line


def _group(found: re.Match[str], name: str) -> str | None:
    return found.groupdict().get(name)


def free_memory(message: Message) -> Explanation:
    """Explain that less memory is free than the utilisation asks for."""
    free, total, util, want = (
        _group(message.found, name) for name in ("free", "total", "util", "want")
    )
    title = "Not enough free memory"
    hint = "End the program that uses the memory, or lower gpu_memory_utilization in the preset."
    if not (free and total):
        return Explanation("free_memory", title, _first_line(message.text), hint)
    device = _group(message.found, "device") or "the device"
    cause = f"Only {free} of {total} GiB are free on {device}"
    if util and want:
        cause += f", and gpu_memory_utilization {util} asks for {want} GiB"
        possible = math.floor(float(free) / float(total) * 100) / 100 if float(total) else 0.0
        if 0.3 <= possible < float(util):
            hint = (
                "End the program that uses the memory,"
                f" or lower gpu_memory_utilization to {possible:.2f}."
            )
    return Explanation("free_memory", title, cause + ".", hint)


def host_memory(message: Message) -> Explanation:
    """Explain that the CPU engine's KV pool does not fit into the free memory."""
    return Explanation(
        "host_memory",
        "Not enough free memory",
        f"The KV pool asks for {message.found['want']} GiB,"
        f" but only {message.found['free']} of {message.found['total']} GiB are free on this node.",
        "Set a smaller kv_cache_memory_bytes or VLLM_CPU_KVCACHE_SPACE in the preset.",
    )


_SMALLEST_USEFUL_LENGTH = 4096


def kv_too_small(message: Message) -> Explanation:
    """Explain that one sequence of the maximum length does not fit into the KV cache."""
    text = message.text
    length = re.search(r"max seq len \(?(\d+)", text)
    sizes = re.findall(r"\(?([\d.]+) GiB", text)
    estimate = re.search(r"estimated maximum model length is (\d+)", text)
    tokens = re.search(r"stored in KV cache \(?(\d+)", text)
    if length and len(sizes) >= 2:
        cause = (
            f"One sequence of {length[1]} tokens needs {sizes[0]} GiB of KV cache,"
            f" but only {sizes[1]} GiB are left for it."
        )
    elif length and tokens:
        cause = f"max_model_len is {length[1]}, but the KV cache holds {tokens[1]} tokens."
    elif "No available memory" in text:
        cause = "Nothing is left for the KV cache after weights and working memory."
    else:
        cause = _first_line(text)
    hint = "Lower max_model_len or max_num_batched_tokens, or raise gpu_memory_utilization."
    if estimate and int(estimate[1]) >= _SMALLEST_USEFUL_LENGTH:
        hint = (
            f"Lower max_model_len to {estimate[1]} (vLLM's estimate),"
            " or raise gpu_memory_utilization."
        )
    return Explanation("kv_cache_too_small", "KV cache too small", cause, hint)


def mamba_blocks(message: Message) -> Explanation:
    """Explain that there are more seats than blocks for recurrent states."""
    seats, blocks = message.found["seats"], message.found["blocks"]
    return Explanation(
        "mamba_blocks",
        "Too many seats for the state cache",
        f"max_num_seqs is {seats}, but only {blocks} Mamba cache blocks fit,"
        " and each sequence needs one.",
        f"Set max_num_seqs to at most {blocks} in the preset.",
    )


_OUT_OF_MEMORY_HINTS = {
    "load": "Use a smaller or more quantized model, or a larger tensor_parallel_size.",
    "profile": "Lower max_num_batched_tokens in the preset.",
    "kv cache": "Lower gpu_memory_utilization by 0.01 or 0.02 in the preset.",
    "graphs": "Lower gpu_memory_utilization by 0.01, or set a smaller max_cudagraph_capture_size.",
    "warm-up": "Lower max_num_batched_tokens, or gpu_memory_utilization by 0.01, in the preset.",
    "ready": "Lower max_num_batched_tokens, or gpu_memory_utilization by 0.02, and start again.",
}


def out_of_memory(message: Message) -> Explanation:
    """Explain where memory ran out, by the phase."""
    phase = message.phase or ""
    where = f" while {_DOING[phase]}" if phase in _DOING else ""
    on_host = re.search(
        r"CPUAllocator|[Cc]annot allocate memory|(?<![A-Za-z])MemoryError", message.text
    )
    memory = "memory" if on_host else "GPU memory"
    wanted = re.search(r"[Tt]ried to allocate (?:about )?([\d.]+ ?\w+)", message.text)
    size = f"; it asked for {wanted[1]} more" if wanted else ""
    free = re.search(r"of which ([\d.]+ ?\w+) is free", message.text)
    left = f" and {free[1]} were free" if free else ""
    return Explanation(
        "out_of_memory",
        f"Out of {memory}{where}",
        f"A process of the engine ran out of {memory}{where}{size}{left}.",
        _OUT_OF_MEMORY_HINTS.get(
            phase, "Lower gpu_memory_utilization or max_num_batched_tokens in the preset."
        ),
    )


def port_in_use(message: Message) -> Explanation:
    """Explain that another process listens on a port."""
    port = re.search(r"(?:', |:|port )(\d{2,5})\b(?! \d\d:)", message.text)
    which = f"Port {port[1]}" if port else "A port that the engine needs"
    return Explanation(
        "port_in_use",
        "Port in use",
        f"{which} is used by another process.",
        "End that process, or choose another port, and start again.",
    )


_MODEL_NAME = re.compile(
    r"(?:models?/|huggingface\.co/|repo |model |for |with |named |: )[`'\"]?"
    r"(?P<model>(?!repo_name|namespace/)[\w.-]+/[\w./-]+|/[\w./-]+)[`'\"]?"
)


def model_kind(kind: str, title: str, sentence: str, hint: str) -> Callable[[Message], Explanation]:
    """Make an explanation that names the model when the message does."""

    def explain(message: Message) -> Explanation:
        name = _MODEL_NAME.search(message.text)
        model = f"The model {name['model'].rstrip('.')}" if name else "The model"
        return Explanation(kind, title, f"{model} {sentence}", hint)

    return explain


def fixed(kind: str, title: str, cause: str, hint: str) -> Callable[[Message], Explanation]:
    """Make an explanation that does not depend on the message."""
    return lambda _message: Explanation(kind, title, cause, hint)


def as_printed(kind: str, title: str, hint: str) -> Callable[[Message], Explanation]:
    """Make an explanation whose cause is the message itself."""
    return lambda message: Explanation(kind, title, _first_line(message.text), hint)


def invalid_arguments(message: Message) -> Explanation:
    """Repeat the sentence of vLLM's argument parser."""
    sentence = re.search(r"error: (?P<text>.+)", message.text)
    return Explanation(
        "invalid_config",
        "vLLM refuses an argument",
        (sentence["text"] if sentence else _first_line(message.text)).rstrip(". ") + ".",
        "Correct that key in the preset; `agentserve-tui presets validate` checks it.",
    )


_MAX_VALIDATION_SENTENCES = 3


def validation(message: Message) -> Explanation:
    """Keep the sentences of a pydantic error: its further lines alternate place and sentence."""
    place = ""
    sentences = []
    for line in message.text.splitlines()[1:]:
        line = line.strip()
        if "[type=" in line or line.startswith("Value error,"):
            sentence = line.partition(" [type=")[0].removeprefix("Value error,").strip().rstrip(".")
            sentences.append(f"{place}: {sentence}" if place else sentence)
            place = ""
        elif line and not line.startswith("For further information"):
            place = line if re.fullmatch(r"[\w.\[\]-]{1,80}", line) else ""
    cause = "; ".join(sentences[:_MAX_VALIDATION_SENTENCES]) or _first_line(message.text)
    return Explanation(
        "invalid_config",
        "vLLM refuses the configuration",
        cause.rstrip(".") + ".",
        "Correct the preset and start again.",
    )


def signal_death(message: Message) -> Explanation:
    """Explain which signal ended which process."""
    number = int(message.found["code"].lstrip("-"))
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    process = message.found["process"]
    hint = "Read the lines before its death in the log."
    if name == "SIGKILL":
        hint = (
            "If nobody ended it, the system ran out of memory: look into the kernel log,"
            " and give the engine less memory."
        )
    elif name == "SIGILL":
        hint = "This build uses instructions that the CPU lacks: install a build that fits it."
    elif name == "SIGBUS":
        hint = "Shared memory may be full: look at the size and the use of /dev/shm."
    return Explanation(
        "worker_died", "A process of the engine died", f"{process} was ended by {name}.", hint
    )
