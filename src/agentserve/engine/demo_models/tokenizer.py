"""The tokenizer of the demo models, and the word pairs that their answers are made of.

A byte-level BPE is trained on the fixed text of this package, so that every text can be encoded and
each word of an answer is one token. Training is deterministic.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentserve.engine.demo_models.text import MARKER_WORDS, PROMPT_TEXT, SENTENCES

if TYPE_CHECKING:
    from collections.abc import Mapping

VOCABULARY_SIZE = 1024
END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
_TAGS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
# How often the words of answers and the markers are seen, so that each becomes one token before
# the vocabulary is used up by the rest of the text.
_WORD_REPETITIONS = 40
# How often a sentence counts as the last of an answer, among as many as there are.
_ANSWER_ENDS = 5
_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


@dataclasses.dataclass(frozen=True)
class Words:
    """What the tokens of an answer are and which may follow which."""

    turn_end_id: int
    word_ids: tuple[int, ...]
    """Every token that an answer is made of, without the end of the turn."""
    marker_ids: tuple[int, ...]
    starts: tuple[int, ...]
    """Tokens that may begin an answer, most frequent first."""
    successors: Mapping[int, tuple[int, ...]]
    """For each word its possible successors, most frequent first."""


def train_tokenizer() -> Tokenizer:
    """Train the tokenizer on the fixed text.

    Returns:
        A byte-level BPE with at most `VOCABULARY_SIZE` entries.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    markers = " " + " ".join(MARKER_WORDS)
    tokenizer.train_from_iterator(
        [PROMPT_TEXT, *[*SENTENCES, " ".join(["", *SENTENCES]), markers] * _WORD_REPETITIONS],
        trainers.BpeTrainer(
            vocab_size=VOCABULARY_SIZE - len(_TAGS),
            special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in _TAGS])
    return tokenizer


def answer_words(tokenizer: Tokenizer) -> Words:
    """Take the word pairs of `SENTENCES` as token ids.

    Args:
        tokenizer: The trained tokenizer.

    Returns:
        The words of answers, their successors, and the markers.

    Raises:
        ValueError: A word is not one token; the text and the vocabulary size do not fit.
    """
    turn_end_id = tokenizer.token_to_id(TURN_END)
    counts: dict[int, dict[int, int]] = {}
    starts: dict[int, int] = {}

    def count(table: dict[int, int], token_id: int) -> None:
        table[token_id] = table.get(token_id, 0) + 1

    for sentence in SENTENCES:
        first = _tokens_of_words(tokenizer, sentence)
        later = _tokens_of_words(tokenizer, f" {sentence}")
        count(starts, first[0])
        count(counts.setdefault(first[-1], {}), later[0])
        for tokens in (first, later):
            for token_id, next_id in itertools.pairwise(tokens):
                count(counts.setdefault(token_id, {}), next_id)
    full_stop = _tokens_of_words(tokenizer, SENTENCES[0])[-1]
    counts[full_stop][turn_end_id] = _ANSWER_ENDS
    return Words(
        turn_end_id=turn_end_id,
        word_ids=tuple(sorted(counts)),
        marker_ids=tuple(_tokens_of_words(tokenizer, f" {word}")[0] for word in MARKER_WORDS),
        starts=_most_frequent_first(starts),
        successors={token_id: _most_frequent_first(nexts) for token_id, nexts in counts.items()},
    )


def write_tokenizer(tokenizer: Tokenizer, folder: Path, max_tokens: int) -> None:
    """Write the tokenizer and its chat template in the layout that transformers reads.

    Args:
        tokenizer: The trained tokenizer.
        folder: Model folder; it exists.
        max_tokens: Longest sequence of the model, tokens.
    """
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "model_max_length": max_tokens,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "chat_template.jinja").write_bytes(_TEMPLATE.read_bytes())


def _tokens_of_words(tokenizer: Tokenizer, text: str) -> list[int]:
    encoded = tokenizer.encode(text)
    expected = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    if encoded.tokens != expected:
        split = next(word for word in expected if word not in encoded.tokens)
        raise ValueError(f"{split!r} is not one token of the demo vocabulary")
    return list(encoded.ids)


def _most_frequent_first(counts: dict[int, int]) -> tuple[int, ...]:
    return tuple(sorted(counts, key=lambda token_id: (-counts[token_id], token_id)))
