"""The guide's table of which columns a width shows, held against what is drawn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentserve.ui.lines import plain
from agentserve.ui.widgets.panel import Panel

from . import scripted, scripted_sessions
from .test_app import make_app

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "start.md"
ROWS = {
    "sessions (`c`)": (["c"], "session-table"),
    "sessions on the dashboard": ([], "sessions"),
    "requests (`v`)": (["v"], "request-table"),
    "requests on the dashboard": ([], "requests"),
    "GPUs on the dashboard": ([], "gpus"),
}
LEAST_WIDTH = 72
# The GPUs have no heading; their figures are known by their units.
UNITS = {"memory": "GiB", "load": " %", "temperature": "°C", "power": " W"}


def documented() -> dict[str, tuple[list[str], dict[str, int]]]:
    """Columns that are always there, and the others with their widths, by table."""
    section = GUIDE.read_text().partition("## What a window shows\n")[2].partition("\n## ")[0]
    found: dict[str, tuple[list[str], dict[str, int]]] = {}
    for table, always, later in re.findall(r"^\| (.+?) \| (.+?) \| ?(.*?) ?\|$", section, re.M):
        if always == "the same":
            always = ", ".join(found[list(found)[-1]][0])
        widths = dict(re.findall(r"([\w /]+?) (\d+)(?:, |$)", later))
        found[table] = (always.split(", "), {name: int(width) for name, width in widths.items()})
    return {table: found[table] for table in ROWS}


@pytest.mark.parametrize("table", ROWS)
async def test_the_guide_says_from_which_width_on_a_column_is_there(table: str) -> None:
    always, later = documented()[table]
    keys, name = ROWS[table]
    control = scripted.ScriptedControl(scripted_sessions.snapshot())
    app = make_app(control)
    drawn: dict[int, str] = {}
    async with app.run_test(size=(LEAST_WIDTH, 40)) as pilot:
        await pilot.press(*keys)
        for width in sorted({LEAST_WIDTH, *later.values(), *(w - 1 for w in later.values())}):
            await pilot.resize_terminal(width, 40)
            await pilot.pause()
            drawn[width] = plain(app.screen.query_one(f"#{name}", Panel).lines[0])
    heading = re.compile(r"\s+")
    for column in always:
        assert UNITS.get(column, column) in drawn[LEAST_WIDTH]
    for column, width in later.items():
        assert f" {column} " in heading.sub(" ", drawn[width] + " ")
        assert f" {column} " not in heading.sub(" ", drawn[width - 1] + " ")
    if name != "gpus":
        words = set(heading.split(" ".join([*always, *later, "session", "n"])))
        assert set(drawn[max(drawn)].split()) <= words
