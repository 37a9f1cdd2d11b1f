from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agentserve.engine.log_lines import MAX_LINE_CHARACTERS, LineSplitter


def split(*pieces: bytes) -> list[str]:
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return lines + splitter.finish()


def test_lines_end_at_newlines_wherever_the_pieces_are_cut() -> None:
    assert split(b"one\ntw", b"o\r", b"\nthree") == ["one", "two", "three"]


def test_a_progress_bar_is_its_first_and_its_last_state() -> None:
    states = [f"\rLoading: {percent}%".encode() for percent in range(0, 101, 5)]
    assert split(*states, b"\nnext\n") == ["Loading: 0%", "Loading: 100%", "next"]
    assert split(b"".join(states) + b"\nnext\n") == ["Loading: 0%", "Loading: 100%", "next"]


def test_a_bar_that_pauses_can_be_shown_before_it_goes_on() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"\rCapturing CUDA graphs: 0%") == []
    assert splitter.has_unshown_bar
    assert splitter.show_bar() == ["Capturing CUDA graphs: 0%"]
    assert splitter.show_bar() == []
    assert splitter.feed(b"\rCapturing CUDA graphs: 50%\rCapturing CUDA graphs: 100%\n") == [
        "Capturing CUDA graphs: 100%"
    ]


def test_a_record_that_lands_behind_an_unfinished_bar_is_a_line_of_its_own() -> None:
    record = b"(Worker_TP1 pid=17) INFO 11-29 19:00:00 [x.py:1] Loading weights took 1 s\n"
    assert split(b"\rLoading: 50%" + record) == ["Loading: 50%", record.decode().strip()]


def test_vllms_continuation_lines_lose_their_carriage_return() -> None:
    assert split(b"first\r\nsecond\r\n") == ["first", "second"]


def test_escape_sequences_and_controls_do_not_survive() -> None:
    (line,) = split(b"\x1b[31mred\x1b[0m \x07bell \xff\n")
    assert line.isprintable()
    assert line.startswith("red")


def test_a_line_without_end_is_bounded_and_the_next_one_is_whole() -> None:
    lines = split(*[b"x" * 65_536] * 20, b"\nnext\n")
    assert len(lines) == 2
    assert len(lines[0]) == MAX_LINE_CHARACTERS
    assert lines[1] == "next"


def test_a_bar_that_never_ends_stays_small() -> None:
    splitter = LineSplitter()
    lines: list[str] = []
    for number in range(5_000):
        lines += splitter.feed(f"\rstep {number} of many".encode())
    lines += splitter.feed(b"\n")
    assert lines == ["step 0 of many", "step 4999 of many"]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_the_cuts_between_pieces_do_not_matter_without_bars(data: bytes, cuts: list[int]) -> None:
    data = data.replace(b"\r", b"")
    edges = [0, *sorted(cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(edges)]
    lines = split(*pieces)
    assert lines == split(data)
    assert all(line.isprintable() for line in lines)


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_any_bytes_give_bounded_printable_lines(pieces: list[bytes]) -> None:
    lines = split(*pieces)
    assert all(line.isprintable() and len(line) <= MAX_LINE_CHARACTERS for line in lines)
    # Beside each line end at most one line more: the first state of a bar, or a split record.
    assert len(lines) <= 2 * (b"".join(pieces).count(b"\n") + 1)
