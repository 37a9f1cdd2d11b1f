"""Part (d): what following agent sessions costs in the app's process.

Owns the measurement of the real code, without an engine: one large prompt, the memory of many
sessions, one tick with many sessions. Times are processor time of the measuring thread, so that
what else runs on the machine disturbs little; waiting for the interpreter's lock is measured apart.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from agentserve.domain.cache_event import BlocksStored, CacheEvents
from agentserve.domain.cache_layout import CacheLayout
from agentserve.domain.gpu import GpuReport
from agentserve.domain.lifecycle import EngineState, EngineStatus
from agentserve.domain.session import SessionView
from agentserve.engine.kv_event_wire import LookupMark, decode_events
from agentserve.engine.request_body_copy import RequestBody
from agentserve.telemetry.collector import SnapshotCollector
from agentserve.telemetry.engine_stats import EngineStats
from agentserve.telemetry.sessions.exchange import FinishedRequest, SessionsView
from agentserve.telemetry.sessions.monitor import SessionMonitor
from agentserve.telemetry.sessions.token_prefix import token_array
from agentserve.telemetry.sessions.tracker import SessionTracker
from agentserve.ui.panels import session_table
from agentserve.ui.panels.pool_bar import Letters
from bench.agent_turns import (
    ANSWER_TOKENS,
    DENSE_16,
    GENERATION,
    HYBRID_784,
    InventedEngine,
    Prompt,
    Turn,
    large_prompt,
)
from bench.report import Figure, Section

PROMPT_TOKENS = 100_000
_SIZES = (10_000, PROMPT_TOKENS, 200_000)
_NEW_SHARE = 10
"""One of so many tokens of a turn is new."""
_CHUNK_BYTES = 65_536
"""What the HTTP server hands on at once."""
_SESSIONS = (100, 1_000)
_SCREEN = (200, 60)
_MIB = 2**20


def measure_prompt_cost(*, rounds: int) -> Section:
    """Measure what one prompt costs, for several lengths.

    Args:
        rounds: How often; each with a session of its own.

    Returns:
        The section of the report.
    """
    figures: list[Figure] = []
    for tokens in _SIZES:
        costs = [_turn_cost(tokens, f"round {number}") for number in range(rounds + 1)][1:]
        label = f"{tokens:,} tokens, 10% new"
        total = tuple(each.serving_ms + each.events_ms + each.tracker_ms for each in costs)
        aim = 5.0 if tokens == PROMPT_TOKENS else None
        figures += [
            _ms(f"{label}: all threads together", total, aim),
            _ms(f"{label}: on the serving thread", [each.serving_ms for each in costs]),
            _ms(f"{label}: decoding its cache events", [each.events_ms for each in costs]),
            _ms(f"{label}: on the tracker's thread", [each.tracker_ms for each in costs]),
        ]
    new = [_first_turn_ms(f"new {number}", None) for number in range(rounds)]
    changed = [_first_turn_ms(f"changed {number}", 2_000) for number in range(rounds)]
    waits = [_lock_waits_ms(f"wait {number}") for number in range(rounds)]
    label = f"{PROMPT_TOKENS:,} tokens"
    figures += [
        _ms(f"{label}, all new, tracker's thread", new),
        _ms(f"{label}, system prompt changed, tracker's thread", changed),
        _ms("longest wait of another thread for the lock meanwhile", [each[0] for each in waits]),
        _ms("longest stretch that cannot give the lock up", [each[1] for each in waits]),
        _ms("the same two without any work", [each[2] for each in waits]),
    ]
    return Section(
        title="(d1) one large prompt, in the app's process",
        figures=tuple(figures),
        notes=(
            "Processor time of the real code; 4.7 bytes of body for each token, dense cache of "
            "blocks of 16 tokens, a pool that is not full.",
            "Only the serving thread's share is on the way of the tokens; the other threads take "
            "the interpreter's lock from it, and give it up in between.",
            "The lock's waits are wall time and hold what the machine does besides.",
        ),
    )


class _Cost(msgspec.Struct, frozen=True):
    """Processor milliseconds of one turn, by thread."""

    serving_ms: float
    events_ms: float
    tracker_ms: float


def _turn_cost(tokens: int, name: str) -> _Cost:
    monitor, turn = _before_turn(tokens, name)
    payloads = [_wire(events) for events in turn.events]
    body = turn.start.body
    assert body is not None
    return _Cost(
        serving_ms=asyncio.run(_serving_ms(body, turn)),
        events_ms=_cpu_ms(lambda: [decode_events(payload) for payload in payloads]),
        tracker_ms=_cpu_ms(lambda: _feed(monitor, turn)),
    )


def _before_turn(tokens: int, name: str) -> tuple[SessionMonitor, Turn]:
    """A monitor that knows the turn before, and a turn that continues it."""
    engine, monitor = InventedEngine(DENSE_16), SessionMonitor()
    monitor.handle(engine.facts())
    before = tokens - tokens // _NEW_SHARE
    earlier, prompt = (_as_engine(large_prompt(name, each, DENSE_16)) for each in (before, tokens))
    _feed(monitor, engine.run(earlier))
    return monitor, engine.run(prompt, resident_tokens=before + ANSWER_TOKENS)


def _as_engine(prompt: Prompt) -> Prompt:
    """The same with larger token ids: as an engine has them, each has memory of its own."""
    return prompt._replace(
        token_ids=[token + 1_000 for token in prompt.token_ids],
        answer_token_ids=token_array([token + 1_000 for token in prompt.answer_token_ids]),
    )


async def _serving_ms(body: bytes, turn: Turn) -> float:
    """The body on its way to the engine, and what the observer does at once."""
    chunks = [body[at : at + _CHUNK_BYTES] for at in range(0, len(body), _CHUNK_BYTES)]
    messages = iter(
        {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}
        for number, chunk in enumerate(chunks, 1)
    )
    tracker = SessionTracker(SessionMonitor, _raise)

    async def receive() -> Any:
        return next(messages)

    began_s = time.thread_time()
    copy = RequestBody(receive)
    while (await copy.receive())["more_body"]:
        pass
    copy.content()
    tracker.request_started(turn.start)
    tracker.first_token(turn.first)
    tracker.request_finished(turn.record, turn.answer_token_ids, _keep_nothing)
    for events in turn.events:
        tracker.cache_events(events)
    copy.release()
    return 1_000 * (time.thread_time() - began_s)


def _first_turn_ms(name: str, shared_tokens: int | None) -> float:
    engine, monitor = InventedEngine(DENSE_16), SessionMonitor()
    monitor.handle(engine.facts())
    if shared_tokens is not None:
        _feed(monitor, engine.run(large_prompt(name, PROMPT_TOKENS - 1_000, DENSE_16)))
    prompt = large_prompt(name, PROMPT_TOKENS, DENSE_16, shared_tokens=shared_tokens)
    turn = engine.run(prompt, resident_tokens=shared_tokens or 0)
    return _cpu_ms(lambda: _feed(monitor, turn))


def _lock_waits_ms(name: str) -> tuple[float, float, float]:
    """How long another thread waits for the lock while a turn is taken in.

    Returns:
        With Python's own switch interval; with a tiny one, so that only single calls count; and
        the latter without any work.
    """
    usual_s = sys.getswitchinterval()
    waits: list[float] = []
    for interval_s, works in ((usual_s, True), (1e-6, True), (1e-6, False)):
        monitor, turn = _before_turn(PROMPT_TOKENS, f"{name} {interval_s}")
        sys.setswitchinterval(interval_s)
        try:
            waits.append(_longest_gap_ms(lambda: _feed(monitor, turn) if works else None))  # noqa: B023
        finally:
            sys.setswitchinterval(usual_s)
    return waits[0], waits[1], waits[2]


def _longest_gap_ms(work: Callable[[], object]) -> float:
    """The longest time for which a thread that asks all the time does not get the lock."""
    asking, ended = threading.Event(), threading.Event()
    longest_s = 0.0

    def ask() -> None:
        nonlocal longest_s
        asking.set()
        before_s = time.perf_counter()
        while not ended.is_set():
            time.sleep(0)  # gives the lock up and asks for it again
            now_s = time.perf_counter()
            longest_s = max(longest_s, now_s - before_s)
            before_s = now_s

    thread = threading.Thread(target=ask, name="bench-asks-for-the-lock")
    thread.start()
    asking.wait()
    work()
    ended.set()
    thread.join()
    return 1_000 * longest_s


def measure_many_sessions(*, rounds: int) -> Iterator[Section]:
    """Measure memory and ticks with many sessions, for a dense model and for a hybrid one.

    Args:
        rounds: How often a tick is measured.

    Yields:
        A section for each model.
    """
    for name, layout in (("dense, block 16", DENSE_16), ("hybrid, block 784", HYBRID_784)):
        figures: list[Figure] = []
        monitor, engine = SessionMonitor(), InventedEngine(layout)
        large_prompt("warm", PROMPT_TOKENS, layout)
        gc.collect()
        tracemalloc.start()
        monitor.handle(engine.facts())
        for number in range(max(_SESSIONS)):
            for tokens in (1_000, PROMPT_TOKENS):
                _feed(monitor, engine.run(large_prompt(f"session {number}", tokens, layout)))
            if number + 1 in _SESSIONS:
                monitor.view()
                gc.collect()
                held = tracemalloc.get_traced_memory()[0] / _MIB
                figures.append(
                    Figure(
                        name=f"memory, {number + 1:,} sessions of {PROMPT_TOKENS:,} tokens",
                        unit="MiB",
                        ours=(held,),
                        aim=64.0 if number + 1 == max(_SESSIONS) else None,
                    )
                )
        tracemalloc.stop()
        figures += _tick_figures(monitor, layout, rounds)
        yield Section(
            title=f"(d2) {max(_SESSIONS):,} sessions, {name}",
            figures=tuple(figures),
            notes=(
                "Memory as tracemalloc counts it, with a KV pool of 2,000,000 tokens that is full.",
                "Residency of the newest sessions is looked up in every view, that of the others "
                "in turn.",
            ),
        )


def _tick_figures(monitor: SessionMonitor, layout: CacheLayout, rounds: int) -> list[Figure]:
    stored = BlocksStored(group=len(layout.groups) - 1, hashes=(1,))
    view = monitor.view()
    collector = _collector(lambda: view)
    table = view.sessions
    count = rounds * 5

    def changed() -> float:
        monitor.handle(CacheEvents(generation=GENERATION, events=(stored,)))
        return _cpu_ms(monitor.view)

    while monitor.waiting:
        monitor.view()
    unchanged_ms = [_cpu_ms(monitor.view) for _ in range(count)]
    changed_ms = [changed() for _ in range(count)]
    snapshot_ms = [_cpu_ms(collector.snapshot) for _ in range(count)]
    drawing_ms = [_cpu_ms(lambda: _draw(table)) for _ in range(count)]
    total = [sum(each) for each in zip(changed_ms, snapshot_ms, drawing_ms, strict=True)]
    return [
        _ms("a tick after residency changed: all together", total, 10.0),
        _ms("the monitor's view, residency changed", changed_ms),
        _ms("the monitor's view, nothing changed", unchanged_ms),
        _ms("the snapshot", snapshot_ms),
        _ms(f"the table of sessions, {_SCREEN[1]} rows", drawing_ms),
    ]


def _draw(sessions: tuple[SessionView, ...]) -> None:
    width, height = _SCREEN
    now_s = time.time()
    session_table.draw(sessions[:height], sessions[0].id, Letters(), now_s, "", width, height)
    session_table.losses_of(sessions)


def _collector(sessions: Callable[[], SessionsView]) -> SnapshotCollector:
    status = EngineStatus(state=EngineState.READY, generation=GENERATION)
    return SnapshotCollector(
        endpoint="",
        status=lambda: status,
        stats=EngineStats(),
        gpu_report=GpuReport,
        processes=lambda: (),
        in_flight=lambda: (),
        log_dropped_lines=lambda: 0,
        sessions=sessions,
    )


def _feed(monitor: SessionMonitor, turn: Turn) -> None:
    monitor.handle(turn.start)
    for events in turn.events:
        monitor.handle(events)
    monitor.handle(turn.first)
    monitor.handle(FinishedRequest(turn.record, turn.answer_token_ids, _keep_nothing))


def _wire(batch: CacheEvents) -> bytes:
    """The batch as vLLM sends it, with the tokens of each stored block."""
    events: list[object] = []
    for event in batch.events:
        if isinstance(event, BlocksStored):
            events.append(
                {
                    "type": "BlockStored",
                    "block_hashes": event.hashes,
                    "parent_block_hash": event.hashes[0],
                    "token_ids": [70_000] * (16 * len(event.hashes)),
                    "block_size": 16,
                    "lora_id": None,
                    "medium": "GPU",
                    "lora_name": None,
                    "group_idx": event.group,
                }
            )
        elif (hashes := getattr(event, "block_hashes", None)) is not None:
            events.append(LookupMark("request", PROMPT_TOKENS, block_hashes=hashes.tobytes()))
    return msgspec.msgpack.encode([time.time(), events, 0])


def _cpu_ms(work: Callable[[], object]) -> float:
    began_s = time.thread_time()
    work()
    return 1_000 * (time.thread_time() - began_s)


def _ms(name: str, values: tuple[float, ...] | list[float], aim: float | None = None) -> Figure:
    return Figure(name=name, unit="ms", ours=tuple(values), aim=aim)


def _keep_nothing(_session: str | None) -> None:
    """Stand for the request history."""


def _raise(error: BaseException) -> None:
    raise error
