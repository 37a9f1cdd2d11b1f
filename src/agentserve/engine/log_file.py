"""The log on disk: bounded, private, never in the way.

Owns rotation and the rule that a full or broken disk costs log lines and nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path


class LogFile:
    """An append-only file that is rotated by size; only its owner may read it.

    One thread writes. A write that fails is counted and forgotten.

    Args:
        path: The newest file; older ones are called `path.1`, `path.2` and so on.
        max_bytes: Size at which the file is rotated.
        keep: How many older files to keep.
    """

    def __init__(self, path: Path, max_bytes: int = 8 * 1024 * 1024, keep: int = 3) -> None:
        self.path = path
        self.failed_writes = 0
        self._max_bytes = max_bytes
        self._keep = keep
        self._fd: int | None = None
        self._size = 0

    def write(self, data: bytes) -> None:
        """Append whole lines.

        Args:
            data: UTF-8 text that ends in a newline.
        """
        try:
            if self._fd is None:
                self._open()
            elif self._size + len(data) > self._max_bytes:
                self._rotate()
            assert self._fd is not None
            while data:
                written = os.write(self._fd, data)
                self._size += written
                data = data[written:]
        except OSError:
            self.failed_writes += 1
            self.close()

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.path, flags, 0o600)
        # The file may be older than this rule.
        os.fchmod(self._fd, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        self.close()
        for number in range(self._keep, 0, -1):
            older = self._numbered(number)
            newer = self._numbered(number - 1)
            if newer.exists():
                newer.replace(older)
        if self._keep == 0:
            self.path.unlink(missing_ok=True)
        self._open()

    def _numbered(self, number: int) -> Path:
        return self.path if number == 0 else self.path.with_name(f"{self.path.name}.{number}")
