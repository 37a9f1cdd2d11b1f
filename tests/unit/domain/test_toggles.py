from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.lifecycle import CacheGroup, EngineFacts
from agentserve.domain.pending import ToggleOption
from agentserve.domain.preset import EngineOptions, Preset, vllm_arguments
from agentserve.domain.toggles import (
    effective_chunk_tokens,
    next_step,
    refusals,
    steps,
    value_of,
    warnings,
    with_changes,
)

BUDGET, DRAFTS, SEATS, CONTEXT = (
    ToggleOption.TOKEN_BUDGET,
    ToggleOption.DRAFT_TOKENS,
    ToggleOption.SEATS,
    ToggleOption.CONTEXT,
)
HYBRID_GROUPS = (CacheGroup("full_attention", 1568), CacheGroup("mamba", 1568))


def preset(**engine: Any) -> Preset:
    return Preset(name="p", engine=msgspec.convert({"model": "org/m", **engine}, EngineOptions))


def facts(**known: Any) -> EngineFacts:
    values = {
        "vllm_version": "0.33.0",
        "device": "cuda",
        "model": "org/m",
        "served_model_name": "m",
        "tensor_parallel_size": 2,
        "max_model_len": 100_000,
        **known,
    }
    return msgspec.convert(values, EngineFacts)


HYBRID = facts(block_tokens=1568, cache_groups=HYBRID_GROUPS, max_num_batched_tokens=2048)
DENSE = facts(block_tokens=16, cache_groups=(CacheGroup("full_attention", 16),))

_changes = st.dictionaries(st.sampled_from(ToggleOption), st.integers(1, 300_000))
_speculative: st.SearchStrategy[dict[str, Any] | None] = (
    st.none() | st.just({}) | st.just({"method": "ngram", "prompt_lookup_max": 4})
)
_facts = st.none() | st.builds(
    lambda block, capacity, groups: facts(
        block_tokens=block, capacity_tokens=capacity, cache_groups=groups
    ),
    st.none() | st.integers(1, 4096),
    st.none() | st.integers(0, 500_000),
    st.sampled_from([(), HYBRID_GROUPS]),
)


@given(_changes, _speculative)
def test_a_changed_value_is_the_value_and_nothing_else_changes(
    changes: dict[ToggleOption, int], speculative: dict[str, Any] | None
) -> None:
    before = preset(max_num_seqs=4, enable_prefix_caching=True, speculative_config=speculative)
    after = with_changes(before, changes)
    for option in ToggleOption:
        assert value_of(after, option) == changes.get(option, value_of(before, option))
    assert after.engine.enable_prefix_caching is True
    assert msgspec.structs.replace(after, engine=before.engine) == before


@given(_changes)
def test_changing_to_the_values_that_are_there_changes_nothing(
    changes: dict[ToggleOption, int],
) -> None:
    once = with_changes(preset(), changes)
    values = {option: value for option in changes if (value := value_of(once, option)) is not None}
    assert with_changes(once, values) == once


def test_draft_tokens_switch_speculative_decoding_on_and_off() -> None:
    on = with_changes(preset(), {DRAFTS: 2})
    assert on.engine.speculative_config == {"method": "mtp", "num_speculative_tokens": 2}
    off = with_changes(on, {DRAFTS: 0})
    assert value_of(off, DRAFTS) == 0
    assert "--speculative-config" not in vllm_arguments(off)


def test_other_keys_of_speculative_decoding_stay() -> None:
    config = {"method": "ngram", "prompt_lookup_max": 4, "num_speculative_tokens": 3}
    changed = with_changes(preset(speculative_config=config), {DRAFTS: 1})
    assert changed.engine.speculative_config == {**config, "num_speculative_tokens": 1}


def test_what_vllm_decides_has_no_value() -> None:
    assert value_of(preset(), BUDGET) is None
    assert value_of(preset(), DRAFTS) == 0
    assert value_of(preset(speculative_config={"method": "mtp"}), DRAFTS) is None


