from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentserve.domain.lifecycle import EngineState, StartPhase
from agentserve.domain.request import RequestOutcome
from agentserve.domain.snapshot import Snapshot
from agentserve.ui.formatting import DASH
from agentserve.ui.lines import cells, plain
from agentserve.ui.panels import (
    gpu_detail,
    gpus,
    header,
    kv,
    latency,
    log,
    prefix_cache,
    requests,
    stage,
    throughput,
)
from agentserve.ui.panels import help as help_panel
from agentserve.ui.widgets import action_bar

from . import scripted
from .drawn_panels import FRAMES, Draw, assert_inside, assert_prints_only, text_of

PANELS: dict[str, Draw] = {
    "header": lambda f, w, h: header.draw(f.engine, w, h, back_key="esc"),
    "stage": lambda f, w, h: stage.draw(
        f.engine, f.engine_missing, f.presets, f.preset_problems, w, h, keys_of=f.keys_of
    ),
    "kv": lambda f, w, h: kv.draw(f.snapshot.kv, f.snapshot.history, w, h),
    "prefix cache": lambda f, w, h: prefix_cache.draw(
        f.snapshot.prefix_cache, f.snapshot.throughput, f.snapshot.history, w, h
    ),
    "latency": lambda f, w, h: latency.draw(f.snapshot.latency, f.snapshot.history, w, h),
    "throughput": lambda f, w, h: throughput.draw(
        f.snapshot.throughput, f.snapshot.spec_decode, f.snapshot.history, w, h
    ),
    "gpus": lambda f, w, h: gpus.draw(
        f.snapshot.gpus, f.snapshot.gpus_unavailable, f.snapshot.processes, w, h
    ),
    "gpu detail": lambda f, w, h: gpu_detail.draw(
        f.snapshot.gpus, f.snapshot.gpus_unavailable, f.snapshot.processes, w, h
    ),
    "requests": lambda f, w, h: requests.draw(
        f.snapshot.in_flight, f.snapshot.recent_requests, w, h
    ),
    "log": lambda f, w, h: log.draw(f.log, w, h),
    "help": help_panel.draw,
    "action bar": action_bar.draw,
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("panel", PANELS)
@settings(max_examples=25)
@given(width=st.integers(0, 220), height=st.integers(0, 40))
def test_a_panel_stays_inside_its_rectangle(
    panel: str, frame: str, width: int, height: int
) -> None:
    assert_inside(PANELS[panel](FRAMES[frame], width, height), width, height)


@pytest.mark.parametrize("draw", PANELS.values(), ids=PANELS.keys())
def test_hostile_text_is_data_in_every_panel(draw: Draw) -> None:
    assert_prints_only(draw(FRAMES["hostile"], 120, 60))


def test_what_is_not_known_is_a_dash_in_the_kv_panel() -> None:
    text = text_of(kv.draw(Snapshot().kv, Snapshot().history, 38, 4))
    assert text.count(DASH) == 7
    assert not any(character.isdigit() for character in text)


def test_the_kv_panel_gives_capacity_and_concurrency_with_their_units() -> None:
    text = text_of(kv.draw(scripted.serving().kv, scripted.serving().history, 38, 4))
    for part in ("42.1 %", "127k tok", "1.29 x", "784 tok", "61 blk", "43 blk"):
        assert part in text


def test_hit_rates_carry_their_n_and_the_lanes_their_units() -> None:
    snapshot = scripted.serving()
    text = text_of(
        prefix_cache.draw(snapshot.prefix_cache, snapshot.throughput, snapshot.history, 38, 4)
    )
    for part in ("91.2 %  n    50", "87.4 %  n   213", "14.3k tok/s", "3.41M tok", "1184 tok/s"):
        assert part in text


def test_latency_names_its_window_and_says_that_itl_is_per_event_with_mtp() -> None:
    values = scripted.serving().latency
    assert latency.title(values, per_event=True) == "Latency · 300 s · ITL per event"
    assert latency.title(values, per_event=False) == "Latency · 300 s"
    text = text_of(latency.draw(values, scripted.serving().history, 38, 4))
    for part in ("412 ms", "2.31 s", "21.4 ms", "37.7 ms", "112 ms", "48", "10412"):
        assert part in text


def test_speculative_decoding_says_off_when_it_is_off() -> None:
    snapshot = scripted.serving(mtp=False)
    text = text_of(throughput.draw(snapshot.throughput, None, snapshot.history, 38, 4))
    assert "off" in text
    snapshot = scripted.serving()
    text = text_of(
        throughput.draw(snapshot.throughput, snapshot.spec_decode, snapshot.history, 38, 4)
    )
    for part in ("71.3 %", "1.43 tok/step", "4120 drafts", "60 s"):
        assert part in text


@pytest.mark.parametrize(
    ("outcome", "words"),
    [(RequestOutcome.ABORTED, "✗ aborted"), (RequestOutcome.ERROR, "✗ error")],
)
def test_requests_that_ended_badly_are_marked_in_words(outcome: RequestOutcome, words: str) -> None:
    record = scripted.request(1, outcome=outcome, ttft_s=None, computed_tokens=None)
    text = text_of(requests.draw((), (record,), 78, 5))
    assert words in text
    assert DASH in text


def test_running_requests_come_before_finished_ones() -> None:
    snapshot = scripted.serving()
    lines = requests.draw(snapshot.in_flight, snapshot.recent_requests, 78, 6)
    assert "prefill" in plain(lines[1])
    assert "decode" in plain(lines[2])
    assert "done" in plain(lines[3])


def test_a_lost_gpu_is_marked_and_a_missing_reading_is_a_dash() -> None:
    first, second = scripted.two_gpus()
    lost = msgspec.structs.replace(first, lost=True)
    silent = msgspec.structs.replace(second, power_w=None)
    lines = gpus.draw((lost, silent), None, (), 78, 4)
    assert "LOST" in plain(lines[0])
    assert f"{DASH}/180 W" in plain(lines[1])
    assert gpus.title((lost, silent), ()) == "GPUs"
    assert gpus.title((first, second), ()) == "GPUs · skew 326 MiB, 5 % busy"


def test_without_gpus_the_processes_are_labelled_as_process_memory() -> None:
    processes = scripted.cpu_processes()
    assert "processes" in gpus.title((), processes)
    text = text_of(gpus.draw((), "no driver", processes, 100, 4))
    for part in ("all 3.72 GiB", "worker 0 1.28 GiB", "no driver"):
        assert part in text


def test_a_start_shows_what_is_done_what_runs_and_what_is_left() -> None:
    snapshot = scripted.starting(StartPhase.LOAD)
    text = text_of(stage.draw(snapshot.engine, None, (), (), 78, 12, keys_of={}))
    for part in ("✓ import      1.3 s", "▸ load        2.4 s", "· warm-up", "about 31 s left"):
        assert part in text


def test_a_first_start_does_not_invent_an_estimate() -> None:
    snapshot = scripted.starting(StartPhase.LOAD, expected_s=None)
    text = text_of(stage.draw(snapshot.engine, None, (), (), 78, 12, keys_of={}))
    assert "left" not in text
    assert "not known yet" in text


def test_a_failure_shows_title_cause_hint_raw_lines_and_the_next_key() -> None:
    text = text_of(stage.draw(scripted.failed().engine, None, (), (), 110, 20, keys_of={}))
    failure = scripted.FAILURE
    for part in (failure.title, failure.cause, failure.hint, *failure.raw, "press s start again"):
        assert part in text


def test_a_missing_engine_and_broken_presets_are_said_on_the_first_screen() -> None:
    missing = "No vLLM here: install agentserve-tui[cpu]."
    engine = scripted.stopped().engine
    text = text_of(
        stage.draw(engine, missing, scripted.PRESETS, ("a.toml line 3: bad",), 78, 14, keys_of={})
    )
    for part in (missing, "! a.toml line 3: bad", "1 cpu-tiny", "2 qwen-27b-nvfp4"):
        assert part in text
    assert stage.title(engine, missing) == "No engine installed"


def test_the_header_says_when_nothing_is_real() -> None:
    engine = msgspec.structs.replace(scripted.serving().engine, simulated=True)
    text = text_of(header.draw(engine, 120, 2, back_key="esc"))
    for part in ("READY", "SIMULATED", "http://127.0.0.1:8000", "gen 3", "up  1:13:09"):
        assert part in text


@pytest.mark.parametrize("state", EngineState)
def test_the_state_badge_never_changes_its_width(state: EngineState) -> None:
    assert cells(header.badge(scripted.engine(state))) == 10


def test_log_lines_that_sound_wrong_are_told_apart() -> None:
    assert log.severity("INFO all fine") is not log.severity("WARNING slow")
    assert log.severity("ERROR broken") is log.severity("ValueError: broken")
    assert log.title(12) == "Log · 12 lines not shown, see the log file"


@pytest.mark.parametrize("width", range(66, 121))
def test_the_header_shows_a_part_whole_or_not_at_all(width: int) -> None:
    engine = msgspec.structs.replace(scripted.serving().engine, pending=scripted.pending())
    text = plain(header.draw(engine, width, 2, back_key="esc")[1])
    for part in ("gen 3", "TP 2", "vLLM 0.32.0 cuda", "context 98304 tok"):
        text = text.replace(part, "")
    assert text.split() == ["·"] * text.count("·") + ["1", "pending", "·", "up", "1:13:09"] or (
        text.replace("·", "").split() == ["1", "pending", "up", "1:13:09"]
    )


def test_at_80_columns_the_context_stands_beside_what_is_pending() -> None:
    engine = msgspec.structs.replace(scripted.serving().engine, pending=scripted.pending())
    text = text_of(header.draw(engine, 78, 2, back_key="esc"))
    assert "context 98304 tok" in text
    assert "1 pending" in text


def test_the_header_says_simulated_once_beside_the_badge() -> None:
    engine = msgspec.structs.replace(
        scripted.serving().engine, simulated=True, vllm_version="simulated", device="simulated"
    )
    text = text_of(header.draw(engine, 120, 2, back_key="esc"))
    assert text.lower().count("simulated") == 2
    assert "vLLM simulated ·" in text


def test_the_first_screens_name_the_users_own_keys() -> None:
    keys_of = {"engine.toggle": ("f2",), "view.log": ("f4",), "preset.1": ("f7",)}
    stopped = scripted.stopped().engine
    text = text_of(stage.draw(stopped, None, scripted.PRESETS, (), 110, 14, keys_of=keys_of))
    assert "press f2 start cpu-tiny   f7 2 3 4 5 6 7 8 9 start the preset" in text
    text = text_of(stage.draw(scripted.failed().engine, None, (), (), 110, 20, keys_of=keys_of))
    assert "press f2 start again" in text
    assert "f4 read the log" in text
