"""vLLM's statistics of each step, in our own types.

Imports vLLM: only `backend` may import this module, after a start was asked for. vLLM declares the
classes behind `record` unstable, so every field is read with "absent" as a possible answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from agentserve.domain.sample import SpecDecodeSample, StepSample

StepListener = Callable[[StepSample, bool], None]
"""Gets a step, and whether some request got its first token in it."""


def stat_logger_factory(listener: StepListener) -> Callable[..., StatLoggerBase]:
    """Make the factory that `AsyncLLM` asks for a logger per engine.

    Args:
        listener: Called for each step on the serving loop.

    Returns:
        A factory for vLLM's `stat_loggers` argument.
    """

    class StepLogger(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, vllm_config: object, engine_index: int = 0) -> None:
            pass

        def record(
            self,
            scheduler_stats: Any = None,
            iteration_stats: Any = None,
            mm_cache_stats: object = None,
            engine_idx: int = 0,
            **_later: object,
        ) -> None:
            first_tokens = bool(getattr(iteration_stats, "time_to_first_tokens_iter", ()))
            listener(_step_sample(scheduler_stats, iteration_stats), first_tokens)

        def log_engine_initialized(self) -> None:
            pass

    return StepLogger


def _step_sample(scheduler: Any, iteration: Any) -> StepSample:
    prefix = getattr(scheduler, "prefix_cache_stats", None)
    details = getattr(scheduler, "iteration_details", None)
    drafts = getattr(scheduler, "spec_decoding_stats", None)
    return StepSample(
        running_requests=getattr(scheduler, "num_running_reqs", None),
        waiting_requests=_waiting(scheduler),
        kv_usage_fraction=getattr(scheduler, "kv_cache_usage", None),
        prefix_requests=getattr(prefix, "requests", 0),
        prefix_query_tokens=getattr(prefix, "queries", 0),
        prefix_hit_tokens=getattr(prefix, "hits", 0),
        computed_prompt_tokens=getattr(details, "num_ctx_tokens", None),
        generated_tokens=getattr(iteration, "num_generation_tokens", 0),
        preemptions=getattr(iteration, "num_preempted_reqs", 0),
        itl_s=tuple(getattr(iteration, "inter_token_latencies_iter", ())),
        spec_decode=None
        if drafts is None
        else SpecDecodeSample(
            drafts=drafts.num_drafts,
            draft_tokens=drafts.num_draft_tokens,
            accepted_tokens=drafts.num_accepted_tokens,
            accepted_per_position=tuple(drafts.num_accepted_tokens_per_pos),
        ),
    )


def _waiting(scheduler: Any) -> int | None:
    waiting = getattr(scheduler, "num_waiting_reqs", None)
    if waiting is None:
        return None
    return int(waiting) + int(getattr(scheduler, "num_skipped_waiting_reqs", 0))
