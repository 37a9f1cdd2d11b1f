from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from agentserve.domain.errors import AgentServeError
from agentserve.domain.request import RequestOrigin
from agentserve.engine import smoke
from agentserve.engine.backend import AsgiApp, Receive, Scope, Send
from agentserve.engine.front import REQUEST_ORIGIN
from agentserve.engine.smoke import call_asgi, run_smoke_prompt

ROUTE = "/v1/completions"


def answering(status: int, *parts: bytes) -> AsgiApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body", False):
            continue
        await send({"type": "http.response.start", "status": status, "headers": []})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    return app


async def test_tokens_are_enough() -> None:
    await run_smoke_prompt(
        answering(200, b'{"usage": {"completion', b'_tokens": 1}, "more": []}'), ROUTE, "m"
    )


@pytest.mark.parametrize(
    ("app", "said"),
    [
        (answering(500, b"EngineDeadError"), "HTTP 500: EngineDeadError"),
        (answering(404, b""), "HTTP 404"),
        (answering(200, b'{"usage": {"completion_tokens": 0}}'), "no token"),
        (answering(200, b'{"usage": null}'), "no token"),
        (answering(200, b"{}"), "no token"),
        (answering(200, b"[1]"), "no token"),
        (answering(200, b"data: {}\n\n"), "no token"),
        (answering(200, b"\xff\xfe"), "no token"),
        (answering(500, b"x" * 10_000), "HTTP 500: xxx"),
    ],
)
async def test_anything_else_is_an_error_of_bounded_length(app: AsgiApp, said: str) -> None:
    with pytest.raises(AgentServeError) as error:
        await run_smoke_prompt(app, ROUTE, "m")
    assert said in error.value.message
    assert len(error.value.message) < 500
    # The log is asked for the cause of errors that name no remedy.
    assert error.value.hint == ""


async def test_the_prompt_is_internal_and_names_the_model() -> None:
    seen: list[tuple[RequestOrigin | None, Scope, Any]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        seen.append((REQUEST_ORIGIN.get(), scope, msgspec.json.decode(body)))
        await answering(200, b'{"usage": {"completion_tokens": 4}}')(scope, _no_body, send)

    await asyncio.create_task(run_smoke_prompt(app, ROUTE, "served name"))
    origin, scope, body = seen[0]
    assert origin is not None
    assert origin.internal
    assert (scope["method"], scope["path"]) == ("POST", ROUTE)
    assert body["model"] == "served name"
    assert body["max_tokens"] == smoke.SMOKE_TOKENS
    assert REQUEST_ORIGIN.get() is None


async def _no_body() -> dict[str, Any]:
    return {"type": "http.request", "body": b""}


async def test_an_answer_that_never_comes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "_TIMEOUT_S", 0.02)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    with pytest.raises(AgentServeError, match="not answered"):
        await run_smoke_prompt(app, ROUTE, "m")


async def test_an_application_that_says_nothing_is_an_error() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        return None

    with pytest.raises(AgentServeError, match="HTTP 0"):
        await run_smoke_prompt(app, ROUTE, "m")


async def test_the_client_is_there_until_the_answer_is_complete() -> None:
    order: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()

        async def watch() -> None:
            order.append((await receive())["type"])

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        assert order == []
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
        await watching

    assert await call_asgi(app, "/", b"") == (200, b"done")
    assert order == ["http.disconnect"]


@pytest.mark.parametrize("cancel_after", [0, 1, 3])
async def test_a_cancelled_prompt_cancels_the_application(cancel_after: int) -> None:
    ended: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await receive()
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    prompt = asyncio.create_task(run_smoke_prompt(app, ROUTE, "m"))
    for _ in range(cancel_after):
        await asyncio.sleep(0)
    prompt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await prompt
    assert ended == (["ended"] if cancel_after else [])
