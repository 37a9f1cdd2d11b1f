from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.prompt import PartKind, PartText, PromptPart
from agentserve.domain.session import VolatileKind
from agentserve.domain.text import printable
from agentserve.telemetry.sessions.difference import LocatedChange, ToolChange, locate_change

SYSTEM = "You are a careful engineer. The time is 14:03."
MESSAGES = [
    ("user", "Please fix the failing test in parser.py."),
    ("assistant", "I read the file and found an off by one error."),
    ("user", "Now add a test for it."),
]


def tool(name: str, description: str | None = None, **parameters: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description or f"Does what {name} says, with care.",
            "parameters": {"type": "object", "properties": parameters},
        },
    }


TOOLS = [tool("read_file", path={"type": "string"}), tool("write_file"), tool("run_tests")]


class Request:
    """A request with its parts and what a chat template makes of it."""

    def __init__(
        self,
        system: str = SYSTEM,
        tools: Sequence[dict[str, Any]] = tuple(TOOLS),
        messages: Sequence[tuple[str, str]] = tuple(MESSAGES),
    ) -> None:
        self.system, self.tools, self.messages = system, list(tools), list(messages)

    @property
    def parts(self) -> list[PartText]:
        parts = [PartText(part=PromptPart(kind=PartKind.SYSTEM), text=self.system)]
        for one in self.tools:
            part = PromptPart(kind=PartKind.TOOL, name=one["function"]["name"])
            parts.append(PartText(part=part, text=json.dumps(one, separators=(",", ":"))))
        for index, (role, text) in enumerate(self.messages, 1):
            part = PromptPart(kind=PartKind.MESSAGE, index=index, role=role)
            parts.append(PartText(part=part, text=text))
        return parts

    def history(self) -> str:
        return "".join(f"<|start|>{role}\n{text}<|end|>\n" for role, text in self.messages)

    def tools_last(self) -> str:
        """As Qwen's templates do: tools behind the system prompt, in a JSON of their own."""
        tools = "".join("\n" + json.dumps(one) for one in self.tools)
        return (
            f"<|start|>system\n{self.system}\n\n# Tools\n<tools>{tools}\n</tools><|end|>\n"
            f"{self.history()}<|start|>assistant\n"
        )

    def tools_first(self) -> str:
        """Other keys first, and the tools before everything else."""
        functions = [one["function"] for one in self.tools]
        turned = [dict(sorted(function.items(), reverse=True)) for function in functions]
        tools = json.dumps(turned, indent=1)
        return f"[TOOLS]{tools}[/TOOLS][SYS]{self.system}[/SYS]{self.history()}[ASSISTANT]"


Template = Callable[[Request], str]
TEMPLATES = [Request.tools_last, Request.tools_first]
both_templates = pytest.mark.parametrize("template", TEMPLATES)


def windows(before: str, after: str) -> tuple[str, str]:
    """Cut what about 64 tokens around the first difference would be."""
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    # A token can begin before the first differing character.
    return before[max(0, start - 250) : start + 250], after[max(0, start - 250) : start + 250]


def locate(before: Request, after: Request, template: Template) -> LocatedChange | None:
    return locate_change(before.parts, after.parts, *windows(template(before), template(after)))


def located(before: Request, after: Request, template: Template) -> LocatedChange:
    change = locate(before, after, template)
    assert change is not None
    return change


@both_templates
def test_a_clock_in_the_system_prompt_is_found_and_named(template: Template) -> None:
    change = located(Request(), Request(SYSTEM.replace("14:03", "14:04")), template)
    assert change.part.kind is PartKind.SYSTEM
    assert change.confirmed
    assert change.volatile_kind is VolatileKind.CLOCK
    assert change.tool_change is None
    excerpt = change.excerpt
    assert excerpt.before[excerpt.change_start : excerpt.before_change_end] == "3"
    assert excerpt.after[: excerpt.change_start].endswith("The time is 14:0")


@both_templates
def test_a_rewritten_system_prompt_is_not_volatile(template: Template) -> None:
    change = located(Request(), Request("You are a poet."), template)
    assert (change.part.kind, change.confirmed) == (PartKind.SYSTEM, True)
    assert change.volatile_kind is None


@both_templates
def test_tools_that_changed_places_are_both_named(template: Template) -> None:
    swapped = [TOOLS[1], TOOLS[0], TOOLS[2]]
    change = located(Request(), Request(tools=swapped), template)
    assert (change.part.kind, change.confirmed) == (PartKind.TOOLS, True)
    assert change.tool_change is ToolChange.MOVED
    assert set(change.tool_names) == {"read_file", "write_file"}
    assert change.volatile_kind is None


