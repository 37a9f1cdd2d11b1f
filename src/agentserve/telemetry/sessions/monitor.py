"""Follows agent sessions: whose request it is, what it should reuse, what it did reuse, and why.

Owns all state of the session monitor, and is used by one thread. It must not know threads, the
engine, or where its views are drawn. Prompts are held in `prompt_memory` and in requests in flight
only.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from agentserve.domain.cache_event import CacheEvents, CacheEventsLost
from agentserve.domain.prompt import PartText
from agentserve.domain.request import FirstToken, RequestStart
from agentserve.domain.sample import CacheFacts
from agentserve.domain.session import CacheMonitorView
from agentserve.telemetry.engine_stats import RECENT_REQUESTS
from agentserve.telemetry.sessions.cache_replay import CacheReplay
from agentserve.telemetry.sessions.evidence import SessionRequest
from agentserve.telemetry.sessions.exchange import FinishedRequest, MonitorInput, SessionsView
from agentserve.telemetry.sessions.identity import SESSIONS_KEPT, Assignment, SessionDirectory
from agentserve.telemetry.sessions.judgement import (
    Judgement,
    OpenTurn,
    PreviousPrompt,
)
from agentserve.telemetry.sessions.known_items import KnownItems
from agentserve.telemetry.sessions.lineage import TokenMatch
from agentserve.telemetry.sessions.prompt_memory import PromptMemory, RememberedPrompt
from agentserve.telemetry.sessions.refresh_turns import RefreshTurns
from agentserve.telemetry.sessions.request_body import read_body
from agentserve.telemetry.sessions.session_roster import SessionRoster
from agentserve.telemetry.sessions.token_prefix import common_prefix_length, token_array
from agentserve.telemetry.sessions.turn import GenerationTotals, Turn

LATE_EVENTS_S = 1.0
"""A turn is judged without an expectation when its lookup is not seen within this time."""


class SessionMonitor:
    """Takes what an engine reports, one value at a time.

    Args:
        memory: Keeps prompts, within its budget.
        directory: Tells sessions apart.
        most_sessions: Beyond that the ones seen longest ago are forgotten.
        clock: Monotonic clock, seconds.
        unix_clock: Unix time, seconds.
    """

    def __init__(
        self,
        memory: PromptMemory | None = None,
        directory: SessionDirectory | None = None,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
        most_sessions: int = SESSIONS_KEPT,
    ) -> None:
        self._memory = PromptMemory() if memory is None else memory
        # An empty one is false.
        self._directory = SessionDirectory() if directory is None else directory
        self._clock = clock
        self._unix_clock = unix_clock
        self._memory.on_forgotten = self._prompt_forgotten
        self._known_items = KnownItems()
        self._roster = SessionRoster(self._directory, most_sessions)
        self._open: dict[int, OpenTurn] = {}
        self._open_by_engine_id: dict[str, OpenTurn] = {}
        self._ended: deque[tuple[int, str]] = deque(maxlen=RECENT_REQUESTS)
        """Numbers and sessions of the newest ended requests, for whoever lists these."""
        self._late: dict[int, OpenTurn] = {}
        """Turns with a first token or an end whose lookup was not seen yet."""
        self._cache = CacheReplay(unix_clock)
        self._totals = GenerationTotals()
        self._refreshing = RefreshTurns()
        self._salted = False

    @property
    def waiting(self) -> bool:
        """Whether `view` will have something new later without any new input."""
        return bool(self._late) or self._refreshing.behind

    def handle(self, value: MonitorInput) -> None:
        """Take in one report."""
        match value:
            case CacheEvents():
                self._cache_events(value)
            case FirstToken():
                self._first_token(value)
            case RequestStart():
                self._request_started(value)
            case FinishedRequest():
                self._request_finished(value)
            case CacheFacts():
                self._engine_began(value)
            case CacheEventsLost():
                self._cache.lose(value)
                self._look_at_residency(self._roster.newest_first())

    def view(self) -> SessionsView:
        """Everything that is shown, as of now."""
        self._judge_late()
        self._look_at_residency(
            self._refreshing.due(tuple(self._roster.newest_first()), self._cache.version)
        )
        return SessionsView(
            tuple(record.view() for record in self._roster.records()),
            self._monitor_view(),
            dict(self._ended)
            | {number: open_turn.turn.session for number, open_turn in self._open.items()},
        )

    def _look_at_residency(self, sessions: Iterable[str]) -> None:
        for session in sessions:
            prompt = self._memory.get(session)
            if (record := self._roster.get(session)) is not None:
                record.set_resident(None if prompt is None else self._cache.resident_tokens(prompt))

    def _engine_began(self, facts: CacheFacts) -> None:
        # No event of the earlier engine comes any more.
        self._give_up_waiting(tuple(self._late.values()))
        for number, open_turn in list(self._open.items()):
            if open_turn.turn.generation != facts.generation:
                self._forget_open(number, open_turn)
        self._cache.begin(facts)
        self._look_at_residency(self._roster.newest_first())
        self._totals = GenerationTotals(generation=facts.generation)

    def _forget_open(self, number: int, open_turn: OpenTurn) -> None:
        """Stop waiting for the end of a request whose engine is gone."""
        turn = open_turn.turn
        turn.abandoned = True
        turn.changed()
        del self._open[number]
        self._open_by_engine_id.pop(turn.engine_request_id, None)
        self._directory.release(turn.session)
        if (record := self._roster.get(turn.session)) is not None:
            record.running.discard(number)
            record.changed()

    def _cache_events(self, batch: CacheEvents) -> None:
        for engine_request_id in self._cache.apply(batch):
            open_turn = self._open_by_engine_id.get(engine_request_id)
            if open_turn is not None:
                self._attach(open_turn)

    def _attach(self, open_turn: OpenTurn) -> None:
        """Take over what the scheduler's lookup found."""
        lookup = self._cache.lookup(open_turn.turn.engine_request_id)
        if lookup is None:
            return
        open_turn.lookup = lookup
        open_turn.prompt.hashes = lookup.hashes
        open_turn.prompt.hash_tokens = self._cache.hash_block_tokens
        if lookup.reuse is not None:
            open_turn.turn.expected_cached_tokens = lookup.reuse.expected_tokens
        self._changed(open_turn)
        self._judge(open_turn)

    def _request_started(self, start: RequestStart) -> None:
        origin = start.origin
        facts = None
        if origin is not None and start.body is not None:
            facts = read_body(origin.route, start.body, self._known_items)
        request = SessionRequest(
            user_agent=None if origin is None else origin.user_agent,
            session_header=None if origin is None else origin.session_header,
            key_name=None if origin is None else origin.key_name,
            cache_salt=start.cache_salt,
            facts=facts,
        )
        assignment = self._directory.assign(
            request,
            lambda sessions: self._closest(sessions, token_array(start.prompt_token_ids)),
        )
        try:
            self._begin_turn(start, assignment, () if facts is None else facts.parts)
        except BaseException:
            # Whatever went wrong, the session must not count as busy for ever.
            self._directory.release(assignment.session_id)
            raise

    def _begin_turn(
        self, start: RequestStart, assignment: Assignment, parts: tuple[PartText, ...]
    ) -> None:
        session, token_ids = assignment.session_id, start.prompt_token_ids
        prompt = RememberedPrompt(
            generation=start.generation,
            cache_salt=start.cache_salt,
            prompt_tokens=len(token_ids),
            parts=parts,
        )
        self._salted |= start.cache_salt is not None
        record = self._roster.see(session, start)
        turn = Turn(
            request_number=start.number,
            session=session,
            number=record.requests + 1,
            at_unix_s=start.at_unix_s,
            generation=start.generation,
            engine_request_id=start.engine_request_id,
            choices=start.choices,
            cache_salt=start.cache_salt,
            prompt_tokens=len(token_ids),
            predictable=start.generation == self._cache.generation and self._cache.residency_known,
        )
        open_turn = OpenTurn(
            turn=turn,
            prompt=prompt,
            previous=self._previous(session),
            token_ids=token_ids,
            same_tokens_other_salt=self._known_under_other_salt(token_ids, start.cache_salt),
        )
        record.begin(turn)
        for engine_request_id in turn.engine_request_ids:
            self._cache.owners.note(engine_request_id, session)
        self._open[start.number] = open_turn
        self._open_by_engine_id[start.engine_request_id] = open_turn
        self._attach(open_turn)
        self._roster.shorten_histories()
        for gone in self._roster.make_room():
            self._memory.drop(gone)
            self._cache.owners.forget(gone)
        self._roster.rename()

    def _previous(self, session: str) -> PreviousPrompt | None:
        prompt = self._memory.get(session)
        if prompt is None:
            return None
        return PreviousPrompt(prompt, prompt.sequence_tokens, prompt.running)

    def _closest(self, sessions: Collection[str], tokens: array[int]) -> TokenMatch | None:
        """Which of these sessions shares the longest beginning with a prompt."""
        block_tokens = self._cache.block_tokens or 1
        best: TokenMatch | None = None
        for session in sessions:
            prompt = self._memory.get(session)
            if prompt is None or prompt.tokens is None:
                continue
            common = common_prefix_length(prompt.tokens, tokens)
            if best is None or common > best.common_tokens:
                best = TokenMatch(session, common, prompt.sequence_tokens, block_tokens)
        return best

    def _known_under_other_salt(self, token_ids: Sequence[int], salt: str | None) -> bool:
        """Whether some other session's prompt begins with the same block under another salt."""
        block_tokens = self._cache.block_tokens or 0
        if not self._salted or not 0 < block_tokens <= len(token_ids):
            return False
        head = token_array(token_ids[:block_tokens])
        return any(
            known.cache_salt != salt
            and known.tokens is not None
            and known.tokens[:block_tokens] == head
            for _, known in self._memory.newest_first()
        )

    def _first_token(self, first: FirstToken) -> None:
        open_turn = self._open.get(first.number)
        if open_turn is None:
            return
        turn = open_turn.turn
        turn.first = first
        turn.preemptions = first.preemptions
        if not turn.prompt_tokens:
            # A prompt that is not tokens.
            turn.prompt_tokens = open_turn.prompt.prompt_tokens = first.prompt_tokens
        open_turn.take_tokens()
        # Only now it is known to have been computed, and the next turn can build on it.
        self._memory.put(turn.session, open_turn.prompt)
        if (record := self._roster.get(turn.session)) is not None:
            record.sequence_tokens = open_turn.prompt.sequence_tokens
        self._changed(open_turn)
        self._judge(open_turn)

    def _request_finished(self, finished: FinishedRequest) -> None:
        record = finished.record
        open_turn = self._open.pop(record.number, None)
        if open_turn is None:
            finished.keep(None)
            return
        turn, session = open_turn.turn, open_turn.turn.session
        self._ended.append((record.number, session))
        turn.record = record
        identity = self._directory.identity(session)
        self._directory.release(session)
        open_turn.take_tokens()
        open_turn.prompt.add_answer(finished.answer_token_ids)
        open_turn.prompt.running = False
        known = self._roster.get(session)
        if known is not None:
            known.running.discard(record.number)
            if self._memory.get(session) is open_turn.prompt:
                known.sequence_tokens = open_turn.prompt.sequence_tokens
                self._memory.measure(session)
        self._changed(open_turn)
        self._judge(open_turn)
        finished.keep(None if identity is None else identity.history_key)

    def _judge(self, open_turn: OpenTurn) -> None:
        turn = open_turn.turn
        if turn.cached_tokens is None and turn.outcome is None:
            return
        if (
            turn.predictable
            and open_turn.lookup is None
            and turn.generation == self._cache.generation
        ):
            if turn.request_number not in self._late:
                self._late[turn.request_number] = open_turn
                open_turn.late_at_s = self._clock() + LATE_EVENTS_S
            return
        self._late.pop(turn.request_number, None)
        self._conclude(open_turn)

    def _judge_late(self) -> None:
        now_s = self._clock()
        self._give_up_waiting(
            [open_turn for open_turn in self._late.values() if open_turn.late_at_s <= now_s]
        )

    def _give_up_waiting(self, open_turns: Sequence[OpenTurn]) -> None:
        for open_turn in open_turns:
            open_turn.turn.predictable = False
            self._judge(open_turn)

    def _conclude(self, open_turn: OpenTurn) -> None:
        """Give the verdict; again when a later lookup or the end told more."""
        turn = open_turn.turn
        if turn.record is not None:
            self._open_by_engine_id.pop(turn.engine_request_id, None)
            for engine_request_id in turn.engine_request_ids:
                self._cache.forget_lookup(engine_request_id)
        if turn.cached_tokens is None:
            return
        record = self._roster.get(turn.session)
        first_time, open_turn.counted = not open_turn.counted, True
        if first_time:
            if turn.generation == self._totals.generation:
                self._totals.add(turn)
            if record is not None and turn.generation == record.totals.generation:
                record.totals.add(turn)
        judgement = Judgement(
            block_tokens=self._cache.block_tokens,
            prefill_tokens_per_s=self._totals.prefill_tokens_per_s,
            decode=self._cache.decode,
            evictor=self._evictor,
        )
        turn.verdict = judgement.verdict(open_turn)
        if turn.record is not None and turn.record.preemptions and not turn.verdict.kind.lost_reuse:
            # After its first token: nothing that was lost before, but all of it came again.
            turn.preemptions = turn.record.preemptions
            turn.verdict = judgement.verdict(open_turn)
        if record is not None:
            record.prefill_tokens_per_s = self._totals.prefill_tokens_per_s
            if first_time:
                record.parts.add(
                    open_turn.prompt.parts,
                    turn.prompt_tokens,
                    turn.verdict.part,
                    turn.verdict.volatile_kind,
                )
        self._changed(open_turn)

    def _evictor(self, engine_request_id: str | None) -> tuple[str, str] | None:
        session = self._cache.owners.session_of(engine_request_id)
        record = None if session is None else self._roster.get(session)
        return None if session is None or record is None else (session, record.identity.label)

    def _changed(self, open_turn: OpenTurn) -> None:
        open_turn.turn.changed()
        if (record := self._roster.get(open_turn.turn.session)) is not None:
            record.changed()

    def _prompt_forgotten(self, session: str) -> None:
        if (record := self._roster.get(session)) is not None:
            record.forget_old_turns()

    def _monitor_view(self) -> CacheMonitorView:
        cache = self._cache
        return CacheMonitorView(
            residency_problem=cache.problem,
            predictions=self._totals.predictions,
            mispredictions=self._totals.mispredictions,
            prefill_tokens_per_s=self._totals.prefill_tokens_per_s,
            cached_blocks=cache.cached_blocks,
            shares=cache.shares,
            evictions=cache.evictions,
            sessions_forgotten=self._roster.forgotten,
        )
