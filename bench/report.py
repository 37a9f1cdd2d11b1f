"""Rounds of measurements, their medians and ratios, and the table; pure.

Owns how figures are summarised. It knows neither how they were measured nor the product.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

Aim = Literal["at least", "at most"]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, measured once in each round.

    Without `plain` the figure is judged by its median; with it by the median of the rounds' ratios.
    """

    name: str
    unit: str
    ours: tuple[float, ...]
    plain: tuple[float, ...] = ()
    """The plain server's values, round by round; empty when it has no such figure."""
    aim: float | None = None
    """Of the ratio if there is one, else of the median; None for a figure that only explains."""
    aim_is: Aim = "at most"

    def __post_init__(self) -> None:
        """Refuse rounds that have no partner.

        Raises:
            ValueError: There are no rounds, or the two sides have a different number of them.
        """
        if not self.ours:
            raise ValueError(f"{self.name}: nothing was measured")
        if self.plain and len(self.plain) != len(self.ours):
            raise ValueError(f"{self.name}: {len(self.ours)} and {len(self.plain)} rounds")

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ours over plain, round by round; empty without `plain`.

        Both values of a round were measured one after the other, so what slows the machine for
        minutes cancels out, which it would not in a ratio of medians.
        """
        return tuple(
            ours / plain if plain else float("inf")
            for ours, plain in zip(self.ours, self.plain, strict=False)
        )

    @property
    def judged(self) -> float:
        """The value that the aim speaks about."""
        return statistics.median(self.ratios or self.ours)

    @property
    def met(self) -> bool | None:
        """Whether the aim is met; None without an aim."""
        if self.aim is None:
            return None
        return self.judged >= self.aim if self.aim_is == "at least" else self.judged <= self.aim


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one part of the benchmark."""

    title: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()
    sides: tuple[str, str] = ("ours", "plain vLLM")
    """What is compared."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one run measured."""

    machine: tuple[str, ...]
    """Facts about the machine, one a line."""
    sections: tuple[Section, ...]


def markdown(report: Report) -> str:
    """Write a report as Markdown.

    Args:
        report: What was measured.

    Returns:
        A list of facts, then for each section a title, a table and its notes.
    """
    blocks = ["\n".join(f"- {fact}" for fact in report.machine)]
    for section in report.sections:
        blocks += [f"### {section.title}", _table(section.figures, section.sides)]
        blocks += ["\n".join(f"- {note}" for note in section.notes)] if section.notes else []
    return "\n\n".join(blocks) + "\n"


def _table(figures: Sequence[Figure], sides: tuple[str, str]) -> str:
    head = f"| figure | {sides[0]} | {sides[1]} | ratio (median [min-max]) | aim | met | n |"
    return "\n".join([head, "|---|---|---|---|---|---|---|", *map(_row, figures)])


def _row(figure: Figure) -> str:
    unit = f" {figure.unit}" if figure.unit else ""
    aim = "-"
    if figure.aim is not None:
        sign = "≥" if figure.aim_is == "at least" else "≤"
        aim = f"{sign} {_number(figure.aim)}" + ("" if figure.ratios else unit)
    ours = f"{_number(statistics.median(figure.ours))}{unit}"
    if not figure.ratios:
        ours += f" [{_span(figure.ours)}]"
    cells = (
        figure.name,
        ours,
        f"{_number(statistics.median(figure.plain))}{unit}" if figure.plain else "-",
        f"{figure.judged:.3f} [{_ratio_span(figure.ratios)}]" if figure.ratios else "-",
        aim,
        {True: "yes", False: "**no**", None: "-"}[figure.met],
        str(len(figure.ours)),
    )
    return "| " + " | ".join(cells) + " |"


def _span(values: Sequence[float]) -> str:
    return f"{_number(min(values))}-{_number(max(values))}"


def _ratio_span(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.3f}-{max(ratios):.3f}"


def _number(value: float) -> str:
    """Write three significant digits, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")
