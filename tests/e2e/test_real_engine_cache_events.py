"""What the real engine tells about its prefix cache: marks, events, layout, and who they are of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentserve.domain.cache_event import CacheContents, PrefixLookup
from agentserve.domain.cache_layout import CacheGroupLayout, CacheLayout
from agentserve.domain.preset import EngineOptions, Preset, ServerOptions
from agentserve.domain.request import RequestOutcome
from tests.e2e.recorded_engine import (
    DEADLINE_S,
    KEYS,
    Observed,
    RecordedEngine,
    evictions_for,
    recorded_engine,
    resident,
)
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

BLOCK = 32
BLOCKS = 80
COMMON: dict[str, Any] = {
    "tensor_parallel_size": 1,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 4,
    "enforce_eager": True,
    "enable_prefix_caching": True,
}
DRAFTING = Preset(
    name="drafting",
    engine=EngineOptions(
        model="demo:mtp",
        max_model_len=2048,
        block_size=BLOCK,
        num_gpu_blocks_override=BLOCKS,
        speculative_config={"method": "mtp", "num_speculative_tokens": 2},
        **COMMON,
    ),
    server=ServerOptions(enable_prompt_tokens_details=True),
    env={"VLLM_CPU_KVCACHE_SPACE": "1"},
)
"""Full attention, whose last matched block is given up for the drafts, in a pool that gets full."""


@pytest.fixture(scope="module")
def drafting(shared_cache: Path) -> Iterator[RecordedEngine]:
    with recorded_engine(DRAFTING, shared_cache) as engine:
        yield engine


def prompt_of(seed: int, tokens: int) -> list[int]:
    """A prompt that shares no block with one of another seed."""
    return [10 + (seed * 31 + i * 7) % 400 for i in range(tokens)]


def complete(
    engine: RecordedEngine, name: str, prompt: list[int], key: int = 0, **fields: Any
) -> httpx.Response:
    """Complete a prompt; `name` lies in the body, and finds the request again."""
    body = {"model": model_of(engine), "prompt": prompt, "max_tokens": 8, "user": name}
    headers = {"authorization": f"Bearer {KEYS[key].key}"}
    answer = engine.client.post("/v1/completions", json={**body, **fields}, headers=headers)
    answer.raise_for_status()
    return answer


def model_of(engine: RecordedEngine) -> str:
    name: str = engine.client.get("/v1/models").json()["data"][0]["id"]
    return name


def settled(engine: RecordedEngine) -> Observed:
    """Wait until no request runs and the scheduler's answer is not older than that."""

    def idle() -> Observed | None:
        observed = engine.observed()
        counted = sum(resident(observed.events).values())
        scheduler = observed.scheduler
        if observed.in_flight or scheduler is None or scheduler.blocks_in_use:
            return None
        return observed if scheduler.blocks_cached == counted else None

    return wait_until(idle, DEADLINE_S, "the scheduler's own count of cached blocks")


def test_a_request_keeps_one_number_from_its_start_to_its_record(
    drafting: RecordedEngine,
) -> None:
    prompt = prompt_of(1, 100)
    usage = complete(drafting, "one-number", prompt).json()["usage"]
    observed, start = drafting.finished(b"one-number")
    record, first = observed.record_of(start), observed.first_token_of(start)
    assert list(start.prompt_token_ids) == prompt
    assert (start.generation, start.choices) == (1, 1)
    assert start.origin is not None
    assert (start.origin.route, start.origin.key_name) == ("/v1/completions", "alice")
    assert (first.prompt_tokens, first.cached_tokens) == (100, 0)
    assert first.ttft_s > 0
    assert first.queued_s is not None
    assert (record.outcome, record.cached_tokens) == (RequestOutcome.LENGTH, 0)
    assert len(observed.answer_of(start)) == usage["completion_tokens"] == 8
    # The smoke prompt has passed as well, and has no number.
    assert len({s.number for s in observed.starts}) == len(observed.starts)
    assert all(s.origin is not None and not s.origin.internal for s in observed.starts)


