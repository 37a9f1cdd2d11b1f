"""Past requests go to a file, and nothing that happens to that file disturbs serving.

Owns the queue between the engine's thread and the one thread that writes, the batches, the retries
and the retention. It stores facts only, never text of a prompt or an answer. It must not know which
engine runs or who reads the file.
"""

from __future__ import annotations

import queue
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from agentserve.domain.history import agent_product, session_digest
from agentserve.domain.request import RequestRecord
from agentserve.domain.text import printable
from agentserve.telemetry.history_database import (
    UNSTORABLE,
    Connect,
    HistoryDatabase,
    NewerSchemaError,
    StoredRequest,
    connect,
    file_identity,
    is_damage,
    move_aside,
    problem_sentence,
)

DEFAULT_RETENTION_DAYS = 90
QUEUE_LIMIT = 10_000
"""Requests that wait while the file cannot be written; later ones are dropped and counted."""
BATCH_ROWS = 200

_DAY_S = 86_400.0
_IDLE_S = 3_600.0
"""How often an idle writer looks whether a day has passed."""
_LONGEST_TEXT = 80
_MOST_MOVED_ASIDE = 3
"""Damaged files of one run; a disk that breaks every file must not be filled with them."""


class _Entry(NamedTuple):
    record: RequestRecord
    preset: str
    session: str | None
    vllm_version: str | None


