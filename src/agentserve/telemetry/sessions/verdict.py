"""Why one turn reused what it did.

Owns the rules and their order. It must not know tokens, texts, events or sessions, only the facts
about one turn; the wording is in `verdict_sentences`.

The first rule that applies decides:

1. `preempted`: vLLM computed the prompt more than once, its figure describes the last attempt.
2. `first_request`: no turn to compare with; `different_salt` when the same tokens are known under
   another salt and this turn reused less than it could have.
3. `engine_restarted`: the turn before ran on an earlier engine. Whatever else changed, the cache
   was empty, unless other sessions had filled it again already.
4. `unknown` while vLLM has not said what it reused: every later rule needs that figure.
5. `different_salt`: the session's own salt changed and blocks were lost.
6. More was reused than is common with the turn before: that turn was of another conversation with
   the same id, so nothing changed. `evicted`, `checkpoint_gap` or `full_reuse`, by what was
   resident.
7. `below_block`: reuse could not reach one whole block even if nothing had changed; also when the
   common start is shorter than a block and it is not known what changed. A known change comes
   first: a clock in front of a long history is no matter of rounding.
8. Two losses, in whole blocks, and the larger gives the name (the change when equal, since that is
   what its author can mend): what stands behind the first difference (the *change loss*), and what
   is common but was not in the cache (the *cache loss*). Where it is not known how much is common,
   only the second is looked for, and only what explains it is believed.
9. No whole block was lost: `full_reuse`, or `block_rounding` above 2 % and 16 tokens.

What can be reused at most: vLLM computes the last token of a prompt always, and never stored the
last token of an answer, since nothing was generated behind it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from agentserve.domain.prompt import PartKind
from agentserve.domain.request import RequestOutcome
from agentserve.domain.session import Verdict, VerdictKind
from agentserve.telemetry.sessions import verdict_sentences as words
from agentserve.telemetry.sessions.difference import LocatedChange
from agentserve.telemetry.sessions.turn_facts import ExpectedReuse, PreviousTurn, TurnFacts
from agentserve.telemetry.sessions.verdict_sentences import Loss, Wording

MEASURED_PREFILL_TOKENS = 256
"""Computed tokens from which a turn's own prefill speed is used: below it is mostly overhead."""
ROUNDING_TOKENS = 16
ROUNDING_FRACTION = 0.02
"""Losses up to the larger of these two count as full reuse."""


class _Reach(msgspec.Struct, frozen=True):
    """Where reuse could end, in whole blocks, and what was lost of it."""

    ceiling: int
    """If nothing had changed."""
    common: int
    """Within what is common; the ceiling when no difference is known."""
    change_loss: int
    cache_loss: int


def judge(facts: TurnFacts) -> Verdict:
    """Say why a turn reused what it did.

    Args:
        facts: What is known of the turn.

    Returns:
        A verdict that never contradicts `facts.cached_tokens`; `unknown` where no rule fits.
    """
    for rule in _RULES:
        verdict = rule(facts)
        if verdict is not None:
            return verdict
    return _without_loss(facts)


def _preempted(facts: TurnFacts) -> Verdict | None:
    if not facts.preemptions:
        return None
    wording = words.preempted()
    return Verdict(kind=VerdictKind.PREEMPTED, sentence=wording.sentence, advice=wording.advice)


def _first_request(facts: TurnFacts) -> Verdict | None:
    if facts.previous is not None:
        return None
    usable = _whole_blocks(facts.prompt_tokens - 1, facts.block_tokens)
    if (
        facts.other_session_same_tokens_other_salt
        and facts.cached_tokens is not None
        and facts.cached_tokens < usable
    ):
        return _verdict(facts, VerdictKind.DIFFERENT_SALT, words.first_request_with_other_salt())
    return _verdict(facts, VerdictKind.FIRST_REQUEST, words.first_request(facts.cached_tokens))


def _engine_restarted(facts: TurnFacts) -> Verdict | None:
    previous = facts.previous
    if previous is None or previous.generation == facts.generation:
        return None
    if facts.cached_tokens and facts.cached_tokens >= _reach(facts).ceiling:
        return None
    wording = words.engine_restarted(facts.cached_tokens, _loss(facts))
    return _verdict(facts, VerdictKind.ENGINE_RESTARTED, wording)


def _not_reported(facts: TurnFacts) -> Verdict | None:
    if facts.cached_tokens is not None:
        return None
    ended_early = facts.outcome in (RequestOutcome.ABORTED, RequestOutcome.ERROR)
    return _verdict(facts, VerdictKind.UNKNOWN, words.not_reported(ended_early))


def _different_salt(facts: TurnFacts) -> Verdict | None:
    previous = facts.previous
    if previous is None or previous.cache_salt == facts.cache_salt:
        return None
    if _reach(facts).cache_loss == 0:
        return None
    return _verdict(facts, VerdictKind.DIFFERENT_SALT, words.different_salt(_loss(facts)))


