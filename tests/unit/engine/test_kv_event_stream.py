from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentserve.domain.cache_event import CacheEvent, CacheEvents, CacheEventsLost
from agentserve.engine import kv_event_stream
from agentserve.engine.kv_event_stream import KvEventStream
from agentserve.engine.kv_event_wire import decode_events
from tests.unit.engine.kv_publisher import (
    DEADLINE_S,
    KvPublisher,
    Received,
    batch,
    stored,
    stream_of,
)


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[KvPublisher]:
    publisher = KvPublisher(tmp_path)
    yield publisher
    publisher.close()


@pytest.fixture
def received() -> Received:
    return Received()


@pytest.fixture
def stream(publisher: KvPublisher, received: Received) -> Iterator[KvEventStream]:
    stream = stream_of(publisher, received)
    stream.start()
    publisher.wait_for_subscriber()
    yield stream
    stream.close()


def payloads(first: int, end: int) -> list[tuple[int, bytes]]:
    """Batches, each with one store of its own number."""
    return [(number, batch(stored(number))) for number in range(first, end)]


def publish(publisher: KvPublisher, batches: list[tuple[int, bytes]]) -> None:
    for number, payload in batches:
        publisher.publish(number, payload)


@pytest.mark.usefixtures("stream")
def test_batches_arrive_in_order_with_their_generation(
    publisher: KvPublisher, received: Received
) -> None:
    publish(publisher, payloads(0, 2))
    first = received.next()
    assert isinstance(first, CacheEvents)
    assert first.generation == 3
    assert received.next_hashes() == [1]


@pytest.mark.usefixtures("stream")
def test_a_gap_is_filled_by_a_replay_in_order(publisher: KvPublisher, received: Received) -> None:
    publish(publisher, payloads(0, 1) + payloads(3, 4))
    # As vLLM answers: with all it has from there on, the batch that showed the gap included.
    assert publisher.answer_replay(payloads(1, 4)) == 1
    publish(publisher, payloads(4, 5))
    assert [received.next_hashes() for _ in range(5)] == [[0], [1], [2], [3], [4]]
    assert received.nothing_more()


@pytest.mark.usefixtures("stream")
def test_what_was_published_before_the_subscription_is_asked_for(
    publisher: KvPublisher, received: Received
) -> None:
    publish(publisher, payloads(2, 3))
    assert publisher.answer_replay(payloads(0, 3)) == 0
    assert [received.next_hashes() for _ in range(3)] == [[0], [1], [2]]


@pytest.mark.usefixtures("stream")
def test_a_replayed_batch_is_not_delivered_again_when_it_comes_published(
    publisher: KvPublisher, received: Received
) -> None:
    publish(publisher, payloads(1, 2))
    publisher.answer_replay(payloads(0, 4))
    publish(publisher, payloads(2, 5))
    assert [received.next_hashes() for _ in range(5)] == [[0], [1], [2], [3], [4]]


@pytest.mark.usefixtures("stream")
def test_a_gap_that_is_older_than_the_replay_is_reported_once(
    publisher: KvPublisher, received: Received
) -> None:
    publish(publisher, payloads(0, 1) + payloads(5, 6))
    publisher.answer_replay(payloads(3, 6))
    publish(publisher, payloads(6, 7))
    assert received.next_hashes() == [0]
    assert received.next() == CacheEventsLost(generation=3, batches=2)
    assert [received.next_hashes() for _ in range(4)] == [[3], [4], [5], [6]]
    assert received.nothing_more()


@pytest.mark.usefixtures("stream")
def test_a_replay_that_drops_batches_itself_is_asked_for_again(
    publisher: KvPublisher, received: Received
) -> None:
    publish(publisher, payloads(4, 5))
    publisher.answer_replay(payloads(0, 1) + payloads(2, 5))
    assert publisher.answer_replay(payloads(1, 5)) == 1
    assert [received.next_hashes() for _ in range(5)] == [[0], [1], [2], [3], [4]]


@pytest.mark.usefixtures("stream")
def test_an_engine_without_the_missing_batches_loses_them_once(
    publisher: KvPublisher, received: Received
) -> None:
    publish(publisher, payloads(2, 3))
    publisher.answer_replay([])
    publish(publisher, payloads(3, 4))
    assert received.next() == CacheEventsLost(generation=3, batches=2)
    assert [received.next_hashes() for _ in range(2)] == [[2], [3]]
    assert received.nothing_more()


@pytest.mark.usefixtures("stream")
def test_a_replay_that_nobody_answers_is_given_up(
    publisher: KvPublisher, received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_event_stream, "_REPLAY_TIMEOUT_S", 0.1)
    publish(publisher, payloads(1, 2))
    assert received.next() == CacheEventsLost(generation=3, batches=1)
    assert received.next_hashes() == [1]


@pytest.mark.usefixtures("stream")
def test_a_batch_that_cannot_be_read_is_lost_and_the_stream_goes_on(
    publisher: KvPublisher, received: Received
) -> None:
    publisher.publish(0, b"\xc1 no msgpack")
    publish(publisher, payloads(1, 2))
    assert received.next() == CacheEventsLost(generation=3, batches=1)
    assert received.next_hashes() == [1]


@pytest.mark.usefixtures("stream")
@pytest.mark.parametrize("error", [ValueError, OverflowError, RecursionError, TypeError])
def test_a_batch_that_breaks_the_decoder_is_lost_and_the_stream_goes_on(
    publisher: KvPublisher,
    received: Received,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: type[Exception],
) -> None:
    def decode(payload: bytes) -> tuple[CacheEvent, ...]:
        if payload == b"odd":
            raise error("a secret of the batch")
        return decode_events(payload)

    monkeypatch.setattr(kv_event_stream, "decode_events", decode)
    publisher.publish(0, b"odd")
    publish(publisher, payloads(1, 2))
    assert received.next() == CacheEventsLost(generation=3, batches=1)
    assert received.next_hashes() == [1]
    logged = capfd.readouterr().err
    assert error.__name__ in logged
    assert "secret" not in logged


