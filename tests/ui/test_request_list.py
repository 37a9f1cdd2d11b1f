from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentserve.domain.request import RequestOutcome, RequestRecord
from agentserve.ui.formatting import DASH
from agentserve.ui.lines import Lines, Role, cells, plain
from agentserve.ui.panels import request_detail, request_table
from agentserve.ui.request_list import ListView, Request, SortKey, chosen, position, rows_of

from . import scripted

RUNNING = scripted.serving().in_flight
ENDED = scripted.serving().recent_requests
LABELS = {"s1": "Qwen Code 1", "s2": "OpenCode 12 side"}
UNKNOWN = scripted.request(
    77,
    agent=None,
    route=None,
    cached_tokens=None,
    computed_tokens=None,
    queued_s=None,
    ttft_s=None,
    decode_s=None,
    preemptions=None,
    outcome=RequestOutcome.ABORTED,
)


def text_of(lines: Lines) -> str:
    return "\n".join(plain(line) for line in lines)


def detail(request: Request | None, width: int = 98, session: str | None = None) -> str:
    return text_of(request_detail.draw(request, session, "c", width, 40))


def test_by_time_running_requests_come_first_and_then_the_newest() -> None:
    rows = rows_of(RUNNING, ENDED, LABELS, ListView())
    assert rows == (*RUNNING, *ENDED)


@pytest.mark.parametrize(
    ("sort", "value"),
    [
        (SortKey.PROMPT, lambda row: row.prompt_tokens),
        (SortKey.COMPUTED, lambda row: row.computed_tokens),
        (SortKey.TTFT, lambda row: getattr(row, "ttft_s", None)),
        (SortKey.SPEED, lambda row: getattr(row, "decode_tokens_per_s", None)),
    ],
)
def test_other_orders_put_the_largest_first_and_the_unknown_last(sort: SortKey, value) -> None:  # type: ignore[no-untyped-def]
    values = [
        value(row) for row in rows_of(RUNNING, (UNKNOWN, *ENDED), LABELS, ListView(sort=sort))
    ]
    known = [each for each in values if each is not None]
    assert known == sorted(known, reverse=True)
    assert values[: len(known)] == known


def test_the_sort_key_goes_round_and_the_cursor_back_to_the_top() -> None:
    view = ListView(cursor="r5", top=3)
    seen = []
    for _ in SortKey:
        view = view.next_sort()
        seen.append(view.sort)
        assert (view.cursor, view.top) == (None, 0)
    assert set(seen) == set(SortKey)
    assert view.sort is SortKey.TIME


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("CODEX", lambda row: "codex" in (row.agent or "")),
        ("/v1/messages", lambda row: row.route == "/v1/messages"),
        ("aborted", lambda row: getattr(row, "outcome", "") == "aborted"),
        ("prefill", lambda row: getattr(row, "phase", "") == "prefill"),
        ("nothing has this", lambda row: False),
    ],
)
def test_a_filter_looks_into_agent_route_and_outcome(text: str, fits) -> None:  # type: ignore[no-untyped-def]
    everything = rows_of(RUNNING, ENDED, LABELS, ListView())
    assert rows_of(RUNNING, ENDED, LABELS, ListView(text=text)) == tuple(
        row for row in everything if fits(row)
    )


def test_a_filter_finds_requests_of_a_session_by_its_label() -> None:
    running = msgspec.structs.replace(RUNNING[0], session="s2")
    ended = scripted.request(1, session="s2")
    others = (scripted.request(2, session="s1"), scripted.request(3, session="forgotten"))
    view = ListView(text="code 12 SIDE")
    assert rows_of((running,), (ended, *others), LABELS, view) == (running, ended)
    # An id is no label: it would be found without being seen.
    assert rows_of((running,), (ended, *others), LABELS, ListView(text="forgotten")) == ()


def test_the_cursor_stays_with_its_request_while_new_ones_arrive() -> None:
    rows = rows_of((), ENDED, LABELS, ListView())
    view = ListView().moved(rows, 3)
    assert view.cursor == ENDED[3].request_id
    newer = scripted.request(99, request_id="new")
    rows = rows_of((), (newer, *ENDED), LABELS, view)
    assert position(rows, view.cursor) == 4
    assert chosen(rows, view.cursor) == ENDED[3]


@settings(max_examples=60)
@given(
    steps=st.lists(st.integers(-40, 40), max_size=8),
    height=st.integers(1, 12),
    count=st.integers(0, 40),
)
def test_the_cursor_is_always_in_view_and_inside_the_list(
    steps: list[int], height: int, count: int
) -> None:
    rows: tuple[Request, ...] = tuple(scripted.request(number) for number in range(count))
    view = ListView()
    for each in steps:
        view = view.moved(rows, each).scrolled(rows, height)
        at = position(rows, view.cursor)
        assert view.top <= at < view.top + height
        assert 0 <= view.top <= max(0, count - height)


def test_the_table_marks_the_chosen_row_and_names_the_order() -> None:
    view = ListView(sort=SortKey.PROMPT).moved(
        rows_of(RUNNING, ENDED, LABELS, ListView(sort=SortKey.PROMPT)), 2
    )
    lines = request_table.draw(RUNNING, ENDED, LABELS, view, 110, 12)
    assert [index for index, line in enumerate(lines) if line[0].text == "▸ "] == [3]
    assert [span.text.strip() for span in lines[0] if span.role is Role.ACCENT] == ["prompt"]
    assert request_table.title(RUNNING, ENDED, LABELS, view) == "Requests · 32 · by prompt"
    filtered = view._replace(text="codex")
    assert request_table.title(RUNNING, ENDED, LABELS, filtered).startswith("Requests · 7 of 32")


