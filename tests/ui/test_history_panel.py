"""The drawing of past requests, which the screen and the command share."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.history import RequestFact, RequestHistoryReport
from agentserve.ui.formatting import DASH
from agentserve.ui.glyphs import FILL, HALF
from agentserve.ui.lines import plain
from agentserve.ui.panels.request_history import HistoryPage, draw, draw_page, title

from .drawn_panels import HOSTILE, assert_inside, assert_prints_only, text_of
from .scripted_history import fact, nothing_stored, report, some_weeks

FACTS = st.lists(
    st.builds(
        fact,
        st.integers(0, 40),
        st.none() | st.integers(0, 10**12),
        st.none() | st.integers(0, 10**12),
        preset=st.sampled_from(["tiny", "", HOSTILE]),
        agent=st.sampled_from([None, "codex", HOSTILE]),
        session=st.none() | st.sampled_from([f"{n:012x}" for n in range(12)]),
        outcome=st.sampled_from(["stop", "aborted", "error"]),
        ttft_s=st.none() | st.floats(0, 10**6),
    ),
    max_size=40,
)


def rows(shown: RequestHistoryReport, width: int = 76) -> list[str]:
    return [plain(line) for line in draw(shown, width, 999)]


def row(shown: RequestHistoryReport, start: str, width: int = 76) -> str:
    (found,) = [line for line in rows(shown, width) if line.startswith(start)]
    return found


def halves(text: str) -> int:
    return 2 * text.count(FILL) + text.count(HALF)


def page(shown: RequestHistoryReport | None = None, **changes: Any) -> HistoryPage:
    return HistoryPage(7, shown)._replace(**changes)


@given(FACTS, st.sampled_from([7, 30, 90]), st.integers(0, 260), st.integers(0, 200))
def test_the_page_stays_inside_its_rectangle_and_shows_text_as_data(
    facts: list[RequestFact], days: int, width: int, height: int
) -> None:
    lines = draw_page(page(report(facts, days)), {}, width, height)
    assert_inside(lines, width, height)
    assert_prints_only(lines)


def test_a_problem_is_shown_as_data() -> None:
    lines = draw_page(page(problem=HOSTILE), {}, 120, 20)
    assert_inside(lines, 120, 20)
    assert_prints_only(lines)


def test_the_largest_computed_amount_fills_its_bar_and_the_hit_rate_is_a_share() -> None:
    shown = report([fact(1, 500, 1_000), fact(0, 3_000, 4_000)])
    today, yesterday = row(shown, "2026-06-15"), row(shown, "2026-06-14")
    today_hit, today_computed = today.split("%")
    _, yesterday_computed = yesterday.split("%")
    assert halves(yesterday_computed) == pytest.approx(halves(today_computed) / 4, abs=1)
    cells = halves(today_computed) // 2
    assert halves(today_hit) == pytest.approx(2 * cells * 3_000 / 7_000, abs=1)
    assert "42.9 %" in today
    assert "4000" in today
    assert "250 ms" in today


def test_a_little_of_something_still_shows() -> None:
    line = row(report([fact(1, 1_000_000, 1), fact(0, 0, 10**9)]), "2026-06-14")
    assert halves(line.split("%")[1]) == 1


def test_unknown_is_a_dash_and_has_no_bar() -> None:
    line = row(report([fact(0, None, None, ttft_s=None)]), "2026-06-15")
    assert halves(line) == 0
    assert line.count(DASH) == 4
    assert "0" not in line.removeprefix("2026-06-15 Mon")


def test_days_come_newest_first_and_idle_ones_take_one_line() -> None:
    text = "\n".join(rows(report([fact(9, 1, 1), fact(2, 1, 1)], days=14)))
    newest, oldest = text.index("2026-06-13 Sat"), text.index("2026-06-06 Sat")
    assert text.index("2 days without requests") < newest
    assert newest < text.index("6 days without requests") < oldest


def test_a_session_has_a_short_digest_its_agent_and_its_turns() -> None:
    shown = report([fact(0, 5, 5, session="abcdef012345", agent="codex") for _ in range(3)])
    line = row(shown, "abcdef codex")
    assert line.endswith(" 3")
    assert "50.0 %" in line
    assert "abcdef0" not in line


def test_rows_that_are_left_out_are_counted_also_those_that_were_not_sent() -> None:
    shown = report([fact(0, 1, 1, session=f"{n:012x}") for n in range(20)])
    shown = msgspec.structs.replace(shown, sessions=shown.sessions[:5])
    text = "\n".join(plain(line) for line in draw(shown, 76, 999, most_rows=3))
    assert "17 more: agentserve-tui history --json" in text


def test_the_totals_name_what_ended_badly() -> None:
    shown = report([fact(0, 1, 1, outcome="aborted"), fact(0, 1, 1, outcome="error")])
    text = "\n".join(rows(shown))
    assert "aborted 1" in text
    assert "failed 1" in text
    assert "aborted" not in "\n".join(rows(report([fact(0, 1, 1)])))


def test_the_tables_stand_beside_the_days_where_there_is_room() -> None:
    assert any("by day" in line and "by preset" in line for line in rows(some_weeks(30), 192))
    assert not any("by day" in line and "by preset" in line for line in rows(some_weeks(30), 112))


def test_cached_tokens_are_shown_where_there_is_room() -> None:
    assert "cached" in rows(some_weeks(7), 112)[3]
    assert "cached" not in rows(some_weeks(7), 76)[3]


def test_an_empty_history_says_so_and_names_the_next_key() -> None:
    text = text_of(draw_page(page(nothing_stored(7)), {}, 76, 20))
    assert "No history yet" in text
    assert "enter read again" in text
    assert "esc back" in text
    assert "more days" not in text


def test_requests_before_the_days_are_named_with_the_key_that_shows_them() -> None:
    older = report([fact(20, 1, 1)])
    text = text_of(draw_page(page(older), {"history.more": ("f7",)}, 110, 20))
    assert "the newest one stored ended 2026-05-26 12:00" in text.replace("\n", " ")
    assert "f7 more days" in text
    longest = text_of(draw_page(page(older, has_more_days=False), {}, 76, 20))
    assert "more days" not in longest


def test_a_history_that_is_off_is_said_with_and_without_requests() -> None:
    for shown in (nothing_stored(7), some_weeks(7)):
        off = msgspec.structs.replace(shown, is_recorded=False)
        assert "[history] enabled = false" in text_of(draw_page(page(off), {}, 76, 99))
        assert "enabled" not in text_of(draw_page(page(shown), {}, 76, 99))


def test_the_title_says_while_it_reads_and_when_it_read() -> None:
    assert title(page(is_reading=True)) == "History · last 7 days · reading…"
    assert title(page(read_at_unix_s=3_600.0)) == "History · last 7 days · read at 01:00:00"
