"""All sessions that are listed, the one seen last at the end.

Owns their order, their names and who leaves for newer ones. It must not know turns' verdicts, the
cache or prompts.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from itertools import islice

from agentserve.domain.request import RequestStart
from agentserve.telemetry.sessions.identity import SESSIONS_KEPT, SessionDirectory
from agentserve.telemetry.sessions.session_record import SessionRecord

LONG_HISTORIES = 100
"""Sessions that keep all turns of their history; older ones keep a few."""
_RUN_KEY = secrets.token_bytes(16)
"""So that nobody can try salts against what is shown."""


class SessionRoster:
    """Sessions by id.

    Args:
        directory: Tells how they are called.
        limit: Most sessions that are listed.
    """

    def __init__(self, directory: SessionDirectory, limit: int = SESSIONS_KEPT) -> None:
        self._directory = directory
        self._limit = limit
        # The one seen last is the last one.
        self._records: dict[str, SessionRecord] = {}
        self.forgotten = 0
        """Sessions that left for newer ones."""

    def get(self, session: str | None) -> SessionRecord | None:
        """A session's record, while it is listed."""
        return None if session is None else self._records.get(session)

    def newest_first(self) -> Iterator[str]:
        """The ids, the one seen last first."""
        return reversed(self._records)

    def records(self) -> Iterator[SessionRecord]:
        """The records that have a turn, the one seen last first."""
        return (record for record in reversed(self._records.values()) if record.turns)

    def see(self, session: str, start: RequestStart) -> SessionRecord:
        """List a session that a request belongs to, as the newest one."""
        record = self._records.pop(session, None)
        if record is None:
            identity = self._directory.identity(session)
            assert identity is not None
            record = SessionRecord(
                identity=identity,
                isolation=_isolation(start),
                first_seen_unix_s=start.at_unix_s,
                last_seen_unix_s=start.at_unix_s,
            )
        self._records[session] = record
        return record

    def shorten_histories(self) -> None:
        """Leave all turns to the newest sessions only; to be called when one was seen."""
        older = next(islice(reversed(self._records.values()), LONG_HISTORIES, None), None)
        if older is not None:
            older.forget_old_turns()

    def rename(self) -> None:
        """Take over names, which can change when a session turns out to be a side of another."""
        for session in self._directory.take_renamed():
            identity, record = self._directory.identity(session), self._records.get(session)
            if identity is not None and record is not None:
                record.identity = identity
                record.changed()

    def make_room(self) -> list[str]:
        """Forget the sessions seen longest ago beyond the limit, and return their ids."""
        gone: list[str] = []
        while len(self._records) > self._limit:
            oldest = self._directory.least_recently_seen()
            if oldest is None:
                # All of them have a request in flight.
                break
            self._directory.forget(oldest)
            self._records.pop(oldest, None)
            gone.append(oldest)
        self.forgotten += len(gone)
        return gone


def _isolation(start: RequestStart) -> str | None:
    """Name what separates a request's prefixes from those of others; never the salt itself."""
    if start.cache_salt is None:
        return None
    key = None if start.origin is None else start.origin.key_name
    digest = hashlib.blake2b(start.cache_salt.encode(), digest_size=3, key=_RUN_KEY).hexdigest()
    return digest if key is None else f"{key} {digest}"
