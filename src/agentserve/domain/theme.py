"""What a theme file may say: colours, as typed data.

The file's stem is the theme's name. Owns the shape and the validation of colours; it must not know
Textual, which turns a `ThemeSpec` into styles elsewhere.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

HexColour = Annotated[str, msgspec.Meta(pattern=r"^#[0-9a-fA-F]{6}$")]
"""A colour as `#rrggbb`."""


class RoleColours(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Colours by meaning; each one that is left out is taken from the base colours."""

    title: HexColour | None = None
    """Panel titles."""
    frame: HexColour | None = None
    """Lines around and between panels."""
    label: HexColour | None = None
    """Names of values."""
    muted: HexColour | None = None
    """Secondary text, units and unknown values."""
    track: HexColour | None = None
    """The empty part of a bar."""
    ready: HexColour | None = None
    starting: HexColour | None = None
    stopped: HexColour | None = None
    failed: HexColour | None = None
    kv: HexColour | None = None
    """The KV pool."""
    cached: HexColour | None = None
    """Prompt tokens taken from the cache."""
    computed: HexColour | None = None
    """Prompt tokens that were prefilled."""
    decode: HexColour | None = None
    """Generated tokens."""
    latency: HexColour | None = None
    memory: HexColour | None = None
    """GPU memory."""


class ThemeSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One theme. `msgspec` checks it when it decodes a file."""

    name: str = ""
    """Set by the loader from the file's stem."""
    title: str
    dark: bool
    primary: HexColour
    secondary: HexColour
    accent: HexColour
    success: HexColour
    warning: HexColour
    error: HexColour
    foreground: HexColour
    background: HexColour
    surface: HexColour
    panel: HexColour
    roles: RoleColours = RoleColours()
