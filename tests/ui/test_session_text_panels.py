"""Excerpts of prompts, evictions and names: text of any length in the rows that there are."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from agentserve.domain.session import EvictionView, Excerpt
from agentserve.ui.lines import Lines, Role, cells, plain
from agentserve.ui.panels import pool_bar, session_detail, session_table, session_timeline
from agentserve.ui.panels.pool_bar import Letters, fit_name

from . import scripted, scripted_sessions
from .drawn_panels import HOSTILE, assert_inside, assert_prints_only, text_of
from .scripted_sessions import CLOCK, MONITOR, NOW, session, turn

LABEL_CELLS = 9
WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda my nu xi omicron pi rho"


def excerpt_lines(before: str, after: str, start: int, ends: tuple[int, int], width: int) -> Lines:
    """Draw a turn whose verdict has this excerpt, from the row `before` on."""
    excerpt = Excerpt(
        before=before,
        after=after,
        change_start=start,
        before_change_end=ends[0],
        after_change_end=ends[1],
    )
    verdict = msgspec.structs.replace(CLOCK, excerpt=excerpt)
    view = session(1, history=(turn(1, verdict=verdict),))
    lines = session_detail.text_lines(view, None, width)
    first = next(index for index, line in enumerate(lines) if plain(line).startswith("before"))
    return lines[first:]


def rows_of(lines: Lines, label: str) -> list[str]:
    """Return the rows of one of the two texts, without the rows of carets."""
    labels = [plain(line)[:LABEL_CELLS].strip() for line in lines]
    first = labels.index(label)
    last = next((i for i in range(first + 1, len(labels)) if labels[i]), len(labels))
    rows = [plain(line)[LABEL_CELLS:] for line in lines[first:last]]
    return [row for row in rows if row.strip("^ ")]


def marked(lines: Lines) -> str:
    return "".join(span.text for line in lines for span in line if span.role is Role.MARKED)


# Excerpts.


@pytest.mark.parametrize("width", [30, 40, 60, 78])
def test_an_excerpt_is_broken_between_words(width: int) -> None:
    start = WORDS.index("theta")
    lines = excerpt_lines(WORDS, WORDS.replace("theta", "THETA"), start, (start + 5,) * 2, width)
    rows = rows_of(lines, "before")
    assert len(rows) > 1
    assert " ".join(row.strip() for row in rows) == WORDS
    assert not any(row.startswith(" ") for row in rows)
    assert marked(lines) == "thetaTHETA"


def test_an_excerpt_is_broken_behind_the_sign_of_a_lines_end() -> None:
    text = f"{'word ' * 10}first line↵{'second' * 3}"
    rows = rows_of(
        excerpt_lines(text, text + "!", len(text), (len(text), len(text) + 1), 78), "now"
    )
    assert rows[0].endswith("first line↵")


def test_what_has_no_blank_is_cut_where_the_row_ends() -> None:
    text = "id " + "0123456789" * 20
    rows = rows_of(
        excerpt_lines(text, text + "!", len(text), (len(text), len(text) + 1), 78), "now"
    )
    assert [cell_len(row) for row in rows[:-1]] == [78 - LABEL_CELLS] * (len(rows) - 1)
    assert "".join(rows) == text + "!"


def test_a_blank_that_was_put_in_where_a_row_ends_is_marked() -> None:
    """The row has room for exactly the words before the blank."""
    room = 20
    before, after = "a" * room + " b c", "a" * room + "  b c"
    lines = excerpt_lines(before, after, room, (room, room + 1), room + LABEL_CELLS)
    assert marked(lines) == " "
    carets = [plain(line).strip() for line in lines]
    assert carets.count("^") == 2


@given(
    head=st.text(alphabet="ab 漢e\u0301↵", max_size=80),
    old=st.text(alphabet="xy 字", max_size=80),
    new=st.text(alphabet="xy 字", max_size=80),
    tail=st.text(alphabet="cd 漢↵", max_size=80),
    width=st.integers(11, 100),
)
def test_no_character_of_an_excerpt_is_lost_but_blanks_between_rows(
    head: str, old: str, new: str, tail: str, width: int
) -> None:
    ends = (len(head) + len(old), len(head) + len(new))
    lines = excerpt_lines(head + old + tail, head + new + tail, len(head), ends, width)
    assert_inside(lines, width, len(lines))
    texts = {"before": head + old + tail, "now": head + new + tail}
    if all(text.strip() and "^" not in text for text in texts.values()):
        for label, text in texts.items():
            shown = "".join(rows_of(lines, label))
            assert shown.replace(" ", "") == text.replace(" ", "")
    assert marked(lines) == old + new


def test_an_excerpt_from_outside_prints_only() -> None:
    for width in (30, 78):
        ends = (len(HOSTILE), len(HOSTILE))
        assert_prints_only(excerpt_lines(HOSTILE, HOSTILE + "!", 5, ends, width))


# Evictions.


def evictions(number: int) -> tuple[EvictionView, ...]:
    return tuple(
        EvictionView(
            at_unix_s=NOW - 12 - 60 * index,
            loser=("s1", None, "gone")[index % 3],
            winner="s3",
            blocks=40 + index,
            tokens=None if index % 4 == 3 else 640 + index,
        )
        for index in range(number)
    )


LABELS = {"s1": "Claude Code 14 side 3", "s3": "Claude Code 14 side 4"}


def footer(number: int, width: int, height: int, problem: str | None = None) -> list[str]:
    monitor = msgspec.structs.replace(
        MONITOR, evictions=evictions(number), residency_problem=problem
    )
    lines = session_table.draw_footer(monitor, LABELS, NOW, width, height)
    assert_inside(lines, width, height)
    return text_of(lines).splitlines()


def test_as_many_evictions_are_shown_as_there_are_rows_newest_first() -> None:
    assert footer(20, 116, 5)[1:] == [
        "last eviction 12 s ago    Claude Code 14 side 3 lost 640 tokens to Claude Code 14 side 4",
        "              1 min ago   no known session lost 641 tokens to Claude Code 14 side 4",
        "              2 min ago   a former session lost 642 tokens to Claude Code 14 side 4",
        "              3 min ago   Claude Code 14 side 3 lost 43 blocks to Claude Code 14 side 4",
    ]
    assert len(footer(20, 116, 9)) == 9
    assert len(footer(2, 116, 9)) == 3
    assert len(footer(20, 116, 2)) == 2
    assert footer(0, 116, 9)[1:] == ["last eviction none"]


def test_a_problem_with_the_cache_events_takes_the_first_row_of_the_evictions() -> None:
    rows = footer(20, 116, 5, "Events were lost.")
    assert rows[1] == "! Events were lost."
    assert rows[2].startswith("last eviction 12 s ago")
    assert footer(20, 116, 2, "Events were lost.")[1] == "! Events were lost."


def test_in_80_columns_both_sides_of_an_eviction_are_named() -> None:
    row = footer(1, 78, 2)[1]
    assert row == "last eviction 12 s ago    Claude…14 side 3 lost 640 tokens to Claude…14 side 4"


# Names.


@given(name=st.text(max_size=60), width=st.integers(0, 50))
def test_a_name_has_exactly_the_width_that_it_was_given(name: str, width: int) -> None:
    assert cell_len(fit_name(name, width)) == width


@pytest.mark.parametrize("width", [78, 98, 116, 196])
def test_names_that_differ_at_their_end_differ_on_screen(width: int) -> None:
    mains = ("Claude Code 4", "Claude Code 14", "OpenCode 4")
    labels = [f"{main} side{n}" for main in mains for n in ("", *(f" {n}" for n in range(2, 12)))]
    sessions = tuple(session(n, label=label, side=True) for n, label in enumerate(labels))
    for lines in (
        session_table.draw(sessions, None, Letters(), NOW, "", width, 40),
        session_table.draw_compact(sessions, 9, None, 0, "c", NOW, width, 40),
    ):
        shown = {next(span.text for span in line if "side" in span.text) for line in lines[1:]}
        assert len(shown) == len(labels)


def test_parts_of_the_pool_stand_apart_in_the_legend() -> None:
    labels = {"s3": "Claude Code 14 side 3", "s1": "Claude Code 14 side 4"}
    letters = Letters().following(MONITOR.shares)
    for width in (78, 116, 196):
        text = text_of(pool_bar.draw(scripted.serving().kv, MONITOR, labels, letters, width, 5))
        assert "14 side 3" in text
        assert " %  B " in text


# The heading of the turns.


def test_the_turns_say_how_many_there_are() -> None:
    turns = scripted_sessions.history(12)
    assert session_timeline.title(session(1, requests=12, history=turns)) == (
        "Turns · 12 · newest first"
    )
    assert session_timeline.title(session(1, requests=40, history=turns)) == (
        "Turns · the newest 12 of 40"
    )
    assert session_timeline.title(None) == "Turns"


def test_the_scale_of_the_turns_is_no_number_of_a_turn() -> None:
    view = session(1, history=scripted_sessions.history())
    for width in (78, 116):
        heading = plain(session_timeline.draw(view, None, 0, width, 9)[2])
        assert "max 31.4k tok" in heading
        assert "turn 0" not in heading
        assert cells(session_timeline.draw(view, None, 0, width, 9)[2]) <= width
