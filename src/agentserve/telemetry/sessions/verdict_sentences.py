"""What verdicts say to a person: one sentence, and one of advice.

Owns the wording, and that every name from outside is cleaned and bounded. It must not know how a
verdict is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentserve.domain.prompt import PartKind, PromptPart
from agentserve.domain.session import VolatileKind
from agentserve.domain.text import printable
from agentserve.telemetry.sessions.difference import LocatedChange, ToolChange

_NAME_CHARACTERS = 40
_NAMES_SHOWN = 3

_VOLATILE_NAMES = {
    VolatileKind.CLOCK: "clock",
    VolatileKind.DATE: "date",
    VolatileKind.COUNTER: "counter",
    VolatileKind.RANDOM_ID: "random id",
    VolatileKind.NONCE: "nonce",
}


class Wording(NamedTuple):
    """What is said about a turn."""

    sentence: str
    advice: str | None = None


class Loss(NamedTuple):
    """What had to be computed again."""

    tokens: int | None
    """Of the turn before; None when it is not known."""
    seconds: float | None
    exact: bool = True
    """False when there may be more."""
    computed_tokens: int | None = None
    """All that this turn computed, what was never in a prompt before included."""

    @property
    def clause(self) -> str:
        """`41,200 tokens behind it were computed again (about 43 s)`."""
        return self._clause(" behind it", "what stands behind it")

    @property
    def plain_clause(self) -> str:
        """`41,200 tokens were computed again (about 43 s)`."""
        return self._clause("", "the rest of the prompt")

    def _clause(self, where: str, unknown: str) -> str:
        if self.tokens is None:
            return f"{unknown} was computed"
        tokens, again, time = self.tokens, " again", ""
        if tokens == 0 and self.computed_tokens:
            tokens, again = self.computed_tokens, ""
        elif self.seconds is not None:
            time = f" ({duration(self.seconds)})"
        verb = "token{} was" if tokens == 1 else "tokens{} were"
        least = "" if self.exact or not again else "at least "
        return f"{least}{tokens:,} {verb.format(where)} computed{again}{time}"


def duration(seconds: float) -> str:
    """Say a time to two digits: `about 43 s`, `about 3 min`, `under 0.1 s`."""
    if seconds < 0.095:
        return "under 0.1 s"
    if seconds < 9.5:
        return f"about {seconds:.1f} s"
    if seconds < 119.5:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min"


def part_phrase(part: PromptPart) -> str:
    """Name a part within a sentence: `the system prompt`, `tool read_file`."""
    label = printable(part.label, _NAME_CHARACTERS + 20)
    named = part.kind is PartKind.TOOL or (part.kind is PartKind.MESSAGE and part.index is not None)
    return label if named else f"the {label}"


def volatile_phrase(kind: VolatileKind) -> str:
    """Name a kind of value: `clock`, `random id`."""
    return _VOLATILE_NAMES[kind]


def preempted() -> Wording:
    """Say that the request was stopped and began anew."""
    return Wording(
        "The request was preempted: the KV pool was full, and what it had computed was thrown "
        "away and computed again.",
        "Run fewer requests at once, or give the KV cache more memory.",
    )


def first_request(cached_tokens: int | None) -> Wording:
    """Say that there is nothing to compare with."""
    if cached_tokens:
        return Wording(
            "This is the first request of the session; it began with "
            f"{cached_tokens:,} tokens that others had computed."
        )
    return Wording("This is the first request of the session: there was nothing to reuse.")


def first_request_with_other_salt() -> Wording:
    """Say that the same prompt is cached, but not for this caller."""
    return Wording(
        "The same tokens are known under another cache salt, and sessions with different salts "
        "share nothing.",
        "Use the same API key or cache_salt where sessions should share.",
    )


def engine_restarted(cached_tokens: int | None, loss: Loss) -> Wording:
    """Say that the cache is new. The agent is never to blame for it."""
    if cached_tokens is None:
        how = ""
    elif cached_tokens == 0:
        how = f", so its cache was empty: {loss.plain_clause}"
    else:
        how = (
            f": only {_tokens(cached_tokens)} that had been computed since could be reused, and "
            f"{loss.plain_clause}"
        )
    return Wording(
        f"The engine was restarted since the last turn{how}. The agent did nothing wrong."
    )


def not_reported(ended_early: bool) -> Wording:
    """Say that vLLM gave no figure."""
    if ended_early:
        return Wording("The request ended before vLLM reported what it had reused.")
    return Wording("vLLM has not reported what this turn reused.")


def different_salt(loss: Loss) -> Wording:
    """Say that the session changed its salt."""
    return Wording(
        f"This turn used another cache salt than the turn before: {loss.plain_clause}.",
        "Use one API key or cache_salt for the whole session.",
    )


def below_block(common_tokens: int, block_tokens: int) -> Wording:
    """Say that whole blocks only are reused."""
    return Wording(
        f"Only {common_tokens:,} tokens at the start could be reused, less than one block of "
        f"{block_tokens:,}."
    )


def full_reuse(cached_tokens: int) -> Wording:
    """Say that all was well."""
    return Wording(f"All of the turn before was reused: {cached_tokens:,} tokens.")


def other_conversation(cached_tokens: int) -> Wording:
    """Say that all was well, though the turn before was another conversation's."""
    return Wording(
        "This turn continues another conversation of the session: "
        f"{_tokens(cached_tokens)} of it were reused."
    )


