"""Blocking calls, made on threads that nobody has to wait for.

Owns the way of a result from such a thread to an event loop that may be gone by then. Executors do
not fit: their threads are joined at exit, and a load that hangs would hang the exit with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")


def call_in_thread(name: str, function: Callable[[], T]) -> asyncio.Future[T]:
    """Run a blocking function on a daemon thread of its own.

    Args:
        name: Name of the thread.
        function: Runs once. An exception that would end the loop (`SystemExit`) or that a future
            cannot carry (`StopIteration`) arrives as a `RuntimeError`.

    Returns:
        A future of the running loop. Cancelling it does not end the thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast("T", result))

    def run() -> None:
        result, raised = None, None
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - handed to whoever awaits the future
            raised = _carried(error)
        # The loop may have been closed meanwhile: then nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, raised)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


async def done_before(work: asyncio.Task[None], event: asyncio.Event) -> bool:
    """Wait for a task or an event; tell whether the task is done."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return work.done()


def _carried(error: BaseException) -> Exception:
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    carried = RuntimeError(f"{type(error).__name__}: {error}")
    carried.__cause__ = error
    return carried