@given(st.sampled_from(ToggleOption), st.none() | st.integers(0, 300_000), _facts)
def test_steps_ascend_without_repeats_and_hold_the_current_value(
    option: ToggleOption, current: int | None, known: EngineFacts | None
) -> None:
    ladder = steps(option, current, known)
    assert list(ladder) == sorted(set(ladder))
    assert current is None or current in ladder
    least = 0 if option is DRAFTS else 1
    assert all(value >= least for value in ladder if value != current)


@given(st.sampled_from(ToggleOption), st.integers(0, 50), _facts)
def test_a_step_up_and_a_step_down_come_back(
    option: ToggleOption, position: int, known: EngineFacts | None
) -> None:
    ladder = steps(option, facts=known)
    for value in ladder[position : position + 1]:
        up = next_step(option, value, 1, known)
        assert up == value if value == ladder[-1] else up > value
        assert up == value or next_step(option, up, -1, known) == value


@given(st.sampled_from(ToggleOption), st.none() | st.integers(0, 300_000), _facts)
def test_stepping_on_reaches_an_end_and_stays_there(
    option: ToggleOption, value: int | None, known: EngineFacts | None
) -> None:
    for direction in (1, -1):
        reached = next_step(option, value, direction, known)
        for _ in range(50):
            reached = next_step(option, reached, direction, known)
        assert next_step(option, reached, direction, known) == reached


def test_the_budget_steps_through_powers_of_two_and_blocks() -> None:
    assert steps(BUDGET) == (256, 512, 1024, 2048, 4096, 8192)
    assert steps(BUDGET, facts=DENSE) == steps(BUDGET)
    assert steps(BUDGET, facts=HYBRID) == (256, 512, 1024, 1568, 2048, 3136, 4096, 6272, 8192)
    assert next_step(BUDGET, 2048, -1, HYBRID) == 1568
    assert next_step(BUDGET, 3000, 1) == 4096
    assert next_step(BUDGET, 10_000, -1) == 8192


@given(st.integers(256, 8192))
def test_no_round_budget_stands_just_beside_a_block_multiple(block: int) -> None:
    ladder = steps(BUDGET, facts=facts(block_tokens=block))
    assert block in ladder
    assert all(abs(value - block) > block / 10 for value in ladder if value != block)


def test_seats_and_drafts_have_small_ranges() -> None:
    assert steps(SEATS) == tuple(range(1, 17))
    assert steps(DRAFTS) == (0, 1, 2, 3, 4)
    assert next_step(DRAFTS, 4, 1) == 4
    assert next_step(DRAFTS, 6, -1) == 4
    assert next_step(SEATS, 1, -1) == 1


