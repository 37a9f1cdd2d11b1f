"""Theme files to theme values.

Owns where themes are looked for and that one broken file never hides the others. It does not know
Textual: what a colour is used for is the screen's business.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from agentserve.config.paths import AppPaths, shipped_dir
from agentserve.config.problem import ConfigProblem
from agentserve.config.toml_source import convert_document, read_toml
from agentserve.domain.theme import ThemeSpec

DEFAULT_THEME = "agentserve-dark"


def load_themes(
    paths: AppPaths, shipped: Path | None = None
) -> tuple[tuple[ThemeSpec, ...], tuple[ConfigProblem, ...]]:
    """Read the shipped and the user's themes; a user's file replaces a shipped one of its name.

    Args:
        paths: The folders of this instance.
        shipped: Folder of the shipped themes, for tests.

    Returns:
        The usable themes, the default one first, and what is wrong with the others.
    """
    themes: dict[str, ThemeSpec] = {}
    problems: list[ConfigProblem] = []
    for folder in (shipped or shipped_dir("themes"), paths.config / "themes"):
        for path in sorted(folder.glob("*.toml")):
            document = read_toml(path)
            if isinstance(document, ConfigProblem):
                problems.append(document)
                continue
            theme, wrong = convert_document(document, ThemeSpec)
            problems += wrong
            if theme is not None and not wrong:
                themes[path.stem] = msgspec.structs.replace(theme, name=path.stem)
    ordered = sorted(themes.values(), key=lambda theme: (theme.name != DEFAULT_THEME, theme.name))
    return tuple(ordered), tuple(problems)
