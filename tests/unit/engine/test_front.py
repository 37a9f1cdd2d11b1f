from __future__ import annotations

import asyncio
import gc
import hmac
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agentserve.domain.api_key import ApiKey
from agentserve.domain.request import RequestOrigin
from agentserve.engine.backend import AsgiApp, Receive, Scope, Send
from agentserve.engine.front import (
    REQUEST_BODY,
    REQUEST_ORIGIN,
    SNAPSHOT_ROUTE,
    Front,
    Unavailable,
)
from agentserve.engine.listening import base_url, bind_listener
from agentserve.engine.request_body_copy import BODY_LIMIT_BYTES
from agentserve.engine.serve_loop import ServeLoop
from tests.harness.hooked_backend import answer_completion

KEY = "correct horse"
DEADLINE_S = 20.0
NAMED = (ApiKey(key=KEY), ApiKey(name="ada", key="key of ada"), ApiKey(name="bo", key="bo"))
ROUTES = ("/v1/chat/completions", "/v1/models", "/metrics", SNAPSHOT_ROUTE, "/", "/docs")


def lives() -> None:
    return None


class Served:
    """A front of its own for each test, behind one socket for all."""

    def __init__(self) -> None:
        self.front = Front(snapshot_json)
        listener = bind_listener("127.0.0.1", 0)
        self.loop = ServeLoop(self.answer, listener)
        self.loop.start()
        self.client = httpx.Client(base_url=base_url(listener), trust_env=False, timeout=DEADLINE_S)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.front(scope, receive, send)

    def close(self) -> None:
        self.client.close()
        assert self.loop.close(5.0)


def snapshot_json() -> bytes:
    return b'{"schema":1}'


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


@pytest.fixture
def served(server: Served) -> Served:
    server.front = Front(snapshot_json)
    return server


@pytest.fixture
def guarded(server: Served) -> Served:
    server.front = Front(snapshot_json, (ApiKey(key=KEY),))
    server.front.attach(answer_completion, lives)
    return server


def test_without_an_engine_every_route_of_the_engine_answers_503_in_json(served: Served) -> None:
    for answer in (served.client.get("/v1/models"), served.client.post("/v1/messages", json={})):
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"] == {
            "message": "No engine is running.",
            "type": "engine_unavailable",
            "param": None,
            "code": 503,
        }


def test_the_reason_of_the_last_detach_is_given(served: Served) -> None:
    served.front.attach(answer_completion, lives)
    served.front.detach(Unavailable("The engine is stopping.", 9))
    answer = served.client.get("/v1/models")
    assert answer.json()["error"]["message"] == "The engine is stopping."
    assert answer.headers["retry-after"] == "9"


def test_a_dead_engine_gets_no_request(served: Served) -> None:
    served.front.attach(answer_completion, lambda: "The worker has died.")
    answer = served.client.get("/v1/models")
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "The worker has died."


def test_a_detached_engine_is_held_no_longer(served: Served) -> None:
    class Engine:
        async def app(self, scope: Scope, receive: Receive, send: Send) -> None: ...

        def death(self) -> None: ...

    engine = Engine()
    gone = weakref.ref(engine)
    served.front.attach(engine.app, engine.death)
    served.front.detach(Unavailable("gone"))
    del engine
    gc.collect()
    assert gone() is None


def test_a_large_body_to_no_engine_leaves_the_connection_usable(served: Served) -> None:
    body = b"x" * 2_000_000
    assert served.client.post("/v1/messages", content=body).status_code == 503
    assert served.client.get(SNAPSHOT_ROUTE).status_code == 200


def test_our_own_routes(served: Served) -> None:
    served.front.attach(answer_completion, lives)
    answer = served.client.get(SNAPSHOT_ROUTE)
    assert (answer.status_code, answer.json()) == (200, {"schema": 1})
    head = served.client.head(SNAPSHOT_ROUTE)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.content))
    posted = served.client.post(SNAPSHOT_ROUTE)
    assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")
    for path in ("/agentserve/v1/nothing", "/agentserve/v1/", "/agentserve/v2/snapshot"):
        unknown = served.client.get(path)
        assert unknown.status_code == 404
        assert unknown.json()["error"]["type"] == "not_found"


