"""Invented agent traffic for the simulated engine.

Plays three coding agents on one repository: long prompts that are mostly the same each turn, now
and then a turn whose prefix broke. The numbers are made up to exercise every part of the screen.
"""

from __future__ import annotations

import asyncio
import random
import time

from agentserve.domain.lifecycle import EngineFacts
from agentserve.domain.request import InFlightRequest, RequestOutcome, RequestRecord
from agentserve.domain.sample import (
    EngineObserver,
    SchedulerFacts,
    SpecDecodeSample,
    StepSample,
)

_STEP_S = 0.05
_ACCEPTANCE = 0.6
_PREFILL_TOKENS_PER_STEP = 900
_AGENTS = ("claude-cli/2.1.0", "opencode/0.9", "qwen-code/0.4")
_ROUTES = ("/v1/messages", "/v1/chat/completions", "/v1/chat/completions")


class _Turn:
    """One simulated request."""

    def __init__(self, number: int, agent: int, prompt: int, cached: int, answer: int) -> None:
        self.number = number
        self.agent = agent
        self.prompt_tokens = prompt
        self.cached_tokens = cached
        self.computed_tokens = 0
        self.answer_tokens = answer
        self.generated_tokens = 0
        self.started_at_s = time.monotonic()
        self.first_token_at_s: float | None = None

    @property
    def prefilled(self) -> bool:
        return self.computed_tokens >= self.prompt_tokens - self.cached_tokens