def test_the_answer_is_the_same_streamed_and_whole(drafting: RecordedEngine) -> None:
    prompt = prompt_of(2, 60)
    complete(drafting, "answer-whole", prompt, temperature=0, max_tokens=20)
    complete(drafting, "answer-streamed", prompt, temperature=0, max_tokens=20, stream=True)
    observed, streamed = drafting.finished(b"answer-streamed")
    whole = observed.start_of(b"answer-whole")
    assert len(observed.answer_of(whole)) == 20
    assert observed.answer_of(whole) == observed.answer_of(streamed)


def test_a_lookup_carries_the_hashes_that_its_blocks_are_stored_under(
    drafting: RecordedEngine,
) -> None:
    prompt = prompt_of(3, 200)
    complete(drafting, "stored-hashes", prompt)
    observed, start = drafting.finished(b"stored-hashes")
    (lookup,) = observed.lookups_of(start)
    hashes = observed.hashes_of(start)
    assert (lookup.prompt_tokens, lookup.preemptions, len(hashes)) == (200, 0, 200 // BLOCK)
    before = resident(observed.events[: observed.events.index(lookup)])
    after = resident(observed.events)
    assert not any((0, block_hash) in before for block_hash in hashes)
    assert all((0, block_hash) in after for block_hash in hashes)


def test_a_repeated_prompt_finds_all_its_blocks_resident(drafting: RecordedEngine) -> None:
    prompt = prompt_of(4, 200)
    complete(drafting, "repeat-first", prompt)
    complete(drafting, "repeat-again", prompt)
    observed, again = drafting.finished(b"repeat-again")
    (lookup,) = observed.lookups_of(again)
    before = resident(observed.events[: observed.events.index(lookup)])
    hashes = observed.hashes_of(again)
    assert hashes == observed.hashes_of(observed.start_of(b"repeat-first"))
    assert all((0, block_hash) in before for block_hash in hashes)
    # One matched block of six is given up for the drafts.
    assert observed.first_token_of(again).cached_tokens == (len(hashes) - 1) * BLOCK
    assert observed.record_of(again).cached_tokens == (len(hashes) - 1) * BLOCK


def test_the_layout_says_what_a_lookup_gives_up_for_drafts(drafting: RecordedEngine) -> None:
    (facts,) = drafting.ready.facts
    assert facts.generation == 1
    assert facts.layout == CacheLayout(
        groups=(
            CacheGroupLayout(kind="full_attention", block_tokens=BLOCK, drops_last_block=True),
        ),
        hash_block_tokens=BLOCK,
        alignment_tokens=BLOCK,
    )


def test_prompts_can_be_decoded_and_bodies_are_kept(drafting: RecordedEngine) -> None:
    text = "A prefix is what two prompts begin with."
    body = {"model": model_of(drafting), "prompt": text, "max_tokens": 2, "user": "decoded"}
    drafting.client.post("/v1/completions", json=body).raise_for_status()
    observed, start = drafting.finished(b"decoded")
    assert text in observed.decoded[observed.starts.index(start)]
    assert text.encode() in (start.body or b"")


def test_evictions_are_of_the_request_that_needed_the_room(drafting: RecordedEngine) -> None:
    for seed in range(20, 24):
        complete(drafting, f"filler-{seed}", prompt_of(seed, 800))
    before = evictions_for(drafting.finished(b"filler-23")[0])
    complete(drafting, "evicting", prompt_of(30, 1600))
    observed, start = drafting.finished(b"evicting")
    new = {
        owner: count - before.get(owner, 0)
        for owner, count in evictions_for(observed).items()
        if count != before.get(owner, 0)
    }
    assert set(new) == {start.engine_request_id}
    assert new[start.engine_request_id] > 20


def test_what_events_say_is_resident_is_what_the_scheduler_counts(
    drafting: RecordedEngine,
) -> None:
    complete(drafting, "counted", prompt_of(40, 300))
    observed = settled(drafting)
    assert observed.batches_lost == 0
    assert observed.scheduler is not None
    assert observed.scheduler.blocks_cached == observed.scheduler.blocks_warm
    # Never counted twice: resident is at most the pool, without the placeholder.
    assert 0 < observed.scheduler.blocks_cached < BLOCKS


def test_after_a_loss_the_engine_lists_what_is_resident(drafting: RecordedEngine) -> None:
    prompt = prompt_of(41, 300)
    complete(drafting, "before-the-loss", prompt)
    drafting.finished(b"before-the-loss")
    drafting.lose_events()
    settled(drafting)
    complete(drafting, "after-the-loss", prompt)
    observed, start = drafting.finished(b"after-the-loss")
    (listing,) = [event for event in observed.events if isinstance(event, CacheContents)]
    listed = Counter(
        (group, block_hash) for group, hashes in enumerate(listing.groups) for block_hash in hashes
    )
    place = observed.events.index(listing)
    assert listed == Counter(resident(observed.events[:place]))
    assert len(listed) > 10
    # It comes before the lookup of the next request, which can so be predicted.
    assert place < observed.events.index(observed.lookups_of(start)[0])


def test_several_choices_start_under_the_id_of_the_first(drafting: RecordedEngine) -> None:
    complete(drafting, "two-choices", prompt_of(5, 100), n=2, temperature=1.0)
    observed, start = drafting.finished(b"two-choices")
    assert start.choices == 2
    assert start.engine_request_id.startswith("0_")
    other = "1" + start.engine_request_id[1:]
    looked_up = [e.request_id for e in observed.events if isinstance(e, PrefixLookup)]
    assert [id_ for id_ in looked_up if id_ in (start.engine_request_id, other)] == [
        start.engine_request_id,
        other,
    ]
    record = observed.record_of(start)
    assert (record.choices, record.prompt_tokens, record.generated_tokens) == (2, 100, 16)
    # The second choice reuses what the first computes; the figure is the first's.
    assert record.cached_tokens in (0, None)
    assert observed.answer_of(start) == []


def test_an_aborted_request_has_a_record_with_its_number(drafting: RecordedEngine) -> None:
    body = {
        "model": model_of(drafting),
        "prompt": prompt_of(6, 100),
        "max_tokens": 1500,
        "ignore_eos": True,
        "user": "to-be-aborted",
        "stream": True,
    }
    with drafting.client.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
        (running,) = drafting.observed().in_flight
    observed, start = drafting.finished(b"to-be-aborted")
    assert running.number == start.number
    assert running.request_id == start.engine_request_id
    assert observed.record_of(start).outcome is RequestOutcome.ABORTED
    assert 0 < len(observed.answer_of(start)) < 1500


def test_another_salt_gives_another_prefix(drafting: RecordedEngine) -> None:
    prompt = prompt_of(7, 100)
    complete(drafting, "salt-alice", prompt)
    complete(drafting, "salt-of-bob", prompt, key=1)
    complete(drafting, "salt-inner-1", prompt, cache_salt="one")
    complete(drafting, "salt-inner-2", prompt, key=1, cache_salt="one")
    complete(drafting, "salt-repeated", prompt, cache_salt="one")
    observed, repeated = drafting.finished(b"salt-repeated")
    names = (b"salt-alice", b"salt-of-bob", b"salt-inner-1", b"salt-inner-2")
    starts = [observed.start_of(name) for name in names]
    assert len({start.cache_salt for start in starts}) == 4
    assert len({observed.hashes_of(start)[0] for start in starts}) == 4
    assert all(observed.first_token_of(start).cached_tokens == 0 for start in starts)
    assert repeated.cache_salt == starts[2].cache_salt
    assert "one" not in str(repeated.cache_salt)
    assert observed.hashes_of(repeated) == observed.hashes_of(starts[2])
    assert (observed.first_token_of(repeated).cached_tokens or 0) > 0


def test_prompt_logprobs_read_no_cache_and_look_nothing_up(drafting: RecordedEngine) -> None:
    prompt = prompt_of(8, 100)
    complete(drafting, "logprobs-first", prompt)
    complete(drafting, "logprobs-read", prompt, prompt_logprobs=1)
    complete(drafting, "logprobs-after", prompt)
    observed, _ = drafting.finished(b"logprobs-after")
    reading = observed.start_of(b"logprobs-read")
    assert observed.lookups_of(reading) == []
    assert observed.first_token_of(reading).cached_tokens == 0


def test_reports_of_reuse_are_not_taken_for_stored_blocks(drafting: RecordedEngine) -> None:
    prompt = prompt_of(9, 100)
    complete(drafting, "report-first", prompt)
    extra = {"kv_cache_report_mode": "full"}
    complete(drafting, "report-again", prompt, vllm_xargs=extra)
    drafting.finished(b"report-again")
    settled(drafting)
