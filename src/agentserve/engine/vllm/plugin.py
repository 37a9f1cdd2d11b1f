"""Questions to the scheduler that no public interface of vLLM answers.

vLLM loads this entry point (`vllm.general_plugins`) in every process of every vLLM in the
environment. It does nothing unless the process bears our marker, and nothing when vLLM's scheduler
does not look as expected: everything else works without it.
"""

from __future__ import annotations

import os
from typing import Any

from agentserve.engine.vllm import cache_marks
from agentserve.engine.vllm.block_census import BlockCensus

FACTS_METHOD = "agentserve_scheduler_facts"
LAYOUT_METHOD = "agentserve_cache_layout"
CONTENTS_METHOD = "agentserve_list_cache_contents"
GROUP = "vllm.general_plugins"
_CENSUS = "agentserve_block_census"
_MARKER_VARIABLE = "AGENTSERVE_ENGINE"
_MAMBA = "mamba"


def register() -> None:
    """Add our questions to vLLM's EngineCore and marks to its events, and repair the CPU build."""
    if _MARKER_VARIABLE not in os.environ:
        return
    try:
        from vllm.platforms import current_platform
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.engine.core import EngineCore

        from agentserve.engine.vllm.cpu_fixes import repair_speculative_sampling

        setattr(EngineCore, FACTS_METHOD, _scheduler_facts)
        setattr(EngineCore, LAYOUT_METHOD, _cache_layout)
        setattr(EngineCore, CONTENTS_METHOD, _list_cache_contents)
        if current_platform.is_cpu():
            repair_speculative_sampling()
        cache_marks.install(KVCacheManager)
    except (ImportError, AttributeError) as error:
        print(f"agentserve: vLLM looks different here, some figures stay unknown: {error}")  # noqa: T201 - into the log


def plugin_loaded() -> bool:
    """Tell whether vLLM's processes will have loaded this plugin."""
    # Late: it brings the e-mail parser, and an app without an engine must stay small.
    from importlib.metadata import entry_points

    allowed = os.environ.get("VLLM_PLUGINS")
    names = {point.name for point in entry_points(group=GROUP) if point.module == __name__}
    return bool(names if allowed is None else names & set(allowed.split(",")))


def _scheduler_facts(engine_core: Any) -> dict[str, Any] | None:
    """Run inside EngineCore between two steps; None on a scheduler that looks different."""
    try:
        scheduler = engine_core.scheduler
        if (census := getattr(engine_core, _CENSUS, None)) is None:
            census = BlockCensus(scheduler.kv_cache_manager.block_pool)
            setattr(engine_core, _CENSUS, census)
        return {
            **census.counts(),
            "live_token_budget": scheduler.max_num_scheduled_tokens,
            "computed_prompt_tokens": {
                request.request_id: min(request.num_computed_tokens, request.num_prompt_tokens)
                for request in scheduler.running
            },
        }
    except (AttributeError, TypeError):
        return None


def _cache_layout(engine_core: Any) -> dict[str, Any] | None:
    """Run inside EngineCore: the fields of `CacheLayout`.

    None on a scheduler that looks different, and without prefix caching.
    """
    try:
        manager = engine_core.scheduler.kv_cache_manager
        coordinator = manager.coordinator
        managers = coordinator.single_type_managers
        if not manager.enable_caching:
            return None
        if len(managers) == 1:
            # A coordinator of one group has no alignment of its own.
            alignment = managers[0].block_size
        else:
            alignment = coordinator._cache_hit_alignment_tokens
        groups = [
            {
                "kind": kind,
                "block_tokens": single.block_size,
                # Groups of one shape are looked up, and so cut, together. A state is never cut.
                "drops_last_block": bool(single.use_eagle) and kind != _MAMBA,
                "cacheable": bool(group.kv_cache_spec.prefix_cacheable),
            }
            for (kind, _), group, single in zip(
                manager.kv_cache_event_metadata,
                manager.kv_cache_config.kv_cache_groups,
                managers,
                strict=True,
            )
        ]
        return {
            "groups": groups,
            "hash_block_tokens": manager.block_pool.hash_block_size,
            "alignment_tokens": alignment,
        }
    except (AttributeError, TypeError, ValueError):
        return None


def _list_cache_contents(engine_core: Any) -> bool:
    """Run inside EngineCore: let a `ContentsMark` go out with the events of the next step.

    False on a scheduler that looks different, and where no events are collected.
    """
    try:
        return cache_marks.mark_contents(engine_core.scheduler.kv_cache_manager)
    except (AttributeError, TypeError, IndexError):
        return False
