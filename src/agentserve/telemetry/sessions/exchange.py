"""What goes into the session monitor and what comes out of it.

Owns these values only, so that an app without an engine need not load the monitor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from agentserve.domain.cache_event import CacheEvents, CacheEventsLost
from agentserve.domain.request import FirstToken, RequestRecord, RequestStart
from agentserve.domain.sample import CacheFacts
from agentserve.domain.session import CacheMonitorView, SessionView


class FinishedRequest(NamedTuple):
    """A request that ended."""

    record: RequestRecord
    answer_token_ids: Sequence[int]
    keep: Callable[[str | None], None]
    """Gets the session's id for the history, or None."""


MonitorInput = (
    RequestStart | FirstToken | FinishedRequest | CacheFacts | CacheEvents | CacheEventsLost
)


class SessionsView(NamedTuple):
    """What the snapshot carries about sessions."""

    sessions: tuple[SessionView, ...]
    """Newest first."""
    monitor: CacheMonitorView
    session_of_request: dict[int, str]
    """Session id by number, of each request in flight and of those that the list of recent requests
    can hold. Not to be changed."""


NO_SESSIONS = SessionsView((), CacheMonitorView(), {})


class Monitor(Protocol):
    """Takes reports and makes views; used by one thread."""

    @property
    def waiting(self) -> bool:
        """Whether `view` will have something new later without any new input."""

    def handle(self, value: MonitorInput) -> None:
        """Take in one report."""

    def view(self) -> SessionsView:
        """Everything that is shown, as of now."""
