"""Which requests a list shows, in which order, and where its cursor is. Pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from agentserve.domain.request import InFlightRequest, RequestRecord
from agentserve.ui.session_list import Labels

Request = InFlightRequest | RequestRecord


class SortKey(StrEnum):
    """What a list is sorted by; the values are the headings of its columns."""

    TIME = "time"
    PROMPT = "prompt"
    COMPUTED = "computed"
    TTFT = "TTFT"
    SPEED = "tok/s"


class ListView(NamedTuple):
    """How a person looks at the list."""

    sort: SortKey = SortKey.TIME
    text: str = ""
    """Shows only requests with this in agent, session, route, outcome or phase; any case."""
    cursor: str | None = None
    """Id of the chosen request; None stays on the first row, whichever it is."""
    top: int = 0
    """First row in view."""

    def next_sort(self) -> ListView:
        """Sort by the next column and go to the first row."""
        keys = tuple(SortKey)
        return self._replace(sort=keys[(keys.index(self.sort) + 1) % len(keys)], cursor=None, top=0)

    def moved(self, rows: tuple[Request, ...], steps: int) -> ListView:
        """Move the cursor by `steps` rows, not beyond the ends."""
        if not rows:
            return self._replace(cursor=None, top=0)
        index = max(0, min(len(rows) - 1, position(rows, self.cursor) + steps))
        return self._replace(cursor=rows[index].request_id)

    def scrolled(self, rows: tuple[Request, ...], height: int) -> ListView:
        """Move what is in view by as little as brings the cursor into it."""
        index = position(rows, self.cursor)
        top = max(min(self.top, index, max(0, len(rows) - height)), index - height + 1, 0)
        return self if top == self.top else self._replace(top=top)


def rows_of(
    in_flight: tuple[InFlightRequest, ...],
    recent: tuple[RequestRecord, ...],
    labels: Labels,
    view: ListView,
) -> tuple[Request, ...]:
    """Choose and order the requests.

    Args:
        in_flight: Requests that are not finished, in order of arrival.
        recent: Finished ones, newest first.
        labels: Of their sessions.
        view: Filter and order.

    Returns:
        By time: running ones first, then the newest. Otherwise the largest value first, and
        requests whose value is not known last.
    """
    rows: list[Request] = [*in_flight, *recent]
    if view.text:
        wanted = view.text.casefold()
        rows = [row for row in rows if wanted in searched_text(row, labels)]
    value = _VALUES.get(view.sort)
    if value is not None:
        rows.sort(key=lambda row: -1.0 if (known := value(row)) is None else known, reverse=True)
    return tuple(rows)


def searched_text(request: Request, labels: Labels) -> str:
    """Return what a filter looks into, folded."""
    state = request.phase if isinstance(request, InFlightRequest) else request.outcome
    session = session_label(request, labels) or ""
    return f"{request.agent or ''} {request.route or ''} {state} {session}".casefold()


def session_label(request: Request, labels: Labels) -> str | None:
    """Return the label of a request's session; None when it is not known or forgotten."""
    return None if request.session is None else labels.get(request.session)


def position(rows: tuple[Request, ...], cursor: str | None) -> int:
    """Return the row of the cursor; the first when its request is gone."""
    for index, row in enumerate(rows):
        if row.request_id == cursor:
            return index
    return 0


def chosen(rows: tuple[Request, ...], cursor: str | None) -> Request | None:
    """Return the request under the cursor."""
    return rows[position(rows, cursor)] if rows else None


def ttft_s(request: Request) -> float | None:
    """Return the time to the first token, where it is known."""
    return request.ttft_s if isinstance(request, RequestRecord) else None


def speed(request: Request) -> float | None:
    """Return the decode rate in tokens per second, where it is known."""
    return request.decode_tokens_per_s if isinstance(request, RequestRecord) else None


_VALUES: dict[SortKey, Callable[[Request], float | None]] = {
    SortKey.PROMPT: lambda request: request.prompt_tokens,
    SortKey.COMPUTED: lambda request: request.computed_tokens,
    SortKey.TTFT: ttft_s,
    SortKey.SPEED: speed,
}
