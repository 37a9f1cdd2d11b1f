"""Which session a request belongs to, and what a session is called.

Owns main sessions and side sessions, ids and labels. It must not know tokens, the cache or the
time. It keeps digests and ids that clients gave, never text of a prompt.

A side session is a query that an agent makes beside its work, such as one for a title: it has no
tools and another system prompt than a main session, which has tools. Whichever comes first, the one
with tools is the main one.

The id of a session (`X-Session-ID`, `metadata`) names a main session and its side sessions. A
request belongs to

1. the conversation under that id from which it descends (see `lineage`), whatever its system
   prompt and tools are now.
2. else one with the same opener and system prompt: it was begun again, or asked twice at once.
3. else, as the summary that replaced a history, the newest one that has tools as it has or has
   none as it has none: when that one is idle, has the same system prompt and tools, and no shorter
   list of messages. A conversation whose place was wrongly taken so is longer when it goes on, and
   then gets a session of its own.
4. else a side session: another conversation of that session, such as a sub-agent's with a system
   prompt of its own. Queries without tools share one for each system prompt. There are at most
   `_MOST_SIDES` with and as many without tools; then one that is idle takes more conversations.

A `prompt_cache_key` names a prefix that conversations may share, so that there and without an id
of a session lineage alone decides: what descends from nothing is a session with its own number, or
a query beside the session with the same opener, else, when it holds no answer, beside the one of
the same client that was seen last.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from agentserve.domain.agent import KNOWN_AGENTS
from agentserve.domain.session import IdentitySource
from agentserve.domain.text import printable
from agentserve.telemetry.sessions.evidence import Scope, SessionRequest, scope_of
from agentserve.telemetry.sessions.lineage import Conversation, Lineage, TokenLookup
from agentserve.telemetry.sessions.request_body import RequestBodyFacts

SESSIONS_KEPT = 1_000
"""Beyond that the caller forgets the one that `SessionDirectory.least_recently_seen` names."""

_UNKNOWN_CLIENT = "client"
_LONGEST_NAME = 24
_KNOWN_NAMES = frozenset(agent.name for agent in KNOWN_AGENTS)
_MOST_SIDES = 8
"""Side sessions of one id, with and without tools each: many sub-agents or a changing system prompt
must not make ever more of them."""
_CIRCLE_SESSIONS = 4 * _MOST_SIDES
"""Sessions of one id that are looked at: all but some that were seen longest ago."""


class Assignment(NamedTuple):
    """Where a request belongs."""

    session_id: str
    created: bool
    """Whether the session begins with it."""


class SessionIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """How a session is called. Label and side may change while more of it is seen."""

    id: str
    """Made here, unique in the life of the app."""
    label: str
    """Unique among the sessions that are kept."""
    agent: str | None
    """Name of the client, safe to show."""
    side: bool
    main: str | None
    """Id of the session that a side session belongs to, while that one is kept."""
    source: IdentitySource
    history_key: str
    """Names the session in the request history, the same after a restart where the client gives
    an id; it may hold that id: to be stored as a digest only."""


@dataclass(slots=True, eq=False)
class _Session:
    conversation: Conversation
    scope: Scope
    number: int
    history_key: str = ""
    side_number: int = 0
    """0 is a main session."""
    main: _Session | None = None
    sides: int = 0
    """Side sessions that it ever had."""


@dataclass(slots=True)
class _Circle:
    """The sessions of one scope."""

    lineage: Lineage = field(default_factory=Lineage)
    main: _Session | None = None
    """Where the client gives the id of a session."""


class SessionDirectory:
    """Decides which session a request belongs to.

    Deterministic but for `new_token`; a 400-message request beside 1,000 sessions takes less than
    1 ms.

    Args:
        new_token: Returns a random text that names a session in the request history.
    """

    def __init__(self, new_token: Callable[[], str] = lambda: secrets.token_hex(16)) -> None:
        self._new_token = new_token
        self._circles: dict[Scope, _Circle] = {}
        # The one seen last is the last one.
        self._sessions: dict[str, _Session] = {}
        self._renamed: set[str] = set()
        self._made = 0
        self._numbers: dict[str | None, int] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def assign(self, request: SessionRequest, by_tokens: TokenLookup) -> Assignment:
        """Find or make the session of a request, which is in flight from now on.

        Args:
            request: What is known of it.
            by_tokens: Compares the prompt's tokens with those of sessions; called at most once,
                and only where messages do not decide.

        Returns:
            The session. `release` has to be called once when the request ends.
        """
        scope = scope_of(request)
        circle = self._circles.setdefault(scope, _Circle())
        facts = request.facts
        if facts is not None and not facts.message_digests:
            facts = None
        made = self._made
        if scope.names_session:
            session = self._of_given_id(scope, circle, facts, by_tokens)
        else:
            session = self._of_lineage(scope, circle, facts, by_tokens)
        conversation = session.conversation
        self._sessions[conversation.id] = self._sessions.pop(conversation.id, session)
        conversation.in_flight += 1
        circle.lineage.note(conversation, facts)
        created = self._made > made
        if created:
            self._renamed.add(conversation.id)
        return Assignment(conversation.id, created=created)

    def release(self, session_id: str) -> None:
        """Note that a request of a session ended; a forgotten session is ignored."""
        session = self._sessions.get(session_id)
        if session is not None and session.conversation.in_flight:
            session.conversation.in_flight -= 1

    def forget(self, session_id: str) -> None:
        """Forget a session; a later request of it begins another one."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        circle = self._circles[session.scope]
        circle.lineage.remove(session.conversation)
        if circle.main is session:
            circle.main = None
        self._renamed.discard(session_id)
        if session.sides:
            sides = circle.lineage.latest(len(circle.lineage))
            self._renamed.update(
                known.id for known in sides if self._sessions[known.id].main is session
            )
        if not len(circle.lineage):
            del self._circles[session.scope]

    def least_recently_seen(self) -> str | None:
        """Return the id of the session without a request in flight whose last one is longest ago.

        None when every session has a request in flight.
        """
        for session in self._sessions.values():
            if not session.conversation.in_flight:
                return session.conversation.id
        return None

    def identity(self, session_id: str) -> SessionIdentity | None:
        """Return how a session is called now; None when it is not known."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        main = session.main
        return SessionIdentity(
            id=session_id,
            label=_label(session),
            agent=session.scope.client,
            side=session.side_number > 0,
            main=main.conversation.id
            if main is not None and main.conversation.id in self._sessions
            else None,
            source=session.scope.source,
            history_key=session.history_key,
        )

    def take_renamed(self) -> set[str]:
        """Return the ids of the sessions whose `identity` is another since the last call.

        Sessions that were made since are among them, sessions that are forgotten are not. Costs as
        much as there are changes, not sessions.
        """
        renamed, self._renamed = self._renamed, set()
        return renamed

    def _of_given_id(
        self,
        scope: Scope,
        circle: _Circle,
        facts: RequestBodyFacts | None,
        by_tokens: TokenLookup,
    ) -> _Session:
        main = circle.main
        if facts is None:
            known = None if main is None else main.conversation
        else:
            known = circle.lineage.descent(facts, by_tokens)
            known = known or _begun_again(circle, facts) or _compacted(circle, facts)
        if known is not None:
            return self._sessions[known.id]
        if facts is None or main is None:
            side = None if facts is None or facts.has_tools else self._known_side(circle, facts)
            if side is None:
                side = circle.main = self._new(scope, facts, self._next_number(scope))
            return side
        if main.conversation.may_be(facts) and not (
            main.conversation.opener and facts.opener_digest
        ):
            return main
        if facts.has_tools and not main.conversation.has_tools:
            circle.main = self._new(scope, facts, main.number)
            for conversation in reversed(circle.lineage.latest(_CIRCLE_SESSIONS)):
                self._put_beside(self._sessions[conversation.id], circle.main)
            return circle.main
        return self._known_side(circle, facts) or self._new_side(main, facts)

    def _known_side(self, circle: _Circle, facts: RequestBodyFacts) -> _Session | None:
        """Return the side session that takes another conversation under the id of a session."""
        sides = [
            session
            for known in reversed(circle.lineage.latest(_CIRCLE_SESSIONS))
            if (session := self._sessions[known.id]).side_number
            and known.has_tools == facts.has_tools
        ]
        if not facts.has_tools:
            for side in sides:
                if side.conversation.system == facts.system_digest:
                    return side
        if len(sides) < _MOST_SIDES:
            return None
        # Of equals the one that was seen longest ago.
        return min(
            sides,
            key=lambda side: (
                side.conversation.in_flight > 0,
                side.conversation.system != facts.system_digest,
            ),
        )

    def _of_lineage(
        self,
        scope: Scope,
        circle: _Circle,
        facts: RequestBodyFacts | None,
        by_tokens: TokenLookup,
    ) -> _Session:
        conversation = circle.lineage.descent(facts, by_tokens)
        if conversation is not None:
            session = self._sessions[conversation.id]
            if facts is not None and _is_no_query(session, facts):
                session.side_number, session.main = 0, None
                session.number = self._next_number(scope)
                session.history_key = _lasting_key(session) or session.history_key
                self._renamed.add(conversation.id)
            return session
        if facts is None:
            return self._new(scope, None, self._next_number(scope))
        if not facts.has_tools:
            main = self._main_of_query(circle, facts)
            if main is not None:
                return self._new_side(main, facts)
            return self._new(scope, facts, self._next_number(scope))
        queries = self._queries_before(circle, facts)
        number = queries[0].number if queries else self._next_number(scope)
        session = self._new(scope, facts, number)
        for query in queries:
            self._put_beside(query, session)
        return session

    def _main_of_query(self, circle: _Circle, facts: RequestBodyFacts) -> _Session | None:
        """Return the session that a request without tools is a side query of."""
        likely = circle.lineage.latest_with_opener(facts.opener_digest)
        if not facts.has_answers:
            likely += circle.lineage.latest()
        for known in likely:
            session = self._sessions[known.id]
            if not session.side_number and known.has_tools and not known.may_be(facts):
                return session
        return None

    def _queries_before(self, circle: _Circle, facts: RequestBodyFacts) -> list[_Session]:
        """Return the sessions that turn out to be side queries of a request with tools."""
        likely = circle.lineage.latest_with_opener(facts.opener_digest)
        likely += [known for known in circle.lineage.latest()[:1] if not known.has_answers]
        # One conversation can be in both.
        sessions = dict.fromkeys(self._sessions[known.id] for known in likely)
        return [
            session
            for session in sessions
            if not session.side_number and not session.conversation.may_be(facts)
        ]

    def _new_side(self, main: _Session, facts: RequestBodyFacts) -> _Session:
        session = self._new(main.scope, facts, main.number)
        self._put_beside(session, main)
        return session

    def _new(self, scope: Scope, facts: RequestBodyFacts | None, number: int) -> _Session:
        self._made += 1
        conversation = Conversation(id=f"s{self._made}")
        if facts is not None:
            conversation.has_tools = facts.has_tools
            conversation.system, conversation.opener = facts.system_digest, facts.opener_digest
        session = _Session(conversation=conversation, scope=scope, number=number)
        session.history_key = _lasting_key(session) or self._new_token()
        return session

    def _put_beside(self, query: _Session, main: _Session) -> None:
        main.sides += 1
        query.main, query.number, query.side_number = main, main.number, main.sides
        query.history_key = _lasting_key(query) or query.history_key
        self._renamed.add(query.conversation.id)

    def _next_number(self, scope: Scope) -> int:
        # Clients that are not known share one count: their names are theirs to choose.
        name = scope.client if scope.client in _KNOWN_NAMES else None
        self._numbers[name] = self._numbers.get(name, 0) + 1
        return self._numbers[name]


def _lasting_key(session: _Session) -> str | None:
    """Return what names a session after a restart too; None where the client says no such thing."""
    scope, conversation = session.scope, session.conversation
    if scope.given_id is None or scope.source is IdentitySource.USER:
        return None
    names = [scope.given_id]
    if session.side_number:
        names += ["side", conversation.system.hex()]
    if not scope.names_session or (session.side_number and conversation.has_tools):
        names.append(conversation.opener.hex())
    return " ".join(names)


def _begun_again(circle: _Circle, facts: RequestBodyFacts) -> Conversation | None:
    """Apply rule 2."""
    for known in circle.lineage.latest_with_opener(facts.opener_digest):
        if known.system == facts.system_digest:
            return known
    return None


def _compacted(circle: _Circle, facts: RequestBodyFacts) -> Conversation | None:
    """Apply rule 3."""
    for known in circle.lineage.latest(_CIRCLE_SESSIONS):
        if known.has_tools == facts.has_tools:
            same = known.system == facts.system_digest and known.tools == facts.tools_digest
            shorter = len(facts.message_digests) <= len(known.messages)
            return known if same and shorter and not known.in_flight else None
    return None


def _is_no_query(session: _Session, facts: RequestBodyFacts) -> bool:
    """Whether what was taken for a side query turns out to be a conversation of its own."""
    main = session.main
    return main is not None and (
        facts.has_tools or (facts.has_answers and main.conversation.opener != facts.opener_digest)
    )


def _label(session: _Session) -> str:
    name = printable(session.scope.client or _UNKNOWN_CLIENT, _LONGEST_NAME)
    label = f"{name} {session.number}"
    if not session.side_number:
        return label
    return f"{label} side" if session.side_number == 1 else f"{label} side {session.side_number}"
