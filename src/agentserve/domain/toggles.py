"""The options that can be changed from the screen: their values, their steps, and what to say.

Owns the rules that need nobody's answer. What vLLM itself accepts is asked of vLLM, so these rules
refuse only what is known to fail without vLLM saying so, and warn of what works and is unwise. It
knows neither files nor a running engine: callers hand in the facts of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentserve.domain.lifecycle import EngineFacts
from agentserve.domain.pending import ToggleOption
from agentserve.domain.preset import Preset

MAX_STEPPED_DRAFT_TOKENS = 4
"""Five draft tokens were reported to crash the Gated DeltaNet attention under load, four not."""
MAX_STEPPED_SEATS = 16
SAFE_GPU_MEMORY_UTILIZATION = 0.97
"""Above, owners ran out of memory while CUDA graphs were captured."""

_BUDGETS = (256, 512, 1024, 2048, 4096, 8192)
_CONTEXTS = (2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 100, 112, 128, 160, 192, 224, 256)
"""In units of 1,024 tokens."""
_FIRST_VALUE = {
    ToggleOption.TOKEN_BUDGET: 2048,
    ToggleOption.DRAFT_TOKENS: 0,
    ToggleOption.SEATS: 4,
    ToggleOption.CONTEXT: 32 * 1024,
}
"""Where stepping begins when vLLM's own default applies, which we do not know."""
_COARSE_BLOCK_TOKENS = 256
"""From this block size on, the grid of blocks is wide enough to matter to a person."""
_STATE_GROUP_KIND = "mamba"
"""vLLM's name for a cache group that keeps recurrent states."""


def value_of(preset: Preset, option: ToggleOption) -> int | None:
    """Return the value of an option in a preset.

    Args:
        preset: The preset.
        option: One of the options.

    Returns:
        The value; 0 for draft tokens when speculative decoding is off; None when vLLM's own default
        applies.
    """
    if option is ToggleOption.DRAFT_TOKENS:
        return preset.speculative_tokens
    value: int | None = getattr(preset.engine, option.value)
    return value


def with_changes(preset: Preset, changes: Mapping[ToggleOption, int]) -> Preset:
    """Return the preset with other values for some options.

    Draft tokens change `speculative_config`: 0 removes it, any other number is set in it, with the
    method `mtp` unless another one is written there already.

    Args:
        preset: The preset.
        changes: New values; they are not checked.
    """
    engine: dict[str, Any] = {}
    for option, value in changes.items():
        if option is ToggleOption.DRAFT_TOKENS:
            engine["speculative_config"] = (
                {
                    "method": "mtp",
                    **(preset.engine.speculative_config or {}),
                    "num_speculative_tokens": value,
                }
                if value
                else None
            )
        else:
            engine[option.value] = value
    return msgspec.structs.replace(preset, engine=msgspec.structs.replace(preset.engine, **engine))


def steps(
    option: ToggleOption, current: int | None = None, facts: EngineFacts | None = None
) -> tuple[int, ...]:
    """List the values that keys step through.

    Args:
        option: The option.
        current: Its value, which is always one of the steps; None when it is not known.
        facts: Of the running engine. Its block size makes a grid; contexts end at its KV capacity.

    Returns:
        Ascending values.
    """
    match option:
        case ToggleOption.TOKEN_BUDGET:
            values = _budget_steps(_coarse_block(facts))
        case ToggleOption.CONTEXT:
            values = _context_steps(facts)
        case ToggleOption.SEATS:
            values = set(range(1, MAX_STEPPED_SEATS + 1))
        case ToggleOption.DRAFT_TOKENS:
            values = set(range(MAX_STEPPED_DRAFT_TOKENS + 1))
    if current is not None:
        values.add(current)
    return tuple(sorted(values))


def next_step(
    option: ToggleOption, value: int | None, direction: int, facts: EngineFacts | None = None
) -> int:
    """Return the next value up or down.

    Args:
        option: The option.
        value: The value now; None when vLLM's default applies and nobody knows it.
        direction: 1 up, -1 down.
        facts: Of the running engine.

    Returns:
        The neighbour among `steps`, or `value` itself at the end.
    """
    start = _FIRST_VALUE[option] if value is None else value
    ladder = steps(option, start, facts)
    position = ladder.index(start) + (1 if direction > 0 else -1)
    return ladder[min(max(position, 0), len(ladder) - 1)]


