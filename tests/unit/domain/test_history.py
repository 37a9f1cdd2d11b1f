from __future__ import annotations

import datetime
import itertools
import math
import statistics
from collections import defaultdict
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentserve.domain.history import (
    DayWindow,
    RequestFact,
    RequestHistoryReport,
    agent_name,
    agent_product,
    session_digest,
    summarize,
)
from agentserve.domain.request import RequestOutcome
from agentserve.domain.text import printable

BERLIN = ZoneInfo("Europe/Berlin")
NOON_S = datetime.datetime(2026, 3, 30, 12, tzinfo=BERLIN).timestamp()
"""The day after the clocks went forward."""
WINDOW = DayWindow.last_days(5, NOON_S, BERLIN)

tokens = st.integers(min_value=0, max_value=200_000)
facts = st.lists(
    st.builds(
        RequestFact,
        st.floats(min_value=NOON_S - 7 * 86_400, max_value=NOON_S + 2 * 86_400),
        st.sampled_from(["tiny", "large"]),
        st.sampled_from([None, "opencode", "codex"]),
        st.sampled_from([None, "s1", "s2"]),
        st.sampled_from([outcome.value for outcome in RequestOutcome]),
        tokens,
        st.none() | tokens,
        st.none() | tokens,
        tokens,
        st.none() | st.floats(min_value=0, max_value=100),
    ),
    max_size=60,
)


def percentile(values: list[float], percent: int) -> float | None:
    """The least value with that share at or below it, by counting."""
    fitting = [
        value
        for value in values
        if 100 * sum(other <= value for other in values) >= percent * len(values)
    ]
    return min(fitting, default=None)


def model(requests: list[RequestFact]) -> dict[str, object]:
    """Totals written down as directly as possible."""
    cached = [r for r in requests if r.cached_tokens is not None]
    computed = [r.computed_tokens for r in requests if r.computed_tokens is not None]
    ttft = [r.ttft_s for r in requests if r.ttft_s is not None]
    queried = sum(r.prompt_tokens for r in cached)
    reused = sum(r.cached_tokens or 0 for r in cached)
    return {
        "requests": len(requests),
        "aborted": sum(r.outcome == "aborted" for r in requests),
        "failed": sum(r.outcome == "error" for r in requests),
        "prompt_tokens": sum(r.prompt_tokens for r in requests),
        "generated_tokens": sum(r.generated_tokens for r in requests),
        "cached_tokens": reused if cached else None,
        "computed_tokens": sum(computed) if computed else None,
        "hit_rate": reused / queried if queried else None,
        "hit_rate_requests": len(cached),
        "computed_requests": len(computed),
        "ttft_s": {
            "p50": percentile(ttft, 50),
            "p95": percentile(ttft, 95),
            "p99": percentile(ttft, 99),
            "n": len(ttft),
        },
    }


def by(requests: list[RequestFact], *names: str) -> dict[tuple[object, ...], list[RequestFact]]:
    groups: dict[tuple[object, ...], list[RequestFact]] = defaultdict(list)
    for request in requests:
        groups[tuple(getattr(request, name) for name in names)].append(request)
    return groups


def day_of(request: RequestFact) -> datetime.date:
    return datetime.datetime.fromtimestamp(int(request.finished_at_unix_s), BERLIN).date()


@given(facts)
@example([])
def test_every_group_adds_up_as_a_naive_model_says(requests: list[RequestFact]) -> None:
    report = summarize(requests, WINDOW)
    inside = [r for r in requests if WINDOW.first <= day_of(r) <= WINDOW.last]
    assert msgspec.to_builtins(report.total) == model(inside)
    assert {(row.preset,): msgspec.to_builtins(row.totals) for row in report.presets} == {
        key: model(group) for key, group in by(inside, "preset").items()
    }
    assert {(row.agent,): msgspec.to_builtins(row.totals) for row in report.agents} == {
        key: model(group) for key, group in by(inside, "agent").items()
    }
    with_session = [r for r in inside if r.session is not None]
    assert {
        (row.session, row.agent): msgspec.to_builtins(row.totals) for row in report.sessions
    } == {key: model(group) for key, group in by(with_session, "session", "agent").items()}
    for row in report.days:
        assert msgspec.to_builtins(row.totals) == model([r for r in inside if day_of(r) == row.day])


