"""How much of a sequence occurs again in a prompt that parts from it.

Owns the search for equal pieces behind the first difference, at a bounded cost. It must not know
texts, turns or verdicts.
"""

from __future__ import annotations

from array import array

from agentserve.telemetry.sessions.token_prefix import common_prefix_length

PIECE_TOKENS = 32
"""Shortest run of equal tokens that is looked for: shorter ones occur by chance."""
_SEARCHES = 64
"""Most pieces that are looked for."""
_STEPS = 32
"""Pieces over the whole rest when none of them is found."""
_MISALIGNED_TRIED = 4


def repeated_tokens(before: array[int], now: array[int], start: int) -> int:
    """Count the tokens behind a difference that both sequences have, in the same order.

    Takes pieces of the earlier sequence at even distances and lengthens each one that is found, so
    most is found of prompts in which a value was replaced, messages were cut or tools were moved.

    Args:
        before: The earlier sequence.
        now: The later one, an array of the same type.
        start: Leading tokens that both share.

    Returns:
        At least so many are repeated; never more than there are.
    """
    size = now.itemsize
    text = now[start:].tobytes()
    step = max(PIECE_TOKENS, (len(before) - start) // _STEPS)
    # All before these two places is dealt with.
    old = new = place = start
    count = 0
    for _ in range(_SEARCHES):
        if place + PIECE_TOKENS > len(before) or new + PIECE_TOKENS > len(now):
            break
        piece = before[place : place + PIECE_TOKENS].tobytes()
        offset = _find(text, piece, (new - start) * size, size)
        if offset is None:
            place += step
            continue
        found = start + offset // size
        back = common_prefix_length(before[old:place][::-1], now[new:found][::-1])
        ahead = common_prefix_length(before[place:], now[found:])
        count += back + ahead
        old, new = place + ahead, found + ahead
        place = old
    return count


def _find(text: bytes, piece: bytes, begin: int, size: int) -> int | None:
    """Find whole items of `size` bytes."""
    for _ in range(_MISALIGNED_TRIED):
        begin = text.find(piece, begin)
        if begin < 0:
            return None
        if begin % size == 0:
            return begin
        begin += 1
    return None
