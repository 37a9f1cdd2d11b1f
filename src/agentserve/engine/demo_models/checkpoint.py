"""Writes a model folder: configuration, weights in bfloat16, tokenizer and chat template."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from agentserve.engine.demo_models import hybrid, mtp
from agentserve.engine.demo_models.tokenizer import (
    VOCABULARY_SIZE,
    answer_words,
    train_tokenizer,
    write_tokenizer,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_TOKENS = 16_384
_SEED = 20_251
_RECIPES: dict[str, ModuleType] = {"hybrid": hybrid, "mtp": mtp}
# Read as float32 by the engine whatever the type of the model is.
_FLOAT32_NAMES = ("A_log",)


def write_model(name: str, folder: Path) -> None:
    """Write one demo model.

    Args:
        name: Name of the model.
        folder: Folder to write into; it exists and is empty.
    """
    recipe = _RECIPES[name]
    tokenizer = train_tokenizer()
    words = answer_words(tokenizer)
    write_tokenizer(tokenizer, folder, MAX_TOKENS)
    config = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY_SIZE,
        "max_position_embeddings": MAX_TOKENS,
        "rms_norm_eps": 1e-10,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.25,
        },
        "eos_token_id": words.turn_end_id,
        "pad_token_id": 0,
        "use_cache": True,
        **recipe.CONFIG,
    }
    _write_json(folder / "config.json", config)
    # Requests that name no temperature are answered greedily: the same prompt, the same answer.
    generation = {"eos_token_id": words.turn_end_id, "temperature": 0.0}
    _write_json(folder / "generation_config.json", generation)
    tensors = recipe.weights(np.random.default_rng(_SEED), words)
    _write_safetensors(folder / "model.safetensors", tensors)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _write_safetensors(path: Path, tensors: dict[str, NDArray]) -> None:
    """Write tensors in the safetensors format.

    The library's numpy interface has no bfloat16. The format is short: the header's length as a
    64-bit little-endian number, the header as JSON, then the tensors
    (https://huggingface.co/docs/safetensors/index#format).
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs: list[bytes] = []
    offset = 0
    for name, tensor in tensors.items():
        dtype, blob = _stored(name, tensor)
        header[name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    encoded = json.dumps(header).encode()
    # Data begins at a multiple of eight; the format allows spaces after the JSON.
    encoded += b" " * (-len(encoded) % 8)
    path.write_bytes(b"".join([len(encoded).to_bytes(8, "little"), encoded, *blobs]))


def _stored(name: str, tensor: NDArray) -> tuple[str, bytes]:
    values = np.ascontiguousarray(tensor, dtype="<f4")
    if name.endswith(_FLOAT32_NAMES):
        return "F32", values.tobytes()
    # bfloat16 is the upper half of a float32, here rounded to nearest even.
    bits = values.view("<u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return "BF16", rounded.astype("<u2").tobytes()
