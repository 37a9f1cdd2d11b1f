"""A key that clients must send. It must not know where keys are written, nor how they are sent."""

from __future__ import annotations

import msgspec


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """One API key; its representations never show it."""

    name: str | None = None
    """Whose key it is; None for the one that has no name."""
    key: str

    def __repr__(self) -> str:
        return f"ApiKey(name={self.name!r}, key='***')"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("name", self.name)]
