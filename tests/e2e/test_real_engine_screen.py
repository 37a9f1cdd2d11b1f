"""The screen in a pseudo terminal with the real engine at TP2, as a user would drive it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agentserve.domain.lifecycle import EngineState, StartPhase
from agentserve.domain.request import RequestOutcome
from tests.harness.completions import assert_same_answer, chat, complete, long_prompt
from tests.harness.instance import (
    COMMAND,
    PtyInstance,
    isolated_environment,
    pty_instance,
)
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.pty, pytest.mark.timeout(400)]
MODEL = "demo-hybrid"


@pytest.fixture(scope="module")
def app(home: Path) -> Iterator[PtyInstance]:
    with pty_instance(home, "--preset", "cpu-tiny", "--no-start") as instance:
        instance.wait_for_text("STOPPED")
        yield instance


@pytest.fixture
def ready(app: PtyInstance) -> PtyInstance:
    """The app with a ready engine, started by key if need be."""
    if app.state() in {EngineState.STOPPED, EngineState.FAILED}:
        app.start_by_key()
    return app


def test_a_key_starts_the_engine_through_every_phase(app: PtyInstance) -> None:
    assert app.state() is EngineState.STOPPED
    assert app.client.post("/v1/chat/completions", json={}).status_code == 503
    app.press("s")
    app.wait_for_state(EngineState.STARTING, EngineState.WARMING)
    refused = app.client.get("/v1/models")
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["type"] == "engine_unavailable"
    app.wait_for_state(EngineState.READY)

    engine = app.snapshot().engine
    passed = [phase.phase for phase in engine.finished_phases]
    # An eager engine on the CPU neither profiles nor captures; all others come in order.
    assert [p for p in StartPhase if p in passed] == passed
    assert set(StartPhase) - set(passed) == {StartPhase.PROFILE, StartPhase.GRAPHS}
    assert (engine.tensor_parallel_size, engine.preset) == (2, "cpu-tiny")
    app.wait_for_text("READY")
    app.wait_for_text(app.url)


def test_all_four_routes_answer_and_move_the_figures(ready: PtyInstance) -> None:
    before = ready.snapshot()
    first = chat(ready.client, MODEL, "What is a prefix?")
    second = chat(ready.client, MODEL, "What is a block?")
    completion = ready.client.post(
        "/v1/completions", json={"model": MODEL, "prompt": "The engine", "max_tokens": 8}
    )
    response = ready.client.post(
        "/v1/responses", json={"model": MODEL, "input": "Hello", "max_output_tokens": 8}
    )
    message = ready.client.post(
        "/v1/messages",
        json={
            "model": MODEL,
            "max_tokens": 8,
            "messages": [{"role": "user", "content": "Hello"}],
        },
    )
    for answer in (first, second, completion, response, message):
        assert answer.status_code == 200, answer.text
    snapshot = ready.snapshot()
    routes = [record.route for record in snapshot.recent_requests[:5]]
    assert routes == [
        "/v1/messages",
        "/v1/responses",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/chat/completions",
    ]
    usage = second.json()["usage"]
    record = snapshot.recent_requests[3]
    assert record.prompt_tokens == usage["prompt_tokens"]
    assert record.cached_tokens == usage["prompt_tokens_details"]["cached_tokens"]
    assert record.generated_tokens == usage["completion_tokens"]
    assert record.computed_tokens is not None
    assert record.cached_tokens is not None
    assert record.computed_tokens + record.cached_tokens == record.prompt_tokens
    assert snapshot.latency.ttft_s.n == before.latency.ttft_s.n + 5
    assert snapshot.latency.itl_s.n > before.latency.itl_s.n
    assert snapshot.prefix_cache.cached_tokens > before.prefix_cache.cached_tokens
    assert snapshot.prefix_cache.computed_tokens > before.prefix_cache.computed_tokens
    ready.wait_for_text("/messages")


def test_figures_count_only_what_clients_asked(ready: PtyInstance) -> None:
    """The smoke prompt and our own questions to the engine are in no statistic."""
    snapshot = ready.snapshot()
    requests = [r for r in snapshot.recent_requests if r.generation == snapshot.engine.generation]
    assert snapshot.prefix_cache.generation_requests == len(requests)


def test_a_warm_answer_equals_the_cold_one(ready: PtyInstance) -> None:
    prompt = long_prompt("amber")
    cold = complete(ready.client, MODEL, prompt)
    assert cold.cached_tokens == 0
    # On this hybrid the first repeat may reuse nothing, depending on the length.
    warm = complete(ready.client, MODEL, prompt)
    if warm.cached_tokens == 0:
        warm = complete(ready.client, MODEL, prompt)
    assert warm.cached_tokens >= 4 * 640
    assert_same_answer(cold, warm)


def test_the_answer_depends_on_a_word_more_than_a_block_back(ready: PtyInstance) -> None:
    """Otherwise warm-equals-cold could not notice a wrong state."""
    one = complete(ready.client, MODEL, long_prompt("amber", 115))
    two = complete(ready.client, MODEL, long_prompt("cobalt", 115))
    assert one.tokens != two.tokens


def test_an_aborted_request_is_marked_and_counted(ready: PtyInstance) -> None:
    body = {
        "model": MODEL,
        "prompt": "Count",
        "max_tokens": 6000,
        "ignore_eos": True,
        "stream": True,
    }
    with ready.client.stream("POST", "/v1/completions", json=body) as answer:
        # Without a name it would end at once, and the request with it.
        lines = answer.iter_lines()
        next(lines)
        assert [request.phase for request in ready.snapshot().in_flight] == ["decode"]
    record = wait_until(
        lambda: next(
            (r for r in ready.snapshot().recent_requests if r.outcome is RequestOutcome.ABORTED),
            None,
        ),
        5,
        "an aborted record",
    )
    assert 0 < record.generated_tokens < 6000
    assert record.ttft_s is not None
    ready.wait_for_text("aborted")


def test_metrics_and_pool_are_those_of_the_engine(ready: PtyInstance) -> None:
    assert "vllm:prefix_cache_queries" in ready.client.get("/metrics").text
    assert ready.client.get("/health").status_code == 200
    kv = ready.snapshot().kv
    assert kv.blocks_total is not None
    assert kv.block_tokens == 640
    assert kv.max_concurrency is not None
    assert kv.max_concurrency > 1
    warm = wait_until(lambda: ready.snapshot().kv.blocks_warm, 5, "warm blocks")
    assert 0 < warm < kv.blocks_total


def test_worker_memory_is_shown_by_role(ready: PtyInstance) -> None:
    expected = {"app", "engine core", "worker 0", "worker 1"}
    wait_until(
        lambda: {process.role for process in ready.snapshot().processes} == expected,
        5,
        "memory of all processes",
    )


@pytest.mark.parametrize("victim", ["worker.1", "core process"])
def test_a_killed_process_fails_the_engine_within_two_seconds(
    ready: PtyInstance, victim: str
) -> None:
    process = ready.worker(1) if victim == "worker.1" else ready.engine_core()
    process.kill()
    killed_at_s = time.monotonic()
    wait_until(
        lambda: ready.client.get("/v1/models").status_code == 503, 2.0, "503 after the death"
    )
    assert time.monotonic() - killed_at_s < 2.0
    ready.wait_for_state(EngineState.FAILED, deadline_s=10)
    failure = ready.snapshot().engine.failure
    assert failure is not None
    assert re.search(victim, failure.cause, re.IGNORECASE), failure.cause
    ready.wait_for_text("FAILED")
    wait_until(lambda: not ready.engine_processes(), 5, "the end of the other processes")
    # One key starts again.
    ready.start_by_key()
    assert chat(ready.client, MODEL, "Again?").status_code == 200


def test_after_a_stop_everything_is_back_where_it_was(ready: PtyInstance) -> None:
    def stopped_resources() -> tuple[int, int, int, set[str], float]:
        # While a request runs the screen asks before it stops.
        wait_until(lambda: not ready.snapshot().in_flight, 5, "the end of all requests")
        ready.press("s")
        ready.wait_for_state(EngineState.STOPPED, deadline_s=15)
        assert ready.engine_processes() == []
        process = ready.process
        sockets = len(process.net_connections(kind="inet"))
        shared = set(os.listdir("/dev/shm"))  # noqa: PTH208 - names are all that is needed
        memory_mib = process.memory_info().rss / 2**20
        return process.num_fds(), process.num_threads(), sockets, shared, memory_mib

    def used_and_stopped() -> tuple[int, int, int, set[str], float]:
        assert chat(ready.client, MODEL, "Hello").status_code == 200
        return stopped_resources()

    first = used_and_stopped()
    for _ in range(2):
        ready.start_by_key()
        last = used_and_stopped()
    assert last[0] <= first[0], "file descriptors"
    assert last[1] <= first[1], "threads"
    assert last[2] <= first[2], "sockets"
    assert last[3] <= first[3], "shared memory"
    assert last[4] < first[4] + 40, "MiB of memory"
    assert sorted(ready.home.glob("runtime/*/*.sock")) == []


def test_an_expected_duration_is_shown_from_the_second_start_on(app: PtyInstance) -> None:
    if app.state() is not EngineState.STOPPED:
        app.press("s")
        app.wait_for_state(EngineState.STOPPED, deadline_s=15)
    app.press("s")
    app.wait_for_state(EngineState.STARTING)
    engine = app.snapshot().engine
    assert engine.expected_start_s is not None
    assert engine.expected_start_s > 1
    app.wait_for_text("left")


def test_quitting_while_loading_ends_within_ten_seconds(app: PtyInstance) -> None:
    if app.state() is EngineState.STOPPED:
        app.press("s")
    app.wait_for_state(EngineState.STARTING)
    wait_until(lambda: app.engine_processes(), 60, "engine processes")
    pids = [process.pid for process in app.engine_processes()]
    pressed_at_s = time.monotonic()
    app.press("q")
    assert app.wait_for_exit(10) == 0
    assert time.monotonic() - pressed_at_s < 10
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert b"\x1b[?1049l" in app.output, "the alternate screen was left"
    assert app.output.rfind(b"\x1b[?25h") > app.output.rfind(b"\x1b[?25l"), "the cursor is shown"


def test_the_last_preset_was_remembered(app: PtyInstance) -> None:
    (state,) = app.home.glob("state/state.toml")
    assert 'last_preset = "cpu-tiny"' in state.read_text()


def test_finished_requests_are_kept_without_text(app: PtyInstance) -> None:
    command = [*COMMAND, "history", "--json"]
    printed = subprocess.run(
        command,
        env=isolated_environment(app.home),
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(printed.stdout)
    assert report["total"]["requests"] >= 5
    assert [preset["preset"] for preset in report["presets"]] == ["cpu-tiny"]
    (database,) = app.home.glob("data/*.sqlite3")
    assert b"prefix" not in database.read_bytes(), "a word of the prompts"
