"""From log lines to start-up phases.

Owns which line of vLLM belongs to which `StartPhase`, and that a start only moves forward. Patterns
are fragments of what vLLM 0.32 prints; phases that print nothing (import, config, warm-up) are
entered by the supervisor. It knows neither clock nor thread.
"""

from __future__ import annotations

import re

from agentserve.domain.lifecycle import PHASE_ORDER, StartPhase

_PHASE_PATTERNS: tuple[tuple[StartPhase, re.Pattern[str]], ...] = tuple(
    (phase, re.compile("|".join(fragments)))
    for phase, fragments in (
        (
            StartPhase.GRAPHS,
            (
                # Kernel warm-up and autotuning run between the KV cache and the capture.
                r"Capturing .{0,60}(?:CUDA graph|cudagraph)",
                r"Capturing model for ",
                r"Graph capturing finished",
                r"Compile and warming up model for size",
                r"[Kk]ernel warmup starting",
                r"Running FlashInfer autotune",
                r"Warming up FlashInfer",
            ),
        ),
        (
            StartPhase.KV_CACHE,
            (
                # vLLM says how much is left for the pool when profiling is over.
                r"Available KV cache memory",
                r"GiB\)? for KV cache on node",
                r"GiB memory for KV Cache as specified",
                r"KV cache size: ",
                r"Maximum concurrency for ",
            ),
        ),
        (
            StartPhase.PROFILE,
            (
                # The weights are in place: compiling and the profiling run follow.
                r"Model loading took ",
                r"Warming up model for the compilation",
                r"Dynamo bytecode transform",
                r"torch\.compile takes",
                r"Compiling a graph",
                r"Directly load .{0,40}compiled graph",
                r"saved AOT compiled function",
                r"Initial profiling/warmup run",
                r"Profiling CUDA graph memory",
                r"Estimated CUDA graph memory",
            ),
        ),
        (
            StartPhase.LOAD,
            (
                r"Starting to load model ",
                r"Loading model from scratch",
                r"Loading safetensors checkpoint",
                r"Loading drafter model",
                r"Initializing model took ",
                r"Loading weights took ",
            ),
        ),
        (
            StartPhase.SPAWN,
            (
                r"Initializing a V\d+ LLM engine",
                r"DP group leader: ",
                r"world_size=\d+ rank=\d+",
                r"rank \d+ in world size \d+",
                r"vLLM is using nccl",
            ),
        ),
    )
)


def phase_of_line(text: str) -> StartPhase | None:
    """Tell which start-up phase a log line belongs to.

    Args:
        text: A log line, with or without vLLM's prefix.

    Returns:
        The phase, or None for a line that says nothing about it.
    """
    for phase, pattern in _PHASE_PATTERNS:
        if pattern.search(text):
            return phase
    return None


class PhaseTracker:
    """The furthest phase that one start has reached.

    Ranks of one engine are not in step, so a line of an earlier phase can come late: it is ignored.
    One thread observes; reading `phase` is safe from any.

    Args:
        phase: The phase that the start begins with.
    """

    def __init__(self, phase: StartPhase = StartPhase.IMPORT) -> None:
        self._phase = phase

    @property
    def phase(self) -> StartPhase:
        """The furthest phase so far."""
        return self._phase

    def enter(self, phase: StartPhase) -> bool:
        """Move to a later phase.

        Args:
            phase: The phase that has begun.

        Returns:
            Whether the phase changed; an earlier or the same phase changes nothing.
        """
        if PHASE_ORDER.index(phase) <= PHASE_ORDER.index(self._phase):
            return False
        self._phase = phase
        return True

    def observe(self, text: str) -> StartPhase | None:
        """Move forward when a log line says so.

        Args:
            text: A log line.

        Returns:
            The phase that the line has begun, or None.
        """
        phase = phase_of_line(text)
        return phase if phase is not None and self.enter(phase) else None
