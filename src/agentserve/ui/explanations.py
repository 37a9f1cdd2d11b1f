"""What each figure is, where it comes from, and what to do about it. Pure text.

Keyed by panel and by the figure's label without numbers, as `figure_key` writes it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from agentserve.domain.text import ELLIPSIS
from agentserve.ui.explanation import Explanation as Explanation
from agentserve.ui.lines import Lines
from agentserve.ui.session_explanations import SESSION_EXPLANATIONS


class Figure(NamedTuple):
    """One figure on the screen."""

    panel: str
    """Id of the panel."""
    key: str
    row: int
    """Row within the panel, from 0."""


_NOW = "No window: the value of the newest engine step."
_GENERATION = "Since this engine became ready."
_SERIES = "The graph has one column a second, scaled to its own maximum."
_STEP = "vLLM's scheduler, reported with each engine step"
_PER_REQUEST = "One finished request; nothing is averaged."
_NVML = "NVML, the driver's own interface, read once a second."
_NO_CHANGE = "Nothing to change here."

EXPLANATIONS: dict[str, dict[str, Explanation]] = {
    "kv": {
        "in use": Explanation(
            "Share of KV blocks that running requests hold. The dotted part of the bar is warm:"
            " kept for reuse.",
            _STEP + ".",
            _NOW + " " + _SERIES,
            "Below 95 % while agents work. 0 is normal when nothing runs, also with a warm cache.",
            "When it is full: fewer seats (max_num_seqs) or a smaller kv_cache_dtype.",
        ),
        "capacity": Explanation(
            "How many tokens fit into the KV pool: maximum concurrency times maximum length."
            " Blocks times block size would be too much on a hybrid model.",
            "What vLLM measured when this engine started.",
            "Fixed until the next start.",
            "At least one prompt of full length, better one for each agent.",
            "gpu_memory_utilization or kv_cache_memory_bytes, kv_cache_dtype, other users of the"
            " cards; more draft tokens cost capacity.",
        ),
        "fits": Explanation(
            "vLLM's maximum concurrency: how many sequences of full length fit at once.",
            "What vLLM measured when this engine started.",
            "Fixed until the next start.",
            "1 means one full-length prompt; several short prompts fit all the same.",
            "A shorter max_model_len, or more room for the KV pool.",
        ),
        "block": Explanation(
            "Tokens per KV block. A prefix is reused in whole blocks only, so up to one block of"
            " each prompt is computed again.",
            "The engine's cache configuration after the start.",
            "Fixed until the next start.",
            "Small. Hybrid models need large blocks: hundreds to thousands of tokens.",
            "mamba_block_size and kv_cache_dtype move it on hybrids; block_size on others.",
        ),
        "preempted": Explanation(
            "How often a running request lost its blocks to another one and must be computed"
            " again. vLLM writes no log line about it.",
            _STEP + ".",
            _GENERATION,
            "0, or at least not rising.",
            "Fewer seats (max_num_seqs) or a shorter context.",
        ),
        "warm": Explanation(
            "Blocks that nobody uses and whose prefixes can be reused at once.",
            "The scheduler's block pool, asked by our plugin; a dash where it cannot be asked.",
            _NOW,
            "Much of it: that is the next turns of your agents.",
            "Restarts forget it all.",
        ),
        "free": Explanation(
            "Blocks that hold nothing.",
            "The scheduler's block pool, asked by our plugin; a dash where it cannot be asked.",
            _NOW,
            "0 is normal after some time: warm blocks are given away when room is needed.",
            _NO_CHANGE,
        ),
    },
    "prefix-cache": {
        "recent": Explanation(
            "Prompt tokens taken from the cache / all prompt tokens.",
            _STEP + ".",
            "The last n requests, n is at the right.",
            "80 to 90 % for coding agents after their first turn.",
            "Keep what is stable at the front of the prompt: no clock, id or status line there.",
        ),
        "since up": Explanation(
            "The same rate over all requests of this engine. Compare it with the recent one.",
            _STEP + ".",
            _GENERATION + " n is at the right.",
            "Close to the recent rate; a recent one of less than half means that something new"
            " breaks the prefixes.",
            "Look for the agent that changed; enable_prefix_caching must be on.",
        ),
        "cached": Explanation(
            "Prompt tokens that came from the cache: per second, then all of them.",
            _STEP + ".",
            "The rate over the window in the title of Throughput, the total since ready. "
            + _SERIES,
            "Much more than computed.",
            "See the hit rate.",
        ),
        "computed": Explanation(
            "Prompt tokens that had to be prefilled: per second, then all of them. This is the"
            " work that makes you wait.",
            _STEP + ".",
            "The rate over the window in the title of Throughput, the total since ready. "
            + _SERIES,
            "Hundreds to thousands per second while a prompt is read; little of it per turn.",
            "max_num_batched_tokens for the rate; stable prompts for the amount.",
        ),
    },
    "latency": {
        "TTFT": Explanation(
            "Time to first token: from a request's arrival to its first output.",
            "Measured in this process for each request, thinking counts as output.",
            "The window in the title; n requests. The graph shows the mean of each second.",
            "Below a second on a warm prefix; a cold prompt of 100,000 tokens takes minutes.",
            "The prefix cache first, then max_num_batched_tokens, then fewer requests at once.",
        ),
        "ITL": Explanation(
            "Time between two outputs of a request. With MTP one output can carry several tokens.",
            "Stamped inside the engine for each output.",
            "The window in the title; n outputs. The graph shows the mean of each second.",
            "30 to 50 ms reads well. A high p99 means that long prompts interrupt the others.",
            "A smaller max_num_batched_tokens makes it smoother and long prompts slower.",
        ),
        "p50": Explanation(
            "The median: half of all values are below.",
            "All values of the window, none sampled.",
            "The window in the title.",
            "What you usually feel.",
            _NO_CHANGE,
        ),
        "p95": Explanation(
            "Nineteen of twenty values are below.",
            "All values of the window, none sampled.",
            "The window in the title.",
            "Less than about five times the median.",
            _NO_CHANGE,
        ),
        "p99": Explanation(
            "Ninety-nine of a hundred values are below. TTFT has too few values for one.",
            "All values of the window, none sampled.",
            "The window in the title.",
            "Shows the pauses that a median hides.",
            "A smaller max_num_batched_tokens shortens the pauses.",
        ),
        "n": Explanation(
            "How many values the percentiles stand for.",
            "Counted.",
            "The window in the title.",
            "Do not believe percentiles of a few values.",
            _NO_CHANGE,
        ),
    },
    "throughput": {
        "running": Explanation(
            "Requests that the engine works on now, prefilling or decoding.",
            _STEP + ".",
            _NOW,
            "At most the number of seats (max_num_seqs).",
            "max_num_seqs.",
        ),
        "waiting": Explanation(
            "Requests that have no seat, or no room in the KV pool.",
            _STEP + ".",
            _NOW,
            "0, apart from short moments.",
            "More seats when the KV pool has room; fewer agents at once when it has none.",
        ),
        "decode": Explanation(
            "Tokens generated per second, all requests together.",
            _STEP + ".",
            "The window in the title. " + _SERIES,
            "It rises with more requests at once; one stream alone gets less than this.",
            "MTP where its acceptance is good; CUDA graphs on (enforce_eager off).",
        ),
        "prefill, computed": Explanation(
            "Prompt tokens computed per second.",
            _STEP + ".",
            "The window in the title.",
            "As fast as the cards can while a prompt is read; 0 between prompts.",
            "max_num_batched_tokens.",
        ),
        "prefill, cached": Explanation(
            "Prompt tokens taken from the cache per second; no work was done for them.",
            _STEP + ".",
            "The window in the title.",
            "Much more than computed while agents work.",
            "See the hit rate.",
        ),
        "MTP": Explanation(
            "Speculative decoding is off.",
            "The engine's configuration.",
            "Fixed until the next start.",
            "Off is right unless acceptance, stability and answers were checked with it.",
            "num_speculative_tokens.",
        ),
        "MTP accepted": Explanation(
            "Accepted / drafted tokens.",
            _STEP + ".",
            "The window beside the label.",
            "Above about 60 %; below 35 % drafting costs more than it brings.",
            "num_speculative_tokens: fewer are accepted more often.",
        ),
        "n drafts": Explanation(
            "Drafting steps, and at the right the accepted tokens per step, without the one that"
            " the model adds itself.",
            _STEP + ".",
            "The window beside the label above.",
            "1 accepted token per step nearly doubles the decode rate, less what drafting costs.",
            "num_speculative_tokens. A rate over a few drafts says nothing.",
        ),
    },
    "gpus": {
        "GPU": Explanation(
            "Memory used of all, utilisation, temperature, power and its limit of one card.",
            _NVML + " Memory that the driver holds is not counted as used.",
            "The newest reading.",
            "Two equal lines: the slower and the fuller card decides for both.",
            "What else uses the cards; gpu_memory_utilization.",
        ),
        "PCIe": Explanation(
            "Data received and sent over the bus, then the link's generation and lanes.",
            "NVML, every few seconds, because reading it makes the driver wait.",
            "What the driver measured last.",
            "Without NVLink each layer of TP crosses it. The link is judged under load only: an"
            " idle card lets it sleep.",
            "The slot, the mainboard's setting, NCCL_P2P_DISABLE.",
        ),
        "all": Explanation(
            "Resident memory of the app and of all processes of the engine.",
            "The operating system.",
            "The newest reading; it is memory of the machine, not of a GPU.",
            "Much less than the machine has.",
            "VLLM_CPU_KVCACHE_SPACE on the CPU engine.",
        ),
        "app": Explanation(
            "Resident memory of this program: screen, API server and engine client.",
            "The operating system.",
            "The newest reading.",
            "Some hundred MiB with an engine, below 60 MiB without one.",
            _NO_CHANGE,
        ),
        "engine core": Explanation(
            "Resident memory of vLLM's scheduler process.",
            "The operating system.",
            "The newest reading.",
            "Some hundred MiB.",
            _NO_CHANGE,
        ),
        "worker": Explanation(
            "Resident memory of one rank. On the CPU engine it holds weights and KV pool.",
            "The operating system.",
            "The newest reading.",
            "Equal for all ranks.",
            "VLLM_CPU_KVCACHE_SPACE on the CPU engine.",
        ),
    },
    "requests": {
        "time": Explanation(
            "When the request ended, or how long a running one is under way.",
            "This process.",
            _PER_REQUEST,
            _NO_CHANGE,
            _NO_CHANGE,
        ),
        "agent": Explanation(
            "The client's User-Agent and the API route that it used.",
            "The HTTP request.",
            _PER_REQUEST,
            "Each of your agents is here by name.",
            "The agent's settings.",
        ),
        "prompt": Explanation(
            "All tokens of the prompt, cached ones included.",
            "vLLM's tokenizer.",
            _PER_REQUEST,
            "Below 90 % of max_model_len, or the agent must compact soon.",
            "The context limit in the agent's settings; max_model_len.",
        ),
        "cached": Explanation(
            "Prompt tokens that came from the prefix cache; a dash where vLLM did not say.",
            "vLLM's record of the request.",
            _PER_REQUEST,
            "Nearly the whole prompt from the second turn on.",
            "Stable prompts.",
        ),
        "computed": Explanation(
            "Prompt tokens that had to be prefilled, for a running request: so far.",
            "vLLM's record of the request; our plugin for running ones.",
            _PER_REQUEST,
            "One or two blocks and what is new in this turn.",
            "Stable prompts.",
        ),
        "TTFT": Explanation(
            "From the request's arrival to its first output, its wait included.",
            "Measured in this process.",
            _PER_REQUEST,
            "It follows the computed tokens.",
            "See the TTFT above.",
        ),
        "tok/s": Explanation(
            "Tokens after the first output per second of decoding.",
            "Measured in this process.",
            _PER_REQUEST,
            "Steady. Slower ones shared the engine with a long prompt.",
            "max_num_batched_tokens, max_num_seqs.",
        ),
        "outcome": Explanation(
            "How it ended: done, at its length limit, aborted by the client, or with an error.",
            "vLLM's record of the request.",
            _PER_REQUEST,
            "Aborted ones are normal when somebody interrupts an agent.",
            "Timeouts in the agent's settings when slow prompts are aborted.",
        ),
    },
    **SESSION_EXPLANATIONS,
}

_WINDOW = re.compile(r", \d+ s$")
_NUMBERS = re.compile(r"[\d,.]*\d")


def figure_key(label: str) -> str:
    """Write a label without its numbers: `MTP accepted, 60 s` as `MTP accepted`."""
    return " ".join(_NUMBERS.sub(" ", _WINDOW.sub("", label.strip())).split())


def figures_in(panel: str, lines: Lines) -> list[Figure]:
    """List the figures of one panel that can be explained, in reading order.

    Args:
        panel: The panel's id.
        lines: What it shows.
    """
    known = EXPLANATIONS.get(panel, {})
    found: dict[str, Figure] = {}
    for row, line in enumerate(lines):
        for span in line:
            key = figure_key(span.text)
            if key in known and not span.text.endswith(ELLIPSIS) and key not in found:
                found[key] = Figure(panel, key, row)
    return list(found.values())
