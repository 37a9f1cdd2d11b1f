"""Questions to the scheduler that no public interface of vLLM answers.

vLLM loads this entry point (`vllm.general_plugins`) in every process of every vLLM in the
environment. It does nothing unless the process bears our marker, and nothing when vLLM's scheduler
does not look as expected: everything else works without it.
"""

from __future__ import annotations

import os
from typing import Any

FACTS_METHOD = "agentserve_scheduler_facts"
GROUP = "vllm.general_plugins"
_MARKER_VARIABLE = "AGENTSERVE_ENGINE"


def register() -> None:
    """Add `FACTS_METHOD` to vLLM's EngineCore, and repair the CPU build."""
    if _MARKER_VARIABLE not in os.environ:
        return
    try:
        from vllm.platforms import current_platform
        from vllm.v1.engine.core import EngineCore

        from agentserve.engine.vllm.cpu_fixes import repair_speculative_sampling

        setattr(EngineCore, FACTS_METHOD, _scheduler_facts)
        if current_platform.is_cpu():
            repair_speculative_sampling()
    except ImportError as error:
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
        pool = scheduler.kv_cache_manager.block_pool
        # The null block is a placeholder: it is in no queue and holds nothing.
        blocks = [block for block in pool.blocks if not block.is_null]
        idle = [block for block in blocks if block.ref_cnt == 0]
        warm = sum(1 for block in idle if block.block_hash is not None)
        return {
            "blocks_in_use": len(blocks) - len(idle),
            "blocks_warm": warm,
            "blocks_free": len(idle) - warm,
            "live_token_budget": scheduler.max_num_scheduled_tokens,
            "computed_prompt_tokens": {
                request.request_id: min(request.num_computed_tokens, request.num_prompt_tokens)
                for request in scheduler.running
            },
        }
    except (AttributeError, TypeError):
        return None
