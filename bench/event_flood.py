"""A flood of cache events: who sends it, and who takes it in inside the app's process.

Run as `python -m bench.event_flood FOLDER` it publishes as an engine does, on a socket in FOLDER,
for as many seconds as each line of its input says. The receiver is a second stream and a second
tracker of the product's own code, beside those of the app's engine.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import msgspec

from agentserve.domain.sample import CacheFacts
from agentserve.engine.kv_event_stream import KvEventStream
from agentserve.telemetry.sessions.exchange import MonitorInput, SessionsView
from agentserve.telemetry.sessions.tracker import SessionTracker

EVENTS_PER_S = 10_000
_BATCHES_PER_S = 100
"""Steps of an engine."""
_BATCHES_KEPT = 100
"""After so many batches the events begin anew."""


class FloodSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What the receiver has taken in."""

    events: int
    lost: bool


class FloodReceiver:
    """Takes in the flood, from its own stream to its own monitor.

    Args:
        folder: Where the publisher's socket is.
    """

    def __init__(self, folder: Path) -> None:
        self._tracker = SessionTracker(self._make_monitor, _ignore)
        self._monitor: _CountingMonitor | None = None
        self._stream = KvEventStream(*endpoints(folder), 1, self._tracker.cache_events)

    def start(self) -> None:
        """Wait for a publisher; costs nothing until there is one."""
        self._tracker.start()
        self._stream.start()

    def seen(self) -> FloodSeen:
        """What was taken in so far."""
        monitor = self._monitor
        if monitor is None:
            return FloodSeen(events=0, lost=False)
        return FloodSeen(
            events=monitor.events,
            lost=self._tracker.view().monitor.residency_problem is not None,
        )

    def _make_monitor(self) -> _CountingMonitor:
        self._monitor = _CountingMonitor()
        return self._monitor


class _CountingMonitor:
    """The session monitor with a count of events."""

    def __init__(self) -> None:
        # Late: they are loaded with the first events, as in the app.
        from agentserve.telemetry.sessions.monitor import SessionMonitor
        from bench.agent_turns import DENSE_16

        self._monitor = SessionMonitor()
        self._monitor.handle(CacheFacts(generation=1, layout=DENSE_16))
        self.events = 0

    @property
    def waiting(self) -> bool:
        return self._monitor.waiting

    def handle(self, value: MonitorInput) -> None:
        self._monitor.handle(value)
        self.events += len(getattr(value, "events", ()))

    def view(self) -> SessionsView:
        return self._monitor.view()


def endpoints(folder: Path) -> tuple[str, str]:
    """Where the flood is published, and where replays would be asked for."""
    return f"ipc://{folder}/flood", f"ipc://{folder}/flood-replay"


def main() -> int:
    """Publish for the seconds that each line says; answer each with the events sent.

    Returns:
        The process exit status.
    """
    import zmq

    endpoint, _ = endpoints(Path(sys.argv[1]))
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.linger = 0
        socket.bind(endpoint)
        socket.recv()  # the subscription
        # Made before: the sender must not use the processor that it wants to see used.
        payloads = itertools.cycle([_payload(number) for number in range(_BATCHES_KEPT)])
        numbers = itertools.count()
        print("ready", flush=True)
        for line in sys.stdin:
            batches = round(float(line) * _BATCHES_PER_S)
            next_s = time.monotonic()
            for _ in range(batches):
                number = next(numbers).to_bytes(8, "big")
                socket.send_multipart((b"", number, next(payloads)))
                next_s += 1 / _BATCHES_PER_S
                time.sleep(max(0.0, next_s - time.monotonic()))
            print(batches * EVENTS_PER_S // _BATCHES_PER_S, flush=True)
    return 0


def _payload(number: int) -> bytes:
    """One step's events, of one block each: every other batch removes what the last one stored."""
    count = EVENTS_PER_S // _BATCHES_PER_S
    first = 2**60 + number // 2 * count
    removes = number % 2 == 1
    events: list[dict[str, object]] = [
        {"type": "BlockRemoved", "block_hashes": [block], "medium": "GPU", "group_idx": 0}
        if removes
        else {
            "type": "BlockStored",
            "block_hashes": [block],
            "parent_block_hash": block - 1,
            "token_ids": [70_000] * 16,
            "block_size": 16,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "group_idx": 0,
        }
        for block in range(first, first + count)
    ]
    return msgspec.msgpack.encode([time.time(), events, 0])


def _ignore(_error: BaseException) -> None:
    """A fault shows in the count."""


if __name__ == "__main__":
    sys.exit(main())