MALFORMED = [
    (b"",),
    (bytes(8), b"two frames"),
    (b"", bytes(8), b"four", b"frames"),
    (b"", b"", b"no number"),
    (b"", bytes(9), b"a longer number"),
]


@pytest.mark.usefixtures("stream")
@pytest.mark.parametrize("frames", MALFORMED)
def test_a_message_of_another_form_is_one_lost_batch_and_the_stream_goes_on(
    publisher: KvPublisher, received: Received, frames: tuple[bytes, ...]
) -> None:
    publisher.publish_frames(*frames)
    publish(publisher, payloads(0, 2))
    assert received.next() == CacheEventsLost(generation=3, batches=1)
    assert [received.next_hashes() for _ in range(2)] == [[0], [1]]
    assert received.nothing_more()


@pytest.mark.usefixtures("stream")
def test_a_replayed_message_of_another_form_leaves_a_gap_that_is_reported(
    publisher: KvPublisher, received: Received
) -> None:
    publish(publisher, payloads(2, 3))
    publisher.answer_replay_frames((b"short",), (b"", bytes(7), b"seven"))
    assert received.next() == CacheEventsLost(generation=3, batches=2)
    assert received.next_hashes() == [2]


def ended(stream: KvEventStream, received: Received) -> CacheEvents | CacheEventsLost:
    """What a stream delivers that ends by itself."""
    stream.start()
    last = received.next()
    stream.close(DEADLINE_S)
    assert "kv-events" not in {thread.name for thread in threading.enumerate()}
    assert received.nothing_more()
    return last


def test_a_stream_that_cannot_connect_says_so_once(
    received: Received, capfd: pytest.CaptureFixture[str]
) -> None:
    too_long = "ipc:///tmp/" + "x" * 150
    stream = KvEventStream(too_long, too_long, 3, received)
    assert ended(stream, received) == CacheEventsLost(generation=3, batches=0)
    assert "The stream of cache events has ended: ZMQError: " in capfd.readouterr().err


def test_a_stream_without_zmq_says_so_once(
    tmp_path: Path,
    received: Received,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    stream = KvEventStream(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay", 3, received)
    assert ended(stream, received) == CacheEventsLost(generation=3, batches=0)
    assert "zmq" in capfd.readouterr().err


def test_a_stream_that_breaks_in_the_middle_says_so_once(
    publisher: KvPublisher,
    stream: KvEventStream,
    received: Received,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(stream, "_replayed", fail)
    publish(publisher, payloads(0, 1) + payloads(2, 3))
    assert received.next_hashes() == [0]
    assert received.next() == CacheEventsLost(generation=3, batches=0)
    stream.close(DEADLINE_S)
    assert received.nothing_more()


def test_a_stream_that_is_closed_loses_nothing(stream: KvEventStream, received: Received) -> None:
    stream.close(DEADLINE_S)
    assert received.nothing_more()


@pytest.mark.usefixtures("stream")
def test_a_batch_of_unknown_events_only_is_no_gap_and_delivers_nothing(
    publisher: KvPublisher, received: Received
) -> None:
    publisher.publish(0, batch({"type": "BlockMoved", "to": 3}))
    publish(publisher, payloads(1, 2))
    assert received.next_hashes() == [1]


def test_a_receiver_that_raises_still_gets_the_next_events(publisher: KvPublisher) -> None:
    received = Received()

    def deliver(delivery: CacheEvents | CacheEventsLost) -> None:
        received(delivery)
        raise ValueError("broken")

    stream = KvEventStream(publisher.endpoint, publisher.replay_endpoint, 1, deliver)
    stream.start()
    publisher.wait_for_subscriber()
    publish(publisher, payloads(0, 2))
    assert [received.next_hashes() for _ in range(2)] == [[0], [1]]
    stream.close()


def test_it_may_start_before_the_engine_binds(tmp_path: Path, received: Received) -> None:
    stream = KvEventStream(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay", 1, received)
    stream.start()
    publisher = KvPublisher(tmp_path)
    publisher.wait_for_subscriber()
    publish(publisher, payloads(0, 1))
    assert received.next_hashes() == [0]
    stream.close()
    publisher.close()


def test_closing_ends_an_idle_stream_at_once(stream: KvEventStream) -> None:
    assert "kv-events" in {thread.name for thread in threading.enumerate()}
    began_s = time.monotonic()
    stream.close()
    stream.close()
    assert time.monotonic() - began_s < 0.5
    assert "kv-events" not in {thread.name for thread in threading.enumerate()}


def test_closing_does_not_wait_for_a_replay(publisher: KvPublisher, stream: KvEventStream) -> None:
    publish(publisher, payloads(1, 2))
    publisher.answer_replay([], end=False)
    began_s = time.monotonic()
    stream.close()
    assert time.monotonic() - began_s < 0.5
    assert "kv-events" not in {thread.name for thread in threading.enumerate()}


def test_a_stream_that_never_started_can_be_closed(tmp_path: Path, received: Received) -> None:
    KvEventStream(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay", 1, received).close()


def test_an_app_without_an_engine_does_not_load_zmq() -> None:
    code = "import sys, agentserve.engine.kv_event_stream; print('zmq' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"
