"""Invented agent traffic for the simulated engine.

Plays three coding agents on one repository, a scheduler that prefills one request after the other,
and a prefix cache. The numbers are made up to exercise every part of the screen, but they agree
with each other: what a request reuses is what the reported events left in the cache, and its TTFT
is its wait and what its computed tokens take at one prefill speed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

from agentserve.domain.lifecycle import EngineFacts
from agentserve.domain.request import InFlightRequest
from agentserve.domain.sample import (
    CacheFacts,
    EngineObserver,
    SchedulerFacts,
    SpecDecodeSample,
    StepSample,
)
from agentserve.engine.simulated_agents import PROFILES, SimulatedAgent, SimulatedTokenizer
from agentserve.engine.simulated_cache import SimulatedCache
from agentserve.engine.simulated_turn import SimulatedTurn

_STEP_S = 0.05
_ACCEPTANCE = 0.6
# 2,000 tok/s is about what owners report of a 27B model on two RTX 5060 Ti.
_PREFILL_TOKENS_PER_STEP = 100
PREFILL_TOKENS_PER_S = _PREFILL_TOKENS_PER_STEP / _STEP_S
_BEGIN = 0.03
_QUIET_STEPS = 60
"""Agents come back to a new engine after a while: until then it can be switched unasked."""
_ABORT = 0.05


class SimulatedTraffic:
    """Plays agents and reports them like an engine.

    Args:
        observer: Gets everything.
        facts: The engine that is played.
        generation: Number of the start.
        dice: Source of all choices.
        numbers: Gives each request a number that no other start gives.
    """

    def __init__(
        self,
        observer: EngineObserver,
        facts: EngineFacts,
        generation: int,
        dice: random.Random,
        numbers: Iterator[int],
    ) -> None:
        self._observer = observer
        self._facts = facts
        self._generation = generation
        self._dice = dice
        self._numbers = numbers
        self._steps = 0
        self._turns: list[SimulatedTurn] = []
        self._tokenizer = SimulatedTokenizer()
        self._cache = SimulatedCache(
            facts.blocks_total or 1, facts.block_tokens or 1, generation, observer.cache_events
        )
        # The last prompt before a task is given up is longer than this.
        limit = facts.max_model_len // 2
        self._agents = [
            SimulatedAgent(profile, facts.served_model_name, limit, self._tokenizer, dice)
            for profile in PROFILES
        ]

    def begin(self) -> None:
        """Say what the empty cache is like; before the first step."""
        self._observer.cache_facts(
            CacheFacts(
                generation=self._generation,
                layout=self._cache.layout,
                decode=self._tokenizer.decode,
            )
        )

    async def play(self) -> None:
        """Step for ever."""
        while True:
            await asyncio.sleep(_STEP_S)
            self.step()

    def end(self) -> None:
        """Abort what still runs."""
        for turn in tuple(self._turns):
            self._finish(turn)

    def step(self) -> None:
        """Advance the play by one engine step."""
        self._steps += 1
        idle = self._steps > _QUIET_STEPS and len(self._turns) < len(self._agents)
        if idle and self._dice.random() < _BEGIN:
            self._begin_turn()
        decoding = [turn for turn in self._turns if turn.decoding]
        computed = self._prefill()
        accepted_drafts = [
            min(self._accepted_drafts(), turn.answer_tokens - turn.generated_tokens - 1)
            for turn in decoding
        ]
        for turn, accepted in zip(decoding, accepted_drafts, strict=True):
            turn.generated_tokens += 1 + accepted
            # The newest token is computed in the next step.
            tokens = turn.prompt_tokens + turn.generated_tokens - 1
            self._cache.advance(turn.engine_request_id, tokens)
        self._cache.flush()
        running = sum(turn.admitted for turn in self._turns)
        self._observer.step(
            StepSample(
                running_requests=running,
                waiting_requests=len(self._turns) - running,
                kv_usage_fraction=self._cache.counts()[0] / self._cache.blocks_total,
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
        return tuple(turn.in_flight(self._now_s) for turn in tuple(self._turns))

    def scheduler_facts(self) -> SchedulerFacts:
        """The invented cache's own counts."""
        in_use, warm, free = self._cache.counts()
        return SchedulerFacts(
            blocks_in_use=in_use,
            blocks_warm=warm,
            blocks_free=free,
            live_token_budget=self._facts.max_num_batched_tokens or 0,
            blocks_cached=self._cache.cached_blocks,
            computed_prompt_tokens={},
        )

    @property
    def _now_s(self) -> float:
        """The end of the newest step, in seconds of the play."""
        return self._steps * _STEP_S

    @property
    def _step_began_at_s(self) -> float:
        return (self._steps - 1) * _STEP_S

    def _begin_turn(self) -> None:
        busy = {turn.agent for turn in self._turns}
        agent = self._dice.choice([agent for agent in self._agents if agent not in busy])
        request = agent.next_request()
        answer_tokens = len(request.answer)
        if self._dice.random() < _ABORT:
            answer_tokens = self._dice.randint(1, answer_tokens)
        turn = SimulatedTurn(
            next(self._numbers),
            self._generation,
            agent,
            request,
            answer_tokens,
            self._step_began_at_s,
        )
        self._turns.append(turn)
        self._observer.request_started(turn.start())

    def _prefill(self) -> int:
        """Compute a part of the oldest prompt that is not complete.

        Returns:
            Tokens that were computed.
        """
        turn = next((turn for turn in self._turns if not turn.decoding), None)
        if turn is None or not self._admit(turn):
            return 0
        done = (turn.cached_tokens or 0) + turn.computed_tokens
        computed = min(turn.prompt_tokens - done, _PREFILL_TOKENS_PER_STEP)
        turn.computed_tokens += computed
        self._cache.advance(turn.engine_request_id, done + computed)
        if done + computed == turn.prompt_tokens:
            self._cache.flush()
            at_s = self._step_began_at_s + computed / PREFILL_TOKENS_PER_S
            self._observer.first_token(turn.first_token(at_s))
        return computed

    def _admit(self, turn: SimulatedTurn) -> bool:
        """Let a request in; False while the others leave too little room for its last token."""
        if turn.admitted:
            return True
        running = [each for each in self._turns if each.admitted]
        if sum(self._blocks(each) for each in (*running, turn)) > self._cache.blocks_total:
            return False
        request = turn.request
        cached_tokens = self._cache.admit(turn.engine_request_id, request.prompt, request.answer)
        turn.admit(cached_tokens, self._step_began_at_s)
        return True

    def _blocks(self, turn: SimulatedTurn) -> int:
        return -(-(turn.prompt_tokens + turn.answer_tokens) // self._cache.block_tokens)

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

    def _finish(self, turn: SimulatedTurn) -> None:
        self._turns.remove(turn)
        if turn.admitted:
            self._cache.release(turn.engine_request_id)
        if not turn.aborted:
            turn.agent.take_answer(turn.request)
        answer = turn.request.answer[: turn.generated_tokens]
        self._observer.request_finished(turn.record(self._now_s), answer)