def other_conversation_unexplained(cached_tokens: int) -> Wording:
    """Say that it is not known what else of the other conversation there was to reuse."""
    return Wording(
        "This turn continues another conversation of the session: "
        f"{_tokens(cached_tokens)} of it were reused, and it is not known whether more could have "
        "been."
    )


def block_rounding(loss: Loss, block_tokens: int) -> Wording:
    """Say that the rest of a block was lost."""
    return Wording(
        f"All whole blocks of {block_tokens:,} tokens were reused; behind the last one "
        f"{loss.plain_clause}."
    )


def speculative_block_drop(loss: Loss) -> Wording:
    """Say that drafting costs a block."""
    return Wording(
        f"Speculative decoding gives up the last matched block: {loss.plain_clause}.",
        "Nothing to change in the agent; it costs the same every turn.",
    )


def evicted(loss: Loss, by: str | None) -> Wording:
    """Say which session took the blocks, by its label."""
    winner = "Another request" if by is None else f"Session {printable(by, _NAME_CHARACTERS)}"
    return Wording(
        f"{winner} needed room in the KV pool and took blocks of this session: "
        f"{loss.plain_clause}.",
        "Run fewer sessions at once, shorten their prompts, or give the KV cache more memory.",
    )


def evicted_by_itself(loss: Loss) -> Wording:
    """Say that the session took its own blocks."""
    return Wording(
        "Another turn of this session needed the room that these blocks had in the KV pool: "
        f"{loss.plain_clause}.",
        "Shorten its prompts, or give the KV cache more memory.",
    )


def checkpoint_gap(loss: Loss, attention_tokens: int, state_tokens: int) -> Wording:
    """Say that a hybrid model can go on only where a state was kept."""
    where = f"only up to token {state_tokens:,}" if state_tokens else "nowhere in this prompt"
    return Wording(
        f"Attention blocks of {attention_tokens:,} tokens were there, but a state of the model was "
        f"kept {where}: {loss.plain_clause}.",
        "Nothing to change in the agent: hybrid models keep states at few positions.",
    )


def changed(change: LocatedChange, token_index: int, step: int, loss: Loss) -> Wording:
    """Say which part changed, and how to avoid it where it cost something."""
    sentence = f"{_what_changed(change)} {_place(token_index, step)}: {loss.clause}."
    if not change.confirmed:
        sentence = f"Probably: {sentence[0].lower()}{sentence[1:]}"
    return Wording(sentence, None if loss.tokens == 0 else _advice(change))


