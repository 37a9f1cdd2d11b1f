from __future__ import annotations

import msgspec
import pytest

from agentserve.domain.gpu import GpuSample
from agentserve.ui.formatting import DASH
from agentserve.ui.lines import Lines, Role, plain
from agentserve.ui.panels import gpu_detail

from . import scripted

FIRST, SECOND = scripted.two_gpus()


def text_of(*gpus: GpuSample, width: int = 118) -> str:
    return "\n".join(plain(line) for line in drawn(*gpus, width=width))


def drawn(*gpus: GpuSample, width: int = 118) -> Lines:
    return gpu_detail.draw(gpus, None, scripted.cpu_processes(), width, 99)


def replaced(gpu: GpuSample, **changes: object) -> GpuSample:
    return msgspec.structs.replace(gpu, **changes)


def test_all_readings_are_there_with_their_units() -> None:
    text = text_of(FIRST, SECOND)
    for part in (
        *("NVIDIA GeForce RTX 5060 Ti", "14.3 /15.9 GiB", "380 MiB", "96 %", "64 °C"),
        *("132 / 180 W", "1.24 GB/s", "0.31 GB/s", "gen 5 x8", "2407 MHz", "GPU-00000001"),
    ):
        assert part in text


def test_used_driver_and_free_memory_are_three_parts_of_one_bar_to_scale() -> None:
    gib = 2**30
    gpu = replaced(
        FIRST, memory_used_bytes=8 * gib, memory_reserved_bytes=4 * gib, memory_total_bytes=16 * gib
    )
    line = next(line for line in drawn(gpu, width=60) if plain(line).startswith("memory "))
    used, driver, free = (len(span.text) for span in line[1:4])
    assert [span.role for span in line[1:4]] == [Role.MEMORY, Role.WARNING, Role.TRACK]
    assert abs(used - 2 * driver) <= 1
    assert abs(driver - free) <= 1
    assert "4.00 GiB" in text_of(gpu, width=60)


@pytest.mark.parametrize("width", [118, 78])
def test_cards_stand_beside_each_other_where_there_is_room(width: int) -> None:
    heads = [line for line in text_of(FIRST, SECOND, width=width).splitlines() if "GPU 0 " in line]
    assert ("GPU 1" in heads[0]) is (width >= 100)


def test_a_missing_reading_is_a_dash_and_its_note_says_why() -> None:
    silent = GpuSample(index=0, notes=("power: not supported by this card",))
    text = text_of(silent)
    assert "power: not supported by this card" in text
    assert text.count(DASH) >= 12
    assert "━" not in text.split("Engine processes")[0].replace("━ used", "")


def test_the_link_of_an_idle_card_is_not_judged() -> None:
    idle = replaced(FIRST, utilization_percent=3, pcie_gen=1, pcie_width=4)
    text = text_of(idle, SECOND)
    assert "judge it under load" in text
    assert "narrower" not in text
    assert "slower than" not in text


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"pcie_width": 4}, "narrower than GPU 1 (x8)"),
        ({"pcie_gen": 3}, "slower than GPU 1 (gen 5)"),
    ],
)
def test_under_load_the_slower_link_of_a_pair_is_named(
    changes: dict[str, object], verdict: str
) -> None:
    text = text_of(replaced(FIRST, **changes), SECOND)
    assert verdict in text
    assert "GPU 0 (" not in text


def test_a_pair_shows_how_far_it_is_apart() -> None:
    text = text_of(FIRST, SECOND).partition("How far the pair is apart")[2]
    for part in ("326 MiB", "5 %", "1 K", "0 W", "0 MHz"):
        assert part in text
    assert "How far" not in text_of(FIRST)
    assert "How far" not in text_of(replaced(FIRST, lost=True), SECOND)


def test_a_lost_card_says_what_has_to_be_done() -> None:
    assert "LOST" in text_of(replaced(FIRST, lost=True), SECOND)


def test_processes_are_listed_with_their_sum() -> None:
    text = text_of(FIRST).partition("resident memory")[2]
    for part in ("worker 0", "pid 102", "1.28 GiB", "3.72 GiB"):
        assert part in text
