"""What the app itself has to say goes to the log as a child's lines do: through descriptor 2.

`sys.stderr` is Textual's while the screen is open, and what is written there is lost.
"""

from __future__ import annotations

import contextlib
import os
import traceback

_STDERR = 2


def log_line(text: str) -> None:
    """Write one line to the log; a log that cannot be written is no error."""
    data = f"{text}\n".encode("utf-8", "backslashreplace")
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(_STDERR, data) :]


def log_exception(error: BaseException) -> None:
    """Write an exception with its traceback to the log."""
    log_line("".join(traceback.format_exception(error)).rstrip())


def log_place_of(error: BaseException) -> None:
    """Write where an exception came from, without its message, which may hold text of a prompt."""
    frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    log_line(f"{type(error).__name__} in the session monitor, at\n{frames}")
