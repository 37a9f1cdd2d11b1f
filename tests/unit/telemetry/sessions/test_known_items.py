from __future__ import annotations

import msgspec
import pytest

from agentserve.telemetry.sessions.known_items import KnownItems


class Item(msgspec.Struct, weakref=True):
    value: object


class Reader:
    """Reads items and counts them."""

    def __init__(self) -> None:
        self.read_values: list[object] = []

    def __call__(self, value: dict[str, object]) -> Item:
        self.read_values.append(value["a"])
        return Item(value["a"])


def raw(*items: str) -> list[msgspec.Raw]:
    return [msgspec.Raw(item.encode()) for item in items]


def test_an_item_is_read_once_while_it_is_kept() -> None:
    known, reader = KnownItems(), Reader()
    kept = known.read(raw('{"a":1}', '{"a":2}'), reader)
    again = known.read(raw('{"a":2}', '{"a":3}', '{"a":1}'), reader)
    assert [item.value for item in again] == [2, 3, 1]
    assert again[0] is kept[1]
    assert again[2] is kept[0]
    assert reader.read_values == [1, 2, 3]


def test_what_nobody_keeps_is_not_kept_here() -> None:
    known, reader = KnownItems(), Reader()
    known.read(raw('{"a":1}'), reader)
    known.read(raw('{"a":1}'), reader)
    assert reader.read_values == [1, 1]


def test_each_reader_has_items_of_its_own() -> None:
    known, one, other = KnownItems(), Reader(), Reader()
    kept = known.read(raw('{"a":1}'), one)
    assert known.read(raw('{"a":1}'), other)[0] is not kept[0]
    assert other.read_values == [1]


def test_other_bytes_are_another_item() -> None:
    known, reader = KnownItems(), Reader()
    kept = known.read(raw('{"a":1}'), reader)
    assert known.read(raw('{"a": 1}'), reader)[0] is not kept[0]


@pytest.mark.parametrize("items", [None, "text", 5, {"a": 1}])
def test_what_is_no_list_has_no_items(items: object) -> None:
    assert KnownItems().read(items, Reader()) == []


def test_items_that_are_no_objects_are_left_out() -> None:
    found = KnownItems().read(raw("1", '"text"', "null", "[]", '{"a":1}'), Reader())
    assert [item.value for item in found] == [1]


def test_an_item_that_is_no_json_is_told() -> None:
    with pytest.raises(msgspec.DecodeError):
        KnownItems().read(raw('{"a":'), Reader())
