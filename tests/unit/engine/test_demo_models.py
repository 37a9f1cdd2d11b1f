from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentserve.domain.errors import ConfigError
from agentserve.engine.demo_models import DEMO_MODEL_NAMES, ensure_demo_model

pytest.importorskip("tokenizers", reason="comes with the engine extras")

BUILD = (sys.executable, "-m", "agentserve.engine.demo_models")


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module", params=DEMO_MODEL_NAMES)
def model(request: pytest.FixtureRequest, cache_dir: Path) -> Path:
    name: str = request.param
    return ensure_demo_model(name, cache_dir)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def header_of(folder: Path) -> dict[str, Any]:
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    header["data_size"] = len(data) - 8 - length
    return header


def test_importing_the_package_loads_no_heavy_library() -> None:
    code = (
        "import sys, agentserve.engine.demo_models\n"
        "print(sorted({'numpy', 'tokenizers', 'torch', 'transformers'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("name", DEMO_MODEL_NAMES)
def test_another_process_makes_the_same_bytes_and_prints_the_path(
    name: str, cache_dir: Path, tmp_path: Path
) -> None:
    here = ensure_demo_model(name, cache_dir)
    shown = subprocess.run(
        [*BUILD, name, str(tmp_path)], capture_output=True, text=True, check=True
    )
    there = Path(shown.stdout.strip())
    assert there.parent == tmp_path
    assert contents(there) == contents(here)


def test_a_complete_folder_is_used_as_it_is(model: Path, cache_dir: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in [model, *model.iterdir()]}
    assert ensure_demo_model(model.name.partition("-")[0], cache_dir) == model
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_builders_at_the_same_time_agree_and_leave_one_folder(tmp_path: Path) -> None:
    builders = [
        subprocess.Popen([*BUILD, "hybrid", str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    shown = {builder.communicate(timeout=60)[0].strip() for builder in builders}
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    assert len(shown) == 1
    assert [str(path) for path in tmp_path.iterdir()] == [shown.pop()]


def test_a_folder_is_complete_from_the_moment_that_it_is_there(tmp_path: Path) -> None:
    builder = subprocess.Popen([*BUILD, "mtp", str(tmp_path)], stdout=subprocess.PIPE)
    seen: set[frozenset[str]] = set()
    while builder.poll() is None:
        for folder in tmp_path.glob("mtp-*"):
            seen.add(frozenset(path.name for path in folder.iterdir()))
    builder.communicate()
    folder = ensure_demo_model("mtp", tmp_path)
    complete = frozenset(contents(folder))
    assert "complete.json" in complete
    assert seen <= {complete}


def cut_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def remove_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def remove_manifest(folder: Path) -> None:
    (folder / "complete.json").unlink()


def spoil_manifest(folder: Path) -> None:
    (folder / "complete.json").write_text("[")


@pytest.mark.parametrize("damage", [cut_weights, remove_tokenizer, remove_manifest, spoil_manifest])
def test_a_damaged_folder_is_made_again(damage: Any, tmp_path: Path) -> None:
    folder = ensure_demo_model("mtp", tmp_path)
    sound = contents(folder)
    damage(folder)
    assert contents(folder) != sound
    assert ensure_demo_model("mtp", tmp_path) == folder
    assert contents(folder) == sound
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_of_another_recipe_is_left_alone(tmp_path: Path) -> None:
    old = tmp_path / "hybrid-000000000000"
    old.mkdir()
    (old / "config.json").write_text("{}")
    folder = ensure_demo_model("hybrid", tmp_path)
    assert folder != old
    assert contents(old) == {"config.json": b"{}"}


def test_an_unknown_name_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'hybird'") as caught:
        ensure_demo_model("hybird", tmp_path)
    assert "'hybrid'" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ConfigError, match=re.escape(str(blocked))):
        ensure_demo_model("hybrid", blocked)


def test_the_command_explains_an_unknown_name(tmp_path: Path) -> None:
    shown = subprocess.run([*BUILD, "nothing", str(tmp_path)], capture_output=True, text=True)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "There is no demo model 'nothing'." in shown.stderr


def test_the_configuration_fits_the_weights(model: Path) -> None:
    config = json.loads((model / "config.json").read_bytes())
    header = header_of(model)
    assert config["architectures"] == ["Qwen3_5ForCausalLM"]
    assert config["max_position_embeddings"] >= 8192
    shape = [config["vocab_size"], config["hidden_size"]]
    assert header["model.embed_tokens.weight"]["shape"] == shape
    assert header["lm_head.weight"]["shape"] == shape
    for index, layer_type in enumerate(config["layer_types"]):
        part = "linear_attn.in_proj_qkv" if layer_type == "linear_attention" else "self_attn.q_proj"
        assert f"model.layers.{index}.{part}.weight" in header
    stored = [value for name, value in header.items() if name.startswith(("model.", "mtp.", "lm_"))]
    assert max(tensor["data_offsets"][1] for tensor in stored) == header["data_size"]


def test_the_hybrid_has_three_linear_layers_for_each_full_one(cache_dir: Path) -> None:
    config = json.loads((ensure_demo_model("hybrid", cache_dir) / "config.json").read_bytes())
    layer_types = config["layer_types"]
    assert layer_types.count("linear_attention") == 3 * layer_types.count("full_attention") > 0
    assert config["linear_key_head_dim"] == config["linear_value_head_dim"] == 128


def test_the_other_model_has_a_prediction_head(cache_dir: Path) -> None:
    folder = ensure_demo_model("mtp", cache_dir)
    config = json.loads((folder / "config.json").read_bytes())
    assert set(config["layer_types"]) == {"full_attention"}
    assert config["mtp_num_hidden_layers"] == 1
    assert "mtp.fc.weight" in header_of(folder)


@pytest.mark.parametrize(
    "text",
    ["def f(x):\n\treturn x  # naïve", '{"path": "src/a.py"}', "Grüße 世界 \U0001f600\r\n", ""],
)
def test_the_tokenizer_keeps_every_text(text: str, model: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_only_printable_words_can_be_answered(model: Path) -> None:
    import numpy as np
    from tokenizers import Tokenizer

    from agentserve.engine.demo_models import layout
    from agentserve.engine.demo_models.tokenizer import answer_words

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    words = answer_words(tokenizer)
    for token_id in words.word_ids:
        assert re.fullmatch(r" ?[A-Za-z]+|[.,]", tokenizer.decode([token_id]))
    reachable = {token_id for nexts in words.successors.values() for token_id in nexts}
    assert set(words.starts) | reachable <= {*words.word_ids, words.turn_end_id}
    head = layout.head(words, np.zeros((128, 64)), memory_gain=1.0, habit_gain=0.0)
    table = layout.embedding(np.random.default_rng(0), words)
    logits = table @ head.T
    allowed = [*words.word_ids, words.turn_end_id]
    forbidden = [token_id for token_id in range(len(table)) if token_id not in allowed]
    assert (logits[:, allowed].max(axis=1) > logits[:, forbidden].max(axis=1) + 10).all()


def test_every_word_of_an_answer_leads_to_another(model: Path) -> None:
    from tokenizers import Tokenizer

    from agentserve.engine.demo_models.tokenizer import answer_words

    words = answer_words(Tokenizer.from_file(str(model / "tokenizer.json")))
    assert set(words.word_ids) == set(words.successors)
    ends = [token_id for token_id, nexts in words.successors.items() if words.turn_end_id in nexts]
    assert len(ends) == 1
    assert not set(words.marker_ids) & set(words.word_ids)


TOOL = {
    "type": "function",
    "function": {"name": "read_file", "description": "Read <a> file.", "parameters": {}},
}


@pytest.fixture(scope="module")
def template(cache_dir: Path) -> Any:
    """Render as transformers does: trimmed blocks, JSON without escapes for HTML."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = refuse
    folder = ensure_demo_model("hybrid", cache_dir)
    source = (folder / "chat_template.jinja").read_text(encoding="utf-8")

    def render(messages: list[dict[str, Any]], **options: Any) -> str:
        return environment.from_string(source).render(messages=messages, **options)

    return render


def test_the_template_writes_system_and_user_turns(template: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\n"}]
    assert template(messages, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi\n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_template_lists_tools_in_the_system_turn(template: Any) -> None:
    user = {"role": "user", "content": "Hi"}
    with_system = template([{"role": "developer", "content": "Be brief."}, user], tools=[TOOL])
    assert with_system.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert json.dumps(TOOL) in with_system
    assert with_system.count("<|im_start|>system") == 1
    assert with_system.endswith("<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n")
    without_system = template([user], tools=[TOOL])
    assert without_system.startswith("<|im_start|>system\n# Tools\n")
    assert without_system.endswith("<|im_start|>user\nHi<|im_end|>\n")


def test_the_template_writes_parts_as_one_text(template: Any) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert template([{"role": "user", "content": parts}]) == (
        "<|im_start|>user\none two<|im_end|>\n"
    )


def test_the_template_refuses_what_is_not_text(template: Any) -> None:
    from jinja2.exceptions import TemplateError

    with pytest.raises(TemplateError, match="text only"):
        template([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])


@pytest.mark.parametrize("arguments", [{"path": "a.py"}, '{"path": "a.py"}'])
def test_the_template_writes_calls_reasoning_and_results(template: Any, arguments: Any) -> None:
    call = {"type": "function", "function": {"name": "read_file", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Read both."},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Two files.",
            "tool_calls": [call, call],
        },
        {"role": "tool", "content": "first"},
        {"role": "tool", "content": [{"type": "text", "text": "second"}]},
        {"role": "assistant", "content": "Done.", "tool_calls": [call]},
    ]
    written = '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call>'
    assert template(messages, add_generation_prompt=False) == (
        "<|im_start|>user\nRead both.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nTwo files.\n</think>\n\n"
        f"{written}\n{written}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nfirst\n</tool_response>\n"
        "<tool_response>\nsecond\n</tool_response><|im_end|>\n"
        f"<|im_start|>assistant\nDone.\n{written}<|im_end|>\n"
    )