class RequestHistory:
    """Stores finished requests on a thread of its own.

    Requests of a simulated engine must never be given to it: that is the caller's business, for
    nothing in a record tells invented numbers from real ones.

    Args:
        path: The SQLite file; made with its folder at the first request.
        retention_days: How long requests are kept; None keeps them for ever.
        run_id: Names this run of the app; with the generation it names one start of an engine.
        flush_s: How long a request waits for others before it is written, in seconds.
        retry_s: Pause after a failed attempt, in seconds.
        queue_limit: Requests that may wait.
        now: Unix time in seconds.
        connect: Opens the connection to the file.
    """

    def __init__(
        self,
        path: Path,
        retention_days: int | None = DEFAULT_RETENTION_DAYS,
        *,
        run_id: str | None = None,
        flush_s: float = 1.0,
        retry_s: float = 5.0,
        queue_limit: int = QUEUE_LIMIT,
        now: Callable[[], float] = time.time,
        connect: Connect = connect,
    ) -> None:
        self._path = path
        self._retention_days = retention_days
        self._run_id = run_id or secrets.token_hex(8)
        self._flush_s = flush_s
        self._retry_s = retry_s
        self._queue_limit = queue_limit
        self._now = now
        self._connect = connect
        # Its put takes no lock that another thread could hold, unlike those of Queue and Event.
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="request-history", daemon=True)
        self._refused = 0
        # From here on the writing thread alone assigns.
        self._lost = 0
        self._written = 0
        self._batch: list[_Entry] = []
        self._database: HistoryDatabase | None = None
        self._failure: str | None = None
        self._notice: str | None = None
        self._moved_aside = 0
        self._pruned_at_unix_s: float | None = None

    def start(self) -> None:
        """Start the writing thread; deletes at once what is older than the retention."""
        self._thread.start()

    def record(
        self,
        record: RequestRecord,
        preset: str,
        session: str | None = None,
        vllm_version: str | None = None,
    ) -> None:
        """Keep a request; O(1), never blocks and never raises.

        Args:
            record: The request, of a real engine.
            preset: Name of the preset that the engine runs.
            session: Names its session after a restart too, unlike the id in `record`, which is not
                stored; of this only a digest is.
            vllm_version: Of the engine.
        """
        if self._queue.qsize() >= self._queue_limit or self._closing.is_set():
            self._refused += 1
        else:
            self._queue.put(_Entry(record, preset, session, vllm_version))

    @property
    def problem(self) -> str | None:
        """Why requests are not stored now, or what happened to the file in this run.

        One sentence that says what to do, else None.
        """
        return self._failure or self._notice

    @property
    def written_requests(self) -> int:
        """Requests stored in this run."""
        return self._written

    @property
    def dropped_requests(self) -> int:
        """Requests of this run that are in no file and never will be."""
        return self._refused + self._lost

    def close(self, timeout_s: float) -> bool:
        """Write what waits, once, and end the thread.

        Args:
            timeout_s: How long to wait for that, in seconds.

        Returns:
            False when it was not done in time; the thread then ends with the process.
        """
        self._closing.set()
        self._queue.put(None)
        if self._thread.ident is None:
            self._lost = self._queue.qsize() - 1
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._attempt_if_needed()
        while not self._closing.is_set():
            if self._failure is not None:
                if self._closing.wait(self._retry_s):
                    break
                self._take(wait_s=0.0)
            else:
                self._collect()
            self._attempt_if_needed()
        self._write_the_rest()
        if self._database is not None:
            self._database.close()

    def _collect(self) -> None:
        """Wait for a request, then for others up to a full batch."""
        if self._take(wait_s=_IDLE_S, most=1):
            deadline_s = time.monotonic() + self._flush_s
            while len(self._batch) < BATCH_ROWS:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not self._take(wait_s=left_s, most=1):
                    break

    def _take(self, wait_s: float, most: int = BATCH_ROWS) -> bool:
        """Move requests from the queue to the batch; False when none came or all is over."""
        taken = 0
        while taken < most and len(self._batch) < BATCH_ROWS:
            try:
                entry = self._queue.get(timeout=wait_s) if wait_s else self._queue.get_nowait()
            except queue.Empty:
                break
            if entry is None:
                break
            self._batch.append(entry)
            taken += 1
        return taken > 0

    def _write_the_rest(self) -> None:
        while True:
            self._take(wait_s=0.0)
            if not self._batch:
                return
            if not self._attempt():
                break
        self._lost += len(self._batch) + self._queue.qsize()

    def _attempt_if_needed(self) -> None:
        """Without a request no file is made."""
        if self._batch or file_identity(self._path) is not None:
            self._attempt()
        else:
            self._failure = None

    def _attempt(self) -> bool:
        """Write the batch and prune when it is time; False when it has to be tried again."""
        try:
            database = self._opened()
            if self._batch:
                database.insert([self._stored(entry) for entry in self._batch])
                self._written += len(self._batch)
                self._batch.clear()
            self._prune(database)
        except UNSTORABLE as error:
            self._give_up_batch(error)
            return False
        except (sqlite3.Error, OSError, NewerSchemaError) as error:
            damaged = is_damage(error) and self._is_in_place()
            self._let_go()
            if damaged and self._begin_anew():
                return self._attempt()
            self._failure = problem_sentence(error, self._path)
            return False
        except Exception as error:  # noqa: BLE001 - a row that cannot be stored must not end the thread
            self._give_up_batch(error)
            return False
        self._failure = None
        return True

    def _opened(self) -> HistoryDatabase:
        if self._database is not None and not self._database.is_in_place:
            self._let_go()
            self._notice = (
                f"The request history {printable(str(self._path))} was removed or replaced while "
                "it was in use: what follows is stored in a new file."
            )
        if self._database is None:
            self._database = HistoryDatabase(self._path, self._connect)
        return self._database

    def _is_in_place(self) -> bool:
        """Whether the damaged file is at the path: another process may have moved it already."""
        return self._database is None or self._database.is_in_place

    def _let_go(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _give_up_batch(self, error: Exception) -> None:
        self._let_go()
        self._lost += len(self._batch)
        self._batch.clear()
        self._failure = (
            f"Requests could not be stored ({type(error).__name__}): please report this."
        )

    def _begin_anew(self) -> bool:
        if self._moved_aside >= _MOST_MOVED_ASIDE:
            return False
        self._moved_aside += 1
        try:
            aside = move_aside(self._path, self._now())
        except OSError:
            return False
        self._notice = (
            "The request history was damaged and a new one was begun: "
            f"delete {printable(str(aside))} if you do not need it."
        )
        return True

    def _prune(self, database: HistoryDatabase) -> None:
        now_s = self._now()
        last_s = self._pruned_at_unix_s
        if self._retention_days is None or (last_s is not None and now_s - last_s < _DAY_S):
            return
        database.prune(now_s - self._retention_days * _DAY_S)
        self._pruned_at_unix_s = now_s

    def _stored(self, entry: _Entry) -> StoredRequest:
        record = entry.record
        return StoredRequest(
            finished_at_unix_s=record.finished_at_unix_s,
            start_id=f"{self._run_id}-{record.generation}",
            vllm_version=_text(entry.vllm_version),
            preset=_text(entry.preset) or "",
            route=_text(record.route),
            agent=agent_product(record.agent),
            session=None if entry.session is None else session_digest(entry.session),
            outcome=record.outcome.value,
            choices=record.choices,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            computed_tokens=record.computed_tokens,
            generated_tokens=record.generated_tokens,
            queued_s=record.queued_s,
            ttft_s=record.ttft_s,
            decode_s=record.decode_s,
            elapsed_s=record.elapsed_s,
            preemptions=record.preemptions,
        )


def _text(value: str | None) -> str | None:
    return None if value is None else printable(value, _LONGEST_TEXT)
