"""Waiting for facts instead of for time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_POLL_S = 0.05


def wait_until(
    probe: Callable[[], T | None],
    deadline_s: float,
    what: str,
    *,
    describe: Callable[[], str] = str,
) -> T:
    """Ask `probe` until it answers something true, and return that.

    Raises:
        AssertionError: It did not within `deadline_s` seconds.
    """
    end_s = time.monotonic() + deadline_s
    while True:
        if answer := probe():
            return answer
        if time.monotonic() > end_s:
            raise AssertionError(f"{what}: not within {deadline_s:g} s. {describe()}")
        time.sleep(_POLL_S)