def _other_conversation(facts: TurnFacts) -> Verdict | None:
    """Judge a turn that reused more than it shares with the turn before."""
    previous, cached_tokens, expected = facts.previous, facts.cached_tokens or 0, facts.expected
    common = None if previous is None else _known_common(facts, previous)
    if previous is None or common is None:
        return None
    if cached_tokens <= common + previous.common_step - 1 + facts.block_tokens:
        return None
    if expected is None or cached_tokens < expected.expected_tokens:
        wording = words.other_conversation_unexplained(cached_tokens)
        return _verdict(facts, VerdictKind.UNKNOWN, wording)
    if cached_tokens == expected.expected_tokens:
        if facts.missing_were_stored:
            return _evicted(facts)
        if (verdict := _missing_state(facts, expected)) is not None:
            return verdict
    return _verdict(facts, VerdictKind.FULL_REUSE, words.other_conversation(cached_tokens))


def _below_block(facts: TurnFacts) -> Verdict | None:
    previous, reach = facts.previous, _reach(facts)
    if previous is None or (facts.cached_tokens or 0) >= facts.block_tokens:
        return None
    if reach.ceiling > 0 and (reach.common > 0 or facts.change is not None):
        return None
    reusable = _most_reusable(facts, previous)
    if (common := _known_common(facts, previous)) is not None:
        # At most: of a coarse figure the rest of its step may be common too.
        reusable = min(common + previous.common_step - 1, reusable)
    if reusable >= facts.block_tokens and reach.ceiling > 0:
        return None
    wording = words.below_block(max(0, reusable), facts.block_tokens)
    return _verdict(facts, VerdictKind.BELOW_BLOCK, wording)


def _change(facts: TurnFacts) -> Verdict | None:
    previous, reach = facts.previous, _reach(facts)
    if previous is None or reach.change_loss == 0 or reach.change_loss < reach.cache_loss:
        return None
    index = _known_common(facts, previous)
    if index is None:
        return None
    step, loss, change = previous.common_step, _loss(facts, index), facts.change
    if index >= previous.prompt_tokens:
        # All of the earlier prompt is there: only its answer is not repeated.
        kind, wording = VerdictKind.HISTORY_REWRITTEN, words.answer_left_out(index, step, loss)
        change = None
    elif change is None:
        kind, wording = VerdictKind.UNKNOWN, words.unknown_part(index, step, loss)
    else:
        kind, wording = _kind_of(change), words.changed(change, index, step, loss)
    return msgspec.structs.replace(
        _verdict(facts, kind, wording),
        token_index=index,
        token_index_step=step,
        part=None if change is None else change.part,
        volatile_kind=None if change is None else change.volatile_kind,
        excerpt=None if change is None else change.excerpt,
        lost_tokens=loss.tokens,
        cost_s=loss.seconds,
    )


def _kind_of(change: LocatedChange) -> VerdictKind:
    if change.volatile_kind is not None:
        return VerdictKind.VOLATILE_VALUE
    match change.part.kind:
        case PartKind.SYSTEM:
            return VerdictKind.SYSTEM_CHANGED
        case PartKind.TOOLS | PartKind.TOOL:
            return VerdictKind.TOOLS_CHANGED
        case _:
            return VerdictKind.HISTORY_REWRITTEN


def _cache(facts: TurnFacts) -> Verdict | None:
    """Explain why common tokens were not in the cache."""
    reach, expected = _reach(facts), facts.expected
    if reach.cache_loss == 0:
        return None
    loss, previous = _loss(facts), facts.previous
    compared = previous is not None and _known_common(facts, previous) is not None
    if expected is None:
        if not compared:
            return _verdict(facts, VerdictKind.UNKNOWN, words.not_compared(loss))
        return _verdict(facts, VerdictKind.UNKNOWN, words.unexplained(loss, False))
    if reach.cache_loss == expected.dropped_tokens:
        wording = words.speculative_block_drop(loss)
        return _verdict(facts, VerdictKind.SPECULATIVE_BLOCK_DROP, wording)
    if (reach.common - expected.expected_tokens) * 2 >= reach.cache_loss:
        # What was resident explains most of it: the map agrees with vLLM.
        verdict = _missing_attention(facts, expected) or _missing_state(facts, expected)
        if verdict is not None:
            return verdict
    if not compared:
        return _verdict(facts, VerdictKind.UNKNOWN, words.not_compared(loss))
    if previous is not None and previous.still_running:
        return _verdict(facts, VerdictKind.UNKNOWN, words.still_running(loss))
    return _verdict(facts, VerdictKind.UNKNOWN, words.unexplained(loss, True))