def test_a_tool_that_moved_over_others_is_named_alone() -> None:
    moved = [TOOLS[1], TOOLS[2], TOOLS[0]]
    change = located(Request(), Request(tools=moved), Request.tools_last)
    assert change.tool_change is ToolChange.MOVED
    assert change.tool_names == ("read_file",)


@both_templates
@pytest.mark.parametrize("place", [0, 1, 3])
def test_an_added_tool_is_named(template: Template, place: int) -> None:
    tools = [*TOOLS[:place], tool("search_web"), *TOOLS[place:]]
    change = located(Request(), Request(tools=tools), template)
    assert (change.part.kind, change.confirmed) == (PartKind.TOOLS, True)
    assert (change.tool_change, change.tool_names) == (ToolChange.ADDED, ("search_web",))


@both_templates
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_removed_tool_is_named(template: Template, place: int) -> None:
    tools = [*TOOLS[:place], *TOOLS[place + 1 :]]
    change = located(Request(), Request(tools=tools), template)
    assert (change.part.kind, change.confirmed) == (PartKind.TOOLS, True)
    name = TOOLS[place]["function"]["name"]
    assert (change.tool_change, change.tool_names) == (ToolChange.REMOVED, (name,))


@both_templates
def test_an_edited_tool_is_named_in_whatever_order_its_keys_are_written(
    template: Template,
) -> None:
    edited = tool("write_file", 'Writes "text" to a file.\nAsks först.', path={"type": "string"})
    change = located(Request(), Request(tools=[TOOLS[0], edited, TOOLS[2]]), template)
    assert (change.part.kind, change.part.name) == (PartKind.TOOL, "write_file")
    assert change.confirmed
    assert change.tool_change is ToolChange.EDITED


@both_templates
def test_a_date_in_a_tool_definition_is_volatile(template: Template) -> None:
    def dated(day: int) -> Request:
        return Request(tools=[tool("search", f"Searches. Today is 2026-11-{day}."), TOOLS[0]])

    change = located(dated(28), dated(29), template)
    assert (change.part.name, change.volatile_kind) == ("search", VolatileKind.DATE)


@both_templates
def test_a_rewritten_message_is_found_by_its_number(template: Template) -> None:
    messages = [MESSAGES[0], ("assistant", "[old answer cleared]"), MESSAGES[2]]
    change = located(Request(), Request(messages=messages), template)
    assert (change.part.kind, change.part.index) == (PartKind.MESSAGE, 2)
    assert change.part.role == "assistant"
    assert change.confirmed


@both_templates
def test_of_messages_that_all_moved_up_the_first_is_named(template: Template) -> None:
    messages = [(role, f"{number} {text}") for number, (role, text) in enumerate(MESSAGES * 4)]
    change = located(
        Request(messages=messages), Request(messages=[messages[0], *messages[3:]]), template
    )
    assert (change.part.kind, change.part.index) == (PartKind.MESSAGE, 2)


def test_the_template_decides_which_of_several_changes_comes_first() -> None:
    after = Request(SYSTEM.replace("14:03", "14:04"), tools=[TOOLS[1], TOOLS[0], TOOLS[2]])
    in_system = located(Request(), after, Request.tools_last)
    in_tools = located(Request(), after, Request.tools_first)
    assert (in_system.part.kind, in_system.confirmed) == (PartKind.SYSTEM, True)
    assert (in_tools.part.kind, in_tools.confirmed) == (PartKind.TOOLS, True)


@both_templates
def test_a_prompt_that_only_grew_has_no_change(template: Template) -> None:
    longer = Request(messages=[*MESSAGES, ("assistant", "Done."), ("user", "Thanks!")])
    before = template(Request()).removesuffix("[ASSISTANT]").removesuffix("<|start|>assistant\n")
    change = locate_change(Request().parts, longer.parts, *windows(before, template(longer)))
    assert change is None


def test_the_template_is_named_when_no_part_differs() -> None:
    parts = Request().parts
    change = locate_change(parts, parts, "ok<think>first I", "ok<|end|>")
    assert change is not None
    assert (change.part.kind, change.confirmed) == (PartKind.TEMPLATE, True)


def test_a_date_that_the_template_writes_is_volatile() -> None:
    parts = Request().parts
    change = locate_change(
        parts, parts, "Today Date: 28 Nov 2026\n\nYou are", "Today Date: 29 Nov 2026\n\nYou are"
    )
    assert change is not None
    assert (change.part.kind, change.volatile_kind) == (PartKind.TEMPLATE, VolatileKind.DATE)


def test_a_change_that_the_tokens_do_not_show_is_only_probable() -> None:
    after = Request("You are a poet.")
    change = locate_change(
        Request().parts, after.parts, "quite another place", "quite different words"
    )
    assert change is not None
    assert (change.part.kind, change.confirmed) == (PartKind.SYSTEM, False)