class SimulatedTraffic:
    """Plays agents and reports them like an engine.

    Args:
        observer: Gets steps and records.
        facts: The engine that is played.
        generation: Number of the start.
        dice: Source of all choices.
    """

    def __init__(
        self, observer: EngineObserver, facts: EngineFacts, generation: int, dice: random.Random
    ) -> None:
        self._observer = observer
        self._facts = facts
        self._generation = generation
        self._dice = dice
        self._turns: list[_Turn] = []
        self._number = 0
        self._context_tokens = [0, 0, 0]

    async def play(self) -> None:
        """Step for ever."""
        while True:
            await asyncio.sleep(_STEP_S)
            self.step()

    def step(self) -> None:
        """Advance the play by one engine step."""
        if len(self._turns) < len(_AGENTS) and self._dice.random() < 0.03:
            self._begin_turn()
        decoding = [turn for turn in self._turns if turn.first_token_at_s is not None]
        computed = self._prefill()
        accepted_drafts = [self._accepted_drafts() for _ in decoding]
        for turn, accepted in zip(decoding, accepted_drafts, strict=True):
            turn.generated_tokens += 1 + accepted
        self._observer.step(
            StepSample(
                running_requests=len(self._turns),
                waiting_requests=0,
                kv_usage_fraction=self._usage_fraction(),
                prefix_requests=0,
                prefix_query_tokens=0,
                prefix_hit_tokens=0,
                computed_prompt_tokens=computed,
                generated_tokens=len(decoding) + sum(accepted_drafts),
                preemptions=0,
                itl_s=tuple(abs(self._dice.gauss(_STEP_S, 0.006)) for _ in decoding),
                spec_decode=self._spec_decode(accepted_drafts),
            )
        )
        for turn in decoding:
            if turn.generated_tokens >= turn.answer_tokens:
                self._finish(turn)

    def in_flight(self) -> tuple[InFlightRequest, ...]:
        """Requests that are not finished."""
        now_s = time.monotonic()
        return tuple(
            InFlightRequest(
                request_id=f"simulated-{turn.number}",
                route=_ROUTES[turn.agent],
                agent=_AGENTS[turn.agent],
                phase="decode" if turn.first_token_at_s is not None else "prefill",
                prompt_tokens=turn.prompt_tokens,
                cached_tokens=turn.cached_tokens,
                computed_tokens=turn.computed_tokens,
                generated_tokens=turn.generated_tokens,
                elapsed_s=now_s - turn.started_at_s,
            )
            for turn in tuple(self._turns)
        )

    def scheduler_facts(self) -> SchedulerFacts:
        """Blocks as the invented contexts would fill them."""
        total = self._facts.blocks_total or 0
        in_use = int(self._usage_fraction() * total)
        block_tokens = self._facts.block_tokens or 1
        warm = min(total - in_use, sum(self._context_tokens) // block_tokens)
        return SchedulerFacts(
            blocks_in_use=in_use,
            blocks_warm=warm,
            blocks_free=total - in_use - warm,
            live_token_budget=self._facts.max_num_batched_tokens or 0,
            computed_prompt_tokens={},
        )

    def _begin_turn(self) -> None:
        busy = {turn.agent for turn in self._turns}
        agent = self._dice.choice([a for a in range(len(_AGENTS)) if a not in busy])
        before = self._context_tokens[agent]
        grown = (
            before + self._dice.randint(800, 4000) if before else self._dice.randint(9000, 20000)
        )
        prompt = min(grown, 30_000)
        broken = self._dice.random() < 0.1
        block = self._facts.block_tokens or 1
        cached = 0 if broken else min(before, prompt - 1) // block * block
        self._context_tokens[agent] = prompt
        self._number += 1
        answer = self._dice.randint(60, 400)
        self._turns.append(_Turn(self._number, agent, prompt, cached, answer))

    def _prefill(self) -> int:
        for turn in self._turns:
            if turn.first_token_at_s is not None:
                continue
            rest = turn.prompt_tokens - turn.cached_tokens - turn.computed_tokens
            computed = min(rest, _PREFILL_TOKENS_PER_STEP)
            turn.computed_tokens += computed
            if turn.prefilled:
                turn.first_token_at_s = time.monotonic()
                self._observer.first_token(
                    turn.first_token_at_s - turn.started_at_s,
                    turn.cached_tokens,
                    turn.prompt_tokens,
                )
            return computed
        return 0

    def _accepted_drafts(self) -> int:
        """How many draft tokens one step accepts: those before the first that is refused."""
        for position in range(self._facts.speculative_tokens):
            if self._dice.random() >= _ACCEPTANCE:
                return position
        return self._facts.speculative_tokens

    def _spec_decode(self, accepted_drafts: list[int]) -> SpecDecodeSample | None:
        positions = range(self._facts.speculative_tokens)
        if not positions:
            return None
        return SpecDecodeSample(
            drafts=len(accepted_drafts),
            draft_tokens=len(accepted_drafts) * len(positions),
            accepted_tokens=sum(accepted_drafts),
            accepted_per_position=tuple(
                sum(accepted > position for accepted in accepted_drafts) for position in positions
            ),
        )

    def _usage_fraction(self) -> float:
        capacity = self._facts.capacity_tokens or 1
        return min(1.0, sum(turn.prompt_tokens for turn in self._turns) / capacity)

    def _finish(self, turn: _Turn) -> None:
        self._turns.remove(turn)
        now_s = time.monotonic()
        first_token_at_s = turn.first_token_at_s or now_s
        aborted = self._dice.random() < 0.05
        self._observer.request_finished(
            RequestRecord(
                request_id=f"simulated-{turn.number}",
                generation=self._generation,
                route=_ROUTES[turn.agent],
                agent=_AGENTS[turn.agent],
                finished_at_unix_s=time.time(),
                outcome=RequestOutcome.ABORTED if aborted else RequestOutcome.STOP,
                choices=1,
                prompt_tokens=turn.prompt_tokens,
                cached_tokens=turn.cached_tokens,
                computed_tokens=turn.prompt_tokens - turn.cached_tokens,
                generated_tokens=turn.generated_tokens,
                queued_s=0.0,
                ttft_s=first_token_at_s - turn.started_at_s,
                decode_s=now_s - first_token_at_s,
                elapsed_s=now_s - turn.started_at_s,
                preemptions=0,
            )
        )
