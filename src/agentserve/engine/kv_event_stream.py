"""Receives an engine's KV events, in order and without silent gaps.

Owns the transport: vLLM's publisher (`ZmqEventPublisher`) sends batches with a sequence number, and
keeps the last ones for whoever asks for a replay. It must not know what an event means. zmq is
imported with the first stream only: an app without an engine does not need it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from agentserve.domain.cache_event import CacheEvents, CacheEventsLost
from agentserve.engine.app_log import log_exception, log_line
from agentserve.engine.kv_event_wire import decode_events

_SEQUENCE_BYTES = 8
_END_OF_REPLAY = (1 << 8 * _SEQUENCE_BYTES) - 1
"""-1 in the publisher's signed form."""
_PUBLISHED_FRAMES = 3
"""Topic, number, batch."""
_REPLAYED_FRAMES = 4
"""Two that are empty, number, batch."""
_REPLAY_TIMEOUT_S = 2.0
"""For each batch. vLLM looks for requests after each batch, and every 0.1 s while it has none."""
_REPLAY_TRIES = 3
"""vLLM's ROUTER drops what its queue cannot hold, so a long replay can itself have gaps."""


class KvEventStream:
    """Delivers the events of one engine on a thread of its own.

    Idle, the thread sleeps in one poll without a timeout: over the subscription, and over a socket
    pair that `close` writes to. Should the thread end without `close`, it delivers one last
    `CacheEventsLost` of 0 batches: nobody knows how many will be missing.

    Args:
        endpoint: Where the engine publishes.
        replay_endpoint: Where it answers replay requests.
        generation: The engine's generation, handed on.
        deliver: Called on the stream's thread; should be quick.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str,
        generation: int,
        deliver: Callable[[CacheEvents | CacheEventsLost], None],
    ) -> None:
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._generation = generation
        self._deliver = deliver
        self._next = 0
        """Sequence number of the first batch that was not handled yet."""
        self._closing = threading.Event()
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)

    def start(self) -> None:
        """Begin to receive. The engine may bind its endpoints later."""
        self._thread.start()

    def close(self, timeout_s: float = 1.0) -> None:
        """End the thread; any number of times, from any thread.

        Args:
            timeout_s: How long to wait for it.
        """
        if not self._closing.is_set():
            self._closing.set()
            self._waker.close()
        if self._thread.ident is None:
            self._wake.close()
        elif self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        reason = "nothing more can be read"
        try:
            self._receive()
        except BaseException as error:  # noqa: BLE001 - a thread's exceptions vanish otherwise
            # Not an error of decoding, so its message holds nothing that came with the events.
            reason = f"{type(error).__name__}: {error}"
        finally:
            self._wake.close()
        if not self._closing.is_set():
            log_line(f"The stream of cache events has ended: {reason}")
            self._call(CacheEventsLost(generation=self._generation, batches=0))

    def _receive(self) -> None:
        import zmq

        # A context of our own: vLLM's goes with its engine, ours with this thread.
        with zmq.Context() as context, context.socket(zmq.SUB) as subscription:
            subscription.linger = 0
            subscription.rcvhwm = 0
            subscription.subscribe(b"")
            subscription.connect(self._endpoint)
            while self._readable(subscription):
                message = _batch_in(subscription.recv_multipart(), _PUBLISHED_FRAMES)
                if message is None:
                    # Should it have had a number, the next batch shows the gap.
                    self._lose_one("It has no sequence number.")
                else:
                    self._take(*message, context)

    def _readable(self, zmq_socket: Any, timeout_s: float | None = None) -> bool:
        """Wait for a message; False when closing, or after the timeout."""
        import zmq

        poller = zmq.Poller()
        poller.register(zmq_socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        ready = dict(poller.poll(None if timeout_s is None else timeout_s * 1000))
        return zmq_socket in ready and not self._closing.is_set()

    def _take(self, number: int, payload: bytes, context: Any) -> None:
        if number > self._next:
            self._fill_gap(number, context)
        if number >= self._next:  # else the replay has brought it already
            self._next = number + 1
            self._hand_on(payload)

    def _fill_gap(self, end: int, context: Any) -> None:
        """Get the batches from `_next` to before `end`; whatever cannot be had is reported."""
        for _ in range(_REPLAY_TRIES):
            progress = False
            with contextlib.closing(self._replayed(context)) as batches:
                for number, payload in batches:
                    if number > self._next:
                        if progress:
                            break  # dropped on the way: ask again
                        self._report_lost(number)  # the engine has nothing older
                    if number == self._next:
                        progress = True
                        self._next = number + 1
                        self._hand_on(payload)
            if self._closing.is_set() or self._next >= end:
                return
            if not progress:
                break
        self._report_lost(end)

    def _report_lost(self, end: int) -> None:
        batches = end - self._next
        self._next = end
        log_line(f"{batches} batches of cache events are lost.")
        self._call(CacheEventsLost(generation=self._generation, batches=batches))

    def _replayed(self, context: Any) -> Generator[tuple[int, bytes]]:
        """What the engine still has from `_next` on, in order."""
        import zmq

        # Made for each replay: a late answer to an earlier request must not be taken for this one.
        with context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.rcvhwm = 0
            dealer.connect(self._replay_endpoint)
            dealer.send_multipart((b"", self._next.to_bytes(_SEQUENCE_BYTES, "big")))
            while self._readable(dealer, _REPLAY_TIMEOUT_S):
                message = _batch_in(dealer.recv_multipart(), _REPLAYED_FRAMES)
                if message is None:
                    continue  # what is missing then is a gap
                if message[0] == _END_OF_REPLAY:
                    return
                yield message

    def _hand_on(self, payload: bytes) -> None:
        try:
            events = decode_events(payload)
        except msgspec.DecodeError as error:
            self._lose_one(str(error))
        except Exception as error:  # noqa: BLE001 - one batch must not end the stream
            # Without its message, which may quote what came with the batch.
            self._lose_one(type(error).__name__)
        else:
            if events:
                self._call(CacheEvents(generation=self._generation, events=events))

    def _lose_one(self, reason: str) -> None:
        log_line(f"A batch of cache events cannot be read: {reason}")
        self._call(CacheEventsLost(generation=self._generation, batches=1))

    def _call(self, events: CacheEvents | CacheEventsLost) -> None:
        try:
            self._deliver(events)
        except Exception as error:  # noqa: BLE001 - the next events must still be handed on
            log_exception(error)


def _batch_in(frames: list[bytes], count: int) -> tuple[int, bytes] | None:
    """Number and payload; None when the message is not of `count` frames, or has no number."""
    if len(frames) != count or len(frames[-2]) != _SEQUENCE_BYTES:
        return None
    return int.from_bytes(frames[-2], "big"), frames[-1]
