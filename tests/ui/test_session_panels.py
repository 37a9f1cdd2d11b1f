"""The drawings of agent sessions, from lines alone."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentserve.domain.prompt import PartKind, PromptPart
from agentserve.domain.session import (
    CacheMonitorView,
    EvictionView,
    Excerpt,
    LayoutPartView,
    PoolShare,
    SessionView,
    TurnView,
    Verdict,
    VerdictKind,
    VolatileKind,
)
from agentserve.domain.snapshot import KvView
from agentserve.ui.formatting import DASH
from agentserve.ui.frame import Frame
from agentserve.ui.glyphs import COMPUTED_FILL, EXPECTED, FILL, GENERATED_FILL, UNKNOWN, to_ascii
from agentserve.ui.lines import Lines, Role, cells, plain
from agentserve.ui.panels import pool_bar, session_detail, session_table, session_timeline
from agentserve.ui.panels.pool_bar import LETTERS, Letters
from agentserve.ui.verdict_words import WORD_WIDTH, is_loss, phrase, sign, verdict_span, word

from . import scripted, scripted_sessions
from .drawn_panels import HOSTILE, Draw, assert_inside, assert_prints_only, text_of
from .scripted_sessions import CLOCK, MONITOR, NOW, session, three, turn

NO_LETTERS = Letters()
LABELS = {each.id: each.label for each in three()}
KV = scripted.serving().kv


def letters(*shares: PoolShare) -> Letters:
    return NO_LETTERS.following(shares or MONITOR.shares)


def table(*sessions: SessionView, width: int = 196, height: int = 20) -> str:
    return text_of(session_table.draw(sessions, sessions[0].id, letters(), NOW, "", width, height))


def hostile() -> SessionView:
    part = PromptPart(kind=PartKind.TOOL, name="[red]x[/]\x1b[31m")
    verdict = Verdict(
        kind=VerdictKind.VOLATILE_VALUE,
        sentence=HOSTILE,
        advice=HOSTILE,
        token_index=3,
        part=part,
        excerpt=Excerpt(
            before=f"[red]x[/]\x1b[2J{HOSTILE}",
            after=f"[red]y[/]\x1b[2J{HOSTILE}",
            change_start=5,
            before_change_end=6,
            after_change_end=6,
        ),
    )
    return session(
        1,
        label="[red]x[/]" + HOSTILE,
        agent=HOSTILE,
        isolation=HOSTILE,
        verdict=verdict,
        history=(turn(1, verdict=verdict),),
        layout=(LayoutPartView(part=part, tokens=1, turns=2, changes=1),),
        layout_advice=HOSTILE,
    )


PANELS: dict[str, Draw] = {
    "pool": lambda f, w, h: pool_bar.draw(
        f.snapshot.kv,
        f.snapshot.cache_monitor,
        {each.id: each.label for each in f.snapshot.sessions},
        letters(*f.snapshot.cache_monitor.shares),
        w,
        h,
    ),
    "table": lambda f, w, h: session_table.draw(
        f.snapshot.sessions, "s1", letters(), NOW, "Nothing yet: connect an agent.", w, h
    ),
    "compact": lambda f, w, h: session_table.draw_compact(
        f.snapshot.sessions,
        len(f.snapshot.sessions),
        *session_table.losses_of(f.snapshot.sessions),
        "c",
        NOW,
        w,
        h,
    ),
    "footer": lambda f, w, h: session_table.draw_footer(
        f.snapshot.cache_monitor,
        {each.id: each.label for each in f.snapshot.sessions},
        NOW,
        w,
        h,
    ),
    "timeline": lambda f, w, h: session_timeline.draw(
        next(iter(f.snapshot.sessions), None), None, 0, w, h
    ),
    "turn": lambda f, w, h: session_detail.draw(
        next(iter(f.snapshot.sessions), None), None, 0, w, h
    ),
}
STATES: dict[str, tuple[tuple[SessionView, ...], CacheMonitorView]] = {
    "none": ((), CacheMonitorView()),
    "one": ((three()[1],), MONITOR),
    "three": (three(), MONITOR),
    "many": (scripted_sessions.many(40, turns=32), MONITOR),
    "hostile": (
        (hostile(),),
        msgspec.structs.replace(
            MONITOR,
            residency_problem=HOSTILE,
            shares=(PoolShare("s1", 90), PoolShare(None, 8)),
        ),
    ),
}


def drawn(panel: str, state: str, width: int, height: int) -> Lines:
    sessions, monitor = STATES[state]
    frame = Frame(snapshot=scripted_sessions.snapshot(sessions, cache_monitor=monitor))
    return PANELS[panel](frame, width, height)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("panel", PANELS)
@settings(max_examples=25)
@given(width=st.integers(0, 220), height=st.integers(0, 40))
def test_a_panel_stays_inside_its_rectangle(
    panel: str, state: str, width: int, height: int
) -> None:
    assert_inside(drawn(panel, state, width, height), width, height)


@pytest.mark.parametrize("panel", PANELS)
def test_text_from_clients_is_drawn_as_it_is_and_prints_only(panel: str) -> None:
    for size in ((78, 20), (116, 40)):
        assert_prints_only(drawn(panel, "hostile", *size))


def test_markup_in_labels_tool_names_and_excerpts_stays_text() -> None:
    assert "[red]x[/]" in text_of(drawn("table", "hostile", 78, 20))
    assert "[red]x[/]" in text_of(drawn("timeline", "hostile", 78, 20))
    text = text_of(drawn("turn", "hostile", 78, 90))
    assert "tool [red]x[/]" in text
    assert "before   [red]x[/]" in text
    assert "now      [red]y[/]" in text


# The pool.


@given(
    total=st.integers(0, 5_000),
    free=st.none() | st.integers(0, 5_000),
    in_use=st.none() | st.integers(0, 5_000),
    blocks=st.lists(st.integers(0, 300), max_size=20),
    nobody=st.integers(0, 50),
    known=st.booleans(),
    width=st.integers(1, 200),
)
def test_the_parts_of_the_pool_add_up_to_all_its_blocks_and_the_bar_is_full(
    total: int,
    free: int | None,
    in_use: int | None,
    blocks: list[int],
    nobody: int,
    known: bool,
    width: int,
) -> None:
    shares = (*(PoolShare(f"s{n}", each) for n, each in enumerate(blocks)), PoolShare(None, nobody))
    cached = sum(blocks) + nobody
    kv = KvView(blocks_total=total, blocks_free=free, blocks_in_use=in_use, blocks_warm=in_use)
    monitor = CacheMonitorView(cached_blocks=cached if known else None, shares=shares)
    parts = pool_bar.segments(kv, monitor, {}, letters(*shares))
    counted = sum(part.blocks for part in parts)
    assert counted == (max(total, cached) if known and total else total)
    rooms = pool_bar.divided([part.blocks for part in parts], width)
    assert sum(rooms) == (width if counted else 0)
    parts_shown = sum(part.blocks > 0 for part in parts)
    if parts_shown <= width:
        assert all(room > 0 for room, part in zip(rooms, parts, strict=True) if part.blocks)


def test_the_legend_names_every_part_with_blocks_and_percent() -> None:
    text = text_of(pool_bar.draw(KV, MONITOR, LABELS, letters(), 116, 5))
    for part in (
        *("A Claude Code 3", "B OpenCode 1", "C Codex 2 title", "41 blk  22.8 %"),
        *("no known session", "12 blk   6.7 %", "used, not cached", "39 blk  21.7 %"),
        *("free", "43 blk  23.9 %", "in use    76 blk", "warm    61 blk"),
    ):
        assert part in text
    assert len(set(LETTERS)) == len(LETTERS)


def test_each_part_of_the_bar_is_told_apart_without_colour_in_ascii_too() -> None:
    [bar, *_] = pool_bar.draw(KV, MONITOR, LABELS, letters(), 80, 5)
    text = to_ascii(plain(bar))
    assert text.isascii()
    pieces = [span.text for span in bar]
    assert [to_ascii(piece)[0] for piece in pieces] == ["A", "B", "C", "+", "=", "-"]
    assert len({span.role for span in bar[:3]}) == 3


def test_a_session_keeps_its_letter_when_another_one_grows_or_leaves() -> None:
    first = letters(PoolShare("a", 9), PoolShare("b", 5))
    later = first.following((PoolShare("c", 20), PoolShare("b", 8), PoolShare("a", 1)))
    assert later.span("a").text == first.span("a").text == "A"
    assert later.span("b").text == "B"
    assert later.span("c").text == "C"
    gone = later.following((PoolShare("c", 20), PoolShare("d", 3)))
    assert gone.span("c").text == "C"
    assert gone.span("d").text == "A"
    assert gone.span("b").text == " "


def test_sessions_without_a_letter_are_one_part() -> None:
    shares = tuple(PoolShare(f"s{n}", 30 - n) for n in range(15))
    monitor = CacheMonitorView(cached_blocks=sum(s.blocks for s in shares), shares=shares)
    kv = KvView(blocks_total=400, blocks_free=10)
    parts = pool_bar.segments(kv, monitor, {}, letters(*shares))
    assert [part.name for part in parts[-3:]] == ["3 more sessions", "used, not cached", "free"]
    assert parts[-3].blocks == 18 + 17 + 16


@pytest.mark.parametrize(
    ("kv", "monitor", "words"),
    [
        (KvView(), MONITOR, ("size of the KV pool is not known",)),
        (KvView(blocks_total=180), MONITOR, ("not known", "the scheduler cannot be asked")),
        (KV, CacheMonitorView(), ("in use", "warm", "owners not known")),
        (KvView(blocks_total=180), CacheMonitorView(), ("not known", "180 blk")),
    ],
)
def test_what_is_not_known_of_the_pool_is_said(
    kv: KvView, monitor: CacheMonitorView, words: tuple[str, ...]
) -> None:
    text = text_of(pool_bar.draw(kv, monitor, LABELS, letters(), 116, 5))
    for each in words:
        assert each in text


# The table.


@pytest.mark.parametrize("kind", VerdictKind)
def test_every_verdict_has_a_short_word_and_a_sign_that_needs_no_colour(kind: VerdictKind) -> None:
    verdict = scripted_sessions.plain_verdict(kind)
    assert 0 < len(word(verdict)) <= WORD_WIDTH
    mark, role = sign(verdict)
    harmless = {
        *(VerdictKind.FIRST_REQUEST, VerdictKind.FULL_REUSE),
        *(VerdictKind.BLOCK_ROUNDING, VerdictKind.BELOW_BLOCK),
    }
    if kind is VerdictKind.UNKNOWN:
        assert (mark, role, is_loss(verdict)) == ("?", Role.MUTED, False)
    elif kind in harmless:
        assert (mark, role, is_loss(verdict)) == ("✓", Role.READY, False)
    else:
        assert (mark, role, is_loss(verdict)) == ("!", Role.WARNING, True)
    assert cells((verdict_span(verdict),)) == cells((verdict_span(None),))
    assert word(verdict) in table(session(1, verdict=verdict), width=78)


@pytest.mark.parametrize("kind", VolatileKind)
def test_a_volatile_value_is_named_by_its_kind(kind: VolatileKind) -> None:
    verdict = msgspec.structs.replace(CLOCK, volatile_kind=kind)
    assert word(verdict) == kind.value
    assert phrase(verdict) == f"{kind.value} in system prompt"


def test_a_changed_system_prompt_is_not_said_twice() -> None:
    verdict = Verdict(
        kind=VerdictKind.SYSTEM_CHANGED, sentence="s", part=PromptPart(kind=PartKind.SYSTEM)
    )
    assert phrase(verdict) == "system prompt changed"


def test_a_wide_row_shows_every_figure() -> None:
    text = table(session(1, running_requests=1, isolation="team b"), three()[1])
    for part in (
        *("OpenCode 1", "opencode", "13", "18.3k", "17.2k", "1092", "91.2 %", "11", "93 %"),
        *("412 ms", "✓ full reuse", "running", "team b", "! clock", "36 s", "common"),
    ):
        assert part in text


def test_columns_leave_by_importance_and_never_the_verdict() -> None:
    shown = {
        width: {column.heading.strip() for column in session_table.columns_for(width)}
        for width in range(30, 220)
    }
    for width in range(30, 219):
        assert shown[width] <= shown[width + 1]
    assert shown[78] == {"turns", "prompt", "cached", "computed", "last verdict", "idle"}
    assert shown[116] >= {"expected", "hit rate", "n", "resident", "TTFT"}
    assert shown[198] >= {"agent", "pool"}


@given(
    prompt=st.integers(0, 10**7),
    cached=st.none() | st.integers(0, 10**7),
    rate=st.none() | st.floats(0, 1),
    ttft=st.none() | st.floats(0, 1e5),
    running=st.integers(0, 2),
    age=st.floats(0, 1e7),
    width=st.sampled_from([78, 116, 196]),
)
def test_rows_keep_their_columns_whatever_the_numbers_are(
    prompt: int,
    cached: int | None,
    rate: float | None,
    ttft: float | None,
    running: int,
    age: float,
    width: int,
) -> None:
    changed = session(
        1,
        prompt_tokens=prompt,
        cached_tokens=cached,
        computed_tokens=cached,
        hit_rate=rate,
        ttft_s=ttft,
        running_requests=running,
        last_seen_unix_s=NOW - age,
    )
    rows = [
        session_table.draw((each,), None, NO_LETTERS, NOW, "", width, 3)[1]
        for each in (session(1), changed)
    ]
    widths = [[len(span.text) for span in row] for row in rows]
    assert widths[0] == widths[1]


def test_a_side_query_is_marked_and_what_is_not_known_is_a_dash() -> None:
    [_, row] = table(three()[2]).splitlines()
    assert "↳ Codex 2 title" in row
    assert row.count(DASH) >= 6
    assert " 0 %" not in row


def test_an_expected_figure_that_differs_from_the_actual_one_stands_out() -> None:
    lines = session_table.draw(three(), None, NO_LETTERS, NOW, "", 116, 9)
    assert [s.role for s in lines[2] if s.text.strip() == "1216"] == [Role.WARNING]
    assert [s.role for s in lines[1] if s.text.strip() == "17.2k"] == [Role.CACHED, Role.TEXT]


def test_without_sessions_the_table_says_what_must_happen() -> None:
    lines = session_table.draw((), None, NO_LETTERS, 0, "Connect an agent (a).", 78, 9)
    assert "Connect an agent (a)." in text_of(lines)


def test_a_single_row_of_the_dashboard_names_the_newest_loss_and_the_key() -> None:
    assert text_of(drawn("compact", "three", 78, 1)) == (
        "3 sessions · 1 lost reuse: clock in system prompt  c for more"
    )
    assert text_of(drawn("compact", "none", 78, 1)) == "no agent session yet  c for more"
    one = (session(1),)
    line = session_table.draw_compact(one, 1, *session_table.losses_of(one), "c", NOW, 78, 1)
    assert text_of(line) == "1 session · 0 lost reuse  c for more"


def test_the_footer_says_how_often_it_was_right_and_who_evicted_whom() -> None:
    text = text_of(drawn("footer", "three", 116, 2))
    assert "predicted right 57 of 58" in text
    assert "last eviction 12 s ago    OpenCode 1 lost 640 tokens to Claude Code 3" in text
    problem = msgspec.structs.replace(MONITOR, residency_problem="Events were lost.")
    assert "! Events were lost." in text_of(session_table.draw_footer(problem, {}, NOW, 116, 2))
    assert "no turn yet" in text_of(session_table.draw_footer(CacheMonitorView(), {}, NOW, 116, 2))


def test_an_eviction_between_strangers_is_still_a_sentence() -> None:
    unknown = EvictionView(at_unix_s=NOW - 70, loser=None, winner=None, blocks=1, tokens=None)
    line = plain(session_table.eviction(unknown, {}, NOW, 90))
    assert line == "1 min ago   no known session lost 1 block to an unknown request"


# The turns.


@given(
    prompt=st.integers(0, 200_000),
    cached=st.none() | st.integers(0, 200_000),
    expected=st.none() | st.integers(0, 250_000),
    generated=st.integers(0, 20_000),
    scale=st.integers(0, 400_000),
    width=st.integers(12, 160),
)
def test_a_bar_keeps_its_width(
    prompt: int,
    cached: int | None,
    expected: int | None,
    generated: int,
    scale: int,
    width: int,
) -> None:
    view = turn(
        1,
        prompt_tokens=prompt,
        cached_tokens=cached,
        expected_cached_tokens=expected,
        generated_tokens=generated,
    )
    assert cells(session_timeline.bar_of(view, scale, width)) == width


def test_a_bar_shows_cached_computed_and_generated_tokens_and_the_expected_end() -> None:
    view = turn(
        1,
        prompt_tokens=80,
        cached_tokens=20,
        expected_cached_tokens=60,
        computed_tokens=60,
        generated_tokens=20,
    )
    text = plain(session_timeline.bar_of(view, 200, 40))
    assert text == (
        FILL * 4 + COMPUTED_FILL * 8 + EXPECTED + COMPUTED_FILL * 3 + GENERATED_FILL * 4 + " " * 20
    )
    assert to_ascii(text).isascii()
    exact = msgspec.structs.replace(view, expected_cached_tokens=20)
    assert EXPECTED not in plain(session_timeline.bar_of(exact, 200, 40))
    unknown = msgspec.structs.replace(view, cached_tokens=None)
    assert plain(session_timeline.bar_of(unknown, 200, 40)).startswith(UNKNOWN * 16)


def test_the_timeline_has_one_row_a_turn_newest_first_with_its_verdict() -> None:
    lines = session_timeline.draw(three()[1], None, 0, 116, 30)
    rows = [plain(line) for line in lines[session_timeline.HEAD_ROWS :]]
    assert [row.split()[0] for row in rows] == ["▸", *(str(n) for n in range(11, 0, -1))]
    assert "! clock" in rows[0]
    assert "? unknown" in rows[5]
    assert "✓ first request" in rows[-1]
    head = text_of(lines[: session_timeline.HEAD_ROWS])
    for part in ("Claude Code 3", "12 turns", "known by metadata", "41.0 %  n 11", "31.4k tok"):
        assert part in head


def test_a_turn_without_its_first_token_has_no_verdict_yet() -> None:
    view = session(1, history=(turn(1, running=True, outcome=None, verdict=None, ttft_s=None),))
    text = text_of(session_detail.draw(view, None, 0, 78, 20))
    assert "▸ running" in text
    assert "The verdict comes with the first token." in text


def test_the_turn_says_where_how_much_how_long_and_what_to_do() -> None:
    text = text_of(session_detail.text_lines(three()[1], 12, 116))
    for part in (
        *("! clock", CLOCK.sentence, "system prompt, token 1,204", "17,040 tokens computed again"),
        *("9.42 s of prefill", CLOCK.advice or "", "cached 1,200", "expected 1,200"),
        *("system prompt", "changed in 3 of 12 turns", "tool read_file", "never changed"),
        *("message 5 (user)", "it would save 17,040"),
    ):
        assert part in text


def test_an_index_at_block_granularity_says_so() -> None:
    view = session(1, history=(turn(1, verdict=scripted_sessions.TOOL),))
    text = text_of(session_detail.text_lines(view, None, 78))
    assert "tool read_file, token 2,048 (within 16 tokens)" in text


@pytest.mark.parametrize("width", [30, 60, 78, 110])
def test_carets_stand_below_what_changed_at_every_width(width: int) -> None:
    before, after = f"{'漢' * 9} at 12:01, {'long ' * 20}", f"{'漢' * 9} at 12:02, {'long ' * 20}"
    start = before.index("1,")
    excerpt = Excerpt(
        before=before,
        after=after,
        change_start=start,
        before_change_end=start + 1,
        after_change_end=start + 1,
    )
    verdict = msgspec.structs.replace(CLOCK, excerpt=excerpt)
    view = session(1, history=(turn(1, verdict=verdict),))
    lines = session_detail.text_lines(view, None, width)
    found = []
    for above, below in pairwise(lines):
        if plain(below).strip() != "^":
            continue
        at = cells(below) - 1
        x = 0
        for span in above:
            if span.role is Role.MARKED:
                found.append((span.text, x == at))
            x += cells((span,))
    assert found == [("1", True), ("2", True)]


def test_what_was_put_in_or_taken_away_is_marked_at_its_place() -> None:
    excerpt = Excerpt(
        before="abcdef", after="abcXYdef", change_start=3, before_change_end=3, after_change_end=5
    )
    verdict = msgspec.structs.replace(CLOCK, excerpt=excerpt)
    view = session(1, history=(turn(1, verdict=verdict),))
    rows = text_of(session_detail.text_lines(view, None, 78)).splitlines()
    at = next(index for index, row in enumerate(rows) if row.startswith("before"))
    assert rows[at : at + 4] == [
        "before   abcdef",
        "            ^",
        "now      abcXYdef",
        "            ^^",
    ]


@given(scroll=st.integers(0, 200), height=st.integers(2, 60))
def test_scrolling_never_passes_the_end_and_says_what_is_below(scroll: int, height: int) -> None:
    view = three()[1]
    everything = session_detail.text_lines(view, 12, 78)
    lines = session_detail.draw(view, 12, scroll, 78, height)
    assert len(lines) == min(height, len(everything))
    if lines[-1] != everything[-1]:
        assert "more lines" in plain(lines[-1])


def test_a_session_that_left_the_list_is_said() -> None:
    assert "left the list" in text_of(session_timeline.draw(None, None, 0, 78, 9))
    assert session_detail.draw(None, None, 0, 78, 9) == ()


def test_a_chosen_turn_that_is_not_kept_any_more_gives_its_place_to_the_oldest() -> None:
    turns: tuple[TurnView, ...] = scripted_sessions.history()[:4]
    view = session(1, history=turns)
    assert "turn 9 " in text_of(session_detail.text_lines(view, 2, 78))


def test_a_change_before_nothing_but_new_text_is_no_loss() -> None:
    verdict = msgspec.structs.replace(CLOCK, lost_tokens=0)
    assert not is_loss(verdict)
    assert sign(verdict) == ("✓", Role.READY)
    newest = msgspec.structs.replace(turn(1), verdict=verdict)
    text = text_of(session_detail.draw(session(1, history=(newest,)), None, 0, 100, 30))
    assert "computed again" not in text.replace(verdict.sentence, "")
