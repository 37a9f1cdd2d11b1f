from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.prompt import PartKind, PartText, PromptPart
from agentserve.domain.session import LayoutPartView, VolatileKind
from agentserve.domain.text import printable
from agentserve.telemetry.sessions.prompt_layout import PartHistory

SYSTEM = PromptPart(kind=PartKind.SYSTEM)
TOOL_NAMES = ("read_file", "write_file", "run_tests")


def prompt(
    *,
    system: str = "s" * 1_000,
    tools: tuple[str, ...] = TOOL_NAMES,
    tool_text: str = "t" * 1_000,
    messages: tuple[str, ...] = ("m" * 2_000,),
) -> list[PartText]:
    parts = [PartText(part=SYSTEM, text=system)]
    parts += [
        PartText(part=PromptPart(kind=PartKind.TOOL, name=name), text=tool_text) for name in tools
    ]
    for index, text in enumerate(messages, 1):
        part = PromptPart(kind=PartKind.MESSAGE, index=index, role="user")
        parts.append(PartText(part=part, text=text))
    return parts


def history(*turns: list[PartText]) -> PartHistory:
    parts = PartHistory()
    for turn in turns:
        parts.add(turn, sum(len(one.text) for one in turn) // 4)
    return parts


def views(parts: PartHistory) -> dict[str, LayoutPartView]:
    return {view.part.label: view for view in parts.view(None).parts}


def grown(turn: int) -> tuple[str, ...]:
    return tuple(f"message {number} " + "m" * 1_990 for number in range(1 + 2 * turn))


def clocked(turn: int) -> list[PartText]:
    return prompt(system="s" * 900 + f"The time is 14:{turn:02}.", messages=grown(turn))


def test_the_parts_stand_in_order_with_their_share_of_the_tokens() -> None:
    layout = history(*(prompt(messages=grown(turn)) for turn in range(3))).view(None)
    assert [view.part.label for view in layout.parts] == [
        "system prompt",
        "list of tools",
        "message 1 (user)",
        "messages",
    ]
    assert [view.tokens for view in layout.parts] == [250, 750, 500, 2_000]
    assert [view.turns for view in layout.parts] == [3, 3, 3, 2]
    assert [view.changes for view in layout.parts] == [0, 0, 0, 0]


def test_a_stable_prompt_gets_no_advice() -> None:
    parts = history(*(prompt(messages=grown(turn)) for turn in range(10)))
    assert parts.view(1_000.0).advice is None


def test_a_minute_clock_before_tools_and_messages_is_to_be_moved() -> None:
    parts = PartHistory()
    for turn in range(6):
        parts.add(clocked(turn), 6_750, SYSTEM, VolatileKind.CLOCK)
    layout = parts.view(1_000.0)
    assert (layout.parts[0].turns, layout.parts[0].changes) == (6, 5)
    assert layout.advice is not None
    assert layout.advice.startswith(
        "Move the clock in the system prompt behind the list of tools and the messages: it would "
        "save about 5,"
    )
    assert layout.advice.endswith(" tokens a turn (about 5.4 s).")


def test_seconds_are_left_out_where_the_speed_is_not_known() -> None:
    advice = history(*map(clocked, range(4))).view(None).advice
    assert advice is not None
    assert advice.startswith("Move what changes in the system prompt behind ")
    assert advice.endswith(" tokens a turn.")


def test_two_turns_are_too_few_to_advise() -> None:
    assert history(*map(clocked, range(2))).view(None).advice is None


def test_a_part_that_changes_in_fewer_than_a_third_of_the_turns_is_stable() -> None:
    assert history(*(clocked(turn // 3) for turn in range(7))).view(None).advice is None
    assert history(*(clocked(turn // 2) for turn in range(8))).view(None).advice is not None


def test_what_stands_behind_the_next_volatile_part_is_not_saved() -> None:
    def turn(number: int) -> list[PartText]:
        messages = (f"now {number}", *["m" * 4_000] * 2)
        return prompt(system=f"It is 14:{number:02}", messages=messages)

    parts = history(*map(turn, range(6)))
    assert [view.changes for view in parts.view(None).parts] == [5, 0, 5, 0]
    advice = parts.view(None).advice
    assert advice is not None
    assert advice.startswith("Move what changes in message 1 (user) behind the messages: ")


def test_one_change_is_no_habit() -> None:
    assert history(clocked(1), clocked(2), clocked(2)).view(None).advice is None


def test_something_volatile_at_the_end_is_well_placed() -> None:
    turns = [prompt(messages=("m" * 2_000, f"It is 14:{turn:02}")) for turn in range(6)]
    parts = history(*turns)
    assert views(parts)["messages"].changes == 5
    assert parts.view(None).advice is None


def test_something_volatile_before_something_small_is_not_worth_advice() -> None:
    turns = [prompt(system=f"14:{turn:02}", tools=(), messages=("Hi.",)) for turn in range(6)]
    assert history(*turns).view(None).advice is None


def test_tools_in_another_order_every_turn_are_to_be_kept_in_one() -> None:
    orders = [TOOL_NAMES, TOOL_NAMES[::-1]] * 3
    parts = history(*(prompt(tools=order) for order in orders))
    layout = parts.view(500.0)
    assert views(parts)["list of tools"].changes == 5
    assert views(parts)["system prompt"].changes == 0
    assert layout.advice is not None
    assert layout.advice.startswith("Send the tools in the same order every turn: it would save")
    # 5 of 6 turns lose three tools and the message: 5,000 characters, 1,250 tokens.
    assert "about 1,041 tokens a turn (about 2.1 s)" in layout.advice


def test_tools_that_come_and_go_are_to_be_sent_always() -> None:
    lists = [TOOL_NAMES, TOOL_NAMES[:2]] * 3
    advice = history(*(prompt(tools=tools) for tools in lists)).view(None).advice
    assert advice is not None
    assert advice.startswith("Send the same list of tools every turn: ")


def test_a_tool_that_changes_stands_by_itself() -> None:
    def turn(number: int) -> list[PartText]:
        parts = prompt(messages=grown(3))
        changed = PartText(part=parts[1].part, text=f"{number} " + "t" * 998)
        return [parts[0], changed, *parts[2:]]

    parts = history(*map(turn, range(5)))
    assert (views(parts)["tool read_file"].changes, views(parts)["list of tools"].changes) == (4, 0)
    assert views(parts)["list of tools"].tokens == 500
    advice = parts.view(None).advice
    assert advice is not None
    assert advice.startswith("Move what changes in tool read_file behind ")


def test_only_an_edit_of_an_earlier_message_changes_the_messages() -> None:
    parts = history(
        prompt(messages=("a", "b")),
        prompt(messages=("a", "b", "c", "d")),
        prompt(messages=("a", "b", "x", "d", "e")),
        prompt(messages=("a", "b")),
    )
    assert views(parts)["messages"].changes == 2
    assert views(parts)["message 1 (user)"].changes == 0


def test_a_turn_without_known_parts_is_left_out() -> None:
    parts = history(prompt(), [], prompt())
    assert views(parts)["system prompt"].turns == 2
    assert views(parts)["system prompt"].changes == 0


def test_many_tools_stay_bounded_and_their_names_are_cleaned() -> None:
    parts = PartHistory()
    for turn in range(4):
        tools = tuple(f"\x1b[31m{number}" + "n" * 500 for number in range(2_000))
        parts.add(prompt(tools=tools, tool_text=f"{turn}"), 10_000)
    layout = parts.view(100.0)
    assert len(layout.parts) <= 12
    for view in layout.parts:
        assert printable(view.part.label) == view.part.label
        assert len(view.part.label) <= 60
    assert sum(view.tokens or 0 for view in layout.parts) <= 10_001


texts = st.text("ab", max_size=3)


@given(
    st.lists(st.tuples(texts, st.lists(texts, max_size=3), st.lists(texts, max_size=4)), max_size=6)
)
def test_counts_never_contradict_each_other(
    turns: list[tuple[str, list[str], list[str]]],
) -> None:
    parts = PartHistory()
    for system, tools, messages in turns:
        parts.add(prompt(system=system, tools=tuple(tools), messages=tuple(messages)), 100)
    layout = parts.view(10.0)
    for view in layout.parts:
        assert 0 <= view.changes < view.turns <= len(turns)
    if turns:
        system_texts = [system for system, _, _ in turns]
        changes = sum(one != other for one, other in pairwise(system_texts))
        assert layout.parts[0].changes == changes
