"""How often each part of a session's prompt changed, and what to move for more reuse.

Owns digests of the newest parts and the counters. It keeps no text, and must not know tokens: they
are estimated by characters. Parts stand in the order in which they are fed. A part is *volatile*
when it changed more than once and in at least a third of its turns.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import groupby
from operator import attrgetter

import msgspec

from agentserve.domain.prompt import PartKind, PartText, PromptPart
from agentserve.domain.session import LayoutPartView, VolatileKind
from agentserve.domain.text import printable
from agentserve.telemetry.sessions.verdict_sentences import duration, part_phrase, volatile_phrase

LEAST_TURNS = 3
"""Turns before anything is advised."""
LEAST_SAVING_TOKENS = 128
"""Tokens a turn below which advice is not worth reading."""

_VOLATILE_SHARE = 3
"""A part is volatile when it changed in at least one of so many turns."""
_MESSAGES_KEPT = 4_096
"""Messages whose digests are compared: 8 bytes each."""
_TOOLS_KEPT = 256
_TOOLS_SHOWN = 8
_NAME_CHARACTERS = 40


class PromptLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a prompt in order, and one sentence of advice."""

    parts: tuple[LayoutPartView, ...]
    advice: str | None = None


class _Record(msgspec.Struct):
    """What is counted of one part."""

    part: PromptPart
    digests: array[int]
    """Of its text; of the names where it is the list of tools; of each message."""
    characters: int
    turns: int = 1
    changes: int = 0
    volatile_kind: VolatileKind | None = None
    reordered: int = 0
    """Changes of a list of tools in which only the order was another."""

    @property
    def volatile(self) -> bool:
        return (
            self.turns >= LEAST_TURNS
            and self.changes > 1
            and self.changes * _VOLATILE_SHARE >= self.turns
        )


class PartHistory:
    """Counts the changes of one session's parts: system, each tool, their list, messages.

    The first message is counted by itself, since agents put what they know of their surroundings
    there; the others are one part, which changed when an earlier one was edited.
    """

    def __init__(self) -> None:
        self._records: dict[Hashable, _Record] = {}
        """In the order of the newest prompt."""
        self._earlier: dict[Hashable, _Record] = {}
        """Those of the turn before, while a turn is added."""
        self._prompt_tokens = 0

    def add(
        self,
        parts: Sequence[PartText],
        prompt_tokens: int,
        changed_part: PromptPart | None = None,
        volatile_kind: VolatileKind | None = None,
    ) -> None:
        """Count one turn.

        Args:
            parts: The parts of its prompt in order; a turn without known parts is left out.
            prompt_tokens: Tokens of the whole prompt.
            changed_part: Where it first differs from the turn before, for better words.
            volatile_kind: What kind of value changed there by itself.
        """
        if not parts:
            return
        self._prompt_tokens = prompt_tokens
        self._earlier, self._records = self._records, {}
        by_kind: dict[PartKind, list[PartText]] = {}
        for kind, run in groupby(parts, attrgetter("part.kind")):
            by_kind.setdefault(kind, []).extend(run)
        for kind, texts in by_kind.items():
            if kind is PartKind.SYSTEM:
                self._add("system", PromptPart(kind=kind), texts)
            elif kind is PartKind.TOOL:
                self._add_tools(texts)
            elif kind is PartKind.MESSAGE:
                self._add("first", texts[0].part, texts[:1])
                self._add_messages(texts[1:])
        self._earlier = {}
        if changed_part is not None and volatile_kind is not None:
            for record in self._records.values():
                if _same_part(record.part, changed_part):
                    record.volatile_kind = volatile_kind

    def view(self, prefill_tokens_per_s: float | None) -> PromptLayout:
        """Return the parts of the newest prompt and the advice.

        Args:
            prefill_tokens_per_s: Measured on this engine; None leaves seconds out.
        """
        records = self._shown()
        return PromptLayout(
            parts=tuple(
                LayoutPartView(
                    part=_shown(record.part),
                    tokens=self._tokens(record.characters),
                    turns=record.turns,
                    changes=record.changes,
                )
                for record in records
            ),
            advice=self._advice(records, prefill_tokens_per_s),
        )

    def _add(self, key: Hashable, part: PromptPart, texts: Sequence[PartText]) -> None:
        digests = _digests([one.text for one in texts])
        characters = sum(len(one.text) for one in texts)
        before = self._earlier.get(key)
        changed = before is not None and digests != before.digests
        self._records[key] = _counted(before, part, digests, characters, changed)

    def _add_tools(self, tools: Sequence[PartText]) -> None:
        # The list changes with its names only; the texts are counted tool by tool.
        names = [one.part.name or "" for one in tools]
        digests, before = _digests(names), self._earlier.get("tools")
        changed = before is not None and digests != before.digests
        record = _counted(before, PromptPart(kind=PartKind.TOOLS), digests, 0, changed)
        if before is not None and changed and sorted(digests) == sorted(before.digests):
            record.reordered += 1
        self._records["tools"] = record
        seen: Counter[str] = Counter()
        for name, one in zip(names, tools, strict=True):
            seen[name] += 1
            if len(self._records) < _TOOLS_KEPT:
                self._add(("tool", name, seen[name]), one.part, [one])
            else:
                record.characters += len(one.text)

    def _add_messages(self, messages: Sequence[PartText]) -> None:
        before = self._earlier.get("messages")
        if not messages and before is None:
            return
        digests = _digests([one.text for one in messages[:_MESSAGES_KEPT]])
        # A list that grows goes on; one that shrinks or differs was edited.
        edited = before is not None and digests[: len(before.digests)] != before.digests
        characters = sum([len(one.text) for one in messages])
        part = PromptPart(kind=PartKind.MESSAGE)
        self._records["messages"] = _counted(before, part, digests, characters, edited)

    def _shown(self) -> list[_Record]:
        """Return the records in order, with the tools that never changed joined into the list."""
        shown: list[_Record] = []
        listed: _Record | None = None
        tools_shown = 0
        for record in self._records.values():
            if record.part.kind is PartKind.TOOLS:
                listed = record = msgspec.structs.replace(record)
            elif record.part.kind is PartKind.TOOL and listed is not None:
                if record.changes == 0 or tools_shown >= _TOOLS_SHOWN:
                    listed.characters += record.characters
                    continue
                tools_shown += 1
            shown.append(record)
        return shown

    def _tokens(self, characters: int) -> int:
        """Estimate tokens by the share of the prompt's characters."""
        total = sum(record.characters for record in self._records.values())
        return round(characters * self._prompt_tokens / total) if total else 0

    def _advice(self, records: list[_Record], prefill_tokens_per_s: float | None) -> str | None:
        best: tuple[int, _Record, list[_Record]] | None = None
        for index, record in enumerate(records):
            if not record.volatile:
                continue
            behind: list[_Record] = []
            for other in records[index + 1 :]:
                # Behind the next volatile part nothing is saved by moving this one.
                if other.volatile:
                    break
                behind.append(other)
            characters = sum(other.characters for other in behind)
            if record.part.kind is PartKind.TOOLS:
                characters += record.characters
            saving = self._tokens(characters) * record.changes // record.turns
            if saving >= LEAST_SAVING_TOKENS and (best is None or saving > best[0]):
                best = saving, record, behind
        if best is None:
            return None
        saving, record, behind = best
        time = f" ({duration(saving / prefill_tokens_per_s)})" if prefill_tokens_per_s else ""
        return f"{_what_to_do(record, behind)}: it would save about {saving:,} tokens a turn{time}."