def test_both_headers_carry_the_key(guarded: Served) -> None:
    for headers in (
        {"Authorization": f"Bearer {KEY}"},
        {"Authorization": f"bearer {KEY}"},
        {"x-api-key": KEY},
        {"X-API-Key": KEY, "Authorization": "Bearer something else"},
    ):
        for path in ROUTES:
            assert guarded.client.get(path, headers=headers).status_code == 200, (path, headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-api-key": ""},
        {"x-api-key": KEY[:-1]},
        {"x-api-key": KEY + "x"},
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer " + KEY.upper()},
        {"Cookie": f"x-api-key={KEY}"},
    ],
)
def test_without_the_right_key_nothing_but_health_is_answered(
    guarded: Served, headers: dict[str, str]
) -> None:
    for path in (*ROUTES, "/agentserve/v1/nothing", "/health/x", "/pingx", "/health/../metrics"):
        answer = guarded.client.get(path, headers=headers)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["type"] == "invalid_api_key"
    for path in ("/health", "/ping"):
        assert guarded.client.get(path, headers=headers).status_code == 200


def test_health_says_503_without_an_engine_also_to_those_without_a_key(guarded: Served) -> None:
    guarded.front.detach(Unavailable("The engine is stopping."))
    assert guarded.client.get("/health").status_code == 503


