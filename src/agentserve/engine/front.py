"""The ASGI front: owns every request before an engine sees it.

It answers `/agentserve/*` itself, checks the API key, and hands everything else to the application
of the current engine as a plain ASGI call. While no engine is ready it answers 503, so a restart
never closes the port. It does not know vLLM, and never reads a prompt: it only keeps the body of
a request within reach for as long as the request lasts.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import secrets
from collections.abc import Callable, Sequence
from contextvars import ContextVar

import msgspec

from agentserve.domain.api_key import ApiKey
from agentserve.domain.request import RequestOrigin
from agentserve.engine.backend import AsgiApp, Receive, Scope, Send
from agentserve.engine.request_body_copy import RequestBody

OWN_PREFIX = "/agentserve/"
SNAPSHOT_ROUTE = "/agentserve/v1/snapshot"
REQUEST_ORIGIN: ContextVar[RequestOrigin | None] = ContextVar("request_origin", default=None)
"""The HTTP request behind the current task; set here, read where generations begin."""
REQUEST_BODY: ContextVar[RequestBody | None] = ContextVar("request_body", default=None)
"""The body of that request, if it is a POST."""

_RETRY_AFTER_S = 5
_KEY_FREE_ROUTES = frozenset({"/health", "/ping"})
_MAX_HEADER_CHARS = 200
_AUTHENTICATE = ((b"www-authenticate", b"Bearer"),)
_ALLOW = ((b"allow", b"GET, HEAD"),)


class Unavailable(msgspec.Struct, frozen=True):
    """Why there is no engine to answer."""

    reason: str
    """One sentence."""
    retry_after_s: int = _RETRY_AFTER_S


class _Client(msgspec.Struct, frozen=True):
    """Who may send requests."""

    key: bytes
    name: str | None
    cache_salt: str | None


_ANYONE = _Client(b"", None, None)


class Front:
    """The application that the HTTP server runs.

    Args:
        snapshot_json: Makes the public snapshot document; called on threads of the loop's executor.
        api_keys: One of them opens every route except health checks; without any all are open.
            `/agentserve/*` shows every client's sessions, so only the first key, the owner's,
            opens it.
        isolate: Whether no key may reuse what was computed for another one.
    """

    def __init__(
        self,
        snapshot_json: Callable[[], bytes],
        api_keys: Sequence[ApiKey] = (),
        *,
        isolate: bool = False,
    ) -> None:
        self._snapshot_json = snapshot_json
        secret = secrets.token_bytes() if isolate else None
        self._clients = tuple(_client(api_key, secret) for api_key in api_keys)
        self._app: AsgiApp | None = None
        self._death: Callable[[], str | None] = _lives
        self._unavailable = Unavailable("No engine is running.")
        self._numbers = itertools.count(1)

    def attach(self, app: AsgiApp, death: Callable[[], str | None]) -> None:
        """Hand requests to `app` from now on, as long as `death` returns None."""
        self._app = app
        self._death = death

    def detach(self, unavailable: Unavailable) -> None:
        """Answer 503 with this reason from now on."""
        self._app = None
        # It belongs to the engine, which must not live on through it.
        self._death = _lives
        self._unavailable = unavailable

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI 3)."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1013})
            return
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        client = self._client(scope) if self._clients else _ANYONE
        if client is None and path not in _KEY_FREE_ROUTES:
            await _send_error(
                send, 401, "A valid API key is needed.", "invalid_api_key", _AUTHENTICATE
            )
        elif path.startswith(OWN_PREFIX) and self._clients and client is not self._clients[0]:
            await _send_error(
                send, 403, "Only the owner's API key opens this route.", "permission_denied"
            )
        elif path.startswith(OWN_PREFIX):
            await self._own(path, scope["method"], send)
        elif self._app is None:
            await self._send_unavailable(send, self._unavailable)
        elif (death := self._death()) is not None:
            await self._send_unavailable(send, Unavailable(death))
        else:
            REQUEST_ORIGIN.set(self._origin(scope, client or _ANYONE))
            await _pass_on(self._app, scope, receive, send)

    async def _own(self, path: str, method: str, send: Send) -> None:
        if path != SNAPSHOT_ROUTE:
            await _send_error(send, 404, "There is no such route.", "not_found")
        elif method not in {"GET", "HEAD"}:
            await _send_error(send, 405, "Only GET is allowed here.", "method_not_allowed", _ALLOW)
        else:
            # The loop streams tokens meanwhile.
            await _send_json(send, 200, await asyncio.to_thread(self._snapshot_json))

    def _client(self, scope: Scope) -> _Client | None:
        for name, value in scope["headers"]:
            if name == b"x-api-key":
                given = value
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                given = value[7:].strip()
            else:
                continue
            # Every key is compared: the time must not tell which one is nearly right.
            found = [each for each in self._clients if hmac.compare_digest(given, each.key)]
            if found:
                return found[0]
        return None

    def _origin(self, scope: Scope, client: _Client) -> RequestOrigin:
        user_agent = session = None
        for name, value in scope["headers"]:
            if name == b"user-agent":
                user_agent = value[:_MAX_HEADER_CHARS].decode("latin-1")
            elif name == b"x-session-id":
                session = value[:_MAX_HEADER_CHARS].decode("latin-1")
        return RequestOrigin(
            number=next(self._numbers),
            route=scope["path"],
            user_agent=user_agent,
            session_header=session,
            cache_salt=client.cache_salt,
            key_name=client.name,
        )

    async def _send_unavailable(self, send: Send, unavailable: Unavailable) -> None:
        await _send_error(
            send,
            503,
            unavailable.reason,
            "engine_unavailable",
            ((b"retry-after", str(unavailable.retry_after_s).encode()),),
        )


def _client(api_key: ApiKey, secret: bytes | None) -> _Client:
    key = api_key.key.encode()
    # Salts are shown and reach the engine: without the secret of this run nobody can tell a key
    # from its salt, nor ask for the salt of another key.
    salt = None if secret is None else hashlib.blake2b(key, key=secret, digest_size=16).hexdigest()
    return _Client(key, api_key.name, salt)


def _lives() -> None:
    return None


async def _pass_on(app: AsgiApp, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["method"] != "POST":
        await app(scope, receive, send)
        return
    body = RequestBody(receive)
    REQUEST_BODY.set(body)
    try:
        await app(scope, body.receive, send)
    finally:
        # Tasks that the engine left behind have a copy of this context.
        body.release()


async def _send_error(
    send: Send, status: int, message: str, code: str, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    # The shape of OpenAI's errors, which Anthropic's clients print as well.
    body = {"error": {"message": message, "type": code, "param": None, "code": status}}
    await _send_json(send, status, msgspec.json.encode(body), headers)


async def _send_json(
    send: Send, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})
