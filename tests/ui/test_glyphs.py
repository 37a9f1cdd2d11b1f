from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentserve.ui.glyphs import bar, series_rows, to_ascii

VALUES = st.lists(st.none() | st.floats(), max_size=60)


def test_a_series_ends_at_the_right_and_leaves_unknown_columns_empty() -> None:
    assert series_rows([0.0, None, 50.0, 100.0], 6) == ("  ▁ ▄▇",)


def test_a_taller_graph_stacks_its_columns() -> None:
    assert series_rows([8.0, 16.0], 2, height=2, top=16.0) == (" ▇", "██")


def test_a_measured_zero_differs_from_an_unknown_value() -> None:
    assert series_rows([0.0], 1) != series_rows([None], 1)


@given(
    values=VALUES,
    width=st.integers(0, 50),
    height=st.integers(1, 5),
    top=st.none() | st.floats(0, 1e9),
)
def test_a_graph_fills_its_rectangle_exactly(
    values: list[float | None], width: int, height: int, top: float | None
) -> None:
    rows = series_rows(values, width, height, top)
    assert len(rows) == height
    assert all(len(row) == width for row in rows)


@given(values=VALUES, width=st.integers(1, 50))
def test_every_sign_of_a_graph_has_an_ascii_form(values: list[float | None], width: int) -> None:
    assert all(to_ascii(row).isascii() for row in series_rows(values, width, 2))


@given(fraction=st.none() | st.floats(), width=st.integers(0, 60))
def test_a_bar_keeps_its_length(fraction: float | None, width: int) -> None:
    filled, empty = bar(fraction, width)
    assert len(filled) + len(empty) == width
    assert to_ascii(filled + empty).isascii()


def test_a_small_share_shows_and_nothing_does_not() -> None:
    assert bar(0.001, 10)[0] == "╸"
    assert bar(0.0, 10)[0] == ""
    assert bar(None, 10)[0] == ""
    assert bar(1.0, 4) == ("━━━━", "")
