from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentserve.domain.session import EXCERPT_CHARACTERS
from agentserve.domain.text import printable
from agentserve.telemetry.sessions.excerpt import make_excerpt
from agentserve.telemetry.sessions.token_prefix import common_prefix_length

texts = st.text(alphabet=st.sampled_from("ab \n\x1b\u202e\ud800é"), max_size=200)


def test_an_excerpt_marks_the_change_between_what_stayed() -> None:
    excerpt = make_excerpt("Time: 14:03 in Berlin", "Time: 14:47 in Berlin")
    assert excerpt.before[: excerpt.change_start] == "Time: 14:"
    assert excerpt.before[excerpt.change_start : excerpt.before_change_end] == "03"
    assert excerpt.after[excerpt.change_start : excerpt.after_change_end] == "47"
    assert excerpt.after[excerpt.after_change_end :] == " in Berlin"


def test_texts_that_meet_again_before_another_change_show_the_first_change_only() -> None:
    excerpt = make_excerpt(
        "a=1 and then a long common text, z=1", "a=22 and then a long common text, z=2"
    )
    assert excerpt.after[excerpt.change_start : excerpt.after_change_end] == "22"
    assert excerpt.after[excerpt.after_change_end :] == " and then a long common text, z="


def test_an_insertion_changes_nothing_of_what_was() -> None:
    excerpt = make_excerpt("Be kind. Use the tools.", "Be kind. Be brief. Use the tools.")
    assert excerpt.change_start == excerpt.before_change_end
    inserted = excerpt.after[excerpt.change_start : excerpt.after_change_end]
    assert len(inserted) == len("Be brief. ")


def test_context_is_cut_at_the_far_end_of_the_change() -> None:
    excerpt = make_excerpt("x" * 300 + "1" + "y" * 300, "x" * 300 + "2" + "y" * 300)
    assert excerpt.before == "x" * EXCERPT_CHARACTERS + "1" + "y" * EXCERPT_CHARACTERS


def test_a_change_that_is_too_long_is_cut_and_nothing_follows_it() -> None:
    excerpt = make_excerpt("x" + "1" * 500, "x" + "2" * 500)
    assert excerpt.after == "x" + "2" * EXCERPT_CHARACTERS


def test_context_behind_a_change_that_was_cut_is_left_out() -> None:
    tail = " and then a long common text"
    excerpt = make_excerpt("x" + "1" * 100 + tail, "x" + "2" * 100 + tail)
    assert excerpt.before == "x" + "1" * EXCERPT_CHARACTERS
    assert excerpt.after_change_end == len(excerpt.after)


def test_equal_indentation_between_two_edited_lines_does_not_end_the_change() -> None:
    indentation = "\n" + " " * 20
    excerpt = make_excerpt(f"= 1{indentation}old()", f"= 2{indentation}new[]")
    assert excerpt.after[excerpt.change_start :] == "2↵" + " " * 20 + "new[]"
    assert excerpt.after_change_end == len(excerpt.after)


def test_a_newline_that_became_a_space_can_be_seen() -> None:
    excerpt = make_excerpt("a\nb", "a b")
    assert (excerpt.before, excerpt.after) == ("a↵b", "a b")


def test_escape_sequences_are_drawn_as_text() -> None:
    excerpt = make_excerpt("\x1b[31mred", "\x1b[32mred")
    assert excerpt.after == "␛[32mred"


@given(texts, texts, texts, texts)
def test_every_excerpt_is_printable_and_its_offsets_are_right(
    context: str, before: str, after: str, behind: str
) -> None:
    excerpt = make_excerpt(context + before + behind, context + after + behind)
    start, old_end, new_end = (
        excerpt.change_start,
        excerpt.before_change_end,
        excerpt.after_change_end,
    )
    assert 0 <= start <= old_end <= len(excerpt.before)
    assert start <= new_end <= len(excerpt.after)
    assert excerpt.before[:start] == excerpt.after[:start]
    assert excerpt.before[old_end:] == excerpt.after[new_end:]
    assert start <= EXCERPT_CHARACTERS
    assert max(old_end, new_end) - start <= EXCERPT_CHARACTERS
    assert len(excerpt.before) - old_end <= EXCERPT_CHARACTERS
    for text in (excerpt.before, excerpt.after):
        assert printable(text) == text


@given(texts, texts)
def test_the_common_prefix_is_as_long_as_counting_says(first: str, second: str) -> None:
    counted = 0
    while counted < min(len(first), len(second)) and first[counted] == second[counted]:
        counted += 1
    assert common_prefix_length(first, second) == counted