def _missing_attention(facts: TurnFacts, expected: ExpectedReuse) -> Verdict | None:
    missing = _reach(facts).common - expected.attention_tokens
    state_tokens = expected.state_tokens
    gap = 0 if state_tokens is None else expected.attention_tokens - state_tokens
    if missing <= 0 or missing < gap or not facts.missing_were_stored:
        return None
    return _evicted(facts)


def _missing_state(facts: TurnFacts, expected: ExpectedReuse) -> Verdict | None:
    state_tokens = expected.state_tokens
    if state_tokens is None or state_tokens >= expected.attention_tokens:
        return None
    if facts.state_was_removed:
        return _evicted(facts)
    wording = words.checkpoint_gap(_loss(facts), expected.attention_tokens, state_tokens)
    return _verdict(facts, VerdictKind.CHECKPOINT_GAP, wording)


def _evicted(facts: TurnFacts) -> Verdict:
    by = facts.evicted_by
    if by is not None and by.itself:
        wording = words.evicted_by_itself(_loss(facts))
    else:
        wording = words.evicted(_loss(facts), None if by is None else by.label)
    verdict = _verdict(facts, VerdictKind.EVICTED, wording)
    return msgspec.structs.replace(verdict, evicted_by=None if by is None else by.session)


def _without_loss(facts: TurnFacts) -> Verdict:
    previous, cached_tokens = facts.previous, facts.cached_tokens or 0
    repeatable = 0 if previous is None else min(previous.sequence_tokens, facts.prompt_tokens - 1)
    if repeatable - cached_tokens <= max(ROUNDING_TOKENS, ROUNDING_FRACTION * repeatable):
        return _verdict(facts, VerdictKind.FULL_REUSE, words.full_reuse(cached_tokens))
    wording = words.block_rounding(_loss(facts), facts.block_tokens)
    return _verdict(facts, VerdictKind.BLOCK_ROUNDING, wording)


_RULES: tuple[Callable[[TurnFacts], Verdict | None], ...] = (
    _preempted,
    _first_request,
    _engine_restarted,
    _not_reported,
    _different_salt,
    _other_conversation,
    _below_block,
    _change,
    _cache,
)


def _verdict(facts: TurnFacts, kind: VerdictKind, wording: Wording) -> Verdict:
    loss = _loss(facts)
    return Verdict(
        kind=kind,
        sentence=wording.sentence,
        advice=wording.advice,
        lost_tokens=loss.tokens,
        cost_s=loss.seconds,
    )


def _loss(facts: TurnFacts, behind: int = 0) -> Loss:
    """Return what was computed again of the turn before, behind a token, and how long it took."""
    previous, cached_tokens = facts.previous, facts.cached_tokens
    if previous is None or cached_tokens is None or previous.common_tokens is None:
        return Loss(None, None)
    repeatable = min(previous.sequence_tokens, facts.prompt_tokens - 1)
    repeated = 0 if previous.common_tokens >= repeatable else facts.repeated_tokens
    begin = max(behind, cached_tokens)
    tokens = max(0, min(repeatable, previous.common_tokens + (repeated or 0)) - begin)
    if repeated is None and tokens == 0:
        return Loss(None, None)
    speed = facts.prefill_tokens_per_s
    if facts.prefill_s and (facts.computed_tokens or 0) >= MEASURED_PREFILL_TOKENS:
        speed = (facts.computed_tokens or 0) / facts.prefill_s
    return Loss(
        tokens,
        tokens / speed if speed else None,
        exact=repeated is not None,
        computed_tokens=facts.prompt_tokens - begin,
    )


def _known_common(facts: TurnFacts, previous: PreviousTurn) -> int | None:
    """Return what is common when it is known where it ends.

    Where only block hashes were kept, and all of those that can be compared are equal, the prompts
    may part anywhere behind them or nowhere: there are no hashes of the answer.
    """
    common, step = previous.common_tokens, previous.common_step
    if common is None or step == 1:
        return common
    compared = min(previous.prompt_tokens, facts.prompt_tokens)
    return common if common + step <= compared else None


def _reach(facts: TurnFacts) -> _Reach:
    previous, cached_tokens = facts.previous, facts.cached_tokens or 0
    if previous is None:
        return _Reach(0, 0, 0, 0)
    most = _most_reusable(facts, previous)
    ceiling = common = _whole_blocks(most, facts.block_tokens)
    if (common_tokens := _known_common(facts, previous)) is not None:
        common = _whole_blocks(min(common_tokens, most), facts.block_tokens)
    change_loss = max(0, ceiling - max(common, cached_tokens))
    return _Reach(ceiling, common, change_loss, max(0, common - cached_tokens))


def _most_reusable(facts: TurnFacts, previous: PreviousTurn) -> int:
    stored = max(previous.prompt_tokens, previous.sequence_tokens - 1)
    return min(stored, facts.prompt_tokens - 1)


def _whole_blocks(tokens: int, block_tokens: int) -> int:
    return max(0, tokens) // block_tokens * block_tokens
