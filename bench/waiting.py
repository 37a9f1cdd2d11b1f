"""Waiting for facts, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class BenchError(Exception):
    """Something did not happen that must happen before anything can be measured."""


def wait_for(
    probe: Callable[[], T | None], deadline_s: float, what: str, *, poll_s: float = 0.05
) -> T:
    """Ask `probe` until it answers something true, and return that.

    Args:
        probe: The question.
        deadline_s: How long to ask, in seconds.
        what: Names the fact in the error.
        poll_s: Pause between two questions; also the error of a time measured this way.

    Raises:
        BenchError: The deadline has passed.
    """
    end_s = time.monotonic() + deadline_s
    while not (answer := probe()):
        if time.monotonic() > end_s:
            raise BenchError(f"{what}: not within {deadline_s:g} s")
        time.sleep(poll_s)
    return answer