def test_all_rows_of_the_table_are_equally_wide_in_their_columns() -> None:
    for width in (76, 100, 196):
        lines = request_table.draw(RUNNING, ENDED, LABELS, ListView(), width, 30)
        ends = {plain(line).find(" ms") for line in lines if " ms" in plain(line)}
        assert len(ends) == 1


def test_a_wide_table_names_the_session_of_running_and_finished_requests() -> None:
    running = msgspec.structs.replace(RUNNING[0], session="s2")
    recent = (
        scripted.request(1, session="s1"),
        scripted.request(2, session="forgotten"),
        scripted.request(3),
    )
    for width in (112, 116, 196):
        heading, *rows = map(
            plain, request_table.draw((running,), recent, LABELS, ListView(), width, 30)
        )
        begin, end = heading.index("session"), heading.index("prompt")
        named = [row[begin:end].split("  ")[0].strip() for row in rows]
        assert named == ["OpenCode 12 side", "Qwen Code 1", DASH, DASH]
        assert {len(row.rstrip()) for row in rows[1:]} == {len(heading)}
    narrow = request_table.draw((running,), recent, LABELS, ListView(), 76, 30)
    assert "session" not in plain(narrow[0])


def test_the_detail_names_the_session_and_the_key_that_shows_it() -> None:
    for request in (RUNNING[0], ENDED[0]):
        first, *rows = detail(request, session="Qwen Code 1").splitlines()
        assert first.endswith("c shows the sessions")
        assert any(row.split()[:4] == ["session", "Qwen", "Code", "1"] for row in rows)
        first, *rows = detail(request).splitlines()
        assert "shows the sessions" not in first
        assert any(row.split()[:2] == ["session", DASH] for row in rows)


def test_a_request_shows_its_phases_to_scale_with_seconds() -> None:
    record = scripted.request(1, queued_s=1.0, ttft_s=4.0, decode_s=5.0, elapsed_s=10.0)
    lines = request_detail.draw(record, None, "c", 98, 40)
    bars = {plain(line).split()[0]: plain(line) for line in lines[1:5]}
    room = 98 - 10 - 9 - 1

    def filled(name: str) -> tuple[int, int]:
        bar = bars[name][10 : 10 + room]
        return bar.find("━"), bar.count("━")

    assert filled("queued") == (0, round(room * 0.1))
    assert filled("prefill") == (round(room * 0.1), round(room * 0.4) - round(room * 0.1))
    assert filled("decode") == (round(room * 0.4), round(room * 0.9) - round(room * 0.4))
    assert filled("end")[0] == round(room * 0.9)
    for name, length in (("queued", 1), ("prefill", 3), ("decode", 5), ("end", 1)):
        assert f"{length}.00 s" in bars[name]


def test_a_prefill_of_milliseconds_is_no_zero() -> None:
    text = detail(scripted.request(1, queued_s=0.0012, ttft_s=0.0382, decode_s=5.0, elapsed_s=5.1))
    rows = {row.split()[0]: row for row in text.splitlines()[1:5]}
    assert "1.20 ms" in rows["queued"]
    assert "37.0 ms" in rows["prefill"]
    assert "TTFT 38.2 ms" in " ".join(text.split())


def test_a_request_shows_its_tokens_speeds_and_outcome() -> None:
    record = scripted.request(
        1,
        prompt_tokens=20_000,
        cached_tokens=18_000,
        computed_tokens=2_000,
        preemptions=2,
        queued_s=0.0,
        ttft_s=2.0,
        decode_s=4.22,
        generated_tokens=212,
    )
    text = " ".join(detail(record).split())
    for part in (
        *("done", "20000 tok", "90.0 % 18000 tok", "2000 tok", "212 tok"),
        *("1000 tok/s", "50.0 tok/s", "preempted 2 x", "claude-cli", "/v1/messages", "gen 3"),
    ):
        assert part in text


def test_what_is_not_known_of_a_request_is_a_dash_and_has_no_bar() -> None:
    text = detail(UNKNOWN)
    assert "✗ aborted" in text
    assert "━" not in text
    assert text.count(DASH) >= 10
    assert "0.0 s" not in text


def test_a_running_request_says_that_its_phases_are_not_known_yet() -> None:
    text = detail(RUNNING[0])
    assert "prefill" in text
    assert "known when it has ended" in text
    assert "━" not in text


TIMES = st.none() | st.floats(0, 1e6, allow_nan=False)


@settings(max_examples=80)
@given(
    queued=TIMES, ttft=TIMES, decode=TIMES, elapsed=st.floats(0, 1e6), width=st.integers(20, 220)
)
def test_a_timeline_never_leaves_its_lines(
    queued: float | None, ttft: float | None, decode: float | None, elapsed: float, width: int
) -> None:
    record: RequestRecord = msgspec.structs.replace(
        scripted.request(1), queued_s=queued, ttft_s=ttft, decode_s=decode, elapsed_s=elapsed
    )
    lines = request_detail.draw(record, None, "c", width, 40)
    assert [plain(line) for line in lines if cells(line) > width] == []