def refusals(preset: Preset, facts: EngineFacts | None = None) -> str | None:
    """Say why a preset cannot work, as far as that is known without asking vLLM.

    Args:
        preset: The preset as it would be started.
        facts: Of a running engine; only its device counts, because this machine has no other.

    Returns:
        One sentence, or None.
    """
    for option, name in (
        (ToggleOption.TOKEN_BUDGET, "token budget"),
        (ToggleOption.SEATS, "number of seats"),
        (ToggleOption.CONTEXT, "context"),
    ):
        value = value_of(preset, option)
        if value is not None and value < 1:
            return f"A {name} of {value} leaves nothing to work with; it must be 1 or more."
    drafts = preset.speculative_tokens or 0
    if drafts < 0:
        return f"{drafts} draft tokens make no sense; 0 switches them off."
    if not preset.engine.speculative_config:
        return None
    if preset.demo_model not in (None, "mtp"):
        return f"{preset.engine.model} has no head for multi-token prediction; demo:mtp has one."
    if facts is not None and facts.device == "cpu" and _is_hybrid(preset, facts):
        return "On the CPU, vLLM cannot combine multi-token prediction with a hybrid model."
    return None


def warnings(preset: Preset, facts: EngineFacts | None = None) -> tuple[str, ...]:
    """Say what works and is unwise.

    Args:
        preset: The preset as it would be started.
        facts: Of an engine that runs the same model; None when there is none.

    Returns:
        One sentence each, the most important first.
    """
    engine = preset.engine
    found = []
    drafts = preset.speculative_tokens or 0
    # vLLM caches prefixes unless it is told not to.
    caches = engine.enable_prefix_caching is not False
    if engine.speculative_config and caches and _is_hybrid(preset, facts):
        found.append(
            f"{_drafts(drafts)} together with the prefix cache gave wrong output on hybrid"
            " models in owners' reports; compare answers with drafts at 0."
        )
    if drafts > MAX_STEPPED_DRAFT_TOKENS:
        found.append(
            f"{drafts} draft tokens are more than {MAX_STEPPED_DRAFT_TOKENS}: 5 were reported to"
            " crash under load on hybrid models, 4 not."
        )
    utilization = engine.gpu_memory_utilization
    if utilization is not None and utilization > SAFE_GPU_MEMORY_UTILIZATION:
        found.append(
            f"A GPU memory utilization of {utilization:g} is above"
            f" {SAFE_GPU_MEMORY_UTILIZATION:g}: owners ran out of memory at graph capture."
        )
    found += _chunk_warnings(preset, facts)
    found += _context_warnings(preset, facts)
    return tuple(found)


def effective_chunk_tokens(preset: Preset, facts: EngineFacts | None = None) -> int | None:
    """Return how many tokens of one long prompt a step computes at most.

    Budget and threshold both bound a chunk. Where states are kept at block edges
    (`mamba_cache_mode = "align"`), a chunk ends at one, unless a block does not fit into a chunk
    (vLLM 0.32 and 0.33, the scheduler's block-aligned split).

    Args:
        preset: The preset.
        facts: Of an engine that runs the same model, for the block size and vLLM's defaults.

    Returns:
        Tokens, or None when the budget is not known.
    """
    limit = _chunk_limit(preset, facts)
    block = _aligned_block(preset, facts)
    if limit is None or block is None or block > limit:
        return limit
    return limit // block * block


def _budget_steps(block: int | None) -> set[int]:
    if block is None:
        return set(_BUDGETS)
    multiples = {block * factor for factor in (1, 2, 4) if block * factor <= _BUDGETS[-1]}
    # A round number just beside a multiple would be a step without a visible effect.
    apart = {
        budget for budget in _BUDGETS if all(abs(budget - each) > each / 10 for each in multiples)
    }
    return apart | multiples


