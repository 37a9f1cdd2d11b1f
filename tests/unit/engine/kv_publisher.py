"""An engine's side of the event stream, as `vllm/distributed/kv_events.py` speaks it."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from agentserve.domain.cache_event import BlocksStored, CacheEvents, CacheEventsLost
from agentserve.engine.kv_event_stream import KvEventStream

DEADLINE_S = 10.0
END = (-1).to_bytes(8, "big", signed=True)


def stored(*hashes: int | bytes, **fields: Any) -> dict[str, Any]:
    """A store event with all that vLLM sends."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": None,
        "token_ids": list(range(16 * len(hashes))),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        **fields,
    }


def batch(*events: Any) -> bytes:
    return msgspec.msgpack.encode([time.time(), list(events), 0])


class KvPublisher:
    """Publishes batches and answers replays when told to."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"ipc://{folder}/events"
        self.replay_endpoint = f"ipc://{folder}/replay"
        self._context = zmq.Context()
        # XPUB is a PUB that lets us see the subscription.
        self._pub = self._context.socket(zmq.XPUB)
        self._router = self._context.socket(zmq.ROUTER)
        for socket in (self._pub, self._router):
            socket.linger = 0
            socket.rcvtimeo = int(DEADLINE_S * 1000)
        self._pub.bind(self.endpoint)
        self._router.bind(self.replay_endpoint)

    def wait_for_subscriber(self) -> None:
        assert self._pub.recv() == b"\x01"

    def publish(self, number: int, payload: bytes) -> None:
        self.publish_frames(b"", number.to_bytes(8, "big"), payload)

    def publish_frames(self, *frames: bytes) -> None:
        self._pub.send_multipart(frames)

    def answer_replay(self, batches: Iterable[tuple[int, bytes]], *, end: bool = True) -> int:
        """Wait for a replay request and answer it.

        Returns:
            The number that the replay was asked to begin with.
        """
        client, _, start = self._router.recv_multipart()
        for number, payload in batches:
            self._router.send_multipart((client, b"", b"", number.to_bytes(8, "big"), payload))
        if end:
            self._router.send_multipart((client, b"", b"", END, b""))
        return int.from_bytes(start, "big")

    def answer_replay_frames(self, *messages: tuple[bytes, ...]) -> None:
        """Wait for a replay request and answer it with these messages and the end."""
        client, _, _ = self._router.recv_multipart()
        for frames in (*messages, (b"", b"", END, b"")):
            self._router.send_multipart((client, *frames))

    def close(self) -> None:
        self._pub.close()
        self._router.close()
        self._context.term()


class Received:
    """What a stream delivered, in order."""

    def __init__(self) -> None:
        self._deliveries: queue.Queue[CacheEvents | CacheEventsLost] = queue.Queue()

    def __call__(self, delivery: CacheEvents | CacheEventsLost) -> None:
        self._deliveries.put(delivery)

    def next(self) -> CacheEvents | CacheEventsLost:
        return self._deliveries.get(timeout=DEADLINE_S)

    def next_hashes(self) -> list[int]:
        """The hashes in the next delivery, which must bring stores only."""
        delivery = self.next()
        assert isinstance(delivery, CacheEvents)
        hashes: list[int] = []
        for event in delivery.events:
            assert isinstance(event, BlocksStored)
            hashes += event.hashes
        return hashes

    def nothing_more(self) -> bool:
        return self._deliveries.empty()


def stream_of(publisher: KvPublisher, received: Received) -> KvEventStream:
    return KvEventStream(publisher.endpoint, publisher.replay_endpoint, 3, received)
