from __future__ import annotations

import msgspec
import pytest
from rich._palettes import STANDARD_PALETTE
from rich.color import Color
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


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    """Contrast ratio as WCAG 2 defines it: 1 to 21."""
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


DRAWN_AS_LINES = {"frame", "track"}


def test_there_are_six_themes_and_one_of_them_is_light() -> None:
    assert [
        *("agentserve-dark", "agentserve-light", "ember"),
        *("high-contrast", "plain-16", "tidepool"),
    ] == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_text_can_be_read_in_every_theme(name: str, theme_specs: tuple[ThemeSpec, ...]) -> None:
    spec = next(each for each in theme_specs if each.name == name)
    for ground in (spec.background, spec.surface, spec.panel):
        assert contrast(spec.foreground, ground) >= 4.5
        assert contrast(spec.accent, ground) >= 4.5
    for role in RoleColours.__struct_fields__:
        if role not in DRAWN_AS_LINES:
            least = 3.0 if role == "muted" else 4.5
            assert contrast(getattr(spec.roles, role), spec.background) >= least, role
    assert contrast(spec.roles.muted or "", spec.panel) >= 3.0
    assert contrast(spec.roles.label or "", spec.panel) >= 4.5


def test_the_high_contrast_theme_keeps_what_it_promises(
    theme_specs: tuple[ThemeSpec, ...],
) -> None:
    spec = next(each for each in theme_specs if each.name == "high-contrast")
    for role in RoleColours.__struct_fields__:
        if role != "track":
            assert contrast(getattr(spec.roles, role), spec.background) >= 7.0, role
    for colour in (spec.foreground, spec.accent, spec.error, spec.warning):
        assert contrast(colour, spec.background) >= 7.0


def test_the_theme_for_16_colours_uses_those_and_no_others(
    theme_specs: tuple[ThemeSpec, ...],
) -> None:
    spec = next(each for each in theme_specs if each.name == "plain-16")
    colours = [getattr(spec, name) for name in ThemeSpec.__struct_fields__]
    colours += msgspec.structs.astuple(spec.roles)
    standard = {Color.from_rgb(*triplet).name for triplet in STANDARD_PALETTE._colors}
    used = [each for each in colours if isinstance(each, str) and each.startswith("#")]
    assert len(used) > 20
    assert set(used) <= standard


@pytest.mark.parametrize("view", ["v", "g", "a", "l", "x"])
@pytest.mark.parametrize("theme", SHIPPED)
async def test_every_view_opens_in_every_theme(
    theme: str, view: str, theme_specs: tuple[ThemeSpec, ...]
) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    control.log("WARNING x")
    app = AgentServeApp(control, theme_specs=theme_specs, initial_theme=theme)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(view)
        await pilot.pause()
        assert app.export_screenshot()


async def test_a_theme_that_the_user_chose_is_kept_and_the_first_one_is_not(
    theme_specs: tuple[ThemeSpec, ...],
) -> None:
    control = scripted.ScriptedControl(scripted.serving())
    app = AgentServeApp(control, theme_specs=theme_specs, initial_theme="ember")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert [each for each in control.requests if each[0] == "remember_theme"] == []
        app.theme = "tidepool"
        await pilot.pause()
        assert control.requests[-1] == ("remember_theme", "tidepool")
