"""One session with its newest turns, and its view.

Owns what is shown of a session. It must not know other sessions, nor prompt text.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from agentserve.domain.session import HISTORY_TURNS, SessionView
from agentserve.domain.statistics import share
from agentserve.telemetry.sessions.identity import SessionIdentity
from agentserve.telemetry.sessions.prompt_layout import PartHistory
from agentserve.telemetry.sessions.turn import GenerationTotals, Turn

OLD_HISTORY_TURNS = 4
"""Turns that are kept of a session whose prompt was given up."""


@dataclass(slots=True)
class SessionRecord:
    """One session; written by the monitor only."""

    identity: SessionIdentity
    isolation: str | None
    first_seen_unix_s: float
    last_seen_unix_s: float
    requests: int = 0
    running: set[int] = field(default_factory=set)
    """Numbers of its requests in flight."""
    turns: deque[Turn] = field(default_factory=lambda: deque(maxlen=HISTORY_TURNS))
    """Newest first."""
    totals: GenerationTotals = field(default_factory=GenerationTotals)
    parts: PartHistory = field(default_factory=PartHistory)
    resident_tokens: int | None = None
    sequence_tokens: int = 0
    prefill_tokens_per_s: float | None = None
    """The engine's speed at its newest turn, for the advice."""
    _view: SessionView | None = field(default=None, repr=False)

    def changed(self) -> None:
        """Make the next view anew."""
        self._view = None

    def set_resident(self, resident_tokens: int | None) -> None:
        """Note how much of the newest prompt is in the cache now."""
        if resident_tokens != self.resident_tokens:
            self.resident_tokens = resident_tokens
            if self._view is not None:
                # The rest of a view is dear, and this changes with every eviction.
                self._view = msgspec.structs.replace(self._view, resident_tokens=resident_tokens)

    def begin(self, turn: Turn) -> None:
        """A request of this session was handed to the engine."""
        self.requests += 1
        self.turns.appendleft(turn)
        self.running.add(turn.request_number)
        self.last_seen_unix_s = max(self.last_seen_unix_s, turn.at_unix_s)
        if turn.generation != self.totals.generation:
            self.totals = GenerationTotals(generation=turn.generation)
        self.changed()

    def forget_old_turns(self) -> None:
        """Keep only the newest few turns."""
        if len(self.turns) <= OLD_HISTORY_TURNS:
            return
        while len(self.turns) > OLD_HISTORY_TURNS:
            self.turns.pop()
        self.changed()

    def view(self) -> SessionView:
        """Everything that is shown of it."""
        if self._view is None:
            self._view = self._make_view()
        return self._view

    def _make_view(self) -> SessionView:
        newest = self.turns[0].view()
        judged = next((turn.verdict for turn in self.turns if turn.verdict is not None), None)
        timed = next((turn.first.ttft_s for turn in self.turns if turn.first is not None), None)
        layout = self.parts.view(self.prefill_tokens_per_s)
        return SessionView(
            id=self.identity.id,
            label=self.identity.label,
            agent=self.identity.agent,
            side=self.identity.side,
            identity=self.identity.source,
            isolation=self.isolation,
            requests=self.requests,
            running_requests=len(self.running),
            prompt_tokens=newest.prompt_tokens,
            cached_tokens=newest.cached_tokens,
            expected_cached_tokens=newest.expected_cached_tokens,
            computed_tokens=newest.computed_tokens,
            hit_rate=share(self.totals.cached_tokens, self.totals.prompt_tokens),
            hit_rate_requests=self.totals.requests,
            resident_tokens=self.resident_tokens,
            sequence_tokens=self.sequence_tokens,
            ttft_s=timed,
            first_seen_unix_s=self.first_seen_unix_s,
            last_seen_unix_s=self.last_seen_unix_s,
            verdict=judged,
            history=tuple(turn.view() for turn in self.turns),
            layout=layout.parts,
            layout_advice=layout.advice,
        )
