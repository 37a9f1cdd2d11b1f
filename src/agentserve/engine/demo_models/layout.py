"""How the demo models use their hidden state, and the parts that both have: embedding and head.

The 256 hidden channels are four groups, so that what the model knows can be read off:

- `WORD` (128): one channel for each word of an answer; exactly one is set, that of the last token.
  The first channel stands for every token that is no such word.
- `IDENTITY` (62): a random unit vector for each token of the vocabulary.
- `MARKER` (1) is set for marker words, `ONE` (1) always: it serves as the bias that layers lack.
- `MEMORY` (64): empty in the embedding; the only group that layers write to.

The head makes an answer a walk through the word pairs of the text. `WORD` decides which words may
come next: all others lie `_FORBIDDEN_LOGIT` below. `MEMORY`, compared with a random vector for each
word, decides which of them comes. So whatever changes the memory changes the answer, and
every answer is readable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentserve.engine.demo_models.tokenizer import VOCABULARY_SIZE, Words

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

HIDDEN_SIZE = 256
WORD = slice(0, 128)
IDENTITY = slice(128, 190)
MARKER = 190
ONE = 191
MEMORY = slice(192, 256)

_NO_WORD = 0
_ONE_VALUE = 2.0
# Root of the sum of squares of an embedding: 1 (word) + 1 (identity) + 4 (one).
EMBEDDING_NORM = 6.0**0.5
_TYPICAL_NORM = 3.0
_FORBIDDEN_LOGIT = 30.0


def random_matrix(random: Generator, rows: int, columns: int, deviation: float) -> NDArray:
    """Draw a matrix of independent normal values.

    Args:
        random: Source of randomness.
        rows: Number of outputs.
        columns: Number of inputs.
        deviation: Standard deviation of each value.

    Returns:
        float32, shape (rows, columns).
    """
    return random.standard_normal((rows, columns), dtype=np.float32) * np.float32(deviation)


def reading(random: Generator, rows: int, deviation: float) -> NDArray:
    """Draw a projection that reads which token it is and the memory, but no bias channel.

    Args:
        random: Source of randomness.
        rows: Number of outputs.
        deviation: Standard deviation of each weight.

    Returns:
        float32, shape (rows, HIDDEN_SIZE).
    """
    matrix = random_matrix(random, rows, HIDDEN_SIZE, deviation)
    matrix[:, [MARKER, ONE]] = 0.0
    return matrix


def writing(random: Generator, columns: int, deviation: float) -> NDArray:
    """Draw a projection that writes to the memory only.

    Args:
        random: Source of randomness.
        columns: Number of inputs.
        deviation: Standard deviation of each weight.

    Returns:
        float32, shape (HIDDEN_SIZE, columns).
    """
    matrix = np.zeros((HIDDEN_SIZE, columns), dtype=np.float32)
    rows = MEMORY.stop - MEMORY.start
    matrix[MEMORY] = random_matrix(random, rows, columns, deviation)
    return matrix


def mlp(random: Generator, prefix: str, intermediate_size: int) -> dict[str, NDArray]:
    """Make a small random gated MLP that mixes token and memory.

    Args:
        random: Source of randomness.
        prefix: Name of the layer in the checkpoint.
        intermediate_size: Number of intermediate channels.

    Returns:
        Tensors by name.
    """
    return {
        f"{prefix}.mlp.gate_proj.weight": reading(random, intermediate_size, 0.05),
        f"{prefix}.mlp.up_proj.weight": reading(random, intermediate_size, 0.05),
        f"{prefix}.mlp.down_proj.weight": writing(random, intermediate_size, 0.02),
    }


def layer_norms(prefix: str) -> dict[str, NDArray]:
    """Make the two norms of a decoder layer; a stored zero is a factor of one.

    Args:
        prefix: Name of the layer in the checkpoint.

    Returns:
        Tensors by name.
    """
    zeros = np.zeros(HIDDEN_SIZE, dtype=np.float32)
    return {
        f"{prefix}.input_layernorm.weight": zeros,
        f"{prefix}.post_attention_layernorm.weight": zeros,
    }


def embedding(random: Generator, words: Words, identity: slice = IDENTITY) -> NDArray:
    """Make the embedding table.

    Args:
        random: Source of randomness.
        words: The words of answers and the markers.
        identity: The channels of `IDENTITY` to use; the others stay empty.

    Returns:
        float32, shape (VOCABULARY_SIZE, HIDDEN_SIZE).
    """
    table = np.zeros((VOCABULARY_SIZE, HIDDEN_SIZE), dtype=np.float32)
    codes = random_matrix(random, VOCABULARY_SIZE, identity.stop - identity.start, 1.0)
    table[:, identity] = codes / np.linalg.norm(codes, axis=1, keepdims=True)
    table[:, ONE] = _ONE_VALUE
    table[:, _NO_WORD] = 1.0
    for channel, token_id in enumerate(words.word_ids, start=_NO_WORD + 1):
        table[token_id, _NO_WORD] = 0.0
        table[token_id, channel] = 1.0
    table[list(words.marker_ids), MARKER] = 1.0
    return table


def memory_directions(random: Generator) -> NDArray:
    """Draw the vector in memory space that speaks for each word.

    Args:
        random: Source of randomness.

    Returns:
        float32 unit vectors, one for each word channel; the first speaks for the end of the turn.
    """
    directions = random_matrix(random, WORD.stop, MEMORY.stop - MEMORY.start, 1.0)
    return directions / np.linalg.norm(directions, axis=1, keepdims=True)


def spoken_words(directions: NDArray) -> NDArray:
    """Make a projection from the last word to the vector that speaks for it; zero for no word.

    Args:
        directions: What `memory_directions` gave.

    Returns:
        float32, shape (memory channels, HIDDEN_SIZE).
    """
    matrix = np.zeros((directions.shape[1], HIDDEN_SIZE), dtype=np.float32)
    matrix[:, WORD] = directions.T
    matrix[:, _NO_WORD] = 0.0
    return matrix


def head(words: Words, directions: NDArray, *, memory_gain: float, habit_gain: float) -> NDArray:
    """Make the output head.

    Args:
        words: The words of answers and their successors.
        directions: What `memory_directions` gave.
        memory_gain: How much the memory weighs in the choice between possible successors.
        habit_gain: How much a word's most frequent successor is preferred, logits.

    Returns:
        float32, shape (VOCABULARY_SIZE, HIDDEN_SIZE).
    """
    table = np.zeros((VOCABULARY_SIZE, HIDDEN_SIZE), dtype=np.float32)
    # The final norm divides by |x| / sqrt(HIDDEN_SIZE).
    logit = _TYPICAL_NORM / HIDDEN_SIZE**0.5
    table[:, ONE] = -2.0 * _FORBIDDEN_LOGIT * logit / _ONE_VALUE
    answer_ids = [*words.word_ids, words.turn_end_id]
    table[answer_ids, ONE] = -_FORBIDDEN_LOGIT * logit / _ONE_VALUE
    columns = {_NO_WORD: words.starts}
    for channel, token_id in enumerate(words.word_ids, start=_NO_WORD + 1):
        columns[channel] = words.successors[token_id]
    for channel, successors in columns.items():
        for rank, token_id in enumerate(successors):
            table[token_id, channel] = (_FORBIDDEN_LOGIT + habit_gain / (1 + rank)) * logit
    for channel, token_id in enumerate(words.word_ids, start=_NO_WORD + 1):
        table[token_id, MEMORY] = memory_gain * directions[channel]
    table[words.turn_end_id, MEMORY] = memory_gain * directions[_NO_WORD]
    return table