def _context_steps(facts: EngineFacts | None) -> set[int]:
    block = _coarse_block(facts) or 1
    contexts = {1024 * thousands // block * block for thousands in _CONTEXTS} - {0}
    capacity = facts.capacity_tokens if facts is not None else None
    if capacity is None:
        return contexts
    largest = capacity // block * block
    return {context for context in contexts if context < largest} | ({largest} - {0})


def _chunk_warnings(preset: Preset, facts: EngineFacts | None) -> list[str]:
    found = []
    budget = _budget(preset, facts)
    threshold = preset.engine.long_prefill_token_threshold or 0
    if budget is not None and threshold > budget:
        found.append(
            f"long_prefill_token_threshold {threshold:,} is above the budget of {budget:,} tokens"
            " and does nothing."
        )
    limit, block = _chunk_limit(preset, facts), _aligned_block(preset, facts)
    if limit is None or block is None:
        return found
    bound = f"{'Budget' if limit == budget else 'Threshold'} {limit:,}"
    if limit < block:
        found.append(
            f"{bound} is below the block of {block:,} tokens: it works, and a state can be kept"
            f" only every {-(-block // limit)} steps of a prompt."
        )
    elif limit % block:
        whole = limit // block
        blocks = f"{whole} whole block{'s' if whole > 1 else ''} of {block:,} tokens"
        found.append(f"{bound} means chunks of {whole * block:,}: {blocks}.")
    return found


def _context_warnings(preset: Preset, facts: EngineFacts | None) -> list[str]:
    found: list[str] = []
    context = preset.engine.max_model_len
    if context is None:
        return found
    capacity = facts.capacity_tokens if facts is not None else None
    if capacity is not None and context > capacity:
        found.append(
            f"A context of {context:,} tokens is more than the {capacity:,} that the running"
            " engine's KV pool holds, so the start may fail."
        )
    block = _block(preset, facts)
    if block is not None and block >= _COARSE_BLOCK_TOKENS and context % block:
        found.append(
            f"A context of {context:,} tokens is not a multiple of the block of {block:,}: a"
            f" full one takes as much memory as {-(-context // block) * block:,}."
        )
    return found


def _drafts(drafts: int) -> str:
    return f"{drafts} draft token{'s' if drafts != 1 else ''}" if drafts else "Draft tokens"


def _budget(preset: Preset, facts: EngineFacts | None) -> int | None:
    budget = preset.engine.max_num_batched_tokens
    return facts.max_num_batched_tokens if budget is None and facts is not None else budget


def _chunk_limit(preset: Preset, facts: EngineFacts | None) -> int | None:
    budget = _budget(preset, facts)
    threshold = preset.engine.long_prefill_token_threshold or 0
    return min(budget, threshold) if budget is not None and threshold > 0 else budget


def _block(preset: Preset, facts: EngineFacts | None) -> int | None:
    # vLLM may widen what the preset says, so the engine's own figure goes first.
    known = facts.block_tokens if facts is not None else None
    return preset.engine.block_size if known is None else known


def _coarse_block(facts: EngineFacts | None) -> int | None:
    block = facts.block_tokens if facts is not None else None
    return block if block is not None and block >= _COARSE_BLOCK_TOKENS else None


def _aligned_block(preset: Preset, facts: EngineFacts | None) -> int | None:
    """Block size if chunks end at block edges; `align` is what prefix caching on hybrids means."""
    engine = preset.engine
    aligned = engine.mamba_cache_mode == "align" or (
        engine.mamba_cache_mode is None
        and engine.enable_prefix_caching is not False
        and _is_hybrid(preset, facts)
    )
    return _block(preset, facts) if aligned else None


def _is_hybrid(preset: Preset, facts: EngineFacts | None) -> bool:
    """Tell whether the model keeps recurrent states, from the engine or from what is written."""
    if facts is not None and facts.cache_groups:
        return any(_STATE_GROUP_KIND in group.kind for group in facts.cache_groups)
    engine = preset.engine
    return preset.demo_model == "hybrid" or any(
        value is not None
        for value in (engine.mamba_cache_mode, engine.mamba_cache_dtype, engine.mamba_block_size)
    )
