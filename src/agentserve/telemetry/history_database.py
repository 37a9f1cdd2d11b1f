"""The file of past requests: its tables, how it is opened, and what its errors mean.

Owns the SQLite schema and its versions, the mode of the file, and the sentence for each way in
which a database can fail. One connection belongs to one thread. It must not know when something is
written, or what is done after a failure.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from agentserve.domain.text import printable

BUSY_TIMEOUT_S = 0.25
"""How long a statement waits for a lock that another process holds."""

_FILE_MODE = 0o600
_PRUNED_AT_ONCE = 5_000
_COMPANIONS = ("-wal", "-shm")

Connect = Callable[[Path], sqlite3.Connection]
Migration = tuple[str, ...]
"""Statements that bring a database from one version to the next."""

_CREATE = """
CREATE TABLE requests (
  id INTEGER PRIMARY KEY,
  finished_at_unix_s REAL NOT NULL,
  start_id TEXT NOT NULL,
  vllm_version TEXT,
  preset TEXT NOT NULL,
  route TEXT,
  agent TEXT,
  session TEXT,
  outcome TEXT NOT NULL,
  choices INTEGER NOT NULL,
  prompt_tokens INTEGER NOT NULL,
  cached_tokens INTEGER,
  computed_tokens INTEGER,
  generated_tokens INTEGER NOT NULL,
  queued_s REAL,
  ttft_s REAL,
  decode_s REAL,
  elapsed_s REAL NOT NULL,
  preemptions INTEGER
)"""

MIGRATIONS: tuple[Migration, ...] = (
    (_CREATE, "CREATE INDEX requests_by_time ON requests (finished_at_unix_s)"),
)
"""The n-th entry leads from version n to n + 1; entries are only ever added."""


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One row; its fields are the columns. None means that it was not reported."""

    finished_at_unix_s: float
    start_id: str
    """Run of the app and number of the generation: one start of an engine."""
    vllm_version: str | None
    preset: str
    route: str | None
    agent: str | None
    """First product of the User-Agent with its version."""
    session: str | None
    """Digest of the session's id."""
    outcome: str
    choices: int
    prompt_tokens: int
    cached_tokens: int | None
    computed_tokens: int | None
    generated_tokens: int
    queued_s: float | None
    ttft_s: float | None
    decode_s: float | None
    elapsed_s: float
    preemptions: int | None


_COLUMNS = StoredRequest.__struct_fields__
_INSERT = (
    f"INSERT INTO requests ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' for _ in _COLUMNS)})"
)


UNSTORABLE = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
"""Errors of a row, or of our own code, that no second attempt can cure."""


class NewerSchemaError(Exception):
    """The file was written by a later version of the product."""


def connect(path: Path) -> sqlite3.Connection:
    """Open a file for writing, without implicit transactions."""
    return sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)


class HistoryDatabase:
    """The file, open for writing.

    Args:
        path: The file; it and its folder are made when missing, for this user only.
        connect: Opens the connection.
        migrations: Steps from each version to the next.

    Raises:
        OSError: The file or its folder cannot be made.
        sqlite3.Error: It cannot be used; see `problem_sentence`.
        NewerSchemaError: A later version of the product wrote it.
    """

    def __init__(
        self,
        path: Path,
        connect: Connect = connect,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> None:
        self._path = path
        _make_private(path)
        self._file = file_identity(path)
        self._connection = connect(path)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            # In WAL mode a power cut can then cost the last rows, never the file.
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._migrate(migrations)
        except BaseException:
            self._connection.close()
            raise

    @property
    def is_in_place(self) -> bool:
        """Whether the path still names the file that is open."""
        return self._file is not None and file_identity(self._path) == self._file

    def insert(self, rows: Sequence[StoredRequest]) -> None:
        """Add rows, all of them or none.

        Raises:
            sqlite3.Error: Nothing was added.
        """
        with self._transaction():
            self._connection.executemany(_INSERT, map(msgspec.structs.astuple, rows))

    def prune(self, before_unix_s: float) -> int:
        """Delete what ended before a moment, in steps that keep each lock short.

        Returns:
            The number of rows deleted.
        """
        deleted = 0
        while True:
            with self._transaction():
                found = self._connection.execute(
                    "DELETE FROM requests WHERE id IN (SELECT id FROM requests"
                    " WHERE finished_at_unix_s < ? LIMIT ?)",
                    (before_unix_s, _PRUNED_AT_ONCE),
                ).rowcount
            deleted += found
            if found < _PRUNED_AT_ONCE:
                return deleted

    def close(self) -> None:
        """Close the connection; a broken one is given up."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def _migrate(self, migrations: Sequence[Migration]) -> None:
        if self._version() == len(migrations):
            return
        with self._transaction():
            # Another process may have done it between the question and the lock.
            version = self._version()
            if version > len(migrations):
                raise NewerSchemaError
            for statements in migrations[version:]:
                for statement in statements:
                    self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {len(migrations)}")

    def _version(self) -> int:
        return schema_version(self._connection)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise


def schema_version(connection: sqlite3.Connection) -> int:
    """Return the version of the tables; 0 is a file without any."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file that a path names, or None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_damage(error: BaseException) -> bool:
    """Whether an error means that the file's content cannot be used and never will be."""
    return _code(error) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}


def move_aside(path: Path, now_unix_s: float) -> Path:
    """Give a damaged file another name, together with its journal.

    Args:
        path: The file; nobody in this process has it open.
        now_unix_s: Becomes part of the name.

    Returns:
        The new path.

    Raises:
        OSError: It could not be renamed.
    """
    stamp = time.strftime("%Y%m%dT%H%M%S", time.localtime(now_unix_s))
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    # The journal goes first: beside a new file it would be played back into that.
    for companion in _COMPANIONS:
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{companion}").replace(f"{aside}{companion}")
    path.replace(aside)
    return aside


def problem_sentence(error: BaseException, path: Path) -> str:
    """Say in one sentence why a file cannot be used, and what to do about it.

    Args:
        error: What SQLite, the system or `HistoryDatabase` raised.
        path: The file.
    """
    name = f"The request history {printable(str(path))}"
    if isinstance(error, NewerSchemaError):
        return f"{name} was written by a newer agentserve-tui: update this one, or move the file."
    code = _code(error)
    number = error.errno if isinstance(error, OSError) else None
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return f"{name} is locked by another program: close that program."
    if is_damage(error):
        return f"{name} is damaged: move it away."
    disk_trouble = code in {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
    if (
        code == sqlite3.SQLITE_FULL
        or number in {errno.ENOSPC, errno.EDQUOT}
        or (disk_trouble and _disk_is_full(path))
    ):
        return f"{name} cannot grow because the disk is full: free some space."
    reason = printable((error.strerror if isinstance(error, OSError) else None) or str(error), 100)
    if code == sqlite3.SQLITE_IOERR:
        return f"{name} cannot be used ({reason}): check the disk."
    return f"{name} cannot be used ({reason}): check the owner and mode of the file and its folder."


def _code(error: BaseException) -> int | None:
    """Return the primary result code of SQLite (sqlite.org/rescode.html), if there is one."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF


def _make_private(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
    except FileExistsError:
        # Never opened here: closing a descriptor drops the locks of a reader in this process
        # (sqlite.org/howtocorrupt.html, section 2.2). SQLite gives its journal the same mode.
        path.chmod(_FILE_MODE)
    else:
        os.close(descriptor)


def _disk_is_full(path: Path) -> bool:
    try:
        return os.statvfs(path.parent).f_bavail == 0
    except OSError:
        return False
