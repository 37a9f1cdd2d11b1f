"""Pending toggles: what is shown of them, and how they are checked."""

from __future__ import annotations

import threading
from collections.abc import Callable

from agentserve.cli.pending_changes import PendingChanges, Situation
from agentserve.domain.errors import CheckNotMadeError
from agentserve.domain.lifecycle import EngineFacts
from agentserve.domain.pending import CheckState, PendingView, ToggleOption
from agentserve.domain.preset import EngineOptions, Preset
from tests.harness.waiting import wait_until

PRESET = Preset(
    name="tiny", engine=EngineOptions(model="m", max_num_batched_tokens=2048, max_num_seqs=4)
)
FACTS = EngineFacts(
    vllm_version="0",
    device="cpu",
    model="m",
    served_model_name="m",
    tensor_parallel_size=2,
    max_model_len=8192,
    max_num_batched_tokens=2048,
    max_num_seqs=4,
    capacity_tokens=100_000,
)
BUDGET, SEATS, CONTEXT = ToggleOption.TOKEN_BUDGET, ToggleOption.SEATS, ToggleOption.CONTEXT


class Checks:
    """A check that waits to be told what to answer."""

    def __init__(self) -> None:
        self.asked: list[Preset] = []
        self.answers: list[str | None] = []
        self.may_answer = threading.Semaphore(0)
        self.ended = threading.Event()

    def __call__(self, preset: Preset) -> str | None:
        self.asked.append(preset)
        assert self.may_answer.acquire(timeout=10)
        return self.answers.pop(0)

    def answer(self, refusal: str | None) -> None:
        self.answers.append(refusal)
        self.may_answer.release()


def situation(
    capacity_tokens_of: Callable[[Preset], int | None] = lambda _: None, *, running: bool = True
) -> Situation:
    return Situation(
        facts=FACTS if running else None,
        running=running,
        expected_restart_s=20.0,
        capacity_tokens_of=capacity_tokens_of,
        warm_tokens=6400,
        requests_in_flight=2,
    )


def view(pending: PendingChanges) -> PendingView:
    shown = pending.view(situation())
    assert shown is not None
    return shown


def test_nothing_is_shown_without_changes() -> None:
    pending = PendingChanges(None, lambda: None)
    assert pending.view(situation()) is None
    pending.propose(PRESET, FACTS, BUDGET, 1024)
    pending.drop()
    assert pending.view(situation()) is None


def test_a_change_is_shown_with_its_consequence() -> None:
    pending = PendingChanges(None, lambda: None)
    pending.propose(PRESET, FACTS, BUDGET, 1024)
    shown = pending.view(situation(lambda p: p.engine.max_num_batched_tokens))
    assert shown is not None
    (change,) = shown.changes
    assert (change.option, change.before, change.after) == (BUDGET, 2048, 1024)
    assert shown.check is CheckState.NONE
    assert shown.consequence.capacity_tokens_before == 100_000
    assert shown.consequence.capacity_tokens_after == 1024
    assert shown.consequence.warm_tokens_lost == 6400
    assert shown.consequence.requests_interrupted == 2


def test_only_warnings_that_the_change_brings_are_shown() -> None:
    unwise = Preset(
        name="tiny",
        engine=EngineOptions(
            model="m", max_num_batched_tokens=2048, long_prefill_token_threshold=4096
        ),
    )
    pending = PendingChanges(None, lambda: None)
    pending.propose(unwise, FACTS, SEATS, 2)
    assert view(pending).warnings == ()
    wise = Preset(
        name="tiny",
        engine=EngineOptions(
            model="m", max_num_batched_tokens=2048, long_prefill_token_threshold=2048
        ),
    )
    pending.propose(wise, FACTS, BUDGET, 1024)
    assert any("1,024" in warning for warning in view(pending).warnings)


def test_the_value_in_force_takes_a_change_back() -> None:
    pending = PendingChanges(None, lambda: None)
    pending.propose(PRESET, FACTS, BUDGET, 1024)
    pending.propose(PRESET, FACTS, SEATS, 2)
    pending.propose(PRESET, FACTS, BUDGET, 2048)
    assert dict(pending.changes) == {SEATS: 2}
    # A value that the preset leaves to vLLM is compared with what the engine took.
    pending.propose(PRESET, FACTS, CONTEXT, 8192)
    assert CONTEXT not in pending.changes


def test_another_preset_starts_anew() -> None:
    pending = PendingChanges(None, lambda: None)
    pending.propose(PRESET, FACTS, BUDGET, 1024)
    other = Preset(name="other", engine=EngineOptions(model="m"))
    pending.propose(other, FACTS, SEATS, 2)
    assert dict(pending.changes) == {SEATS: 2}


def test_a_check_passes_or_refuses_and_tells() -> None:
    checks, ended = Checks(), threading.Event()
    pending = PendingChanges(checks, ended.set)
    pending.propose(PRESET, FACTS, BUDGET, 1024)
    assert pending.state is CheckState.RUNNING
    checks.answer("No.")
    assert ended.wait(10)
    assert (view(pending).check, view(pending).refusal) == (CheckState.REFUSED, "No.")
    ended.clear()
    pending.propose(PRESET, FACTS, BUDGET, 512)
    checks.answer(None)
    assert ended.wait(10)
    assert (view(pending).check, view(pending).refusal) == (CheckState.PASSED, None)


def test_only_the_newest_changes_decide_and_one_check_runs_at_a_time() -> None:
    checks, ended = Checks(), threading.Event()
    pending = PendingChanges(checks, ended.set)
    pending.propose(PRESET, FACTS, BUDGET, 1024)
    wait_until(lambda: len(checks.asked) == 1, 10, "the first check")
    pending.propose(PRESET, FACTS, BUDGET, 512)
    pending.propose(PRESET, FACTS, BUDGET, 256)
    checks.answer("The old one would be refused.")
    checks.answer(None)
    assert ended.wait(10)
    assert pending.state is CheckState.PASSED
    assert [p.engine.max_num_batched_tokens for p in checks.asked] == [1024, 256]


def test_what_we_know_to_be_wrong_is_refused_without_asking() -> None:
    checks = Checks()
    pending = PendingChanges(checks, lambda: None)
    pending.propose(PRESET, FACTS, BUDGET, 0)
    assert view(pending).check is CheckState.REFUSED
    assert view(pending).refusal
    assert checks.asked == []


def test_a_check_that_could_not_be_made_is_no_pass() -> None:
    ended = threading.Event()

    def broken(_: Preset) -> str | None:
        raise CheckNotMadeError("The child was killed.")

    pending = PendingChanges(broken, ended.set)
    pending.propose(PRESET, FACTS, BUDGET, 1024)
    assert ended.wait(10)
    assert (view(pending).check, view(pending).refusal) == (CheckState.NONE, None)


def test_dropping_while_a_check_runs_forgets_its_verdict() -> None:
    checks = Checks()
    pending = PendingChanges(checks, lambda: None)
    pending.propose(PRESET, FACTS, BUDGET, 1024)
    wait_until(lambda: len(checks.asked) == 1, 10, "the check")
    pending.drop()
    checks.answer("Too late.")
    wait_until(lambda: not checks.answers, 10, "the verdict")
    assert pending.view(situation()) is None
    assert pending.state is CheckState.NONE
