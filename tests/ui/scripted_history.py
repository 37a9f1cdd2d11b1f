"""Past requests of a scripted product: some weeks of two agents and of one without a name."""

from __future__ import annotations

import datetime

from agentserve.domain.history import (
    DayWindow,
    RequestFact,
    RequestHistoryReport,
    session_digest,
    summarize,
)

NOON_S = datetime.datetime(2026, 6, 15, 12, tzinfo=datetime.UTC).timestamp()
_DAY_S = 86_400


def fact(
    days_ago: int,
    cached: int | None,
    computed: int | None,
    *,
    preset: str = "tiny",
    agent: str | None = "opencode",
    session: str | None = None,
    outcome: str = "stop",
    ttft_s: float | None = 0.25,
) -> RequestFact:
    prompt = (cached or 0) + (computed or 0)
    at_s = NOON_S - days_ago * _DAY_S
    return RequestFact(at_s, preset, agent, session, outcome, prompt, cached, computed, 10, ttft_s)


def report(facts: list[RequestFact], days: int = 7) -> RequestHistoryReport:
    """Totals of the last days before a fixed noon, in UTC."""
    latest = max((each.finished_at_unix_s for each in facts), default=None)
    return summarize(facts, DayWindow.last_days(days, NOON_S, datetime.UTC), latest)


def nothing_stored(days: int) -> RequestHistoryReport:
    return report([], days)


def some_weeks(days: int) -> RequestHistoryReport:
    """Requests of the last days out of 80, better since a week; none at the week-ends."""
    facts = []
    for day in range(min(days, 80)):
        if day % 7 in (1, 2):
            continue
        for turn in range(6 + day * 7 % 9):
            share = 0.93 if day < 7 else 0.61
            prompt = 4_000 + 1_700 * turn + 310 * (day % 5)
            cached = int(prompt * share) if turn else 0
            facts.append(
                fact(
                    day,
                    cached,
                    prompt - cached,
                    preset="qwen-27b-nvfp4" if day < 7 else "qwen-27b-mtp",
                    agent=("opencode", "claude-cli", None)[day % 3],
                    session=session_digest(f"{day}"),
                    outcome="aborted" if (day + turn) % 40 == 0 else "stop",
                    ttft_s=0.1 + (prompt - cached) / 1_200,
                )
            )
    return report(facts, days)
