"""The thread and event loop on which the front serves and the engine client lives.

One loop serves for the whole life of the app: the front and the engine of the moment share it, so a
token crosses no thread on its way to the client. Loading blocks and therefore happens elsewhere.
Owns the HTTP server and the socket; does not know what the application answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from agentserve.engine.app_log import log_exception
from agentserve.engine.backend import AsgiApp

if TYPE_CHECKING:
    import uvicorn

T = TypeVar("T")
_KEEP_ALIVE_S = 5
_GRACEFUL_S = 1
_CANCEL_S = 1.0
_FORCED_EXIT_S = 1.5


class ServeLoop:
    """Runs an ASGI application on a listening socket, on a thread of its own.

    Args:
        app: The application.
        listener: A bound, listening socket; closed with the loop.
    """

    def __init__(self, app: AsgiApp, listener: socket.socket) -> None:
        self._app = app
        self._listener = listener
        self._loop = new_loop()
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=self._run, name="agentserve-serve", daemon=True)
        self._started = threading.Event()
        self._error: BaseException | None = None

    def start(self) -> None:
        """Start serving; returns when connections are accepted.

        Raises:
            RuntimeError: The server could not start.
        """
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise RuntimeError("The HTTP server could not start.") from self._error

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop; from any thread.

        Raises:
            RuntimeError: The loop is closed; the coroutine will not run.
        """
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise

    def close(self, timeout_s: float) -> bool:
        """Stop serving and end the thread; what still runs on the loop is cancelled.

        Args:
            timeout_s: How long open connections and the thread may take.

        Returns:
            True when the thread has ended in time.
        """
        if self._thread.ident is None:
            self._listener.close()
            self._loop.close()
            return True
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(timeout_s)
        if self._thread.is_alive() and self._server is not None:
            self._server.force_exit = True
            self._thread.join(_FORCED_EXIT_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - uvicorn exits by SystemExit; told by start
            self._error = error
            log_exception(error)
        finally:
            self._listener.close()
            self._loop.run_until_complete(_cancel_tasks())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            self._started.set()

    async def _serve(self) -> None:
        import uvicorn

        started = self._started

        class Server(uvicorn.Server):
            """A server that leaves signals to the app: handlers belong to the main thread."""

            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                started.set()

        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            interface="asgi3",
            lifespan="off",
            proxy_headers=False,
            # The front refuses web sockets; without a library they are not even spoken.
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACEFUL_S,
            server_header=False,
        )
        self._server = Server(config)
        await self._server.serve(sockets=[self._listener])


async def _cancel_tasks() -> None:
    """Cancel whatever still runs, and give it a moment to clean up."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CANCEL_S)


def new_loop() -> asyncio.AbstractEventLoop:
    """Make the loop that requests are served on: uvloop's where it is installed."""
    # vLLM brings uvloop and is tuned on it; without vLLM nothing here is worth the dependency.
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
