"""The newest prompt of each session, within a budget of bytes.

Owns what is kept and what is given up first: the token ids and texts of the sessions that were seen
longest ago go, then only block hashes are left, at a coarser step. Prompt text lives here and
nowhere else; it is never written anywhere.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from agentserve.domain.prompt import PartText
from agentserve.telemetry.sessions.token_prefix import common_prefix_length, token_array

DEFAULT_BUDGET_BYTES = 20 * 1024 * 1024
"""For token ids and texts. A prompt of 100,000 tokens takes about 0.9 MB with its text."""
COARSE_STEP_TOKENS = 128
"""Least distance of the block hashes that are kept once token ids were given up."""


@dataclass(slots=True)
class RememberedPrompt:
    """The newest sequence of one session: its prompt, and the answer once there is one."""

    generation: int
    cache_salt: str | None
    prompt_tokens: int
    tokens: array[int] | None = None
    """Prompt and answer; None before they were taken, and once given up."""
    parts: tuple[PartText, ...] = ()
    hashes: array[int] | None = None
    """One per `hash_tokens` tokens of the prompt; None when the engine did not say."""
    hash_tokens: int = 0
    sequence_tokens: int = field(init=False)
    running: bool = True
    _parts_bytes: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.sequence_tokens = self.prompt_tokens
        # CPython keeps ASCII in 1 byte a character; others cost up to 4.
        texts = [part.text for part in self.parts]
        self._parts_bytes = sum([len(text) if text.isascii() else 4 * len(text) for text in texts])

    def take_tokens(self, token_ids: Sequence[int], before: RememberedPrompt | None) -> None:
        """Keep the prompt's token ids compactly.

        Under equal hashes are equal tokens. Those are copied from the sequence before, since making
        numbers into an array takes ten times as long.

        Args:
            token_ids: All of the prompt.
            before: The sequence that it probably continues; None when there is none.
        """
        hashed = None if before is None else before._common_hashes(self)
        if before is None or before.tokens is None or hashed is None:
            self.tokens = token_array(token_ids)
            return
        known = hashed[0]
        # Not `extend`, here and for the answer: it takes room for a sixteenth more.
        self.tokens = before.tokens[:known] + token_array(token_ids[known:])

    def add_answer(self, token_ids: Sequence[int]) -> None:
        """Append the answer: the next turn usually repeats it."""
        self.sequence_tokens += len(token_ids)
        if self.tokens is not None:
            self.tokens = self.tokens + token_array(token_ids)

    def common_tokens(self, other: RememberedPrompt) -> tuple[int | None, int]:
        """How many leading tokens another prompt shares with this sequence.

        Equal tokens are not enough for reuse: the hashes of two images differ, though the tokens
        that stand for them do not. So where hashes part earlier, they decide.

        Args:
            other: The other prompt; an answer behind it does not count.

        Returns:
            Shared tokens, None when they are not known, and the step to which that is exact: 1, or
            tokens per kept hash.
        """
        hashed = self._common_hashes(other)
        if self.tokens is None or other.tokens is None:
            return (None, 1) if hashed is None else hashed[:2]
        equal = 0 if hashed is None else hashed[0]
        tokens = min(common_prefix_length(self.tokens, other.tokens, equal), other.prompt_tokens)
        if hashed is not None:
            hashed_tokens, step, differ = hashed
            if differ and hashed_tokens + step <= tokens:
                return hashed_tokens, step
        return tokens, 1

    def _common_hashes(self, other: RememberedPrompt) -> tuple[int, int, bool] | None:
        """Tokens under equal hashes, tokens per hash, and whether the next hash differs.

        None where hashes tell nothing: each engine makes others, and each salt.
        """
        if self.hashes is None or other.hashes is None:
            return None
        if (self.generation, self.cache_salt) != (other.generation, other.cache_salt):
            return None
        steps = self.hash_tokens, other.hash_tokens
        step = max(steps)
        if min(steps) <= 0 or step % min(steps):
            return None
        first, second = (
            hashes if step == own else hashes[step // own - 1 :: step // own]
            for hashes, own in ((self.hashes, steps[0]), (other.hashes, steps[1]))
        )
        shared = common_prefix_length(first, second)
        return shared * step, step, shared < min(len(first), len(second))

    def coarse_resident_tokens(self, tables: Sequence[Container[int]]) -> int:
        """How much of the prompt the cache holds, to a step of `hash_tokens`.

        vLLM frees the end of a sequence first, so what is resident is its beginning.

        Args:
            tables: Resident hashes of each group that must hold a block.
        """
        hashes = self.hashes
        if hashes is None:
            return 0
        low, high = 0, len(hashes)
        for table in tables:
            # Each table shortens what the others hold; most sequences have left as a whole.
            low, high = 0, high if high and hashes[0] in table else 0
            while low < high:
                middle = (low + high) // 2
                if hashes[middle] in table:
                    low = middle + 1
                else:
                    high = middle
            high = low
        return low * self.hash_tokens

    @property
    def text_bytes(self) -> int:
        """Bytes of token ids and texts."""
        return self._parts_bytes + (0 if self.tokens is None else 4 * len(self.tokens))

    def forget_text(self) -> None:
        """Give up token ids and texts, and all but every n-th hash."""
        self.tokens = None
        self.parts = ()
        self._parts_bytes = 0
        if self.hashes is not None and 0 < self.hash_tokens < COARSE_STEP_TOKENS:
            stride = -(-COARSE_STEP_TOKENS // self.hash_tokens)
            self.hashes = self.hashes[stride - 1 :: stride]
            self.hash_tokens *= stride


class PromptMemory:
    """Keeps one `RememberedPrompt` per session.

    Args:
        budget_bytes: For token ids and texts of all sessions; the newest prompt is always kept.
        on_forgotten: Gets the id of a session whose token ids and texts were given up.
    """

    def __init__(
        self,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        on_forgotten: Callable[[str], None] = lambda _session: None,
    ) -> None:
        self._budget_bytes = budget_bytes
        self.on_forgotten = on_forgotten
        self._prompts: OrderedDict[str, RememberedPrompt] = OrderedDict()
        self._sizes: dict[str, int] = {}
        """Bytes counted for each session that still has its text, oldest first."""
        self._bytes = 0

    def get(self, session: str) -> RememberedPrompt | None:
        """The newest prompt of a session."""
        return self._prompts.get(session)

    def put(self, session: str, prompt: RememberedPrompt) -> None:
        """Remember a session's newest prompt instead of the one before."""
        self._prompts[session] = prompt
        self._prompts.move_to_end(session)
        self.measure(session)

    def measure(self, session: str) -> None:
        """Count a session's prompt anew after it grew, and keep within the budget."""
        self._bytes -= self._sizes.pop(session, 0)
        size = self._prompts[session].text_bytes
        if size:
            self._sizes[session] = size
            self._bytes += size
        while self._bytes > self._budget_bytes and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            self._bytes -= self._sizes.pop(oldest)
            self._prompts[oldest].forget_text()
            self.on_forgotten(oldest)

    def drop(self, session: str) -> None:
        """Forget a session."""
        self._prompts.pop(session, None)
        self._bytes -= self._sizes.pop(session, 0)

    def newest_first(self) -> Sequence[tuple[str, RememberedPrompt]]:
        """All prompts with their sessions, the one put last first."""
        return tuple(reversed(self._prompts.items()))

    @property
    def text_bytes(self) -> int:
        """Bytes of all token ids and texts that are kept."""
        return self._bytes
