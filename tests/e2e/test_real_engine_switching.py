"""Switching presets and applying toggles with the real engine, by keys."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentserve.domain.lifecycle import EngineState
from agentserve.domain.pending import CheckState
from tests.harness.completions import chat
from tests.harness.instance import PtyInstance, pty_instance
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.pty, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def app(home: Path) -> Iterator[PtyInstance]:
    with pty_instance(home, "--preset", "cpu-tiny") as instance:
        instance.wait_for_state(EngineState.READY)
        yield instance


def wait_for_ready(app: PtyInstance, generation: int) -> None:
    wait_until(
        lambda: app.snapshot().engine.generation == generation, 90, f"generation {generation}"
    )
    app.wait_for_state(EngineState.READY)


def refusal(app: PtyInstance) -> str | None:
    pending = app.snapshot().engine.pending
    refused = pending is not None and pending.check is CheckState.REFUSED
    return pending.refusal if pending is not None and refused else None


def test_mtp_without_a_head_is_refused_before_anything_stops(app: PtyInstance) -> None:
    app.press("m")
    wait_until(lambda: app.snapshot().engine.pending, 10, "a pending change")
    wait_until(lambda: refusal(app), 60, "the verdict of vLLM")
    assert "no head" in str(refusal(app))
    app.press("r")
    app.press("\x1b")
    wait_until(lambda: app.snapshot().engine.pending is None, 10, "no pending change")
    engine = app.snapshot().engine
    assert (engine.generation, engine.state) == (1, EngineState.READY)


def test_the_budget_is_stepped_applied_and_kept(app: PtyInstance) -> None:
    before = app.snapshot().engine.settings.max_num_batched_tokens
    app.press("B")
    pending = wait_until(lambda: app.snapshot().engine.pending, 10, "a pending change")
    (change,) = pending.changes
    assert change.before == before
    assert app.snapshot().engine.settings.max_num_batched_tokens == before
    app.press("r")
    wait_for_ready(app, 2)
    engine = app.snapshot().engine
    assert engine.settings.max_num_batched_tokens == change.after
    # vLLM's scheduler itself says so, through the plugin.
    wait_until(
        lambda: app.snapshot().engine.settings.live_token_budget == change.after, 5, "the budget"
    )
    (overlay,) = app.home.glob("state/overlays/cpu-tiny.toml")
    assert str(change.after) in overlay.read_text()


def test_a_digit_switches_to_the_other_preset_on_the_same_port(app: PtyInstance) -> None:
    app.press("2")
    wait_until(lambda: app.client.get("/v1/models").status_code == 503, 20, "503 while switching")
    assert app.client.get("/v1/models").headers["retry-after"]
    wait_for_ready(app, 3)
    engine = app.snapshot().engine
    assert (engine.preset, engine.previous_preset) == ("cpu-tiny-mtp", "cpu-tiny")
    for _ in range(3):
        assert chat(app.client, "demo-mtp", "What is a prefix?").status_code == 200
    view = app.snapshot().spec_decode
    assert view is not None
    assert view.acceptance_rate is not None
    assert 0 < view.acceptance_rate < 1


def test_a_switch_with_requests_running_asks_and_drains(app: PtyInstance) -> None:
    answers: list[int] = []

    def long_request() -> None:
        answer = chat(app.client, "demo-mtp", "Count", max_tokens=900, ignore_eos=True)
        answers.append(answer.json().get("usage", {}).get("completion_tokens", 0))

    asking = threading.Thread(target=long_request)
    asking.start()
    # The screen asks for a fresh snapshot; what it shows may still be an earlier request.
    wait_until(lambda: app.snapshot().in_flight, 10, "the request in flight")
    app.press("1")
    app.wait_for_text("Switch to cpu-tiny?")
    assert app.snapshot().engine.drain is None
    app.press("d")
    drain = wait_until(lambda: app.snapshot().engine.drain, 10, "a drain")
    assert drain.target_preset == "cpu-tiny"
    assert drain.requests_left == 1
    wait_for_ready(app, 4)
    asking.join(10)
    assert answers == [900], "the request was finished, not aborted"
    assert app.snapshot().engine.preset == "cpu-tiny"


def test_the_choice_and_the_toggle_come_back_at_the_next_start(app: PtyInstance) -> None:
    app.press("q")
    assert app.wait_for_exit(12) == 0
    with pty_instance(app.home) as again:
        again.wait_for_state(EngineState.STARTING, EngineState.WARMING, EngineState.READY)
        assert again.snapshot().engine.preset == "cpu-tiny"
        again.wait_for_state(EngineState.READY)
        settings = again.snapshot().engine.settings
        assert settings.max_num_batched_tokens != 2048
