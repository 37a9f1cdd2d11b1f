"""The fixed prompt that must pass through the whole application before READY.

A model can load and still answer nothing: kernels compiled for the wrong card, a broken chat of
processes. The prompt goes past the front's 503 gate, straight to the engine's application, and is
marked internal so that no statistic and no session counts it.
"""

from __future__ import annotations

import asyncio

import msgspec

from agentserve.domain.errors import AgentServeError
from agentserve.domain.request import RequestOrigin
from agentserve.engine.backend import AsgiApp
from agentserve.engine.front import REQUEST_ORIGIN

SMOKE_PROMPT = "def add(a, b):\n    return"
SMOKE_TOKENS = 4
_TIMEOUT_S = 600.0  # a first request may compile kernels for minutes
_SHOWN_BODY_CHARS = 300


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Completion(msgspec.Struct):
    usage: _Usage = msgspec.field(default_factory=_Usage)


async def run_smoke_prompt(app: AsgiApp, route: str, served_model_name: str) -> None:
    """Post the fixed prompt and check that tokens came back.

    Args:
        app: The engine's application.
        route: A completions route (OpenAI's `/v1/completions` request).
        served_model_name: The model to name.

    Raises:
        AgentServeError: The answer is an error, holds no token, or does not come in ten minutes.
            Without a hint, so that the log is asked for the cause.
    """
    body = msgspec.json.encode(
        {
            "model": served_model_name,
            "prompt": SMOKE_PROMPT,
            "max_tokens": SMOKE_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
    )
    REQUEST_ORIGIN.set(RequestOrigin(number=0, route=route, internal=True))
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            status, answer = await call_asgi(app, route, body)
    except TimeoutError:
        raise AgentServeError(
            f"The test prompt was not answered within {_TIMEOUT_S / 60:.0f} minutes."
        ) from None
    shown = answer[:_SHOWN_BODY_CHARS].decode("utf-8", "replace")
    if status != 200:
        raise AgentServeError(f"The test prompt was answered with HTTP {status}: {shown}")
    try:
        tokens = msgspec.json.decode(answer, type=_Completion).usage.completion_tokens
    except msgspec.DecodeError:
        tokens = 0
    if tokens < 1:
        raise AgentServeError(f"The test prompt brought no token: {shown}")


async def call_asgi(app: AsgiApp, path: str, body: bytes) -> tuple[int, bytes]:
    """POST a JSON body to an ASGI application in this process.

    Args:
        app: The application.
        path: Path without a query.
        body: The request's body.

    Returns:
        The HTTP status and the whole answer.
    """
    status = 0
    parts: list[bytes] = []
    done = asyncio.Event()
    sent = False

    async def receive() -> dict[str, object]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        # An early disconnect would abort the request that we wait for.
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        nonlocal status
        assert isinstance(message, dict)
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                done.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
    }
    await app(scope, receive, send)
    return status, b"".join(parts)
