"""What a prompt reuses from the prefix cache as it is now.

Owns the prediction, and what explains it. The rules of lookup are in `lookup`; it must not know
events, nor why a session asks.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from agentserve.telemetry.prefix_cache.lookup import JointGroups
from agentserve.telemetry.prefix_cache.removals import Removal
from agentserve.telemetry.prefix_cache.residency import ResidencyMap

STATE_PROBES = 512
"""Most positions of a sequence at which `resident_tokens` looks for a state.

More than there are in a sequence of 262,144 tokens with blocks of 528 tokens or more. With hits
that end inside a block it is a tail of 512 block hashes: states are kept at the ends of prompts,
and the newest prompt ends close to the end of its sequence.
"""


class MissingBlock(NamedTuple):
    """A block that a lookup did not find."""

    group: int
    hash_index: int
    """Index of its hash in the block hashes of the prompt."""


class Reuse(NamedTuple):
    """What one lookup finds, in tokens from the start of the prompt."""

    prompt_tokens: int
    expected_tokens: int
    """What vLLM reuses: `num_cached_tokens` of a request that is scheduled now."""
    attention_tokens: int
    """What the attention groups hold, the last token of the prompt included.

    In whole blocks, or up to a block hash where hits may end inside a block. Before a draft model
    drops a block, and before states limit it.
    """
    state_tokens: int | None
    """The last position within the attention hit at which all state groups have a state.

    Without drops; None when the model has no state groups.
    """
    dropped_tokens: int
    """How much more it would be if draft models gave up no block."""
    missing: MissingBlock | None
    """The first whole attention block that is not resident; None when all of them are."""


class Losses(NamedTuple):
    """What of a prompt was in the cache once and has left it."""

    attention: Removal | None
    """How the first missing attention block left; None when it is not known to have been there."""
    state: Removal | None
    """How the last lost state left that would have let more be reused."""
    state_tokens: int | None
    """The position of that state."""


def find_reuse(residency: ResidencyMap, hashes: array[int], prompt_tokens: int) -> Reuse | None:
    """Predict what vLLM's lookup finds for a prompt.

    At most all tokens but one are reused, since the last one gives the first answer token
    (`KVCacheManager.get_computed_blocks`).

    Args:
        residency: What is resident.
        hashes: Hash of every whole hash block of the prompt, in order.
        prompt_tokens: Tokens of the prompt.

    Returns:
        The prediction, or None when the layout's lookup is not known (`CacheLayout.predictable`).
    """
    rules = residency.rules
    if rules is None:
        return None
    tables = residency.tables
    blocks = [groups.scan_blocks(tables, hashes) for groups in rules.attention]
    limit = max(0, prompt_tokens - 1)
    expected = undropped = rules.longest_hit(tables, hashes, blocks, limit, drop=False) or 0
    if any(groups.drops_last_block for groups in rules.attention):
        expected = rules.longest_hit(tables, hashes, blocks, limit, drop=True) or 0
    # The group that holds least is the one to blame.
    count, shortest = min(
        zip(blocks, rules.attention, strict=True),
        key=lambda each: each[0] * each[1].block_tokens,
    )
    missing = (count + 1) * shortest.step - 1
    return Reuse(
        prompt_tokens=prompt_tokens,
        expected_tokens=expected,
        attention_tokens=rules.held_tokens(tables, hashes, blocks),
        state_tokens=undropped if rules.states else None,
        dropped_tokens=undropped - expected,
        missing=_missing_block(residency, hashes, shortest, missing),
    )


def _missing_block(
    residency: ResidencyMap, hashes: array[int], groups: JointGroups, index: int
) -> MissingBlock | None:
    if index >= len(hashes):
        return None
    lacking = next(group for group in groups.ids if hashes[index] not in residency.tables[group])
    return MissingBlock(lacking, index)


def find_losses(residency: ResidencyMap, hashes: array[int], reuse: Reuse) -> Losses:
    """Find what of a prompt had been in the cache; to be asked together with `find_reuse`.

    Args:
        residency: What is resident, unchanged since `find_reuse`.
        hashes: The same hashes.
        reuse: What `find_reuse` said.

    Returns:
        What left, and who took its room.
    """
    attention = None
    if reuse.missing is not None:
        attention = residency.removal_of(reuse.missing.group, hashes[reuse.missing.hash_index])
    rules = residency.rules
    if rules is None or reuse.state_tokens is None:
        return Losses(attention, None, None)
    unit = residency.layout.alignment_tokens
    step = unit // rules.hash_block_tokens
    last = min(reuse.attention_tokens, reuse.prompt_tokens - 1) // unit
    for count in range(last, reuse.state_tokens // unit, -1):
        for groups in rules.states:
            for group in groups.ids:
                state = residency.removal_of(group, hashes[count * step - 1])
                if state is not None:
                    return Losses(attention, state, count * unit)
    return Losses(attention, None, None)


def resident_tokens(residency: ResidencyMap, hashes: array[int]) -> int | None:
    """How much of a sequence a turn that continues it would reuse now.

    The continuing prompt is longer, so nothing is held back for its last token; but a draft model
    gives up the last block that is resident, as it would in the real lookup.

    Cheap enough for many sessions: attention is searched by bisection, and for a state at most
    `STATE_PROBES` positions are looked at.

    Args:
        residency: What is resident.
        hashes: Hash of every whole hash block of the sequence, in order.

    Returns:
        Tokens, or None when it is not known: the layout's lookup is not, or no state was found
        where the search ended.
    """
    rules = residency.rules
    if rules is None:
        return None
    tables = residency.tables
    blocks = [groups.bisect_blocks(tables, hashes) for groups in rules.attention]
    limit = len(hashes) * rules.hash_block_tokens
    probes = STATE_PROBES if rules.states else None
    return rules.longest_hit(tables, hashes, blocks, limit, drop=True, probes=probes)