def _what_to_do(record: _Record, behind: Sequence[_Record]) -> str:
    if record.part.kind is PartKind.TOOLS:
        if record.reordered * 2 > record.changes:
            return "Send the tools in the same order every turn"
        return "Send the same list of tools every turn"
    value = "what changes" if record.volatile_kind is None else ""
    if record.volatile_kind is not None:
        value = f"the {volatile_phrase(record.volatile_kind)}"
    largest = sorted(behind, key=lambda other: -other.characters)[:2]
    places = " and ".join(part_phrase(_shown(other.part)) for other in behind if other in largest)
    return f"Move {value} in {part_phrase(_shown(record.part))} behind {places}"


def _digests(texts: Sequence[str]) -> array[int]:
    # Of a list: an array that grows takes room for a sixteenth more.
    return array("q", [hash(text) for text in texts])


def _counted(
    before: _Record | None,
    part: PromptPart,
    digests: array[int],
    characters: int,
    changed: bool,
) -> _Record:
    """Return the record of a part after one more turn."""
    if before is None:
        return _Record(part=part, digests=digests, characters=characters)
    return msgspec.structs.replace(
        before,
        part=part,
        digests=digests,
        characters=characters,
        turns=before.turns + 1,
        changes=before.changes + changed,
    )


def _same_part(one: PromptPart, other: PromptPart) -> bool:
    if one.kind is not other.kind:
        return False
    if one.kind is PartKind.MESSAGE:
        return one.index == other.index or (one.index is None and other.index != 1)
    return one.name == other.name


def _shown(part: PromptPart) -> PromptPart:
    """Clean and bound the names that come from outside."""
    return msgspec.structs.replace(
        part,
        name=None if part.name is None else printable(part.name, _NAME_CHARACTERS),
        role=None if part.role is None else printable(part.role, _NAME_CHARACTERS),
    )
