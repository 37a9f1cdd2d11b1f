"""Writes the key tables of the documents from the action registry.

Owns the markers between which a table stands, and which actions the README's short table names. Run
it after a change of the registry; a test says when that was forgotten:

    python tools/write_keys_table.py
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from agentserve.ui.actions import ACTIONS, SLOTS, documentation_table

ROOT = Path(__file__).parents[1]
SHORT = (
    *("engine.toggle", "engine.restart", f"preset.{SLOTS[0]}", "engine.previous"),
    *("view.presets", "change.budget_down", "change.budget_up", "change.draft_tokens"),
    *("view.sessions", "view.requests", "view.history", "view.log", "view.gpus", "view.agents"),
    *(
        "view.explain",
        "app.copy_address",
        "app.theme",
        "app.palette",
        "view.help",
        "view.back",
        "app.quit",
    ),
)
"""Actions in the README, in this order."""

_ROW = re.compile(r"\| `(?P<id>[^`]+)` \| (?P<keys>.+?) \| (?P<help>.+) \|")


class _Cells(NamedTuple):
    ids: str
    keys: str
    help: str


def full_tables() -> str:
    """Write all actions, one Markdown table for each group."""
    cells = _cells()
    tables = []
    for group, grouped in groupby(ACTIONS, key=lambda action: action.group):
        actions = [*grouped]
        heading = [f"### {group}", ""]
        if all(action.scope for action in actions):
            heading += ["These work in that view only.", ""]
        shown = [cells[action.id] for action in actions if action.id in cells]
        rows = [f"| {each.keys} | {each.ids} | {each.help} |" for each in shown]
        table = ["| Keys | Action | What it does |", "|---|---|---|", *rows]
        tables.append("\n".join([*heading, *table]))
    return "\n\n".join(tables)


def short_table() -> str:
    """Write the keys that the README names."""
    cells = _cells()
    rows = [f"| {cells[each].keys} | {cells[each].help} |" for each in SHORT]
    return "\n".join(["| key | does |", "|---|---|", *rows])


def with_table(text: str, name: str, table: str) -> str:
    """Put a table between the markers of its name.

    Args:
        text: A Markdown document.
        name: Name in the markers.
        table: What shall stand between them.

    Raises:
        ValueError: The document has no such pair of markers, or several.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"expected {begin} and {end} once each")
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"


DOCUMENTS = (
    (ROOT / "docs" / "guide" / "keys.md", "keys", full_tables),
    (ROOT / "README.md", "short keys", short_table),
)
"""Each document with its markers' name and the table that belongs there."""


def main() -> None:
    """Bring all tables up to date, and name the documents that changed."""
    for path, name, table in DOCUMENTS:
        text = path.read_text()
        new = with_table(text, name, table())
        if new != text:
            path.write_text(new)
            print(path.relative_to(ROOT))


def _cells() -> dict[str, _Cells]:
    """Split the registry's table into its cells, by action; the digits become one row."""
    found = {
        cells["id"]: _Cells(f"`{cells['id']}`", cells["keys"], cells["help"])
        for cells in map(_ROW.fullmatch, documentation_table().splitlines())
        if cells is not None
    }
    first, last = SLOTS[0], SLOTS[-1]
    for slot in SLOTS[1:]:
        del found[f"preset.{slot}"]
    found[f"preset.{first}"] = _Cells(
        f"`preset.{first}` to `preset.{last}`",
        f"`{first}` to `{last}`",
        "Start the preset in that slot, or switch to it.",
    )
    return found


if __name__ == "__main__":
    main()
