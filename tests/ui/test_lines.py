from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from agentserve.ui.lines import Span, cells, clip, fit, plain, spread, wrap

TEXT = st.text(max_size=80) | st.text("漢字abc [/]", max_size=80)


@given(text=TEXT, width=st.integers(0, 40), right=st.booleans())
def test_a_fitted_text_is_exactly_as_wide_as_asked(text: str, width: int, right: bool) -> None:
    assert cell_len(fit(text, width, right=right)) == width


@given(text=TEXT, width=st.integers(2, 40))
def test_wrapped_rows_never_exceed_the_width(text: str, width: int) -> None:
    rows = wrap(text, width)
    assert rows
    assert all(cell_len(row) <= width for row in rows)


def test_wrapping_breaks_at_spaces_and_says_when_text_is_lost() -> None:
    assert wrap("one two three", 8) == ["one two", "three"]
    assert wrap("a" * 50, 10, most=2) == ["a" * 10, "a" * 9 + "…"]


@given(left=TEXT, right=TEXT, width=st.integers(1, 60))
def test_a_spread_line_ends_at_the_right_edge(left: str, right: str, width: int) -> None:
    line = spread((Span(fit(left, 20)),), (Span(fit(right, 12)),), width)
    assert cells(line) <= width
    if width >= 12:
        assert cells(line) == width
        assert plain(line).endswith(fit(right, 12))


@given(text=TEXT, width=st.integers(1, 60))
def test_a_clipped_line_fits(text: str, width: int) -> None:
    line = (Span(fit(text, 30)), Span("tail"))
    assert cells(clip(line, width)) <= width
