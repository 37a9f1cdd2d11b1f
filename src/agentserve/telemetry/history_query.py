"""Reads past requests from their file, while another process may be writing it.

Owns the read-only connection and the sentence for a file that cannot be read. It changes nothing,
and it must not know how totals are drawn.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from agentserve.domain.history import (
    DayWindow,
    HistoryUnreadableError,
    RequestFact,
    RequestHistoryReport,
    agent_name,
    summarize,
)
from agentserve.domain.text import printable
from agentserve.telemetry.history_database import (
    MIGRATIONS,
    NewerSchemaError,
    problem_sentence,
    schema_version,
)

_BUSY_TIMEOUT_S = 1.0
_SELECT = """
SELECT finished_at_unix_s, preset, agent, session, outcome,
  prompt_tokens, cached_tokens, computed_tokens, generated_tokens, ttft_s
FROM requests WHERE finished_at_unix_s >= ? AND finished_at_unix_s < ?"""
_LATEST = "SELECT max(finished_at_unix_s) FROM requests"


def read_request_history(
    path: Path, days: int, now_unix_s: float, zone: datetime.tzinfo | None = None
) -> RequestHistoryReport:
    """Add up the requests of the last days, today included.

    Args:
        path: The file; a missing one has no requests.
        days: Calendar days, at least 1.
        now_unix_s: Unix time in seconds.
        zone: Time zone of the days; by default that of this machine.

    Raises:
        HistoryUnreadableError: The file exists and cannot be read.
    """
    window = DayWindow.last_days(days, now_unix_s, zone)
    try:
        with contextlib.closing(_connect(path)) as connection:
            # One transaction: both questions see the same rows.
            connection.execute("BEGIN")
            version = schema_version(connection)
            if version > len(MIGRATIONS):
                raise NewerSchemaError
            if version == 0:
                return summarize((), window)
            (latest_at_unix_s,) = connection.execute(_LATEST).fetchone()
            return summarize(_facts(connection, window), window, latest_at_unix_s)
    except FileNotFoundError:
        return summarize((), window)
    except (sqlite3.Error, OSError, NewerSchemaError) as error:
        raise _unreadable(problem_sentence(error, path)) from error
    except (TypeError, ValueError, OverflowError) as error:
        # SQLite keeps any type in any column, so a file that somebody edited can hold anything.
        raise _unreadable(
            f"The request history {printable(str(path))} holds wrong types of values: move it away."
        ) from error


def _connect(path: Path) -> sqlite3.Connection:
    path.stat()
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = _open(uri)
    try:
        schema_version(connection)
    except sqlite3.OperationalError:
        connection.close()
        # In a folder that we cannot write SQLite cannot make the files of the journal. Without a
        # journal nobody writes, so the file may be read as if it never changed.
        if Path(f"{path}-wal").exists():
            raise
        return _open(f"{uri}&immutable=1")
    except BaseException:
        connection.close()
        raise
    return connection


def _open(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None)


def _facts(connection: sqlite3.Connection, window: DayWindow) -> Iterator[RequestFact]:
    shown = functools.cache(printable)
    name = functools.cache(agent_name)
    for row in connection.execute(_SELECT, (window.from_unix_s, window.until_unix_s)):
        finished, preset, agent, session, *rest = row
        yield RequestFact(
            finished,
            shown(preset),
            None if agent is None else name(shown(agent)),
            None if session is None else shown(session),
            *rest,
        )


def _unreadable(sentence: str) -> HistoryUnreadableError:
    return HistoryUnreadableError(sentence)
