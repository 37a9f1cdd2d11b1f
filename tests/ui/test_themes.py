from __future__ import annotations

import msgspec
import pytest
from textual.theme import BUILTIN_THEMES

from agentserve.domain.theme import RoleColours, ThemeSpec
from agentserve.ui.app import AgentServeApp
from agentserve.ui.themes import ROLE_DEFAULTS, role_defaults

from . import scripted
from .conftest import THEME_FOLDER

SHIPPED = sorted(path.stem for path in THEME_FOLDER.glob("*.toml"))


def document(**changes: object) -> dict[str, object]:
    colours = dict.fromkeys(
        (
            "primary",
            "secondary",
            "accent",
            "success",
            "warning",
            "error",
            "foreground",
            "background",
            "surface",
            "panel",
        ),
        "#123abc",
    )
    return {"title": "T", "dark": True, **colours, **changes}


def test_every_role_has_a_default_in_any_theme() -> None:
    assert set(ROLE_DEFAULTS) == set(RoleColours.__struct_fields__)
    for theme in BUILTIN_THEMES.values():
        assert len(role_defaults(theme)) == len(ROLE_DEFAULTS)


@pytest.mark.parametrize(
    "changes",
    [
        {"primary": "red"},
        {"primary": "#12345"},
        {"primry": "#123456"},
        {"roles": {"ready": "#12345g"}},
        {"roles": {"redy": "#123456"}},
    ],
    ids=str,
)
def test_a_wrong_colour_or_key_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(document(**changes), ThemeSpec)


def test_shipped_themes_name_every_role(theme_specs: tuple[ThemeSpec, ...]) -> None:
    assert [spec.name for spec in theme_specs] == SHIPPED
    for spec in theme_specs:
        assert None not in msgspec.structs.astuple(spec.roles)


@pytest.mark.parametrize("theme", [*SHIPPED, *BUILTIN_THEMES])
async def test_the_app_starts_in_every_theme(
    theme: str, theme_specs: tuple[ThemeSpec, ...]
) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = AgentServeApp(control, theme_specs=theme_specs, initial_theme=theme)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert app.theme == theme
        assert app.screen.query_one("#kv").is_on_screen


async def test_an_unknown_theme_falls_back_to_the_first(
    theme_specs: tuple[ThemeSpec, ...],
) -> None:
    control = scripted.ScriptedControl()
    app = AgentServeApp(control, theme_specs=theme_specs, initial_theme="[nope")
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.pause()
        assert app.theme == SHIPPED[0]
