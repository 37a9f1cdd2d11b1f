"""Items of bodies that were read before: an agent sends nearly all of its messages again each turn.

Owns finding them by their bytes. It keeps none: an item is known for as long as someone else keeps
what was read of it. It must not know what items are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

_Read = TypeVar("_Read")

_decode = msgspec.json.Decoder().decode


class KnownItems:
    """Reads the items of JSON lists, each only once while what was read is kept."""

    def __init__(self) -> None:
        # By Python's 64-bit hash, whose secret nobody outside knows: keeping the bytes as well
        # would double what a prompt takes.
        self._known: defaultdict[object, WeakValueDictionary[int, Any]] = defaultdict(
            WeakValueDictionary
        )

    def read(self, items: object, read: Callable[[dict[str, object]], _Read]) -> list[_Read]:
        """Read the objects of a list.

        Args:
            items: A list of `msgspec.Raw`; anything else has no items.
            read: Reads one object; the same bytes always give the same. Must be a function that
                lasts, and return what can be referred to weakly.

        Returns:
            What was read, in order; items that are no objects are left out.

        Raises:
            msgspec.DecodeError: An item is no JSON.
        """
        known = self._known[read]
        found: list[_Read] = []
        for raw in items if isinstance(items, list) else ():
            item = bytes(raw)
            key = hash(item)
            one = known.get(key)
            if one is None:
                value = _decode(item)
                if not isinstance(value, dict):
                    continue
                one = known[key] = read(value)
            found.append(one)
        return found