def test_keys_are_compared_in_constant_time(
    guarded: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare_digest(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return False

    # Time itself is no measure on a busy machine.
    monkeypatch.setattr(hmac, "compare_digest", compare_digest)
    assert guarded.client.get("/", headers={"x-api-key": KEY}).status_code == 401
    assert compared == [(KEY.encode(), KEY.encode())]


def test_every_key_is_compared_whichever_matches(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []

    def compare_digest(a: bytes, b: bytes) -> bool:
        compared.append(b)
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare_digest)
    served.front = Front(snapshot_json, NAMED)
    for each in NAMED:
        compared.clear()
        served.client.get(SNAPSHOT_ROUTE, headers={"x-api-key": each.key})
        assert compared == [key.key.encode() for key in NAMED]


def origins_of(served: Served, *keys: str) -> list[RequestOrigin]:
    """What the engine learns of one request with each key."""
    origins: list[RequestOrigin | None] = []

    async def remember(scope: Scope, receive: Receive, send: Send) -> None:
        origins.append(REQUEST_ORIGIN.get())
        await answer_completion(scope, receive, send)

    served.front.attach(remember, lives)
    for key in keys:
        headers = {"Authorization": f"Bearer {key}"}
        assert served.client.post("/v1/messages", headers=headers).status_code == 200
    return [origin for origin in origins if origin is not None]


def test_each_key_opens_and_its_name_reaches_the_engine(served: Served) -> None:
    served.front = Front(snapshot_json, NAMED)
    origins = origins_of(served, *(each.key for each in NAMED))
    assert [origin.key_name for origin in origins] == [None, "ada", "bo"]
    assert [origin.cache_salt for origin in origins] == [None, None, None]
    for wrong in ("key of", "ada", "key of ada" + "bo"):
        assert served.client.get("/", headers={"x-api-key": wrong}).status_code == 401


def test_only_the_first_key_opens_our_own_routes(served: Served) -> None:
    asked: list[str] = []

    def snapshot() -> bytes:
        asked.append("snapshot")
        return snapshot_json()

    served.front = Front(snapshot, NAMED)
    served.front.attach(answer_completion, lives)
    owner, *others = NAMED
    for path in (SNAPSHOT_ROUTE, "/agentserve/v1/nothing"):
        for each in others:
            for headers in ({"x-api-key": each.key}, {"Authorization": f"Bearer {each.key}"}):
                refused = served.client.get(path, headers=headers)
                assert refused.status_code == 403
                assert refused.json()["error"] == {
                    "message": "Only the owner's API key opens this route.",
                    "type": "permission_denied",
                    "param": None,
                    "code": 403,
                }
                assert served.client.get("/v1/models", headers=headers).status_code == 200
    assert not asked
    opened = served.client.get(SNAPSHOT_ROUTE, headers={"x-api-key": owner.key})
    assert opened.status_code == 200
    assert served.client.get(SNAPSHOT_ROUTE).status_code == 401


async def test_the_loop_goes_on_while_a_snapshot_is_made() -> None:
    begun, goes_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def snapshot() -> bytes:
        loop.call_soon_threadsafe(begun.set)
        # Made on the loop this would never be set.
        assert goes_on.wait(DEADLINE_S)
        return snapshot_json()

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": SNAPSHOT_ROUTE, "method": "GET", "headers": []}
    answer = asyncio.create_task(Front(snapshot)(scope, Script().receive, send))
    await asyncio.wait_for(begun.wait(), DEADLINE_S)
    goes_on.set()
    await answer
    assert [sent[0]["status"], sent[1]["body"]] == [200, snapshot_json()]


def test_isolated_keys_have_salts_of_their_own_that_stay(served: Served) -> None:
    served.front = Front(snapshot_json, NAMED, isolate=True)
    keys = [each.key for each in NAMED]
    salts = [origin.cache_salt for origin in origins_of(served, *keys, *keys)]
    assert all(salts)
    assert salts[:3] == salts[3:]
    assert len(set(salts)) == 3


def test_a_salt_cannot_be_worked_out_from_its_key(served: Served) -> None:
    salts = set()
    for _ in range(3):
        served.front = Front(snapshot_json, NAMED, isolate=True)
        (origin,) = origins_of(served, KEY)
        salts.add(origin.cache_salt)
    # One that followed from the key alone would be the same in every run.
    assert len(salts) == 3


def test_health_checks_without_a_key_have_no_name_and_no_salt(served: Served) -> None:
    served.front = Front(snapshot_json, NAMED, isolate=True)
    origins: list[RequestOrigin | None] = []

    async def remember(scope: Scope, receive: Receive, send: Send) -> None:
        origins.append(REQUEST_ORIGIN.get())
        await answer_completion(scope, receive, send)

    served.front.attach(remember, lives)
    assert served.client.get("/health").status_code == 200
    (origin,) = origins
    assert origin is not None
    assert (origin.key_name, origin.cache_salt) == (None, None)


async def test_a_web_socket_is_refused() -> None:
    front = Front(lambda: b"")
    front.attach(answer_completion, lives)
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await front({"type": "websocket", "path": "/v1/realtime", "headers": []}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_an_upgrade_to_a_web_socket_does_not_switch_protocols(guarded: Served) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    assert guarded.client.get("/v1/realtime", headers=upgrade).status_code == 401
    allowed = {**upgrade, "x-api-key": KEY}
    assert guarded.client.get("/v1/realtime", headers=allowed).status_code != 101


def test_the_origin_of_a_request_reaches_the_engine_bounded_and_numbered(served: Served) -> None:
    origins: list[RequestOrigin | None] = []

    async def remember(scope: Scope, receive: Receive, send: Send) -> None:
        origins.append(REQUEST_ORIGIN.get())
        await answer_completion(scope, receive, send)

    served.front.attach(remember, lives)
    headers = {"User-Agent": "agent/1" * 500, "X-Session-ID": "s" * 5000}
    served.client.post("/v1/messages", headers=headers)
    served.client.get("/v1/models", headers={"User-Agent": "agent/2"})
    first, second = origins
    assert first is not None
    assert second is not None
    assert (first.number, first.route, first.internal) == (1, "/v1/messages", False)
    assert first.user_agent == ("agent/1" * 500)[:200]
    assert first.session_header == "s" * 200
    assert (second.number, second.user_agent, second.session_header) == (2, "agent/2", None)
    assert REQUEST_ORIGIN.get() is None


class Script:
    """An ASGI client that sends these messages, and nothing after them."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = iter(messages)

    async def receive(self) -> dict[str, Any]:
        return next(self._messages)


def part(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def call(app: AsgiApp, *messages: dict[str, Any], method: str = "POST") -> None:
    """Send a request through a front to an engine's application, on the current task."""
    front = Front(snapshot_json)
    front.attach(app, lives)
    scope = {"type": "http", "path": "/v1/messages", "method": method, "headers": []}

    async def send(message: Any) -> None: ...

    await front(scope, Script(*messages).receive, send)


async def read_all(receive: Receive, count: int) -> list[Any]:
    return [await receive() for _ in range(count)]


async def test_the_engine_can_have_the_whole_body_once_it_was_read() -> None:
    contents: list[bytes | None] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = REQUEST_BODY.get()
        assert body is not None
        contents.append(body.content())
        for _ in range(3):
            await receive()
            contents.append(body.content())

    await call(app, part(b"ab", more=True), part(b"", more=True), part(b"c", more=False))
    assert contents == [None, None, None, b"abc"]


async def test_a_body_in_one_piece_is_kept_without_a_copy() -> None:
    whole = b'{"messages": []}' * 1000

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = REQUEST_BODY.get()
        assert body is not None
        await receive()
        assert body.content() is whole

    await call(app, part(whole, more=False))


async def test_the_engine_gets_every_message_unchanged() -> None:
    big = b"x" * (BODY_LIMIT_BYTES // 2 + 1)
    messages = [
        *(part(big, more=True), {"type": "http.request"}, part(big, more=True)),
        *(part(b"end", more=False), {"type": "http.disconnect"}),
    ]
    got: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        got.extend(await read_all(receive, len(messages)))

    await call(app, *messages)
    assert [id(message) for message in got] == [id(message) for message in messages]


@pytest.mark.parametrize(("over", "kept"), [(0, True), (1, False)])
async def test_a_body_above_the_limit_is_not_kept(over: int, kept: bool) -> None:
    half = b"x" * (BODY_LIMIT_BYTES // 2)
    rest = half + b"y" * over

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = REQUEST_BODY.get()
        assert body is not None
        await read_all(receive, 2)
        assert body.content() == (half + rest if kept else None)

    await call(app, part(half, more=True), part(rest, more=False))


async def test_a_body_is_gone_after_its_request_also_for_a_task_that_lives_on() -> None:
    ended = asyncio.Event()
    left_behind: list[asyncio.Task[bytes | None]] = []

    async def look_late() -> bytes | None:
        await ended.wait()
        body = REQUEST_BODY.get()
        assert body is not None
        return body.content()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        left_behind.append(asyncio.create_task(look_late()))
        raise RuntimeError("a bug of the engine's")

    with pytest.raises(RuntimeError):
        await asyncio.create_task(call(app, part(b"secret", more=False)))
    ended.set()
    assert await left_behind[0] is None
    assert REQUEST_BODY.get() is None


async def test_of_other_methods_no_body_is_kept() -> None:
    seen: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(REQUEST_BODY.get())

    await call(app, method="GET")
    assert seen == [None]


def test_a_client_that_goes_away_is_seen_by_the_engine(served: Served) -> None:
    disconnected = threading.Event()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            continue
        disconnected.set()

    served.front.attach(stream, lives)
    with served.client.stream("POST", "/v1/completions", json={}) as answer:
        assert next(answer.iter_bytes()) == b"data: 1\n\n"
    assert disconnected.wait(DEADLINE_S)


def test_an_application_that_raises_costs_one_answer_only(served: Served) -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("a bug of the engine's")

    served.front.attach(fail, lives)
    assert served.client.get("/v1/models").status_code == 500
    assert served.client.get(SNAPSHOT_ROUTE).status_code == 200
