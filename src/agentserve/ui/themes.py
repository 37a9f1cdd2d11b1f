"""Turns a `ThemeSpec` into a Textual theme, and gives every colour of ours a value in any theme.

Style sheets use `$agentserve-*` variables only; each is one field of `RoleColours`.
"""

from __future__ import annotations

from textual.theme import Theme

from agentserve.domain.theme import RoleColours, ThemeSpec

_PREFIX = "agentserve-"

ROLE_DEFAULTS: dict[str, str] = {
    "title": "foreground",
    "frame": "panel-lighten-1",
    "label": "foreground-darken-1",
    "muted": "foreground-muted",
    "track": "panel-lighten-2",
    "ready": "success",
    "starting": "warning",
    "stopped": "secondary",
    "failed": "error",
    "kv": "primary",
    "cached": "success",
    "computed": "warning",
    "decode": "accent",
    "latency": "secondary",
    "memory": "primary",
}
"""The Textual colour that stands in for a role which a theme does not name."""


def to_textual(spec: ThemeSpec) -> Theme:
    """Convert a validated theme.

    Args:
        spec: The theme; its name becomes the name to choose it by.

    Returns:
        A theme to register with the app.
    """
    return Theme(
        name=spec.name,
        dark=spec.dark,
        primary=spec.primary,
        secondary=spec.secondary,
        accent=spec.accent,
        success=spec.success,
        warning=spec.warning,
        error=spec.error,
        foreground=spec.foreground,
        background=spec.background,
        surface=spec.surface,
        panel=spec.panel,
        variables={
            _PREFIX + role: colour
            for role in RoleColours.__struct_fields__
            if (colour := getattr(spec.roles, role)) is not None
        },
    )


def role_defaults(theme: Theme) -> dict[str, str]:
    """Return a value for every `agentserve-*` variable, taken from the colours of `theme`."""
    colours = theme.to_color_system().generate()
    return {_PREFIX + role: colours[base] for role, base in ROLE_DEFAULTS.items()}
