"""What past requests add up to: frozen values and the arithmetic over any number of requests.

Owns the groups (day, preset, agent, session) and the rule that what was not reported is None, with
its own count beside what was. It must not know where requests are stored or how totals are drawn.
"""

from __future__ import annotations

import datetime
import hashlib
import math
from array import array
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from agentserve.domain.errors import AgentServeError
from agentserve.domain.request import RequestOutcome
from agentserve.domain.snapshot import Percentiles
from agentserve.domain.statistics import percentiles, share
from agentserve.domain.text import printable

HISTORY_SCHEMA = 1
"""Counts incompatible changes of the JSON form of `RequestHistoryReport`."""

_LONGEST_PRODUCT = 60
_DIGEST_DIGITS = 12


class HistoryUnreadableError(AgentServeError):
    """The stored request history exists and cannot be read."""


class RequestFact(msgspec.Struct, frozen=True, gc=False):
    """What totals are made of; None means that it was not reported."""

    finished_at_unix_s: float
    preset: str
    agent: str | None
    """Name of the client's product, without its version."""
    session: str | None
    """Digest of the session's id, see `session_digest`."""
    outcome: str
    prompt_tokens: int
    cached_tokens: int | None
    computed_tokens: int | None
    generated_tokens: int
    ttft_s: float | None


class HistoryTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of some requests; None where no request reported the value."""

    requests: int = 0
    aborted: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens taken from the prefix cache."""
    computed_tokens: int | None = None
    """Prompt tokens that were prefilled."""
    hit_rate: float | None = None
    """Cached tokens / prompt tokens of the requests whose cached tokens are known."""
    hit_rate_requests: int = 0
    """n of `hit_rate` and of `cached_tokens`."""
    computed_requests: int = 0
    """n of `computed_tokens`."""
    ttft_s: Percentiles = Percentiles()
    """Nearest-rank percentiles over every request that got a first token."""


class DayTotals(msgspec.Struct, frozen=True, kw_only=True):
    """One calendar day of the local time zone."""

    day: datetime.date
    totals: HistoryTotals


class PresetTotals(msgspec.Struct, frozen=True, kw_only=True):
    """All requests under one preset."""

    preset: str
    totals: HistoryTotals


class AgentTotals(msgspec.Struct, frozen=True, kw_only=True):
    """All requests of one kind of client; agent is None where it gave no name."""

    agent: str | None
    sessions: int
    """Sessions with an id; 0 where none was given."""
    totals: HistoryTotals


class SessionTotals(msgspec.Struct, frozen=True, kw_only=True):
    """All requests of one session of an agent."""

    session: str
    """Digest of the session's id."""
    agent: str | None
    first_at_unix_s: float
    last_at_unix_s: float
    totals: HistoryTotals


class RequestHistoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The history of some days."""

    schema: int = HISTORY_SCHEMA
    first_day: datetime.date
    last_day: datetime.date
    latest_at_unix_s: float | None = None
    """End of the newest request that is stored at all, in these days or not."""
    is_recorded: bool = True
    """False where the user's settings say that finished requests are not to be stored."""
    total: HistoryTotals = HistoryTotals()
    days: tuple[DayTotals, ...] = ()
    """Every day from the first one with requests to the last day; the oldest first."""
    presets: tuple[PresetTotals, ...] = ()
    """The most requests first."""
    agents: tuple[AgentTotals, ...] = ()
    """The most requests first."""
    sessions: tuple[SessionTotals, ...] = ()
    """The one used last first."""


class DayWindow(NamedTuple):
    """Whole calendar days, the last one included."""

    first: datetime.date
    last: datetime.date
    zone: datetime.tzinfo | None = None
    """None is the time zone of this machine."""

    @classmethod
    def last_days(
        cls, days: int, now_unix_s: float, zone: datetime.tzinfo | None = None
    ) -> DayWindow:
        """Return the last `days` days, at least 1; today is one of them."""
        today = datetime.datetime.fromtimestamp(now_unix_s, zone).date()
        return cls(today - datetime.timedelta(days=max(1, days) - 1), today, zone)

    @property
    def from_unix_s(self) -> float:
        """The midnight at which the first day begins, Unix time in seconds."""
        return self._midnight_unix_s(self.first)

    @property
    def until_unix_s(self) -> float:
        """The midnight at which the last day ends, Unix time in seconds."""
        return self._midnight_unix_s(self.last + datetime.timedelta(days=1))

    def day_of(self, unix_s: float) -> datetime.date:
        """Return the calendar day of a moment."""
        # Whole seconds: the last instant of a day must not be rounded into the next one.
        return datetime.datetime.fromtimestamp(math.floor(unix_s), self.zone).date()

    def _midnight_unix_s(self, day: datetime.date) -> float:
        return datetime.datetime.combine(day, datetime.time.min, self.zone).timestamp()


