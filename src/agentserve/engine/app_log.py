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
