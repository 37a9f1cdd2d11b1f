"""The benchmark's arithmetic: ratios by round, medians, the table, and the parts of a switch."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.lifecycle import PhaseTime, StartPhase
from bench.report import Figure, Report, Section, markdown
from bench.switch_time import phases_of_log, switch_from
from bench.terminal import time_of_text

positive = st.floats(0.001, 1e6)
rounds = st.lists(st.tuples(positive, positive), min_size=1, max_size=9)


def figure(**changes: object) -> Figure:
    values = {"name": "throughput", "unit": "tok/s", "ours": (90.0, 50.0, 99.0), **changes}
    return Figure(**values)  # type: ignore[arg-type]


def rows(*figures: Figure) -> list[list[str]]:
    text = markdown(Report(machine=("2 cores",), sections=(Section(title="T", figures=figures),)))
    table = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_a_ratio_is_taken_within_its_round_and_the_median_of_ratios_is_judged() -> None:
    # The second round was slow for both: a ratio of medians would be 0.9.
    compared = figure(plain=(100.0, 50.0, 100.0))
    assert compared.ratios == (0.9, 1.0, 0.99)
    assert compared.judged == 0.99


@given(rounds)
def test_the_judged_ratio_lies_between_those_of_the_rounds(
    pairs: list[tuple[float, float]],
) -> None:
    compared = figure(ours=tuple(o for o, _ in pairs), plain=tuple(p for _, p in pairs))
    assert min(compared.ratios) <= compared.judged <= max(compared.ratios)


@given(st.lists(positive, min_size=1, max_size=9))
def test_a_server_compared_with_itself_has_the_ratio_one(values: list[float]) -> None:
    assert figure(ours=tuple(values), plain=tuple(values)).judged == 1


@given(st.lists(positive, min_size=1, max_size=9), positive)
def test_without_a_partner_the_median_is_judged(values: list[float], aim: float) -> None:
    alone = figure(ours=tuple(values), aim=aim)
    assert alone.judged == statistics.median(values)
    assert alone.met is (statistics.median(values) <= aim)


def test_a_ratio_to_zero_is_infinite_and_misses() -> None:
    compared = figure(ours=(1.0,), plain=(0.0,), aim=1.1)
    assert math.isinf(compared.judged)
    assert compared.met is False


@pytest.mark.parametrize(
    ("ours", "aim_is", "met"),
    [
        (97.0, "at least", True),
        (96.9, "at least", False),
        (97.0, "at most", True),
        (97.1, "at most", False),
    ],
)
def test_an_aim_is_met_on_its_side_and_on_its_edge(ours: float, aim_is: str, met: bool) -> None:
    assert figure(ours=(ours,), plain=(100.0,), aim=0.97, aim_is=aim_is).met is met


def test_a_figure_without_an_aim_is_neither_met_nor_missed() -> None:
    assert figure().met is None


@pytest.mark.parametrize("plain", [(1.0,), (1.0, 2.0, 3.0, 4.0)])
def test_rounds_without_a_partner_are_refused(plain: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="3 and"):
        figure(plain=plain)


def test_a_figure_without_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        figure(ours=())


def test_a_row_shows_both_sides_the_ratio_with_its_range_and_the_verdict() -> None:
    compared = figure(plain=(100.0, 50.0, 100.0), aim=0.97, aim_is="at least")
    assert rows(compared) == [
        [
            "throughput",
            "90 tok/s",
            "100 tok/s",
            "0.990 [0.900-1.000]",
            "≥ 0.97",
            "yes",
            "3",
        ]
    ]


def test_a_row_without_a_plain_side_shows_the_range_and_the_aim_with_its_unit() -> None:
    alone = Figure(name="RSS", unit="MiB", ours=(54.123, 52.5, 70.0), aim=53)
    assert rows(alone) == [
        ["RSS", "54.12 MiB [52.5-70]", "-", "-", "≤ 53 MiB", "**no**", "3"],
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.0421, "0.042"), (0.5, "0.5"), (1.234, "1.23"), (20.0, "20"), (1234.5, "1,234")],
)
def test_numbers_are_shown_with_the_digits_that_matter(value: float, shown: str) -> None:
    (row,) = rows(Figure(name="x", unit="", ours=(value,)))
    assert row[1] == f"{shown} [{shown}-{shown}]"


def test_machine_facts_titles_and_notes_stand_around_the_table() -> None:
    section = Section(title="(a) load", figures=(figure(),), notes=("One.", "Two."))
    text = markdown(Report(machine=("2 cores", "load 0.1"), sections=(section,)))
    assert text.startswith("- 2 cores\n- load 0.1\n\n### (a) load\n\n| figure |")
    assert text.endswith("|\n\n- One.\n- Two.\n")


def test_what_is_in_no_phase_of_a_switch_is_its_stop() -> None:
    phases = [
        PhaseTime(StartPhase.IMPORT, 3.0),
        PhaseTime(StartPhase.CONFIG, 0.5),
        PhaseTime(StartPhase.SPAWN, 6.0),
        PhaseTime(StartPhase.LOAD, 1.0),
        PhaseTime(StartPhase.PROFILE, 0.25),
        PhaseTime(StartPhase.KV_CACHE, 0.25),
        PhaseTime(StartPhase.WARM_UP, 2.0),
    ]
    switch = switch_from(15.0, phases)
    assert (switch.import_s, switch.weights_s, switch.rest_s) == (9.5, 1.0, 2.5)
    assert switch.stop_s == 2.0


def test_the_plain_servers_log_is_divided_as_the_app_divides_its_own() -> None:
    lines = [
        (12.0, "INFO [core.py:114] Initializing a V1 LLM engine (v0.32.0) with config: ..."),
        (18.0, "(Worker_TP0) INFO [gpu_model_runner.py:1] Starting to load model /m..."),
        (18.5, "(Worker_TP1) INFO [gpu_model_runner.py:1] Starting to load model /m..."),
        (19.0, "(Worker_TP0) INFO [cpu_model_runner.py:1] Model loading took 0.1 GiB"),
        (19.5, "(EngineCore) INFO [kv_cache_utils.py:1] GPU KV cache size: 1,000 tokens"),
        (30.0, "(Worker_TP1) INFO [gpu_model_runner.py:1] Starting to load model later"),
    ]
    assert phases_of_log(lines, spawned_s=10.0, ready_s=22.0) == (
        PhaseTime(StartPhase.IMPORT, 2.0),
        PhaseTime(StartPhase.SPAWN, 6.0),
        PhaseTime(StartPhase.LOAD, 1.0),
        PhaseTime(StartPhase.PROFILE, 0.5),
        PhaseTime(StartPhase.KV_CACHE, 2.5),
    )


@given(st.lists(st.floats(0, 100), max_size=8))
def test_the_phases_of_a_log_leave_no_gap(times_s: list[float]) -> None:
    texts = ["Starting to load model m", "noise", "Model loading took 1 GiB", "KV cache size: 1"]
    lines = [(t, texts[i % len(texts)]) for i, t in enumerate(sorted(times_s))]
    phases = phases_of_log(lines, spawned_s=0.0, ready_s=100.0)
    assert sum(phase.duration_s for phase in phases) == pytest.approx(100.0)
    assert all(phase.duration_s >= 0 for phase in phases)


def test_a_frame_is_there_when_the_last_of_its_texts_is() -> None:
    chunks = [
        (1.0, b"\x1b[?1049h\x1b[1;1H STOPPED "),
        (2.0, b"\x1b[40;1H s start  q qu"),
        (3.0, b"it"),
        (4.0, b"\x1b[20;1H more"),
    ]
    assert time_of_text(chunks, "STOPPED", "q quit") == 3.0
    assert time_of_text(chunks[:2], "STOPPED", "q quit") is None


def test_a_section_names_its_own_sides() -> None:
    section = Section(title="flood", figures=(figure(),), sides=("with", "without"))
    assert "| figure | with | without |" in markdown(Report(machine=(), sections=(section,)))
