"""The thread between the engine and the session monitor.

Owns the queue, the order of what arrives, and when a view is published. Producers only put values
into a queue that never blocks; readers take the last published view. It must not know how anything
is judged: that is the monitor's business.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from agentserve.domain.cache_event import CacheEvents, CacheEventsLost
from agentserve.domain.request import FirstToken, RequestRecord, RequestStart
from agentserve.domain.sample import CacheFacts
from agentserve.telemetry.sessions.exchange import (
    NO_SESSIONS,
    FinishedRequest,
    Monitor,
    MonitorInput,
    SessionsView,
)

PUBLISH_INTERVAL_S = 0.25
"""Views are published at most this often; the screen draws twice a second."""


class SessionTracker:
    """Feeds a `SessionMonitor` on a thread of its own and publishes its views.

    Args:
        make_monitor: Called on the thread at the first report, so that an app without an engine
            does not pay for it.
        on_error: Gets an unexpected error of the monitor; tracking goes on with the next input.
        clock: Monotonic clock, seconds.
    """

    def __init__(
        self,
        make_monitor: Callable[[], Monitor],
        on_error: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_monitor = make_monitor
        self._monitor: Monitor | None = None
        self._on_error = on_error
        self._clock = clock
        # Its put takes no lock that another thread could hold.
        self._queue: queue.SimpleQueue[MonitorInput | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="session-tracker", daemon=True)
        self._view = NO_SESSIONS

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """End the thread; what still waits is handled first, within `timeout_s`."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(timeout_s)

    def view(self) -> SessionsView:
        """The last published view; from any thread, O(1)."""
        return self._view

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything put so far is handled and published.

        Returns:
            False when that took longer than `timeout_s`.
        """
        done = threading.Event()
        self._queue.put(done)
        return done.wait(timeout_s)

    def request_started(self, start: RequestStart) -> None:
        """A request was handed to the engine; O(1), from any thread, as all below."""
        self._queue.put(start)

    def first_token(self, first: FirstToken) -> None:
        """A request got its first output."""
        self._queue.put(first)

    def request_finished(
        self,
        record: RequestRecord,
        answer_token_ids: Sequence[int],
        keep: Callable[[str | None], None],
    ) -> None:
        """A request ended.

        Args:
            record: Facts about it.
            answer_token_ids: Tokens of the answer; empty where there were several.
            keep: Gets the session's id for the history, or None, on the tracker's thread.
        """
        self._queue.put(FinishedRequest(record, answer_token_ids, keep))

    def cache_facts(self, facts: CacheFacts) -> None:
        """A new engine begins with an empty cache."""
        self._queue.put(facts)

    def cache_events(self, events: CacheEvents | CacheEventsLost) -> None:
        """Blocks of the prefix cache were stored, removed or looked up."""
        self._queue.put(events)

    def _run(self) -> None:
        published_at_s = self._clock()
        pending = False
        while True:
            wait_s = max(0.0, published_at_s + PUBLISH_INTERVAL_S - self._clock())
            try:
                value = self._queue.get(timeout=wait_s if pending else None)
            except queue.Empty:
                self._publish()
                published_at_s = self._clock()
                pending = self._monitor is not None and self._monitor.waiting
                continue
            if value is None:
                self._publish()
                return
            if isinstance(value, threading.Event):
                self._publish()
                value.set()
                continue
            self._handle(value)
            pending = True
            if self._clock() - published_at_s >= PUBLISH_INTERVAL_S:
                self._publish()
                published_at_s = self._clock()

    def _handle(self, value: MonitorInput) -> None:
        try:
            if self._monitor is None:
                self._monitor = self._make_monitor()
            self._monitor.handle(value)
        except Exception as error:  # noqa: BLE001 - a fault here must never end the tracking
            self._on_error(error)

    def _publish(self) -> None:
        if self._monitor is None:
            return
        try:
            self._view = self._monitor.view()
        except Exception as error:  # noqa: BLE001 - see above
            self._on_error(error)
