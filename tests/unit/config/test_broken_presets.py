"""More than ten ways to break a preset: each gives one sentence with file, line and the way out."""

from __future__ import annotations

import pytest

from tests.unit.config.world import World

GOOD = '[engine]\nmodel = "org/model"\n'

BROKEN = {
    "a syntax error": (
        "[engine]\nmodel = org/model\n",
        2,
        "not valid TOML: Invalid value; text stands in quotes, true and false are lower case",
    ),
    "a misspelt option": (
        GOOD + "max_num_batch_tokens = 2048\n",
        3,
        "unknown key `engine.max_num_batch_tokens`; did you mean `max_num_batched_tokens`",
    ),
    "a misspelt table": (
        GOOD + "[sever]\nenable_auto_tool_choice = true\n",
        3,
        "unknown key `sever`; did you mean `server`",
    ),
    "a number in quotes": (
        GOOD + 'max_num_seqs = "4"\n',
        3,
        "`engine.max_num_seqs`: must be a whole number, not text in quotes",
    ),
    "a value out of range": (
        GOOD + "gpu_memory_utilization = 97\n",
        3,
        "`engine.gpu_memory_utilization`: must be a number <= 1.0",
    ),
    "no model": (
        'title = "x"\n[engine]\nmax_num_seqs = 4\n',
        2,
        "`engine.model` is missing; write it under [engine]",
    ),
    "a base that does not exist": (
        'extends = "qwen-100k"\n',
        1,
        "extends `qwen-100k`, which does not exist; did you mean `qwen38-100k`",
    ),
    "a loop": (
        "# mine\n" + 'extends = "other"\n',
        2,
        "presets extend each other in a loop: broken -> other -> broken; let one of them stand"
        " alone",
    ),
    "an option of the server under engine": (
        GOOD + 'tool_call_parser = "qwen3_xml"\n',
        3,
        "unknown key `engine.tool_call_parser`; `tool_call_parser` belongs under [server]",
    ),
    "an option that belongs to the app": (
        GOOD + "[server.extra]\nport = 8001\n",
        4,
        "`server.extra.port` cannot be set here: the app owns the socket; set host and port under"
        " [server] in config.toml; remove the line",
    ),
    "a variable that is no text": (
        GOOD + "[env]\nNCCL_P2P_DISABLE = 1\n",
        4,
        "`env.NCCL_P2P_DISABLE`: must be text in quotes, not a whole number",
    ),
    "an unknown argument of vLLM outside extra": (
        GOOD + "async_scheduling = true\n",
        3,
        "unknown key `engine.async_scheduling`; an argument of vLLM that is not listed belongs"
        " under [engine.extra]",
    ),
    "an evidence level that nobody has": (
        GOOD + '[evidence]\nlevel = "rumour"\nsource = "x"\n',
        4,
        "`evidence.level`: invalid enum value 'rumour'",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_preset_gives_one_helpful_sentence_and_hides_nothing(
    world: World, kind: str
) -> None:
    text, line, sentence = BROKEN[kind]
    world.ship("qwen38-100k", GOOD)
    if kind == "a loop":
        world.write("other", 'extends = "broken"\n')
    path = world.write("broken", text)
    library = world.load()
    assert [preset.name for preset in library.presets] == ["qwen38-100k"]
    (found,) = [problem.sentence for problem in library.problems if problem.path == path]
    assert found == f"{path}:{line}: {sentence}."
