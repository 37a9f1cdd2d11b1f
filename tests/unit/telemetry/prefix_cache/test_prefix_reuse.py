from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.cache_event import BlocksAllocated, BlocksRemoved, BlocksStored
from agentserve.domain.cache_layout import CacheGroupLayout, CacheLayout
from agentserve.telemetry.prefix_cache.removals import Removal
from agentserve.telemetry.prefix_cache.residency import ResidencyMap
from agentserve.telemetry.prefix_cache.reuse import (
    STATE_PROBES,
    MissingBlock,
    Reuse,
    find_losses,
    find_reuse,
    resident_tokens,
)


def attention(block: int, *, drops: bool = False, cacheable: bool = True) -> CacheGroupLayout:
    return CacheGroupLayout(
        kind="full_attention", block_tokens=block, drops_last_block=drops, cacheable=cacheable
    )


def state(block: int) -> CacheGroupLayout:
    return CacheGroupLayout(kind="mamba", block_tokens=block)


def layout(*groups: CacheGroupLayout, hashes: int, alignment: int) -> CacheLayout:
    return CacheLayout(groups=groups, hash_block_tokens=hashes, alignment_tokens=alignment)


DENSE = layout(attention(4), hashes=4, alignment=4)
DENSE_DRAFT = layout(attention(4, drops=True), hashes=4, alignment=4)
HYBRID = layout(attention(4), state(4), hashes=4, alignment=4)
HYBRID_DRAFT = layout(attention(4, drops=True), state(4), hashes=4, alignment=4)
COARSE = layout(attention(4), state(8), state(8), hashes=4, alignment=8)
COARSE_DRAFT = layout(attention(4, drops=True), state(8), hashes=4, alignment=8)
FINE = layout(attention(8), state(8), hashes=4, alignment=4)
LAYOUTS = [DENSE, DENSE_DRAFT, HYBRID, HYBRID_DRAFT, COARSE, COARSE_DRAFT, FINE]


def holding(cache: CacheLayout, *positions: set[int]) -> ResidencyMap:
    """A map that holds, for each group, the blocks that end at these tokens.

    The hash of the block that ends at token n is n.
    """
    residency = ResidencyMap(cache)
    residency.apply(BlocksAllocated("writer"))
    for group, ends in enumerate(positions):
        residency.apply(BlocksStored(group=group, hashes=tuple(sorted(ends))))
    return residency


def hashes_of(cache: CacheLayout, tokens: int) -> array[int]:
    unit = cache.hash_block_tokens
    return array("Q", range(unit, tokens + 1, unit))


def reuse_of(residency: ResidencyMap, tokens: int) -> Reuse:
    reuse = find_reuse(residency, hashes_of(residency.layout, tokens), tokens)
    assert reuse is not None
    return reuse


def naive_expected(cache: CacheLayout, positions: list[set[int]], tokens: int) -> int:
    """The longest length that every group accepts, by trying all of them from the longest.

    For layouts in which hits end at whole blocks. A draft's group accepts a length when it also
    holds its next block, which it then gives up. With one group alone that block must lie in the
    prompt without its last token; else in the whole blocks of the prompt.
    """
    for length in range(tokens - 1, 0, -1):
        accepted = length % cache.alignment_tokens == 0
        for group, ends in zip(cache.groups, positions, strict=True):
            accepted = accepted and length % group.block_tokens == 0
            if group.kind == "mamba":
                accepted = accepted and length in ends
                continue
            reach = length
            if group.drops_last_block:
                reach += group.block_tokens
                room = tokens - 1 if len(cache.groups) == 1 else tokens
                accepted = accepted and reach <= room
            accepted = accepted and ends >= set(
                range(group.block_tokens, reach + 1, group.block_tokens)
            )
        if accepted:
            return length
    return 0


@st.composite
def caches(draw: st.DrawFn) -> tuple[CacheLayout, list[set[int]], int]:
    """A layout, what each group holds of one sequence, and the length of a prompt of it."""
    cache = draw(st.sampled_from([each for each in LAYOUTS if each is not FINE]))
    tokens = draw(st.integers(1, 90))
    positions = []
    for group in cache.groups:
        ends = set(range(group.block_tokens, 90, group.block_tokens))
        if group.kind == "mamba":
            held = draw(st.sets(st.sampled_from(sorted(ends)), max_size=5))
        else:
            # Attention loses single blocks here as well, which the lookup must get right.
            held = ends - draw(st.sets(st.sampled_from(sorted(ends)), max_size=2))
        positions.append(held)
    return cache, positions, tokens


@given(caches())
def test_reuse_is_the_longest_length_that_every_group_accepts(
    case: tuple[CacheLayout, list[set[int]], int],
) -> None:
    cache, positions, tokens = case
    reuse = reuse_of(holding(cache, *positions), tokens)
    assert reuse.expected_tokens == naive_expected(cache, positions, tokens)
    kept = layout(
        *(
            CacheGroupLayout(kind=group.kind, block_tokens=group.block_tokens)
            for group in cache.groups
        ),
        hashes=cache.hash_block_tokens,
        alignment=cache.alignment_tokens,
    )
    assert reuse.expected_tokens + reuse.dropped_tokens == naive_expected(kept, positions, tokens)


