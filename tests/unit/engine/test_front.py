from __future__ import annotations

import gc
import hmac
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agentserve.domain.request import RequestOrigin
from agentserve.engine.backend import Receive, Scope, Send
from agentserve.engine.front import REQUEST_ORIGIN, SNAPSHOT_ROUTE, Front, Unavailable
from agentserve.engine.listening import base_url, bind_listener
from agentserve.engine.serve_loop import ServeLoop
from tests.harness.hooked_backend import answer_completion

KEY = "correct horse"
DEADLINE_S = 20.0
ROUTES = ("/v1/chat/completions", "/v1/models", "/metrics", SNAPSHOT_ROUTE, "/", "/docs")


def lives() -> None:
    return None


class Served:
    """A front of its own for each test, behind one socket for all."""

    def __init__(self) -> None:
        self.front = Front(snapshot_json, None)
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
    server.front = Front(snapshot_json, None)
    return server


@pytest.fixture
def guarded(server: Served) -> Served:
    server.front = Front(snapshot_json, KEY)
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


async def test_a_web_socket_is_refused() -> None:
    front = Front(lambda: b"", None)
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
