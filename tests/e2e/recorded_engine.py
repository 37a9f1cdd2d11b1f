"""A real engine whose observer writes everything down, in a process of its own, as the app is."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec

from agentserve.domain.api_key import ApiKey
from agentserve.domain.cache_event import (
    BlocksAllocated,
    BlocksRemoved,
    BlocksStored,
    CacheEvent,
    PrefixLookup,
)
from agentserve.domain.preset import Preset
from agentserve.domain.request import FirstToken, InFlightRequest, RequestRecord, RequestStart
from agentserve.domain.sample import CacheFacts, SchedulerFacts
from tests.harness.instance import isolated_environment
from tests.harness.waiting import wait_until

KEYS = (ApiKey(name="alice", key="key-of-alice"), ApiKey(name="bob", key="key-of-bob"))
"""Each has a prefix cache of its own."""
DEADLINE_S = 20.0
LOSE_EVENTS = b"lose\n"
"""A line of input that the recording app understands."""


class Observed(msgspec.Struct, frozen=True):
    """What the observer was told so far."""

    port: int
    starts: list[RequestStart]
    first_tokens: list[FirstToken]
    records: list[RequestRecord]
    answers: list[list[int]]
    facts: list[CacheFacts]
    """Without the decoder, which cannot leave its process."""
    decoded: list[str]
    """What the decoder makes of the prompts in `starts`."""
    events: list[CacheEvent]
    batches_lost: int
    scheduler: SchedulerFacts | None
    in_flight: list[InFlightRequest]

    def start_of(self, body_part: bytes) -> RequestStart:
        """The start of the only request with this in its body."""
        (start,) = [s for s in self.starts if body_part in (s.body or b"")]
        return start

    def first_token_of(self, start: RequestStart) -> FirstToken:
        (first,) = [f for f in self.first_tokens if f.number == start.number]
        return first

    def record_of(self, start: RequestStart) -> RequestRecord:
        (record,) = [r for r in self.records if r.number == start.number]
        return record

    def answer_of(self, start: RequestStart) -> list[int]:
        (answer,) = [
            answer
            for record, answer in zip(self.records, self.answers, strict=True)
            if record.number == start.number
        ]
        return answer

    def lookups_of(self, start: RequestStart) -> list[PrefixLookup]:
        return [
            event
            for event in self.events
            if isinstance(event, PrefixLookup) and event.request_id == start.engine_request_id
        ]

    def hashes_of(self, start: RequestStart) -> list[int]:
        """Block hashes of the prompt, from its first lookup."""
        hashes = self.lookups_of(start)[0].block_hashes
        assert hashes is not None
        return list(hashes)


class RecordedEngine:
    """The child from the outside."""

    def __init__(self, child: subprocess.Popen[bytes], fd: int) -> None:
        self._child = child
        self._answers = os.fdopen(fd, "rb")
        self.ready: Observed
        self.client: httpx.Client

    def wait_until_ready(self) -> None:
        self.ready = pickle.load(self._answers)
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.ready.port}",
            headers={"authorization": f"Bearer {KEYS[0].key}"},
            trust_env=False,
            timeout=60,
        )

    def lose_events(self) -> None:
        """Let the engine's side believe that a batch of cache events was lost."""
        self._ask(LOSE_EVENTS)

    def observed(self) -> Observed:
        return self._ask(b"\n")

    def _ask(self, line: bytes) -> Observed:
        assert self._child.stdin is not None
        self._child.stdin.write(line)
        self._child.stdin.flush()
        observed: Observed = pickle.load(self._answers)
        return observed

    def finished(self, body_part: bytes) -> tuple[Observed, RequestStart]:
        """Wait until the only request with this in its body is finished, and its events are in.

        Events come on a way of their own: after an answer they may still be under way.
        """

        def found() -> tuple[Observed, RequestStart] | None:
            observed = self.observed()
            starts = [s for s in observed.starts if body_part in (s.body or b"")]
            if not starts or not observed.lookups_of(starts[0]):
                return None
            done = any(record.number == starts[0].number for record in observed.records)
            return (observed, starts[0]) if done else None

        return wait_until(found, DEADLINE_S, f"the end of {body_part!r}")

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            assert self._child.wait(30) == 0
        finally:
            self._child.kill()
            self._child.wait()
            self._answers.close()
            if hasattr(self, "client"):
                self.client.close()


@contextlib.contextmanager
def recorded_engine(preset: Preset, cache_dir: Path) -> Iterator[RecordedEngine]:
    """Start an engine; the folder of its sockets has a short name, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="as-", ignore_cleanup_errors=True) as folder:
        reading, writing = os.pipe()
        words = [str(writing), msgspec.json.encode(preset).decode(), str(cache_dir), folder]
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.recording_app", *words],
            stdin=subprocess.PIPE,
            pass_fds=[writing],
            env=isolated_environment(Path(folder)),
        )
        os.close(writing)
        engine = RecordedEngine(child, reading)
        try:
            engine.wait_until_ready()
            yield engine
        finally:
            engine.close()


def evictions_for(observed: Observed, group: int = 0) -> dict[str, int]:
    """How many blocks were removed to make room for which request."""
    removed: dict[str, int] = {}
    owner = ""
    for event in observed.events:
        if isinstance(event, BlocksAllocated):
            owner = event.request_id
        elif isinstance(event, PrefixLookup):
            owner = ""
        elif isinstance(event, BlocksRemoved) and event.group == group:
            removed[owner] = removed.get(owner, 0) + len(event.hashes)
    return removed


def resident(events: list[CacheEvent]) -> dict[tuple[int, int], int]:
    """How often each hash of each group is in the pool, by a simple replay."""
    counts: dict[tuple[int, int], int] = {}
    for event in events:
        if isinstance(event, BlocksStored | BlocksRemoved):
            step = 1 if isinstance(event, BlocksStored) else -1
            for block_hash in event.hashes:
                key = (event.group, block_hash)
                counts[key] = counts.get(key, 0) + step
                assert counts[key] >= 0, "removed without having been stored"
    return {key: count for key, count in counts.items() if count}