def answer_left_out(token_index: int, step: int, loss: Loss) -> Wording:
    """Say that the prompt does not repeat the last answer as it was generated."""
    return Wording(
        "The prompt does not repeat the last answer as it was generated; often its reasoning is "
        f"dropped. They part {_place(token_index, step)}: {loss.clause}.",
        "If the chat template can keep earlier reasoning, let it.",
    )


def unknown_part(token_index: int, step: int, loss: Loss) -> Wording:
    """Say where prompts part when the parts are not known."""
    return Wording(
        f"The prompt differs from the turn before {_place(token_index, step)}, in a part that is "
        f"not known: {loss.clause}."
    )


def not_compared(loss: Loss) -> Wording:
    """Say that it is not known how much of the turn before the prompt repeats."""
    return Wording(
        "The text of the turn before was not kept, so it is not known what this one repeats: "
        f"{loss.plain_clause}."
    )


def still_running(loss: Loss) -> Wording:
    """Say that the turn before had not finished."""
    return Wording(
        "The turn before was still running, and not all of its blocks were stored yet: "
        f"{loss.plain_clause}."
    )


def unexplained(loss: Loss, residency_known: bool) -> Wording:
    """Say that no rule explains the loss."""
    if not residency_known:
        return Wording(f"It is not known which blocks were still in the pool: {loss.plain_clause}.")
    return Wording(f"No known reason explains this turn: {loss.plain_clause}.")


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"


def _place(token_index: int, step: int) -> str:
    return f"{'at' if step == 1 else 'near'} token {token_index:,}"


def _what_changed(change: LocatedChange) -> str:
    part = part_phrase(change.part)
    if change.volatile_kind is not None:
        return f"A {volatile_phrase(change.volatile_kind)} in {part} changed"
    names = _listed(change.tool_names)
    plural = len(change.tool_names) != 1
    tools, were = ("Tools", "were") if plural else ("Tool", "was")
    match change.tool_change:
        case ToolChange.MOVED:
            return f"{tools} {names} {'changed places' if plural else 'moved'}, first seen"
        case ToolChange.ADDED | ToolChange.REMOVED:
            return f"{tools} {names} {were} {change.tool_change}"
        case ToolChange.EDITED:
            return f"The definition of {part} changed"
    match change.part.kind:
        case PartKind.MESSAGE:
            return f"{part[0].upper()}{part[1:]} was rewritten"
        case PartKind.TEMPLATE:
            return (
                "The chat template wrote the earlier turns differently (it may drop their "
                "reasoning)"
            )
        case _:
            return f"{part[0].upper()}{part[1:]} changed"


def _advice(change: LocatedChange) -> str:
    if change.volatile_kind is not None:
        value = volatile_phrase(change.volatile_kind)
        return f"Move the {value} behind the history, or out of the prompt."
    match change.part.kind:
        case PartKind.SYSTEM:
            return "Keep the system prompt the same for the whole session."
        case PartKind.TOOLS if change.tool_change is ToolChange.MOVED:
            return "Send the tools in the same order every turn."
        case PartKind.TOOLS:
            return "Send the same tools from the first turn on."
        case PartKind.TOOL:
            return "Keep tool definitions the same for the whole session."
        case PartKind.MESSAGE:
            return "Only append to the history; where it must be cut, cut it rarely and at once."
        case _:
            return "If the chat template can keep earlier reasoning, let it."


def _listed(names: Sequence[str]) -> str:
    shown = [printable(name, _NAME_CHARACTERS) for name in names[:_NAMES_SHOWN]]
    if len(names) > _NAMES_SHOWN:
        return f"{', '.join(shown)} and {len(names) - _NAMES_SHOWN} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)
