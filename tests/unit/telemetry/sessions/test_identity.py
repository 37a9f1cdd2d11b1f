"""Which session requests are told to belong to, and what sessions are called."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentserve.domain.session import IdentitySource
from agentserve.domain.text import printable
from agentserve.telemetry.sessions.evidence import SessionRequest
from agentserve.telemetry.sessions.identity import (
    SESSIONS_KEPT,
    SessionDirectory,
    SessionIdentity,
)
from agentserve.telemetry.sessions.lineage import TokenLookup, TokenMatch
from agentserve.telemetry.sessions.request_body import RequestBodyFacts, read_body
from tests.client_shapes import CLIENT_SHAPES, ClientShape, Conversation, claude_code

CHAT = "/v1/chat/completions"
BY_NAME = {shape.name: shape for shape in CLIENT_SHAPES}
TOOLS = [{"type": "function", "function": {"name": "read"}}]


def no_tokens(_: Collection[str]) -> TokenMatch | None:
    return None


def chat(*messages: str, system: str | None = "S", tools: bool = True, **ids: Any) -> bytes:
    """Messages of a user and of an assistant by turns."""
    roles = itertools.cycle(("user", "assistant"))
    said = [{"role": role, "content": text} for role, text in zip(roles, messages, strict=False)]
    if system is not None:
        said.insert(0, {"role": "system", "content": system})
    return json.dumps({"messages": said, **({"tools": TOOLS} if tools else {}), **ids}).encode()


class Server:
    """A directory and what the requests to it have in common."""

    def __init__(self) -> None:
        tokens = itertools.count(1)
        self.directory = SessionDirectory(new_token=lambda: f"token {next(tokens)}")

    def begin(
        self,
        body: bytes | None,
        *,
        route: str = CHAT,
        agent: str | None = "opencode/1.2.3",
        by_tokens: TokenLookup = no_tokens,
        **origin: str,
    ) -> str:
        facts = None if body is None else read_body(route, body)
        request = SessionRequest(user_agent=agent, facts=facts, **origin)
        before = len(self.directory)
        assignment = self.directory.assign(request, by_tokens)
        assert assignment.created == (len(self.directory) > before)
        return assignment.session_id

    def ask(self, body: bytes | None, **how: Any) -> str:
        session = self.begin(body, **how)
        self.directory.release(session)
        return session

    def ask_as(self, shape: ClientShape, body: dict[str, Any], **origin: str) -> str:
        encoded = json.dumps(body).encode()
        return self.ask(encoded, route=shape.route, agent=shape.user_agent, **origin)

    def identity(self, session: str) -> SessionIdentity:
        identity = self.directory.identity(session)
        assert identity is not None
        return identity

    def label(self, session: str) -> str:
        return self.identity(session).label


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.mark.parametrize("shape", CLIENT_SHAPES, ids=lambda shape: shape.name)
def test_the_turns_of_each_client_are_one_session(server: Server, shape: ClientShape) -> None:
    conversation = Conversation(task="Fix the parser.")
    sessions = {server.ask_as(shape, shape.turn(conversation, turn)) for turn in range(1, 6)}
    (session,) = sessions
    identity = server.identity(session)
    assert (identity.label, identity.agent, identity.side) == (f"{shape.name} 1", shape.name, False)
    assert identity.source == {
        "Claude Code": IdentitySource.METADATA,
        "Codex": IdentitySource.PROMPT_CACHE_KEY,
    }.get(shape.name, IdentitySource.LINEAGE)


@pytest.mark.parametrize("shape", CLIENT_SHAPES, ids=lambda shape: shape.name)
def test_two_conversations_of_each_client_are_two_sessions(
    server: Server, shape: ClientShape
) -> None:
    one, two = Conversation("Fix the parser.", "one"), Conversation("Write a test.", "two")
    sessions = [
        server.ask_as(shape, shape.turn(conversation, turn))
        for turn in range(1, 5)
        for conversation in (one, two)
    ]
    assert sessions == ["s1", "s2"] * 4
    assert [server.label(session) for session in sessions[:2]] == [
        f"{shape.name} 1",
        f"{shape.name} 2",
    ]


@pytest.mark.parametrize("main_first", [True, False])
@pytest.mark.parametrize(
    "shape",
    [shape for shape in CLIENT_SHAPES if shape.side_query],
    ids=lambda shape: shape.name,
)
def test_a_side_query_is_beside_its_session(
    server: Server, shape: ClientShape, main_first: bool
) -> None:
    assert shape.side_query is not None
    conversation = Conversation(task="Fix the parser.")
    query, turn = shape.side_query(conversation, 1), shape.turn(conversation, 1)
    first, second = (
        server.ask_as(shape, body) for body in ([turn, query][:: 1 if main_first else -1])
    )
    main, side = (first, second) if main_first else (second, first)
    assert server.ask_as(shape, shape.turn(conversation, 2)) == main
    assert main != side
    assert server.label(main) == f"{shape.name} 1"
    assert server.label(side) == f"{shape.name} 1 side"
    assert (server.identity(side).side, server.identity(side).main) == (True, main)
    assert (server.identity(main).side, server.identity(main).main) == (False, None)
    assert server.identity(main).history_key != server.identity(side).history_key


def test_side_queries_of_one_kind_share_a_session_where_an_id_is_given(server: Server) -> None:
    shape, conversation = BY_NAME["Claude Code"], Conversation(task="Fix the parser.")
    main = server.ask_as(shape, claude_code.turn(conversation, 1))
    sides = {server.ask_as(shape, claude_code.side_query(conversation, turn)) for turn in (1, 2, 3)}
    assert len(sides) == 1
    assert main not in sides


def test_the_history_knows_sessions_with_an_id_again_after_a_restart() -> None:
    def keys(*bodies: bytes) -> list[str]:
        server = Server()
        for body in bodies:
            server.ask(body, session_header="x")
        return sorted(server.identity(f"s{number}").history_key for number in (1, 2, 3))

    title = chat("Title?", system="Title", tools=False)
    topic = chat("Topic?", system="Topic", tools=False)
    main = chat("Fix it.")
    assert keys(title, main, topic) == keys(main, topic, title)
    assert len(set(keys(main, topic, title))) == 3


def test_a_sub_agent_under_the_same_id_is_beside_the_session(server: Server) -> None:
    shape, conversation = BY_NAME["Claude Code"], Conversation(task="Fix the parser.")
    main = server.ask_as(shape, claude_code.turn(conversation, 1))
    subs = {server.ask_as(shape, claude_code.sub_agent(conversation, turn)) for turn in (1, 2, 3)}
    assert len(subs) == 1
    assert server.ask_as(shape, claude_code.turn(conversation, 2)) == main
    assert server.identity(subs.pop()).main == main


def said(name: str, turn: int) -> list[str]:
    """The messages of one conversation up to a turn."""
    return [f"{name} {number}" for number in range(2 * turn - 1)]


@pytest.mark.parametrize("named", ["header", "metadata"])
def test_a_sub_agent_with_the_same_tools_is_beside_the_session(server: Server, named: str) -> None:
    ids: dict[str, Any] = {"metadata": {"session_id": "x"}} if named == "metadata" else {}
    origin = {"session_header": "x"} if named == "header" else {}
    sessions = [
        server.ask(chat(*said(name, turn), system=f"You are {name}.", **ids), **origin)
        for turn in (1, 2, 3)
        for name in ("main", "sub")
    ]
    assert sessions == ["s1", "s2"] * 3
    assert [server.label(session) for session in sessions[:2]] == ["OpenCode 1", "OpenCode 1 side"]
    assert (server.identity("s2").side, server.identity("s2").main) == (True, "s1")


def test_a_sub_agent_without_tools_as_its_session_is_apart(server: Server) -> None:
    sessions = [
        server.ask(
            chat(*said(name, turn), system=f"You are {name}.", tools=False), session_header="x"
        )
        for turn in (1, 2, 3)
        for name in ("main", "sub")
    ]
    assert sessions == ["s1", "s2"] * 3


def test_conversations_that_differ_in_their_openers_part_as_soon_as_both_went_on(
    server: Server,
) -> None:
    sessions: dict[str, list[str]] = {"one": [], "two": []}
    for turn in range(1, 6):
        for name in sessions:
            sessions[name].append(server.ask(chat(*said(name, turn)), session_header="x"))
    # Until then the second can as well be what the history of the first was compacted to.
    one, two = (set(those[1:]) for those in sessions.values())
    assert (len(one), len(two), one & two) == (1, 1, set())


def test_conversations_under_one_cache_key_are_sessions_of_their_own(server: Server) -> None:
    sessions = [
        server.ask(chat(*said(name, turn), prompt_cache_key="app"))
        for turn in (1, 2, 3)
        for name in ("one", "two")
    ]
    assert sessions == ["s1", "s2"] * 3
    assert [server.label(session) for session in sessions[:2]] == ["OpenCode 1", "OpenCode 2"]
    assert not any(server.identity(session).side for session in sessions)
    assert server.identity("s1").history_key != server.identity("s2").history_key


def test_a_cache_key_does_not_join_conversations_with_one_opener(server: Server) -> None:
    one, two = (server.begin(chat("Fix it.", prompt_cache_key="app")) for _ in range(2))
    assert one != two


def test_the_history_knows_conversations_under_a_cache_key_again_after_a_restart() -> None:
    def keys(*bodies: bytes) -> list[str]:
        server = Server()
        return sorted(server.identity(server.ask(body)).history_key for body in bodies)

    one, two, other = (
        chat(task, prompt_cache_key=key) for task, key in (("1", "a"), ("2", "a"), ("1", "b"))
    )
    assert keys(one, two, other) == keys(other, two, one)
    assert len(set(keys(one, two, other))) == 3


LONG = ("Fix it.", "Ok.", "Go on.", "Done.", "More.")


def test_a_compacted_history_stays_in_the_session_that_its_id_names(server: Server) -> None:
    one = server.ask(chat(*LONG), session_header="x")
    title = server.ask(chat("Title?", system="Title", tools=False), session_header="x")
    assert title != one
    assert server.ask(chat("Summary of all"), session_header="x") == one
    assert server.ask(chat("Summary of all", "Ok.", "Go on."), session_header="x") == one
    # A cache key names no session.
    assert server.ask(chat(*LONG, prompt_cache_key="k")) != server.ask(
        chat("Summary of all", prompt_cache_key="k")
    )


@pytest.mark.parametrize(
    ("body", "running"),
    [
        (chat("Other task"), True),
        (chat("Other task", system="Sub"), False),
        (chat("Other task", *LONG), False),
        (chat("Other task").replace(b'"read"', b'"write"'), False),
    ],
    ids=["while it runs", "other system prompt", "longer", "other tools"],
)
def test_another_opener_that_is_no_compaction_is_apart(
    server: Server, body: bytes, running: bool
) -> None:
    one = server.begin(chat(*LONG), session_header="x")
    if not running:
        server.directory.release(one)
    assert server.ask(body, session_header="x") != one


def test_another_opener_after_a_sub_agent_is_not_taken_for_a_compaction(server: Server) -> None:
    one = server.ask(chat(*LONG), session_header="x")
    sub = server.ask(chat(*said("sub", 2), system="Sub"), session_header="x")
    assert server.ask(chat("Other task"), session_header="x") not in (one, sub)


def test_a_conversation_that_is_begun_again_is_of_the_session_that_its_id_names(
    server: Server,
) -> None:
    one = server.begin(chat(*LONG), session_header="x")
    assert server.ask(chat("Fix it."), session_header="x") == one
    assert server.ask(chat("Fix it.", system="Sub"), session_header="x") != one


def test_many_sub_agents_do_not_make_ever_more_sessions(server: Server) -> None:
    main = server.ask(chat(*said("main", 1)), session_header="x")
    for number in range(1, 41):
        for turn in (1, 2):
            body = chat(*said(f"sub {number} of", turn), system=f"Sub {number}")
            server.ask(body, session_header="x")
        title = chat(f"Title {number}?", system=f"Title {number}", tools=False)
        server.ask(title, session_header="x")
        assert server.ask(chat(*said("main", number)), session_header="x") == main
    assert len(server.directory) == 1 + 8 + 8


def test_a_changing_system_prompt_of_side_queries_does_not_make_ever_more_sessions(
    server: Server,
) -> None:
    server.ask(chat("Fix it."), session_header="x")
    for minute in range(40):
        server.ask(
            chat(f"Title {minute}?", system=f"It is 10:{minute}.", tools=False), session_header="x"
        )
    assert len(server.directory) == 9
    labels = [server.label(f"s{number}") for number in range(1, 10)]
    assert len(set(labels)) == 9


def test_a_clock_in_the_system_prompt_makes_no_other_session(server: Server) -> None:
    bodies = [
        chat(*["Fix it.", "Ok.", "Go on."][: turn * 2 - 1], system=f"{turn}") for turn in (1, 2)
    ]
    assert [server.ask(body) for body in bodies] == ["s1", "s1"]
    assert [server.ask(body, session_header="x") for body in bodies] == ["s2", "s2"]


def test_other_tools_make_no_other_session(server: Server) -> None:
    more = json.loads(chat("Fix it.", "Ok.", "Go on."))
    more["tools"] = [*TOOLS, {"type": "function", "function": {"name": "write"}}]
    assert server.ask(chat("Fix it.")) == server.ask(json.dumps(more).encode())


def test_the_session_header_wins(server: Server) -> None:
    one = server.ask(chat("Fix it.", prompt_cache_key="k"), session_header="x")
    two = server.ask(chat("Fix it.", "Ok.", "Go on.", prompt_cache_key="l"), session_header="x")
    assert one == two
    assert server.identity(one).source is IdentitySource.SESSION_HEADER
    assert server.identity(one).history_key == "x"
    assert server.ask(chat("Fix it.", prompt_cache_key="k"), session_header="y") != one


def test_the_cache_key_comes_before_metadata_and_metadata_before_the_user(server: Server) -> None:
    ids: dict[str, Any] = {"prompt_cache_key": "k", "metadata": {"session_id": "m"}, "user": "u"}
    sources = []
    for _ in range(3):
        sources.append(server.identity(server.ask(chat("Fix it.", **ids))).source)
        del ids[next(iter(ids))]
    assert sources == [
        IdentitySource.PROMPT_CACHE_KEY,
        IdentitySource.METADATA,
        IdentitySource.USER,
    ]


def test_equal_ids_of_different_kinds_are_different_sessions(server: Server) -> None:
    assert server.ask(chat("Fix it.", prompt_cache_key="x")) != server.ask(
        chat("Fix it."), session_header="x"
    )


@pytest.mark.parametrize(
    "other",
    [{"agent": "QwenCode/1"}, {"agent": None}, {"key_name": "b"}, {"cache_salt": "s"}],
    ids=repr,
)
@pytest.mark.parametrize("ids", [{}, {"session_header": "x"}], ids=["lineage", "header"])
def test_another_client_key_or_salt_is_another_session(
    server: Server, ids: dict[str, str], other: dict[str, Any]
) -> None:
    assert server.ask(chat("Fix it."), **ids) != server.ask(chat("Fix it."), **ids | other)


def test_an_update_of_the_client_does_not_end_the_session(server: Server) -> None:
    assert server.ask(chat("A"), agent="opencode/1.2.3") == server.ask(
        chat("A", "B", "C"), agent="opencode/1.3.0"
    )


def test_a_user_has_several_conversations(server: Server) -> None:
    one = server.ask(chat("Fix it.", user="me"))
    two = server.ask(chat("Write it.", user="me"))
    assert one != two
    assert server.ask(chat("Fix it.", "Ok.", "Go on.", user="me")) == one
    assert server.ask(chat("Fix it.", "Ok.", "Go on.", user="you")) not in {one, two}
    assert server.identity(one).history_key == "token 1"


def test_the_same_opener_in_parallel_is_another_session(server: Server) -> None:
    one = server.begin(chat("Fix it."))
    two = server.begin(chat("Fix it."))
    assert one != two
    server.directory.release(one)
    server.directory.release(two)
    # Each goes on from its own answer.
    assert server.begin(chat("Fix it.", "Answer one", "Go on.")) == one
    assert server.begin(chat("Fix it.", "Answer two", "Go on.")) == two
    server.directory.release(two)
    server.directory.release(one)
    three = ("Go on.", "More", "And more.")
    assert server.ask(chat("Fix it.", "Answer two", *three)) == two
    assert server.ask(chat("Fix it.", "Answer one", *three)) == one


def test_tokens_tell_conversations_with_the_same_messages_apart(server: Server) -> None:
    one, two = server.begin(chat("Fix it.")), server.begin(chat("Fix it."))
    server.directory.release(one)
    server.directory.release(two)
    asked: list[set[str]] = []

    def longest(sessions: Collection[str]) -> TokenMatch:
        asked.append(set(sessions))
        return TokenMatch(two, common_tokens=90, sequence_tokens=100, block_tokens=16)

    assert server.ask(chat("Fix it.", "Answer two", "Go on."), by_tokens=longest) == two
    assert asked == [{one, two}]


def test_a_retry_is_of_the_same_session(server: Server) -> None:
    body = chat("Fix it.", "Ok.", "Go on.")
    assert server.ask(body) == server.ask(body)


def test_a_client_that_gave_up_goes_on_in_its_session(server: Server) -> None:
    one = server.begin(chat("Fix it."))
    assert server.begin(chat("Fix it.", "(interrupted)", "Stop, do that.")) == one


@pytest.mark.parametrize(
    "rewritten",
    [
        ("Fix it.", "Other answer", "Go on."),
        ("Fix it.", "Ok.", "Other question", "Other answer", "Go on."),
        ("Fix it.", "Summary of all", "Next"),
    ],
    ids=["first answer", "later message", "compaction"],
)
def test_a_rewritten_history_is_of_the_same_session(
    server: Server, rewritten: tuple[str, ...]
) -> None:
    one = server.ask(chat("Fix it.", "Ok.", "Go on.", "Done.", "More."))
    assert server.ask(chat(*rewritten)) == one


def test_a_rewritten_history_beside_a_running_request_is_another_session(server: Server) -> None:
    one = server.begin(chat("Fix it.", "Ok.", "Go on."))
    assert server.ask(chat("Fix it.", "Other answer", "Go on.")) != one


def test_the_opener_alone_begins_another_session_after_several_turns(server: Server) -> None:
    one = server.ask(chat("Fix it."))
    assert server.ask(chat("Fix it.", "Ok.", "Go on.")) == one
    two = server.ask(chat("Fix it."))
    assert two != one
    assert server.ask(chat("Fix it.", "Ok.", "Go on.", "Done.", "More.")) == one


def test_a_clock_in_the_opener_makes_no_other_session(server: Server) -> None:
    one = server.ask(chat("It is 14:01, 2026-11-29. Fix it."))
    assert server.ask(chat("It is 14:02, 2026-11-29. Fix it.", "Ok.", "Go on.")) == one
    five = ("It is 14:03, 2026-11-30. Fix it.", "Ok.", "Go on.", "Done.", "More.")
    assert server.ask(chat(*five)) == one


def test_tasks_that_differ_in_a_number_only_are_apart(server: Server) -> None:
    one = server.ask(chat("Fix issue 12."))
    two = server.ask(chat("Fix issue 13."))
    assert one != two
    assert server.ask(chat("Fix issue 12.", "Ok.", "Go on.")) == one
    assert server.ask(chat("Fix issue 13.", "Yes.", "Go on.")) == two
    assert server.ask(chat("Fix issue 14.", "No.", "Go on.")) not in (one, two)


def test_the_longest_known_history_wins(server: Server) -> None:
    long = server.ask(chat("Fix it.", "Ok.", "Go on."))
    short = server.ask(chat("Fix it."))
    assert short != long
    assert server.ask(chat("Fix it.", "Ok.", "Go on.", "Done.", "More.")) == long
    assert server.ask(chat("Fix it.", "Other answer", "Go on.")) == short


def test_a_query_with_answers_and_another_opener_is_a_conversation_of_its_own(
    server: Server,
) -> None:
    server.ask(chat("Fix it."))
    side = server.ask(chat("Hello", system="You chat.", tools=False))
    assert server.label(side) == "OpenCode 1 side"
    assert server.ask(chat("Hello", "Hi", "And?", system="You chat.", tools=False)) == side
    assert server.label(side) == "OpenCode 2"
    assert not server.identity(side).side


def test_tools_that_come_later_make_no_side_session(server: Server) -> None:
    one = server.ask(chat("Fix it.", tools=False))
    assert server.ask(chat("Fix it.", "Ok.", "Go on.")) == one
    assert server.label(one) == "OpenCode 1"


def match(session: str, common: int, sequence: int, block: int = 16) -> TokenLookup:
    def lookup(sessions: Collection[str]) -> TokenMatch | None:
        return TokenMatch(session, common, sequence, block) if session in sessions else None

    return lookup


@pytest.mark.parametrize(
    ("common", "sequence", "continues"),
    [(100, 100, True), (50, 100, True), (49, 100, False), (15, 20, False), (16, 20, True)],
)
@pytest.mark.parametrize("body", [b'{"prompt": "def f("}', None], ids=["completion", "no body"])
def test_without_messages_half_of_the_known_tokens_continue_a_session(
    server: Server, body: bytes | None, common: int, sequence: int, continues: bool
) -> None:
    one = server.ask(body, route="/v1/completions")
    lookup = match(one, common, sequence)
    assert (server.ask(body, route="/v1/completions", by_tokens=lookup) == one) == continues


def test_without_messages_a_running_request_is_not_continued(server: Server) -> None:
    one = server.begin(None)
    assert server.ask(None, by_tokens=match(one, 100, 100)) != one


def test_tokens_never_lead_to_the_session_of_another_key(server: Server) -> None:
    one = server.ask(None, key_name="a")
    lookup: TokenLookup = lambda _: TokenMatch(one, 100, 100, 16)  # noqa: E731
    server.ask(None, key_name="b")
    assert server.ask(None, key_name="b", by_tokens=lookup) != one


def test_a_body_that_was_not_kept_is_of_the_session_that_its_header_names(server: Server) -> None:
    one = server.ask(chat("Fix it."), session_header="x")
    assert server.ask(None, session_header="x") == one
    assert server.ask(chat("Fix it.", "Ok.", "Go on."), session_header="x") == one
    assert server.ask(None, session_header="y") != one
    assert server.ask(chat("Fix it."), session_header="y") == server.ask(None, session_header="y")


def test_labels_are_short_unique_and_safe_to_show(server: Server) -> None:
    agents = [
        *("opencode/1", "claude-cli/2", "aider/1", "aider/1", None, "\x1b[31mred/1", "a" * 500),
    ]
    labels = [
        server.label(server.ask(chat(f"{number}"), agent=agent))
        for number, agent in enumerate(agents)
    ]
    assert labels[:5] == ["OpenCode 1", "Claude Code 1", "aider 1", "aider 2", "client 3"]
    assert len(set(labels)) == len(labels)
    assert all(printable(label) == label and len(label) < 40 for label in labels)


def test_ids_hold_nothing_that_a_client_sent(server: Server) -> None:
    assert server.ask(chat("Fix it."), session_header="secret") == "s1"
    assert "secret" not in server.label("s1")


def test_a_forgotten_session_begins_anew_under_another_id_and_label(server: Server) -> None:
    one = server.begin(chat("Fix it."), session_header="x")
    server.directory.forget(one)
    server.directory.release(one)
    assert server.directory.identity(one) is None
    two = server.ask(chat("Fix it."), session_header="x")
    assert (one, two, server.label(two)) == ("s1", "s2", "OpenCode 2")
    server.directory.forget(two)
    server.directory.forget(two)
    assert len(server.directory) == 0


def test_a_side_session_outlives_its_main_session(server: Server) -> None:
    shape, conversation = BY_NAME["Claude Code"], Conversation(task="Fix the parser.")
    main = server.ask_as(shape, claude_code.turn(conversation, 1))
    side = server.ask_as(shape, claude_code.side_query(conversation, 1))
    server.directory.forget(main)
    assert (server.identity(side).main, server.label(side)) == (None, "Claude Code 1 side")
    assert server.ask_as(shape, claude_code.side_query(conversation, 2)) == side
    assert server.label(server.ask_as(shape, claude_code.turn(conversation, 2))) == "Claude Code 2"


def test_the_session_seen_longest_ago_is_named_unless_it_has_a_request_in_flight(
    server: Server,
) -> None:
    assert server.directory.least_recently_seen() is None
    one, two, three = server.begin(chat("1")), server.ask(chat("2")), server.ask(chat("3"))
    server.ask(chat("2"))
    assert server.directory.least_recently_seen() == three
    server.directory.release(one)
    assert server.directory.least_recently_seen() == one
    assert two == server.ask(chat("2"))


@given(st.lists(st.integers(0, 4), max_size=40), st.data())
def test_conversations_with_their_own_openers_are_never_mixed(
    order: list[int], data: st.DataObject
) -> None:
    """However their requests are interleaved, overlap, are repeated or rewrite the history."""
    server = Server()
    said = [[f"Task {name}"] for name in ("one", "two", "three", "four", "five")]
    sessions: dict[int, str] = {}
    running: list[str] = []
    for number in order:
        history = said[number]
        match data.draw(st.sampled_from(["go on", "repeat", "rewrite"])):
            case "go on":
                history += ["same answer", "same question"]
            case "rewrite" if len(history) > 1:
                history[1] = f"rewritten {len(history)}"
            case _:
                pass
        # What is in flight tells conversations with one opener apart: here each waits its turn.
        while sessions.get(number) in running:
            session = running.pop(0)
            server.directory.release(session)
        session = server.begin(chat(*history))
        running.append(session)
        assert sessions.setdefault(number, session) == session
    assert len(set(sessions.values())) == len(sessions)
    assert len(server.directory) == len(sessions)


some_requests = st.tuples(
    st.sampled_from(["begin", "ask", "forget"]),
    st.sampled_from(["1", "2", "3"]),
    st.integers(1, 3),
    st.sampled_from(["S", "T", None]),
    st.booleans(),
    st.sampled_from([{}, {"user": "u"}, {"prompt_cache_key": "k"}, {"session_id": "x"}]),
)


@settings(deadline=None)
@given(st.lists(some_requests, max_size=40))
def test_names_are_unique_and_it_is_told_whose_name_changed(steps: list[Any]) -> None:
    server = Server()
    known: dict[str, SessionIdentity] = {}
    running: list[str] = []
    for what, name, turn, system, tools, ids in steps:
        if what == "forget":
            while running:
                server.directory.release(running.pop())
            oldest = server.directory.least_recently_seen()
            if oldest is not None:
                server.directory.forget(oldest)
                del known[oldest]
        else:
            sent = {"metadata": ids} if "session_id" in ids else ids
            body = chat(*said(name, turn), system=system, tools=tools, **sent)
            session = server.begin(body)
            known.setdefault(session, SessionIdentity(**_NO_IDENTITY))
            if what == "begin":
                running.append(session)
            else:
                server.directory.release(session)
        now = {session: server.identity(session) for session in known}
        assert server.directory.take_renamed() == {
            session for session in known if now[session] != known[session]
        }
        assert server.directory.take_renamed() == set()
        known = now
        assert len({identity.label for identity in now.values()}) == len(now)


_NO_IDENTITY: dict[str, Any] = {
    "id": "",
    "label": "",
    "agent": None,
    "side": False,
    "main": None,
    "source": IdentitySource.LINEAGE,
    "history_key": "",
}


def test_one_more_session_beside_many_is_the_only_one_whose_name_changed(server: Server) -> None:
    for number in range(SESSIONS_KEPT):
        server.ask(chat(f"Task {number}"))
    assert len(server.directory.take_renamed()) == SESSIONS_KEPT
    assert server.directory.take_renamed() == set()
    one = server.ask(chat("Another task"))
    assert server.directory.take_renamed() == {one}
    title = server.ask(chat("Another task", system="Title", tools=False))
    assert server.directory.take_renamed() == {title}
    server.directory.forget(one)
    assert server.directory.take_renamed() == {title}


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40))
def test_what_was_begun_and_released_can_be_forgotten(steps: list[tuple[int, bool]]) -> None:
    server = Server()
    running: list[str] = []
    for opener, begin in steps:
        if begin:
            running.append(server.begin(chat(f"{opener}")))
        elif running:
            server.directory.release(running.pop(0))
    for session in running:
        server.directory.release(session)
    while (session_id := server.directory.least_recently_seen()) is not None:
        server.directory.forget(session_id)
    assert len(server.directory) == 0


@pytest.mark.parametrize("same_opener", [True, False])
def test_many_sessions_cost_little(same_opener: bool) -> None:
    """A 400-message request beside 1,000 sessions of 400 messages."""
    directory = SessionDirectory()
    digests = [number.to_bytes(8, "big") for number in range(500_000)]

    def facts(session: int, messages: int) -> RequestBodyFacts:
        own = digests[session * 400 : session * 400 + messages]
        if same_opener:
            own[0] = digests[-1]
        return RequestBodyFacts(has_tools=True, message_digests=b"".join(own), opener_digest=own[0])

    for session in range(SESSIONS_KEPT):
        request = SessionRequest(user_agent="opencode/1", facts=facts(session, 398))
        # A request in flight keeps the conversations with one opener apart.
        assert directory.assign(request, no_tokens).created
    for session in range(SESSIONS_KEPT):
        directory.release(f"s{session + 1}")

    def cost_s(request: RequestBodyFacts) -> float:
        begun = time.perf_counter()
        assignment = directory.assign(
            SessionRequest(user_agent="opencode/1", facts=request), no_tokens
        )
        elapsed = time.perf_counter() - begun
        directory.release(assignment.session_id)
        return elapsed

    def rewritten(session: int) -> RequestBodyFacts:
        known = facts(session, 400)
        digests_now = known.opener_digest + session.to_bytes(8, "little") * 399
        return msgspec.structs.replace(known, message_digests=digests_now)

    # The target is 1 ms; a machine busy with other tests may take longer.
    assert statistics.median(cost_s(facts(number, 400)) for number in range(40)) < 0.004
    assert statistics.median(cost_s(rewritten(number)) for number in range(100, 140)) < 0.004
    assert len(directory) == SESSIONS_KEPT