@given(caches())
def test_the_figures_of_a_reuse_hang_together(
    case: tuple[CacheLayout, list[set[int]], int],
) -> None:
    cache, positions, tokens = case
    reuse = reuse_of(holding(cache, *positions), tokens)
    assert 0 <= reuse.expected_tokens <= reuse.attention_tokens <= tokens
    assert reuse.expected_tokens < tokens
    if reuse.state_tokens is not None:
        assert reuse.expected_tokens + reuse.dropped_tokens == reuse.state_tokens
        assert reuse.state_tokens <= reuse.attention_tokens
    if reuse.missing is not None:
        missing = (reuse.missing.hash_index + 1) * cache.hash_block_tokens
        assert missing not in positions[reuse.missing.group]
        assert reuse.attention_tokens == missing - cache.groups[reuse.missing.group].block_tokens


@given(
    st.sampled_from(LAYOUTS), st.integers(0, 22), st.sets(st.integers(1, 22)), st.integers(0, 90)
)
def test_what_is_resident_is_what_a_longer_prompt_reuses(
    cache: CacheLayout, attention_units: int, state_units: set[int], tokens: int
) -> None:
    unit = cache.hash_block_tokens
    positions = [
        {
            end
            for end in range(unit, 90, unit)
            if end % group.block_tokens == 0
            and (
                end <= attention_units * unit
                if group.kind != "mamba"
                else end // unit in state_units
            )
        }
        for group in cache.groups
    ]
    residency = holding(cache, *positions)
    hashes = hashes_of(cache, tokens)
    longer = hashes + array("Q", range(1000, 1010))
    reuse = find_reuse(residency, longer, len(longer) * unit)
    assert reuse is not None
    assert resident_tokens(residency, hashes) == reuse.expected_tokens


def test_a_prompt_that_is_resident_as_a_whole_computes_its_last_block() -> None:
    residency = holding(DENSE, {4, 8, 12})
    assert reuse_of(residency, 12).expected_tokens == 8
    assert reuse_of(residency, 12).attention_tokens == 12
    assert reuse_of(residency, 13).expected_tokens == 12


@pytest.mark.parametrize("missing", [0, 1, 255, 256, 257, 511, 512, 700])
def test_the_first_missing_block_of_a_long_prompt_ends_what_is_reused(missing: int) -> None:
    blocks = range(1, 701)
    first = {4 * block for block in blocks if block != missing + 1}
    other = {4 * block for block in blocks if block != 600}
    dense = layout(attention(4), attention(4), hashes=4, alignment=4)
    for positions in ((first, other), (other, first)):
        reuse = reuse_of(holding(dense, *positions), 2_801)
        assert reuse.expected_tokens == 4 * min(missing, 599)


def test_a_draft_model_gives_up_the_last_block_it_found() -> None:
    reuse = reuse_of(holding(DENSE_DRAFT, {4, 8, 12}), 40)
    assert (reuse.expected_tokens, reuse.dropped_tokens, reuse.attention_tokens) == (8, 4, 12)


def test_a_draft_beside_other_groups_may_look_one_block_past_the_limit() -> None:
    alone = reuse_of(holding(DENSE_DRAFT, {4, 8, 12}), 12)
    beside = reuse_of(holding(HYBRID_DRAFT, {4, 8, 12}, {4, 8, 12}), 12)
    assert (alone.expected_tokens, beside.expected_tokens) == (4, 8)


def test_a_hybrid_resumes_at_the_last_state_within_its_attention() -> None:
    reuse = reuse_of(holding(HYBRID, {4, 8, 12, 16}, {8, 20}), 40)
    assert (reuse.expected_tokens, reuse.attention_tokens, reuse.state_tokens) == (8, 16, 8)


def test_a_drop_can_cost_a_whole_state() -> None:
    reuse = reuse_of(holding(COARSE_DRAFT, {4, 8, 12, 16}, {8, 16}), 40)
    assert (reuse.expected_tokens, reuse.dropped_tokens) == (8, 8)


def test_every_state_group_must_have_the_state() -> None:
    reuse = reuse_of(holding(COARSE, {4, 8, 12, 16, 20, 24}, {8, 16, 24}, {8, 24}), 24)
    assert (reuse.expected_tokens, reuse.state_tokens) == (8, 8)


def test_a_fine_hit_ends_inside_a_block_where_attention_and_state_have_it() -> None:
    reuse = reuse_of(holding(FINE, {8, 12}, {8, 12}), 40)
    assert (reuse.expected_tokens, reuse.attention_tokens) == (12, 12)


