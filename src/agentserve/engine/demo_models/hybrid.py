"""The hybrid demo model: three Gated DeltaNet layers, then one full-attention layer.

Its next word depends on the recurrent state far more than one cache block (640 tokens) back, so a
wrong cached state changes the answer.

- **Writing.** A Gated DeltaNet head keeps a matrix S. For each token with key k, value v and write
  strength b it does `S <- d (S - b (S k) k') + b v k'`. Key and value are random projections of
  the last four tokens (the convolution), so each place in a text has its own key. Ordinary tokens
  write with b = 0.02, markers with b = 0.92. Each later write takes b / 128 of an older entry with
  it (the overlap of two random keys of 128 channels): ordinary text wears memory down over some
  6,000 tokens.
- **Keeping.** `A_log` alone sets the decay d; heads forget over 2,000 to 32,000 tokens.
- **Reading.** `S q` with a query that is another random projection of the last four tokens: at
  each step a different mixture of all that was written. The norm behind it gives the mixture the
  same size after short and long prompts.
- **Variety.** In the third layer two heads have a word as key, without any mixing, and the word
  after it as value. What they read speaks against the successor that was taken last, so answers do
  not run in circles. These heads also make the state differ with every word.
- **Choosing.** The memory selects between the possible successors of a word, see `layout`.
- **Not from attention.** The full-attention layer takes its values from the memory channels alone,
  which embeddings leave empty, and matches a word with its earlier occurrences: it repeats what
  the layers before it had to say there. With the keys and values of one prompt and the recurrent
  state of another, the answer leaves that of the first where the answers of the two part.

Measured with the reference implementation in transformers on prompts of 1,450 tokens: a new marker
1,400 tokens back changes the memory behind the last layer by a third, and the answer within eight
tokens; a state that lost, or took twice, 128 tokens moves the log-probabilities of the next
word by 0.15 to 0.6. Two correct computations differ by 0.03.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from agentserve.engine.demo_models import layout
from agentserve.engine.demo_models.tokenizer import Words

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

_LAYER_TYPES = ("linear_attention", "linear_attention", "linear_attention", "full_attention")
_INTERMEDIATE_SIZE = 256
_KEY_HEADS = 2
_VALUE_HEADS = 4
# The CPU kernel accepts heads of 128 channels only.
_LINEAR_HEAD_SIZE = 128
_CONVOLUTION_TAPS = 4
_ATTENTION_HEADS = 4
_KV_HEADS = 2
_HEAD_SIZE = 64

_TIME_CONSTANTS_TOKENS = (2_000.0, 32_000.0, 4_000.0, 16_000.0)
_ORDINARY_WRITE_LOGIT = -3.5
_MARKER_WRITE_LOGIT = 2.5
# The channel `ONE` behind a norm, for a hidden state of usual size.
_ONE_AFTER_NORM = 2.0 * layout.HIDDEN_SIZE**0.5 / 3.0
_VARIETY_LAYER = 2
_VARIETY_WRITE_LOGITS = (1.0, -1.5)
_VARIETY_STRENGTH = 0.045

CONFIG: dict[str, Any] = {
    "hidden_size": layout.HIDDEN_SIZE,
    "intermediate_size": _INTERMEDIATE_SIZE,
    "num_hidden_layers": len(_LAYER_TYPES),
    "layer_types": list(_LAYER_TYPES),
    "full_attention_interval": 4,
    "num_attention_heads": _ATTENTION_HEADS,
    "num_key_value_heads": _KV_HEADS,
    "head_dim": _HEAD_SIZE,
    "linear_conv_kernel_dim": _CONVOLUTION_TAPS,
    "linear_key_head_dim": _LINEAR_HEAD_SIZE,
    "linear_value_head_dim": _LINEAR_HEAD_SIZE,
    "linear_num_key_heads": _KEY_HEADS,
    "linear_num_value_heads": _VALUE_HEADS,
    "mamba_ssm_dtype": "float32",
}
"""Entries of `config.json` that shape this model."""


def weights(random: Generator, words: Words) -> dict[str, NDArray]:
    """Make the weights.

    Args:
        random: Source of randomness; its seed decides the model.
        words: The words of answers and the markers.

    Returns:
        Tensors by their name in the checkpoint, float32.
    """
    directions = layout.memory_directions(random)
    tensors = {
        "model.embed_tokens.weight": layout.embedding(random, words),
        "model.norm.weight": np.zeros(layout.HIDDEN_SIZE, dtype=np.float32),
        "lm_head.weight": layout.head(words, directions, memory_gain=2.0, habit_gain=0.0),
    }
    for index, layer_type in enumerate(_LAYER_TYPES):
        prefix = f"model.layers.{index}"
        tensors |= layout.layer_norms(prefix)
        tensors |= layout.mlp(random, prefix, _INTERMEDIATE_SIZE)
        if layer_type == "linear_attention":
            tensors |= _gated_delta_net(random, f"{prefix}.linear_attn")
            if index == _VARIETY_LAYER:
                _add_variety(tensors, f"{prefix}.linear_attn", directions)
        else:
            tensors |= _word_lookup_attention(random, f"{prefix}.self_attn")
    return tensors


def _gated_delta_net(random: Generator, prefix: str) -> dict[str, NDArray]:
    key_size = _KEY_HEADS * _LINEAR_HEAD_SIZE
    value_size = _VALUE_HEADS * _LINEAR_HEAD_SIZE
    # Small inputs keep SiLU nearly linear, and so keys and queries without a common direction.
    queries_and_keys = layout.reading(random, 2 * key_size, 0.04)
    values = layout.reading(random, value_size, 0.05)
    # Taps of the convolution from the oldest token to the current one, signs at random.
    taps = np.array([0.5, 0.7, 0.9, 1.0], dtype=np.float32)
    channels = 2 * key_size + value_size
    signs = random.choice(np.array([-1.0, 1.0], dtype=np.float32), (channels, 1, _CONVOLUTION_TAPS))
    gates = layout.reading(random, value_size, 0.08)
    gates[:, layout.ONE] = 1.0 / _ONE_AFTER_NORM
    write = np.zeros((_VALUE_HEADS, layout.HIDDEN_SIZE), dtype=np.float32)
    write[:, layout.ONE] = _ORDINARY_WRITE_LOGIT / _ONE_AFTER_NORM
    write[:, layout.MARKER] = (_MARKER_WRITE_LOGIT - _ORDINARY_WRITE_LOGIT) / (
        _ONE_AFTER_NORM / 2.0
    )
    # d = exp(-exp(A_log) * softplus(0)) = exp(-1 / time constant)
    decay_rates = 1.0 / (np.array(_TIME_CONSTANTS_TOKENS) * math.log(2.0))
    return {
        f"{prefix}.in_proj_qkv.weight": np.concatenate([queries_and_keys, values]),
        f"{prefix}.in_proj_z.weight": gates,
        f"{prefix}.in_proj_b.weight": write,
        f"{prefix}.in_proj_a.weight": np.zeros_like(write),
        f"{prefix}.A_log": np.log(decay_rates).astype(np.float32),
        f"{prefix}.dt_bias": np.zeros(_VALUE_HEADS, dtype=np.float32),
        f"{prefix}.conv1d.weight": taps * signs,
        f"{prefix}.norm.weight": np.ones(_LINEAR_HEAD_SIZE, dtype=np.float32),
        f"{prefix}.out_proj.weight": layout.writing(random, value_size, 0.009),
    }


def _add_variety(tensors: dict[str, NDArray], prefix: str, directions: NDArray) -> None:
    """Exchange the second half of a Gated DeltaNet layer, in place, for heads that avoid loops."""
    size = _LINEAR_HEAD_SIZE
    query = slice(size, 2 * size)
    key = slice(3 * size, 4 * size)
    values = slice(4 * size + 2 * size, 8 * size)
    heads = slice(2 * size, 4 * size)
    projection = tensors[f"{prefix}.in_proj_qkv.weight"]
    taps = tensors[f"{prefix}.conv1d.weight"]
    projection[query] = projection[key] = np.eye(size, layout.HIDDEN_SIZE, dtype=np.float32)
    # Opposite halves cancel what SiLU adds to both.
    spoken = layout.spoken_words(directions)
    projection[values] = np.tile(np.concatenate([spoken, -spoken]), (2, 1))
    taps[query] = taps[values] = np.array([0.0, 0.0, 0.0, 1.0], dtype=np.float32)
    taps[key] = np.array([0.0, 0.0, 1.0, 0.0], dtype=np.float32)
    gates = tensors[f"{prefix}.in_proj_z.weight"]
    gates[heads] = 0.0
    gates[heads, layout.ONE] = 1.0 / _ONE_AFTER_NORM
    write = tensors[f"{prefix}.in_proj_b.weight"]
    write[2:] = 0.0
    write[2:, layout.ONE] = np.array(_VARIETY_WRITE_LOGITS) / _ONE_AFTER_NORM
    output = tensors[f"{prefix}.out_proj.weight"]
    output[:, heads] = 0.0
    away = np.zeros((layout.HIDDEN_SIZE, size), dtype=np.float32)
    away[layout.MEMORY] = np.concatenate([-np.eye(64), np.eye(64)], axis=1)
    output[:, heads] = _VARIETY_STRENGTH * np.tile(away, (1, 2))


def _word_lookup_attention(random: Generator, prefix: str) -> dict[str, NDArray]:
    matched = layout.random_matrix(random, _HEAD_SIZE, layout.HIDDEN_SIZE, 0.1)
    matched[:, [layout.MARKER, layout.ONE]] = 0.0
    matched[:, layout.MEMORY] = 0.0
    # Each head has a query and a gate; a gate of zero passes half.
    query_and_gate = np.concatenate([matched, np.zeros_like(matched)])
    values = np.zeros((_KV_HEADS * _HEAD_SIZE, layout.HIDDEN_SIZE), dtype=np.float32)
    values[:, layout.MEMORY] = layout.random_matrix(random, _KV_HEADS * _HEAD_SIZE, 64, 0.125)
    return {
        f"{prefix}.q_proj.weight": np.tile(query_and_gate, (_ATTENTION_HEADS, 1)),
        f"{prefix}.k_proj.weight": np.tile(matched, (_KV_HEADS, 1)),
        f"{prefix}.v_proj.weight": values,
        f"{prefix}.o_proj.weight": layout.writing(random, _ATTENTION_HEADS * _HEAD_SIZE, 0.02),
        f"{prefix}.q_norm.weight": np.zeros(_HEAD_SIZE, dtype=np.float32),
        f"{prefix}.k_norm.weight": np.zeros(_HEAD_SIZE, dtype=np.float32),
    }