@given(st.integers(256, 4096), st.integers(1, 400_000))
def test_contexts_are_block_multiples_that_the_pool_can_hold(block: int, capacity: int) -> None:
    ladder = steps(CONTEXT, facts=facts(block_tokens=block, capacity_tokens=capacity))
    assert all(value % block == 0 and 0 < value <= capacity for value in ladder)
    assert (capacity // block * block in ladder) == (capacity >= block)


def test_without_facts_contexts_go_up_to_256_ki_tokens() -> None:
    assert steps(CONTEXT)[-1] == 262_144
    assert next_step(CONTEXT, None, 1) > 32 * 1024


@pytest.mark.parametrize(
    ("wrong", "known", "words"),
    [
        (preset(), None, None),
        (with_changes(preset(), {BUDGET: 0}), None, "token budget of 0"),
        (with_changes(preset(), {SEATS: -1}), None, "seats of -1"),
        (with_changes(preset(), {CONTEXT: 0}), None, "context of 0"),
        (with_changes(preset(), {DRAFTS: -2}), None, "-2 draft tokens"),
        (with_changes(preset(), {DRAFTS: 9}), None, None),
        (with_changes(preset(model="demo:hybrid"), {DRAFTS: 2}), None, "demo:mtp has one"),
        (with_changes(preset(model="demo:mtp"), {DRAFTS: 2}), None, None),
        (with_changes(preset(), {DRAFTS: 2}), HYBRID, None),
        (
            with_changes(preset(), {DRAFTS: 2}),
            facts(device="cpu", cache_groups=HYBRID_GROUPS),
            "On the CPU",
        ),
        (with_changes(preset(), {DRAFTS: 2}), facts(device="cpu"), None),
    ],
)
def test_only_what_cannot_work_is_refused(
    wrong: Preset, known: EngineFacts | None, words: str | None
) -> None:
    reason = refusals(wrong, known)
    if words is None:
        assert reason is None
    else:
        assert reason is not None
        assert words in reason


@pytest.mark.parametrize(
    ("engine", "known", "words"),
    [
        (
            {"max_num_batched_tokens": 1024, "long_prefill_token_threshold": 2048},
            None,
            "long_prefill_token_threshold 2,048 is above the budget of 1,024 tokens",
        ),
        (
            {"max_num_batched_tokens": 2048, "mamba_cache_mode": "align"},
            HYBRID,
            "Budget 2,048 means chunks of 1,568: 1 whole block of 1,568 tokens.",
        ),
        ({"mamba_cache_mode": "align"}, HYBRID, "Budget 2,048 means chunks of 1,568"),
        ({}, HYBRID, "Budget 2,048 means chunks of 1,568"),
        (
            {"max_num_batched_tokens": 4096, "long_prefill_token_threshold": 2000},
            HYBRID,
            "Threshold 2,000 means chunks of 1,568",
        ),
        (
            {"max_num_batched_tokens": 256, "mamba_cache_mode": "align", "block_size": 640},
            None,
            "Budget 256 is below the block of 640 tokens: it works, and a state can be kept only"
            " every 3 steps",
        ),
        (
            {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}},
            HYBRID,
            "2 draft tokens together with the prefix cache",
        ),
        (
            {"speculative_config": {"num_speculative_tokens": 5}},
            DENSE,
            "5 draft tokens are more than 4",
        ),
        ({"gpu_memory_utilization": 0.98}, None, "0.98 is above 0.97"),
        (
            {"max_model_len": 100_000},
            HYBRID,
            "100,000 tokens is not a multiple of the block of 1,568: a full one takes as much"
            " memory as 100,352",
        ),
        (
            {"max_model_len": 120_000},
            facts(capacity_tokens=107_000),
            "120,000 tokens is more than the 107,000",
        ),
    ],
)
def test_what_is_unwise_is_said_in_one_sentence_with_numbers(
    engine: dict[str, Any], known: EngineFacts | None, words: str
) -> None:
    found = warnings(preset(**engine), known)
    assert any(words in sentence for sentence in found), found
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in found)


@pytest.mark.parametrize(
    ("engine", "known"),
    [
        ({}, None),
        ({"max_num_batched_tokens": 1568, "max_model_len": 1568 * 60}, HYBRID),
        ({"max_num_batched_tokens": 2048, "max_model_len": 100_000}, DENSE),
        ({"gpu_memory_utilization": 0.97, "long_prefill_token_threshold": 0}, None),
        (
            {
                "speculative_config": {"num_speculative_tokens": 2},
                "enable_prefix_caching": False,
                "max_num_batched_tokens": 2048,
            },
            HYBRID,
        ),
        ({"speculative_config": {"num_speculative_tokens": 4}}, DENSE),
    ],
)
def test_what_is_fine_is_not_warned_of(engine: dict[str, Any], known: EngineFacts | None) -> None:
    assert warnings(preset(**engine), known) == ()


@given(st.integers(1, 10_000), st.integers(0, 10_000), st.integers(1, 4096))
def test_a_chunk_is_at_most_the_budget_and_ends_at_a_block(
    budget: int, threshold: int, block: int
) -> None:
    aligned = preset(
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
        mamba_cache_mode="align",
        block_size=block,
    )
    chunk = effective_chunk_tokens(aligned)
    assert chunk is not None
    assert 1 <= chunk <= budget
    assert chunk % block == 0 or chunk < block
    assert effective_chunk_tokens(preset()) is None