def test_of_several_fine_hits_the_longest_counts() -> None:
    cache = layout(attention(16), state(16), hashes=4, alignment=4)
    assert reuse_of(holding(cache, {16, 20, 24}, {16, 20, 24}), 40).expected_tokens == 24


def test_state_groups_of_different_blocks_agree_on_one_position() -> None:
    cache = layout(attention(4), state(4), state(8), hashes=4, alignment=8)
    held = holding(cache, set(range(4, 40, 4)), {8, 20, 24}, {8, 16})
    assert reuse_of(held, 40).expected_tokens == 8
    # 20 is no multiple of the alignment: a group may hold it, a hit cannot end there.
    held = holding(cache, {4, 8, 12, 16, 20}, {8, 20}, {8, 16})
    assert reuse_of(held, 40).state_tokens == 8


def test_attention_groups_of_different_blocks_end_at_a_common_edge() -> None:
    cache = layout(attention(8), attention(4), hashes=4, alignment=8)
    reuse = reuse_of(holding(cache, {8, 16}, {4, 8, 12}), 40)
    assert (reuse.expected_tokens, reuse.attention_tokens) == (8, 12)


def test_groups_that_are_not_cacheable_take_no_part_but_make_it_no_single_group() -> None:
    cache = layout(attention(4, drops=True), attention(7, cacheable=False), hashes=4, alignment=4)
    assert reuse_of(holding(cache, {4, 8, 12}), 12).expected_tokens == 8


@pytest.mark.parametrize("kind", ["sliding_window", "mamba"])
def test_a_layout_whose_lookup_is_not_known_has_no_prediction(kind: str) -> None:
    cache = layout(CacheGroupLayout(kind=kind, block_tokens=4), hashes=4, alignment=4)
    residency = holding(cache, {4, 8})
    assert find_reuse(residency, hashes_of(cache, 12), 12) is None
    assert resident_tokens(residency, hashes_of(cache, 12)) is None


@pytest.mark.parametrize("cache", LAYOUTS)
def test_a_prompt_below_one_block_reuses_nothing(cache: CacheLayout) -> None:
    residency = holding(cache, *({4, 8, 12} for _ in cache.groups))
    reuse = find_reuse(residency, array("Q"), 3)
    assert reuse is not None
    assert (reuse.expected_tokens, reuse.attention_tokens, reuse.missing) == (0, 0, None)
    assert resident_tokens(residency, array("Q")) == 0


def test_residency_is_unknown_where_the_search_for_a_state_ends_without_one() -> None:
    tokens = 4 * (STATE_PROBES + 10)
    near, far = holding(HYBRID, set(), set()), holding(HYBRID, set(), set())
    for residency, position in ((near, 44), (far, 40)):
        residency.apply(BlocksStored(group=0, hashes=tuple(range(4, tokens + 1, 4))))
        residency.apply(BlocksStored(group=1, hashes=(position,)))
    hashes = hashes_of(HYBRID, tokens)
    assert resident_tokens(near, hashes) == 44
    assert resident_tokens(far, hashes) is None


def test_losses_name_who_took_the_first_missing_block() -> None:
    residency = holding(DENSE, {4, 8, 12, 16})
    residency.apply(BlocksAllocated("thief"))
    residency.apply(BlocksRemoved(group=0, hashes=(16, 12)))
    reuse = reuse_of(residency, 20)
    assert reuse.missing == MissingBlock(group=0, hash_index=2)
    losses = find_losses(residency, hashes_of(DENSE, 20), reuse)
    assert losses.attention == Removal(by="thief", of="writer")
    assert losses.state is None


def test_a_block_that_was_never_stored_is_no_loss() -> None:
    residency = holding(DENSE, {4, 8})
    reuse = reuse_of(residency, 20)
    assert reuse.missing == MissingBlock(group=0, hash_index=2)
    assert find_losses(residency, hashes_of(DENSE, 20), reuse).attention is None


def test_a_state_that_left_is_told_from_one_that_never_was() -> None:
    residency = holding(HYBRID, {4, 8, 12, 16, 20}, {4, 12, 20})
    residency.apply(BlocksAllocated("thief"))
    residency.apply(BlocksRemoved(group=1, hashes=(12,)))
    hashes = hashes_of(HYBRID, 19)
    losses = find_losses(residency, hashes, reuse_of(residency, 19))
    assert (losses.state, losses.state_tokens) == (Removal(by="thief", of="writer"), 12)
    never = holding(HYBRID, {4, 8, 12, 16, 20}, {4})
    assert find_losses(never, hashes, reuse_of(never, 19)).state is None


def test_a_lost_state_behind_the_missing_attention_explains_nothing() -> None:
    residency = holding(HYBRID, {4, 8}, {4, 16})
    residency.apply(BlocksRemoved(group=1, hashes=(16,)))
    losses = find_losses(residency, hashes_of(HYBRID, 24), reuse_of(residency, 24))
    assert losses.state is None
