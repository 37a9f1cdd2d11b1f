"""The demo model with a multi-token prediction head: four full-attention layers, one MTP layer.

Drafts of the head are accepted sometimes, never always, and in a stable proportion:

- **The main model** chooses between the possible successors of a word by habit and by context.
  Habit is a fixed preference for the more frequent successors, part of the output head. Context is
  what attention writes to the memory channels: which tokens came last, which tokens of the prompt
  resemble the current one, and, against it, what followed the current word before. The last takes
  two layers: the first copies the identity of each token's predecessor, the fourth looks for the
  current word among these copies.
- **The MTP layer** gets the embedding of the newest token and nothing of the hidden state: its
  input projection drops that half, and its layer adds nothing. Through the shared output head it
  knows the possible successors and the habit, and not the context.

So a draft is right where context agrees with habit or where a word has one successor only. The
second draft starts from the first one and counts only where that was right. Measured on the CPU
engine with greedy answers: 0.60 to 0.75 of first drafts accepted, 0.29 to 0.48 of second ones.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from agentserve.engine.demo_models import layout
from agentserve.engine.demo_models.tokenizer import Words

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

_LAYERS = 4
_INTERMEDIATE_SIZE = 256
_HEADS = 4
_KV_HEADS = 2
_HEAD_SIZE = 64
# The first quarter of a head is rotated by position; channel i turns together with channel i + 8.
_ROTATED_SIZE = 16
_ROPE_THETA = 10_000.0
# The three fastest of the eight rotations: 1, 0.32 and 0.1 radians a token.
_NEAR_CHANNELS = (0, 1, 2)
# `layout.IDENTITY` in halves: what the token is, and what the one before it is.
_IDENTITY = slice(128, 159)
_PREVIOUS = slice(159, 190)
_VARIETY_STRENGTH = 0.45
_MEMORY_GAIN = 1.3
_HABIT_GAIN = 6.5

CONFIG: dict[str, Any] = {
    "hidden_size": layout.HIDDEN_SIZE,
    "intermediate_size": _INTERMEDIATE_SIZE,
    "num_hidden_layers": _LAYERS,
    "layer_types": ["full_attention"] * _LAYERS,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _KV_HEADS,
    "head_dim": _HEAD_SIZE,
    # No layer uses these; the configuration class wants them.
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "mtp_num_hidden_layers": 1,
}
"""Entries of `config.json` that shape this model."""


def weights(random: Generator, words: Words) -> dict[str, NDArray]:
    """Make the weights.

    Args:
        random: Source of randomness; its seed decides the model.
        words: The words of answers and their successors.

    Returns:
        Tensors by their name in the checkpoint, float32.
    """
    directions = layout.memory_directions(random)
    tensors = {
        "model.embed_tokens.weight": layout.embedding(random, words, _IDENTITY),
        "model.norm.weight": np.zeros(layout.HIDDEN_SIZE, dtype=np.float32),
        "lm_head.weight": layout.head(
            words, directions, memory_gain=_MEMORY_GAIN, habit_gain=_HABIT_GAIN
        ),
    }
    for index in range(_LAYERS):
        prefix = f"model.layers.{index}"
        tensors |= layout.layer_norms(prefix)
        tensors |= layout.mlp(random, prefix, _INTERMEDIATE_SIZE)
        if index == 0:
            first = _previous_token_heads()
        elif index == _LAYERS - 1:
            first = _variety_heads(directions)
        else:
            first = _context_heads(random)
        tensors |= _attention(f"{prefix}.self_attn", first, _similar_heads(random))
    tensors |= _mtp_layer(random)
    return tensors


@dataclasses.dataclass(frozen=True)
class _Heads:
    """Two query heads that share a key and a value head."""

    query: NDArray
    key: NDArray
    value: NDArray
    output: NDArray


def _attention(prefix: str, first: _Heads, second: _Heads) -> dict[str, NDArray]:
    both = (first, second)
    # Each head has a query and a gate; a gate of zero passes half.
    gate = np.zeros((_HEAD_SIZE, layout.HIDDEN_SIZE), dtype=np.float32)
    return {
        f"{prefix}.q_proj.weight": np.concatenate(
            [part for heads in both for part in (heads.query, gate, heads.query, gate)]
        ),
        f"{prefix}.k_proj.weight": np.concatenate([heads.key for heads in both]),
        f"{prefix}.v_proj.weight": np.concatenate([heads.value for heads in both]),
        # Halved, as two query heads say the same.
        f"{prefix}.o_proj.weight": np.concatenate(
            [heads.output / 2 for heads in both for _ in range(2)], axis=1
        ),
        # A stored one is a factor of two: sharp attention, scores from -32 to 32.
        f"{prefix}.q_norm.weight": np.ones(_HEAD_SIZE, dtype=np.float32),
        f"{prefix}.k_norm.weight": np.ones(_HEAD_SIZE, dtype=np.float32),
    }


def _previous_token_heads() -> _Heads:
    """Copy the identity of the previous token."""
    query, key, value, output = _empty_heads()
    half = _ROTATED_SIZE // 2
    for channel in _NEAR_CHANNELS:
        angle = _ROPE_THETA ** (-channel / half)
        key[channel, layout.ONE] = 1.0
        # Turned back by one position, so that the scores are highest one token ago.
        query[channel, layout.ONE] = math.cos(angle)
        query[channel + half, layout.ONE] = -math.sin(angle)
    size = _IDENTITY.stop - _IDENTITY.start
    value[:size, _IDENTITY] = np.eye(size)
    passed = 0.5 * layout.HIDDEN_SIZE**0.5 / layout.EMBEDDING_NORM
    output[_PREVIOUS, :size] = np.eye(size) / passed
    return _Heads(query, key, value, output)


def _variety_heads(directions: NDArray) -> _Heads:
    """Find what followed the current word before, and speak against it."""
    query, key, value, output = _empty_heads()
    size = _IDENTITY.stop - _IDENTITY.start
    matched = slice(_ROTATED_SIZE, _ROTATED_SIZE + size)
    query[matched, _IDENTITY] = np.eye(size)
    key[matched, _PREVIOUS] = np.eye(size)
    value[:] = layout.spoken_words(directions)
    output[layout.MEMORY] = -_VARIETY_STRENGTH * np.eye(_HEAD_SIZE)
    return _Heads(query, key, value, output)


def _context_heads(random: Generator) -> _Heads:
    """Look at the last tokens, and among them at those that look similar to a random projection."""
    query = _away_from_position(random)
    key = _away_from_position(random)
    for channel in _NEAR_CHANNELS[:2]:
        query[channel, layout.ONE] = key[channel, layout.ONE] = 0.25
    return _Heads(query, key, _values(random), layout.writing(random, _HEAD_SIZE, 0.025))


def _similar_heads(random: Generator) -> _Heads:
    """Look at tokens anywhere in the prompt that fit the current one in a random projection."""
    return _Heads(
        _away_from_position(random),
        _away_from_position(random),
        _values(random),
        layout.writing(random, _HEAD_SIZE, 0.025),
    )


def _empty_heads() -> tuple[NDArray, NDArray, NDArray, NDArray]:
    rows = (_HEAD_SIZE, layout.HIDDEN_SIZE)
    return (
        np.zeros(rows, dtype=np.float32),
        np.zeros(rows, dtype=np.float32),
        np.zeros(rows, dtype=np.float32),
        np.zeros(rows[::-1], dtype=np.float32),
    )


def _away_from_position(random: Generator) -> NDArray:
    head = layout.reading(random, _HEAD_SIZE, 0.1)
    head[:_ROTATED_SIZE] = 0.0
    return head


def _values(random: Generator) -> NDArray:
    return layout.reading(random, _HEAD_SIZE, 0.15)


def _mtp_layer(random: Generator) -> dict[str, NDArray]:
    prefix = "mtp.layers.0"
    # The input is the normalised embedding, then the normalised hidden state. The embedding
    # is passed on at its own size, the hidden state dropped.
    join = np.zeros((layout.HIDDEN_SIZE, 2 * layout.HIDDEN_SIZE), dtype=np.float32)
    channels = np.arange(layout.HIDDEN_SIZE)
    join[channels, channels] = layout.EMBEDDING_NORM / layout.HIDDEN_SIZE**0.5
    tensors = {
        "mtp.fc.weight": join,
        "mtp.norm.weight": np.zeros(layout.HIDDEN_SIZE, dtype=np.float32),
        "mtp.pre_fc_norm_embedding.weight": np.zeros(layout.HIDDEN_SIZE, dtype=np.float32),
        "mtp.pre_fc_norm_hidden.weight": np.zeros(layout.HIDDEN_SIZE, dtype=np.float32),
    }
    tensors |= layout.layer_norms(prefix)
    tensors |= layout.mlp(random, prefix, _INTERMEDIATE_SIZE)
    tensors |= _attention(f"{prefix}.self_attn", _context_heads(random), _similar_heads(random))
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"{prefix}.{name}.weight"] = np.zeros_like(tensors[f"{prefix}.{name}.weight"])
    return tensors