def summarize(
    facts: Iterable[RequestFact], window: DayWindow, latest_at_unix_s: float | None = None
) -> RequestHistoryReport:
    """Add requests up by day, preset, agent and session.

    Args:
        facts: Requests in any order; those outside the window are left out.
        window: The days to report.
        latest_at_unix_s: End of the newest request that is stored at all.
    """
    leaves: dict[_Leaf, _Sums] = {}
    begin_s, end_s = window.from_unix_s, window.until_unix_s
    for fact in facts:
        if begin_s <= fact.finished_at_unix_s < end_s:
            day = window.day_of(fact.finished_at_unix_s)
            leaf = _Leaf(day, fact.preset, fact.agent, fact.session)
            sums = leaves.get(leaf)
            if sums is None:
                sums = leaves[leaf] = _Sums()
            sums.add(fact)
    agents = _grouped(leaves, lambda leaf: leaf.agent)
    sessions = _grouped(leaves, lambda leaf: (leaf.session, leaf.agent))
    with_id = [
        SessionTotals(
            session=session,
            agent=agent,
            first_at_unix_s=sums.first_at_unix_s,
            last_at_unix_s=sums.last_at_unix_s,
            totals=sums.totals(),
        )
        for (session, agent), sums in sessions.items()
        if session is not None
    ]
    return RequestHistoryReport(
        first_day=window.first,
        last_day=window.last,
        latest_at_unix_s=latest_at_unix_s,
        total=_grouped(leaves, lambda _: None).get(None, _Sums()).totals(),
        days=_days(_grouped(leaves, lambda leaf: leaf.day), window.last),
        presets=tuple(
            PresetTotals(preset=preset, totals=sums.totals())
            for preset, sums in _most_requests_first(_grouped(leaves, lambda leaf: leaf.preset))
        ),
        agents=tuple(
            AgentTotals(
                agent=agent,
                sessions=sum(session.agent == agent for session in with_id),
                totals=sums.totals(),
            )
            for agent, sums in _most_requests_first(agents)
        ),
        sessions=tuple(
            sorted(with_id, key=lambda session: (-session.last_at_unix_s, session.session))
        ),
    )


def agent_product(user_agent: str | None) -> str | None:
    """Shorten a User-Agent to its first product and version (RFC 9110, section 10.1.5).

    Args:
        user_agent: The header as the client sent it.

    Returns:
        For example `opencode/1.2.3`, safe to show, or None when there is nothing to show.
    """
    words = printable(user_agent or "").split(maxsplit=1)
    return printable(words[0], _LONGEST_PRODUCT) if words else None


def agent_name(product: str | None) -> str | None:
    """Return the name of a product without its version, so that an update is no new agent."""
    if product is None:
        return None
    return product.partition("/")[0] or product


def session_digest(session: str) -> str:
    """Name a session without its id, which a user may have chosen and may say something.

    Returns:
        The first twelve hexadecimal digits of the id's SHA-256.
    """
    data = session.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:_DIGEST_DIGITS]


class _Leaf(NamedTuple):
    """The finest group."""

    day: datetime.date
    preset: str
    agent: str | None
    session: str | None


@dataclass(slots=True)
class _Sums:
    """Totals while they are added up."""

    requests: int = 0
    aborted: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    cached_requests: int = 0
    cached_prompt_tokens: int = 0
    """Prompt tokens of the requests whose cached tokens are known."""
    computed_tokens: int = 0
    computed_requests: int = 0
    first_at_unix_s: float = float("inf")
    last_at_unix_s: float = float("-inf")
    ttft_s: array[float] = field(default_factory=lambda: array("d"))

    def add(self, fact: RequestFact) -> None:
        self.requests += 1
        self.aborted += fact.outcome == RequestOutcome.ABORTED
        self.failed += fact.outcome == RequestOutcome.ERROR
        self.prompt_tokens += fact.prompt_tokens
        self.generated_tokens += fact.generated_tokens
        if fact.cached_tokens is not None:
            self.cached_tokens += fact.cached_tokens
            self.cached_requests += 1
            self.cached_prompt_tokens += fact.prompt_tokens
        if fact.computed_tokens is not None:
            self.computed_tokens += fact.computed_tokens
            self.computed_requests += 1
        if fact.ttft_s is not None:
            self.ttft_s.append(fact.ttft_s)
        self.first_at_unix_s = min(self.first_at_unix_s, fact.finished_at_unix_s)
        self.last_at_unix_s = max(self.last_at_unix_s, fact.finished_at_unix_s)

    def merge(self, other: _Sums) -> None:
        self.requests += other.requests
        self.aborted += other.aborted
        self.failed += other.failed
        self.prompt_tokens += other.prompt_tokens
        self.generated_tokens += other.generated_tokens
        self.cached_tokens += other.cached_tokens
        self.cached_requests += other.cached_requests
        self.cached_prompt_tokens += other.cached_prompt_tokens
        self.computed_tokens += other.computed_tokens
        self.computed_requests += other.computed_requests
        self.ttft_s.extend(other.ttft_s)
        self.first_at_unix_s = min(self.first_at_unix_s, other.first_at_unix_s)
        self.last_at_unix_s = max(self.last_at_unix_s, other.last_at_unix_s)

    def totals(self) -> HistoryTotals:
        return HistoryTotals(
            requests=self.requests,
            aborted=self.aborted,
            failed=self.failed,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            cached_tokens=self.cached_tokens if self.cached_requests else None,
            computed_tokens=self.computed_tokens if self.computed_requests else None,
            hit_rate=share(self.cached_tokens, self.cached_prompt_tokens),
            hit_rate_requests=self.cached_requests,
            computed_requests=self.computed_requests,
            ttft_s=percentiles(sorted(self.ttft_s)),
        )


_Key = TypeVar("_Key", bound=Hashable)


def _grouped(leaves: dict[_Leaf, _Sums], key: Callable[[_Leaf], _Key]) -> dict[_Key, _Sums]:
    groups: dict[_Key, _Sums] = {}
    for leaf, sums in leaves.items():
        groups.setdefault(key(leaf), _Sums()).merge(sums)
    return groups


def _days(groups: dict[datetime.date, _Sums], last: datetime.date) -> tuple[DayTotals, ...]:
    if not groups:
        return ()
    first = min(groups)
    days = (first + datetime.timedelta(days=n) for n in range((last - first).days + 1))
    return tuple(DayTotals(day=day, totals=groups.get(day, _Sums()).totals()) for day in days)


def _most_requests_first(groups: dict[_Key, _Sums]) -> list[tuple[_Key, _Sums]]:
    return sorted(groups.items(), key=lambda item: (-item[1].requests, str(item[0] or "")))
