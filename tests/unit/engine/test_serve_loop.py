from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time

import httpx
import pytest

from agentserve.engine import serve_loop
from agentserve.engine.backend import Receive, Scope, Send
from agentserve.engine.listening import base_url, bind_listener
from agentserve.engine.serve_loop import ServeLoop
from tests.harness.hooked_backend import answer_completion

DEADLINE_S = 20.0


async def stream_for_ever(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
    await asyncio.Event().wait()


async def answer(value: int) -> int:
    return value


def test_it_serves_from_start_to_close_and_then_the_port_is_free() -> None:
    listener = bind_listener("127.0.0.1", 0)
    url, port = base_url(listener), listener.getsockname()[1]
    loop = ServeLoop(answer_completion, listener)
    loop.start()
    assert httpx.get(url, trust_env=False).status_code == 200
    assert loop.submit(answer(3)).result(DEADLINE_S) == 3
    assert loop.close(DEADLINE_S)
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)
    bind_listener("127.0.0.1", port).close()


def test_connections_before_the_start_are_answered_after_it() -> None:
    listener = bind_listener("127.0.0.1", 0)
    with socket.create_connection(listener.getsockname()) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        loop = ServeLoop(answer_completion, listener)
        loop.start()
        connection.settimeout(DEADLINE_S)
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert loop.close(DEADLINE_S)


def test_closing_does_not_wait_for_open_streams() -> None:
    listener = bind_listener("127.0.0.1", 0)
    loop = ServeLoop(stream_for_ever, listener)
    loop.start()
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=DEADLINE_S))
        for _ in range(3):
            stream = stack.enter_context(client.stream("GET", base_url(listener)))
            assert next(stream.iter_bytes()) == b"data: 1\n\n"
        began_s = time.monotonic()
        assert loop.close(5.0)
        assert time.monotonic() - began_s < 4.0


def test_what_still_runs_at_the_end_is_cancelled_and_may_clean_up() -> None:
    loop = ServeLoop(answer_completion, bind_listener("127.0.0.1", 0))
    loop.start()
    running, cleaned_up = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            running.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up.set()

    submitted = loop.submit(work())
    assert running.wait(DEADLINE_S)
    assert loop.close(DEADLINE_S)
    assert cleaned_up.is_set()
    assert submitted.cancelled()


def test_a_task_that_ignores_being_cancelled_does_not_hold_the_end_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve_loop, "_CANCEL_S", 0.2)
    loop = ServeLoop(answer_completion, bind_listener("127.0.0.1", 0))
    loop.start()
    running, release = threading.Event(), threading.Event()

    async def work() -> None:
        running.set()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    loop.submit(work())
    assert running.wait(DEADLINE_S)
    try:
        assert loop.close(5.0)
    finally:
        release.set()


def test_submitting_after_the_end_is_an_error() -> None:
    loop = ServeLoop(answer_completion, bind_listener("127.0.0.1", 0))
    loop.start()
    assert loop.close(DEADLINE_S)
    with pytest.raises(RuntimeError):
        loop.submit(answer(1))


def test_closing_twice_or_without_a_start_is_harmless() -> None:
    listener = bind_listener("127.0.0.1", 0)
    loop = ServeLoop(answer_completion, listener)
    assert loop.close(1.0)
    assert loop.close(1.0)
    assert listener.fileno() == -1


def test_a_server_that_cannot_start_says_so() -> None:
    listener = bind_listener("127.0.0.1", 0)
    loop = ServeLoop(answer_completion, listener)
    listener.close()
    with pytest.raises(RuntimeError, match="could not start"):
        loop.start()
    assert loop.close(DEADLINE_S)


def test_signals_stay_with_the_app() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    loop = ServeLoop(answer_completion, bind_listener("127.0.0.1", 0))
    loop.start()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert loop.close(DEADLINE_S)
