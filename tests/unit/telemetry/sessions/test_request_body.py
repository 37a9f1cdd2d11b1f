"""What is read out of the bodies of requests."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentserve.domain.prompt import PartKind
from agentserve.domain.text import printable
from agentserve.telemetry.sessions.known_items import KnownItems
from agentserve.telemetry.sessions.prompt_parts import DIGEST_BYTES
from agentserve.telemetry.sessions.request_body import RequestBodyFacts, read_body
from tests.client_shapes import CLIENT_SHAPES, ClientShape, Conversation, claude_code, qwen_code

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COMPLETIONS = "/v1/completions"
ROUTES = (CHAT, RESPONSES, MESSAGES, COMPLETIONS)
TASK = Conversation(task="Fix the parser.")


def read(route: str, body: Any) -> RequestBodyFacts:
    facts = read_body(route, json.dumps(body).encode())
    assert facts is not None
    return facts


def texts(facts: RequestBodyFacts) -> list[str]:
    return [part.text for part in facts.parts]


def labels(facts: RequestBodyFacts) -> list[str]:
    return [part.part.label for part in facts.parts]


def messages_of(facts: RequestBodyFacts) -> list[tuple[str | None, str]]:
    kind = PartKind.MESSAGE
    return [(part.part.role, part.text) for part in facts.parts if part.part.kind is kind]


def chat(*messages: Any, **fields: Any) -> RequestBodyFacts:
    return read(CHAT, {"model": "m", "messages": list(messages), **fields})


@pytest.mark.parametrize("shape", CLIENT_SHAPES, ids=lambda shape: shape.name)
def test_each_client_has_a_system_prompt_its_tools_and_its_messages(shape: ClientShape) -> None:
    facts = read(shape.route, shape.turn(TASK, 3))
    kinds = [part.part.kind for part in facts.parts]
    assert kinds[0] is PartKind.SYSTEM
    assert kinds == sorted(kinds, key=[PartKind.SYSTEM, PartKind.TOOL, PartKind.MESSAGE].index)
    assert facts.has_tools == (PartKind.TOOL in kinds) == (shape.name != "Cline")
    assert [part.part.index for part in facts.parts if part.part.kind is PartKind.MESSAGE] == list(
        range(1, kinds.count(PartKind.MESSAGE) + 1)
    )
    assert messages_of(facts)[0][0] == shape.first_role
    assert any(TASK.task in text for _, text in messages_of(facts))
    assert TASK.file(2) in messages_of(facts)[-1][1]
    assert facts.has_answers


@pytest.mark.parametrize("shape", CLIENT_SHAPES, ids=lambda shape: shape.name)
def test_a_tool_call_of_each_client_is_text(shape: ClientShape) -> None:
    facts = read(shape.route, shape.turn(TASK, 2))
    (answer,) = {
        text for role, text in messages_of(facts) if role == "assistant" and "1.py" in text
    }
    assert "file_1.py" in answer


@pytest.mark.parametrize("shape", CLIENT_SHAPES, ids=lambda shape: shape.name)
def test_the_messages_of_a_turn_begin_those_of_the_next(shape: ClientShape) -> None:
    one, two = (read(shape.route, shape.turn(TASK, number)) for number in (2, 3))
    # Qwen Code takes back what it showed of the newest reasoning.
    rewritten = 2 * DIGEST_BYTES if shape.name == "Qwen Code" else 0
    kept = len(one.message_digests) - rewritten
    assert kept > 0
    assert two.message_digests.startswith(one.message_digests[:kept])
    assert two.message_digests.startswith(one.message_digests) == (rewritten == 0)
    assert one.opener_digest == two.opener_digest != b""
    assert one.system_digest == two.system_digest != b""
    assert one.tools_digest == two.tools_digest


@pytest.mark.parametrize("shape", CLIENT_SHAPES, ids=lambda shape: shape.name)
def test_what_the_turn_before_had_is_not_read_again(shape: ClientShape) -> None:
    """And makes no difference: a turn says the same beside all turns before it."""
    known, earlier = KnownItems(), None
    for turn in range(2, 8):
        body = json.dumps(shape.turn(TASK, turn)).encode()
        facts = read_body(shape.route, body, known)
        assert facts is not None
        assert facts == read_body(shape.route, body)
        if earlier is not None:
            tools = [part.text for part in earlier.parts if part.part.kind is PartKind.TOOL]
            again = [part.text for part in facts.parts if part.part.kind is PartKind.TOOL]
            assert all(one is other for one, other in zip(tools, again, strict=True))
            # All but what carries another mark of the cache, or is rewritten; a text of one
            # character exists once anyway.
            was = {id(part.text) for part in earlier.parts}
            fresh = [part for part in facts.parts if id(part.text) not in was]
            assert len(fresh) <= len(facts.parts) - len(earlier.parts) + 4
        earlier = facts


def test_parts_are_named_for_a_person() -> None:
    facts = chat(
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": None, "tool_calls": []},
        tools=[{"type": "function", "function": {"name": "read_file"}}],
    )
    assert labels(facts) == [
        "system prompt",
        "tool read_file",
        "message 1 (user)",
        "message 2 (assistant)",
    ]


def test_leading_system_and_developer_messages_are_one_system_prompt() -> None:
    facts = chat(
        {"role": "system", "content": "One."},
        {"role": "developer", "content": [{"type": "text", "text": "Two."}]},
        {"role": "user", "content": "Hello"},
        {"role": "system", "content": "Three."},
    )
    assert texts(facts) == ["One.\nTwo.", "Hello", "Three."]
    assert labels(facts)[1:] == ["message 1 (user)", "message 2 (system)"]


def test_a_tool_is_json_with_its_keys_in_their_order() -> None:
    tool = {"function": {"parameters": {"z": 1, "a": {}}, "name": "läs"}, "type": "function"}
    facts = chat(tools=[tool])
    assert texts(facts) == [
        '{"function":{"parameters":{"z":1,"a":{}},"name":"läs"},"type":"function"}'
    ]
    assert facts.parts[0].part.name == "läs"


def test_the_order_of_tools_shows_in_their_digest() -> None:
    one, two = ({"type": "function", "function": {"name": name}} for name in ("one", "two"))
    assert chat(tools=[one, two]).tools_digest != chat(tools=[two, one]).tools_digest


def test_calls_and_reasoning_of_chat_messages_are_text() -> None:
    function = {"name": "read", "arguments": '{"path": "a"}'}
    facts = chat(
        {
            "role": "assistant",
            "reasoning_content": "older name",
            "reasoning": "I must read.",
            "content": "Reading.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "text of a"},
    )
    assert texts(facts) == ['I must read.\nReading.\nread({"path": "a"})', "text of a"]


def test_dropped_reasoning_leaves_the_digests_as_they_are() -> None:
    answer = {"role": "assistant", "content": "Yes."}
    thought = chat(answer | {"reasoning_content": "Hm."})
    assert texts(thought) == ["Hm.\nYes."]
    assert thought.message_digests == chat(answer).message_digests
    assert thought.message_digests != chat(answer | {"content": "No."}).message_digests


def test_the_opener_is_the_first_message_of_a_user() -> None:
    user = {"role": "user", "content": "Fix it."}
    one = chat({"role": "assistant", "content": "Hello"}, user, {"role": "user", "content": "b"})
    assert one.opener_digest == chat(user).opener_digest != b""
    assert chat({"role": "assistant", "content": "Hello"}).opener_digest == b""


def test_an_image_is_its_digest() -> None:
    def image(data: str) -> str:
        block = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return texts(chat({"role": "user", "content": [{"type": "text", "text": "See"}, block]}))[0]

    assert image("AAAA").startswith("See\n[image ")
    assert image("AAAA") == image("AAAA") != image("BBBB")
    assert "base64" not in image("AAAA")
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    body = {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}
    assert texts(read(MESSAGES, body))[0].startswith("[image ")


def test_the_billing_line_is_left_out_where_vllm_does() -> None:
    one, two = (read(MESSAGES, claude_code.turn(TASK, number)) for number in (1, 2))
    assert one.system_digest == two.system_digest
    assert not any("billing" in text for text in texts(one))
    line = "x-anthropic-billing-header: cch=1;"
    inline = read(MESSAGES, {"messages": [{"role": "system", "content": line}]})
    assert texts(inline) == [""]
    # It goes to the model where vLLM keeps it: in a system prompt that is one text.
    assert texts(read(MESSAGES, {"system": line, "messages": []})) == [line]


def test_blocks_of_the_messages_api_are_text() -> None:
    facts = read(MESSAGES, claude_code.turn(TASK, 2))
    answer, result = messages_of(facts)[1:]
    assert answer == (
        "assistant",
        'I need file 1.\nReading file 1.\nRead({"file_path":"src/file_1.py"})',
    )
    assert result == ("user", TASK.file(1))


def test_cache_marks_are_not_in_the_prompt() -> None:
    plain = {"name": "Read", "input_schema": {}}
    marked = plain | {"cache_control": {"type": "ephemeral"}}
    one, two = (read(MESSAGES, {"messages": [], "tools": [tool]}) for tool in (plain, marked))
    assert texts(one) == texts(two)
    assert one.tools_digest == two.tools_digest


def test_items_of_the_responses_api_are_messages() -> None:
    said = [{"type": "output_text", "text": "Ok"}]
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "Read it."},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I must read."}]},
        {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "+ a"},
        {"type": "function_call_output", "call_id": "c", "output": "text of a"},
        {"type": "message", "role": "assistant", "content": said},
    ]
    facts = read(RESPONSES, {"instructions": "Be short.", "input": items})
    assert texts(facts)[0] == "Be short."
    assert messages_of(facts) == [
        ("user", "Read it."),
        ("assistant", "I must read."),
        ("assistant", "read({})"),
        ("assistant", "patch(+ a)"),
        ("tool", "text of a"),
        ("assistant", "Ok"),
    ]
    without = read(
        RESPONSES, {"input": [item for item in items if item.get("type") != "reasoning"]}
    )
    assert without.message_digests == facts.message_digests


def test_the_input_of_responses_may_be_one_text() -> None:
    assert messages_of(read(RESPONSES, {"input": "Hello"})) == [("user", "Hello")]


def test_a_completion_is_one_text_without_structure() -> None:
    facts = read(COMPLETIONS, {"prompt": "def f(", "user": "me"})
    assert messages_of(facts) == [("prompt", "def f(")]
    assert (facts.message_digests, facts.user) == (b"", "me")
    assert read(COMPLETIONS, {"prompt": [1, 2, 3]}).parts == ()
    assert read(COMPLETIONS, {"prompt": ["a", "b"]}).parts == ()


@pytest.mark.parametrize(
    "metadata",
    [
        {"session_id": "abc", "user_id": "me"},
        {"sessionId": "abc"},
        {"Conversation-Id": "abc"},
        {"thread_id": "abc", "promptId": "p"},
        {"user_id": json.dumps({"device_id": "d", "account_uuid": "", "session_id": "abc"})},
    ],
    ids=repr,
)
def test_metadata_can_name_a_session(metadata: dict[str, str]) -> None:
    facts = chat(metadata=metadata)
    assert (facts.metadata_session, facts.user) == ("abc", None)


@pytest.mark.parametrize("user_id", [claude_code.user_id(TASK), claude_code.old_user_id(TASK)])
def test_claude_codes_user_names_the_session_in_both_forms(user_id: str) -> None:
    facts = read(MESSAGES, {"messages": [], "metadata": {"user_id": user_id}})
    assert (facts.metadata_session, facts.user) == (TASK.session_id, None)


@pytest.mark.parametrize("user_id", ["me", "my_session_manager", '{"session_id": 1.5}', "{broken"])
def test_a_user_without_a_session_is_a_user(user_id: str) -> None:
    facts = read(MESSAGES, {"messages": [], "metadata": {"user_id": user_id}})
    assert (facts.metadata_session, facts.user) == (None, user_id)


def test_ids_that_are_none_are_not_taken() -> None:
    facts = chat(user="", prompt_cache_key={"a": 1}, metadata={"session_id": "x" * 10_000})
    assert (facts.user, facts.prompt_cache_key, facts.metadata_session) == (None, None, None)
    assert chat(prompt_cache_key=7).prompt_cache_key == "7"


def test_qwen_codes_metadata_names_the_session_where_it_is_sent() -> None:
    assert read(CHAT, qwen_code.with_metadata(TASK, 1)).metadata_session == TASK.session_id
    assert read(CHAT, qwen_code.turn(TASK, 1)).metadata_session is None


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"messages": NaN}'),
        *(b'{"messages": ' + b"[" * 100_000, b'{"tools": ' + b'{"a":' * 100_000),
        *(b'{"messages": "\\ud800"}', b'{"messages": 1e999}', b'{"messages": [],}'),
    ],
    ids=lambda body: body[:20],
)
@pytest.mark.parametrize("route", ROUTES)
def test_a_malformed_body_says_nothing(route: str, body: bytes) -> None:
    assert read_body(route, body) is None


def test_other_routes_say_nothing() -> None:
    assert read_body("/v1/embeddings", b'{"input": "text"}') is None


def test_what_cannot_be_read_leaves_the_rest() -> None:
    odd = [7, None, "text", {"role": 3, "content": 5}, {"role": "user", "content": [1, None, "a"]}]
    facts = chat(*odd, {"role": "user", "content": "Hello"}, tools=[1, {}, {"function": 2}])
    assert messages_of(facts) == [("unknown", "5"), ("user", "1\nnull\na"), ("user", "Hello")]
    assert [part.part.name for part in facts.parts[:2]] == ["unnamed", "unnamed"]


names = st.sampled_from(
    [
        "messages",
        "system",
        "instructions",
        "input",
        "prompt",
        "tools",
        "metadata",
        "user",
        "prompt_cache_key",
        "role",
        "content",
        "type",
        "text",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "thinking",
        "source",
        "user_id",
        "session_id",
        "output",
        "summary",
        "image_url",
        "reasoning",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | names,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5),
    max_leaves=25,
)


@given(st.sampled_from(ROUTES), st.dictionaries(names, values, max_size=6))
def test_any_shape_of_a_body_is_read_without_an_error(route: str, body: dict[str, Any]) -> None:
    facts = read_body(route, json.dumps(body).encode("utf-8", "surrogatepass"))
    if facts is not None:
        assert len(facts.message_digests) % DIGEST_BYTES == 0
        assert all(printable(part.part.label) == part.part.label for part in facts.parts)


BLOCKS = [
    {"type": "text", "text": "a"},
    {"type": "image_url", "image_url": {"url": "data:"}},
    {"type": "tool_use", "name": "read", "input": {}},
    {"type": "tool_result", "content": [{"type": "text", "text": "a"}]},
    {"type": "thinking", "thinking": "a"},
    {"type": "odd", "source": {}},
]
IDS: dict[str, Any] = {
    "user": "u",
    "prompt_cache_key": "k",
    "metadata": {"user_id": "u", "session_id": "s"},
    "tools": [{"type": "function", "function": {"name": "read"}, "cache_control": {}}],
}
MESSAGES_SAID = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": BLOCKS},
    {
        "role": "assistant",
        "reasoning": "r",
        "reasoning_content": "r",
        "tool_calls": [{"function": {"name": "read", "arguments": "{}"}}],
    },
]
FULL_BODIES: dict[str, Any] = {
    CHAT: IDS | {"messages": MESSAGES_SAID},
    MESSAGES: IDS | {"messages": MESSAGES_SAID, "system": BLOCKS[:1]},
    COMPLETIONS: IDS | {"prompt": "p"},
    RESPONSES: IDS
    | {
        "instructions": "",
        "input": [
            {"role": "developer", "content": "S"},
            {"type": "message", "role": "user", "content": BLOCKS},
            {"type": "reasoning", "content": None, "summary": BLOCKS[:1]},
            {"type": "function_call", "name": "read", "arguments": "{}"},
            {"type": "custom_tool_call", "name": "read", "input": "a"},
            {"type": "function_call_output", "output": BLOCKS[:1]},
            {"type": "odd"},
        ],
    },
}


def with_value_everywhere(body: Any, value: Any) -> Iterator[Any]:
    """Bodies in which the value stands instead of what was at one of the places."""
    yield value
    places = body.items() if isinstance(body, dict) else enumerate(body)
    if isinstance(body, dict | list):
        for place, inner in list(places):
            inner_bodies = (
                with_value_everywhere(inner, value) if isinstance(inner, dict | list) else [value]
            )
            for changed in inner_bodies:
                copy = body.copy()
                copy[place] = changed
                yield copy


@settings(deadline=None, max_examples=50)
@given(values)
@example([])
@example({})
@example(10**40)
def test_any_value_at_any_place_is_read_without_an_error(value: Any) -> None:
    known = KnownItems()
    for route, body in FULL_BODIES.items():
        for changed in with_value_everywhere(body, value):
            facts = read_body(route, json.dumps(changed).encode(), known)
            assert facts == read_body(route, json.dumps(changed).encode())
            assert facts is not None or not isinstance(changed, dict) or value == 10**40


def test_a_kind_of_item_that_is_no_text_hides_nothing() -> None:
    facts = read(RESPONSES, {"input": [{"type": [], "role": "user", "content": "Hello"}]})
    assert messages_of(facts) == [("user", "Hello")]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("filler", ["a", "-", "1", " ", "\x1b[", "\x1b]", "a_", "ab 1"])
def test_a_large_body_takes_linear_time(route: str, filler: str) -> None:
    """A megabyte is read at once; what takes quadratic time takes minutes, and the GIL."""
    text = filler * (1_000_000 // len(filler))
    said = [{"role": role, "content": text, "type": text} for role in ("user", text)]
    body = json.dumps(
        {
            "messages": said,
            "input": said,
            "system": text,
            "prompt": text,
            "tools": [{"name": text}],
            "user": text,
            "metadata": {text: text},
        }
    ).encode()
    begun = time.perf_counter()
    facts = read_body(route, body)
    assert time.perf_counter() - begun < 2
    assert facts is not None


@pytest.mark.parametrize("size", [10, 10_000])
def test_the_shape_of_an_opener_is_the_same_but_for_words_with_digits(size: int) -> None:
    def shape(text: str) -> bytes:
        return chat({"role": "user", "content": text}).opener_shape_digest

    middle = "words " * size
    assert shape(f"At 10:01 {middle} fix v1.2.3 it 10:01") == shape(
        f"At 10:59 {middle} fix v1.2.4 it 10:59"
    )
    assert shape(f"At 10:01 {middle} fix it") != shape(f"At 10:01 {middle} write it")
    assert shape(f"Fix {middle}") != shape(f"Write {middle}")


@given(st.sampled_from(ROUTES), st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(route: str, body: bytes) -> None:
    known = KnownItems()
    assert read_body(route, body, known) == read_body(route, body, known)