def test_the_same_words_in_front_of_another_change_do_not_confirm_a_part() -> None:
    before = Request(messages=[("user", "The weather today is red.")])
    after = Request(messages=[("user", "The weather today is blue.")])
    change = locate_change(
        before.parts, after.parts, "The weather today is 8 C", "The weather today is 9 C"
    )
    assert change is not None
    assert (change.part.kind, change.confirmed) == (PartKind.MESSAGE, False)


def test_a_change_of_parts_that_does_not_reach_the_tokens_is_none() -> None:
    assert locate_change(Request().parts, Request("New.").parts, "same", "same") is None


def test_a_change_of_spaces_only_is_found() -> None:
    after = Request(messages=[(MESSAGES[0][0], MESSAGES[0][1].replace(" test ", "  test "))])
    before = Request(messages=MESSAGES[:1])
    change = located(before, after, Request.tools_last)
    assert (change.part.index, change.confirmed) == (1, True)


def test_without_tokens_the_first_changed_part_is_probable_and_shows_its_own_text() -> None:
    after = Request(SYSTEM.replace("14:03", "14:04"))
    change = locate_change(Request().parts, after.parts, "", "")
    assert change is not None
    assert (change.part.kind, change.confirmed) == (PartKind.SYSTEM, False)
    assert change.volatile_kind is VolatileKind.CLOCK
    assert "14:04" in change.excerpt.after
    assert locate_change(after.parts, after.parts, "", "") is None


def test_nothing_is_said_where_the_parts_of_a_turn_are_not_known() -> None:
    parts = Request().parts
    assert locate_change((), parts, "It is 14:03", "It is 14:04") is None
    assert locate_change(parts, (), "It is 14:03", "It is 14:04") is None


def test_a_history_that_was_cut_names_the_first_missing_message() -> None:
    change = locate_change(Request().parts, Request(messages=MESSAGES[:1]).parts, "", "")
    assert change is not None
    assert change.part.index == 2


def test_names_from_outside_are_cleaned_and_bounded() -> None:
    nasty = tool("\x1b[31m" + "x" * 500)
    change = located(Request(), Request(tools=[*TOOLS, nasty]), Request.tools_last)
    edited = tool("\x1b[31m" + "x" * 500, "Other words.")
    again = located(
        Request(tools=[*TOOLS, nasty]), Request(tools=[*TOOLS, edited]), Request.tools_last
    )
    assert again.part.name is not None
    for name in (*change.tool_names, again.part.name):
        assert len(name) <= 40
        assert printable(name) == name


part_texts = st.builds(
    PartText,
    part=st.builds(
        PromptPart,
        kind=st.sampled_from([PartKind.SYSTEM, PartKind.TOOL, PartKind.MESSAGE]),
        name=st.none() | st.sampled_from("ab"),
        index=st.none() | st.integers(1, 3),
        role=st.none() | st.sampled_from(["user", "tool"]),
    ),
    text=st.text("ab1: \\u\n", max_size=20),
)


@given(
    st.lists(part_texts, max_size=6),
    st.lists(part_texts, max_size=6),
    st.text("ab1: \\u\n", max_size=20),
    st.text("ab1: \\u\n", max_size=20),
)
def test_any_parts_and_windows_are_taken(
    before: list[PartText], after: list[PartText], old: str, new: str
) -> None:
    change = locate_change(before, after, old, new)
    if change is None and before and after and (old or new):
        assert old.startswith(new) or new.startswith(old)


@given(st.permutations(list(range(8))))
def test_moving_the_named_tools_alone_explains_a_new_order(order: list[int]) -> None:
    tools = [tool(f"tool_{number}") for number in range(8)]
    change = locate_change(
        Request(tools=tools).parts, Request(tools=[tools[number] for number in order]).parts, "", ""
    )
    if order == sorted(order):
        assert change is None
        return
    assert change is not None
    moved = {int(name.removeprefix("tool_")) for name in change.tool_names}
    stayed = [number for number in order if number not in moved]
    assert stayed == sorted(stayed)
    assert moved


@pytest.mark.parametrize(("edited", "change"), [(False, ToolChange.MOVED), (True, None)])
def test_many_tools_are_compared_in_linear_time(edited: bool, change: ToolChange | None) -> None:
    def parts(names: Sequence[str], text: str) -> list[PartText]:
        return [
            PartText(part=PromptPart(kind=PartKind.TOOL, name=name), text=text) for name in names
        ]

    many = parts([f"t{number}" for number in range(50_000)], '{"a":1}')
    now = parts([f"t{number}" for number in range(50_000)], '{"a":2}') if edited else many
    begun = time.perf_counter()
    found = locate_change(many + parts("xyz", "{}"), now + parts("zyx", "{}"), "", "")
    assert time.perf_counter() - begun < 2
    assert found is not None
    assert found.tool_change is (change or ToolChange.EDITED)