@given(facts)
def test_days_have_no_gap_and_end_today(requests: list[RequestFact]) -> None:
    days = [row.day for row in summarize(requests, WINDOW).days]
    inside = [day_of(r) for r in requests if WINDOW.first <= day_of(r) <= WINDOW.last]
    if not inside:
        assert days == []
        return
    assert days[0] == min(inside)
    assert days[-1] == WINDOW.last
    assert all(
        after - before == datetime.timedelta(1) for before, after in itertools.pairwise(days)
    )


@given(facts)
def test_rows_stand_in_a_stated_order(requests: list[RequestFact]) -> None:
    report = summarize(requests, WINDOW)
    for rows in (report.presets, report.agents):
        counts = [row.totals.requests for row in rows]
        assert counts == sorted(counts, reverse=True)
    ends = [row.last_at_unix_s for row in report.sessions]
    assert ends == sorted(ends, reverse=True)
    assert all(row.first_at_unix_s <= row.last_at_unix_s for row in report.sessions)
    for agent in report.agents:
        assert agent.sessions == sum(row.agent == agent.agent for row in report.sessions)


@given(facts)
def test_a_report_survives_its_json_form(requests: list[RequestFact]) -> None:
    report = summarize(requests, WINDOW, NOON_S)
    assert msgspec.json.decode(msgspec.json.encode(report), type=RequestHistoryReport) == report


def test_what_no_request_reported_is_unknown_and_not_0() -> None:
    fact = RequestFact(NOON_S, "tiny", None, None, "aborted", 100, None, None, 0, None)
    total = summarize([fact], WINDOW).total
    assert (total.cached_tokens, total.computed_tokens, total.hit_rate) == (None, None, None)
    assert (total.ttft_s.p50, total.ttft_s.n, total.prompt_tokens) == (None, 0, 100)


def test_a_day_of_23_hours_is_one_day() -> None:
    assert WINDOW.first == datetime.date(2026, 3, 26)
    window = DayWindow(datetime.date(2026, 3, 29), datetime.date(2026, 3, 29), BERLIN)
    assert window.until_unix_s - window.from_unix_s == 23 * 3600
    assert window.day_of(window.from_unix_s) == window.last
    assert window.day_of(math.nextafter(window.until_unix_s, 0)) == window.last


def test_percentiles_are_those_of_the_rows_and_not_of_groups() -> None:
    ttft = [float(n) for n in range(1, 102)]
    requests = [
        RequestFact(NOON_S, f"p{n % 7}", None, f"s{n % 5}", "stop", 1, 0, 1, 1, ttft_s)
        for n, ttft_s in enumerate(ttft)
    ]
    assert summarize(requests, WINDOW).total.ttft_s.p50 == statistics.median(ttft)


@pytest.mark.parametrize(
    ("header", "product", "name"),
    [
        ("opencode/1.2.3 ai-sdk/9 (linux)", "opencode/1.2.3", "opencode"),
        ("OpenAI/Python 1.99.0", "OpenAI/Python", "OpenAI"),
        ("/odd", "/odd", "/odd"),
        ("  ", None, None),
        (None, None, None),
    ],
)
def test_an_agent_is_named_by_its_first_product(
    header: str | None, product: str | None, name: str | None
) -> None:
    assert agent_product(header) == product
    assert agent_name(product) == name


@given(st.text())
def test_an_agents_name_is_short_and_only_prints(header: str) -> None:
    product = agent_product(header)
    if product is not None:
        assert 1 <= len(product) <= 60
        assert printable(product) == product


@given(st.text(), st.text())
def test_a_digest_tells_sessions_apart_and_says_nothing_about_them(one: str, other: str) -> None:
    digest = session_digest(one)
    assert len(digest) == 12
    assert int(digest, 16) >= 0
    assert (digest == session_digest(other)) == (one == other)
