"""Asks vLLM's own parser and configuration whether a preset can work, in a child process.

Copying vLLM's rules would be wrong with its next version, and its checks change the process that
runs them. So they run here: this module is a program that reads one request from standard input,
builds the engine's configuration without starting anything, and prints one verdict.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from agentserve.domain.errors import CheckNotMadeError
from agentserve.domain.failure import explain_failure
from agentserve.domain.preset import Preset, vllm_arguments
from agentserve.engine.vllm.environment import variables_of_others

_TIMEOUT_S = 180.0
_COMMAND = [sys.executable, "-m", "agentserve.engine.vllm.preflight"]


class _Question(msgspec.Struct):
    preset: Preset
    cache_dir: str


class Verdict(msgspec.Struct, frozen=True):
    """What vLLM says about a preset."""

    refusal: str | None
    """One sentence why it cannot work, or None."""


class Preflight:
    """Runs the checks, one child for each.

    Args:
        cache_dir: Where demo models are kept.
    """

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir
        self._child: subprocess.Popen[bytes] | None = None

    def check(self, preset: Preset) -> Verdict:
        """Check a preset; blocks for the import of vLLM, about ten seconds.

        Raises:
            CheckNotMadeError: There is no verdict.
        """
        question = msgspec.json.encode(_Question(preset, str(self._cache_dir)))
        environment = {
            **variables_of_others(os.environ),
            "VLLM_NO_USAGE_STATS": "1",
            **preset.env,
        }
        try:
            with subprocess.Popen(
                _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            ) as child:
                self._child = child
                try:
                    answer, _ = child.communicate(question, timeout=_TIMEOUT_S)
                finally:
                    child.kill()
            return msgspec.json.decode(answer.splitlines()[-1], type=Verdict)
        except (OSError, subprocess.TimeoutExpired, IndexError, msgspec.DecodeError) as error:
            raise CheckNotMadeError(
                "The settings could not be checked beforehand.", "Read the log."
            ) from error
        finally:
            self._child = None

    def close(self) -> None:
        """End a check that runs; from any thread."""
        if (child := self._child) is not None:
            child.kill()


def _main() -> None:
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=_Question)
    # vLLM prints to standard output; the verdict must be the only thing there.
    verdict_fd = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(verdict_fd, "wb") as verdict:
        verdict.write(msgspec.json.encode(Verdict(_refusal(question))) + b"\n")


def _refusal(question: _Question) -> str | None:
    from agentserve.domain.errors import AgentServeError
    from agentserve.engine.demo_models import ensure_demo_model
    from agentserve.engine.vllm import compat, torchvision_ops

    torchvision_ops.install()
    preset = question.preset
    try:
        model_path = None
        if preset.demo_model is not None:
            model_path = str(ensure_demo_model(preset.demo_model, Path(question.cache_dir)))
        from vllm.engine.arg_utils import AsyncEngineArgs

        arguments = compat.serve_parser().parse_args(vllm_arguments(preset, model_path))
        compat.validate_arguments(arguments)
        config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
    except AgentServeError as error:
        return error.message
    except Exception as error:  # noqa: BLE001 - whatever vLLM's checks raise is a refusal
        text = f"{type(error).__name__}: {error}"
        return _first_sentence(explain_failure([], phase="config", exception_text=text).cause)
    return _missing_draft_head(config.speculative_config)


def _missing_draft_head(speculative: Any) -> str | None:
    """Look for the layers that draft: vLLM's configuration accepts a model without any."""
    if speculative is None or speculative.method != "mtp":
        return None
    draft = speculative.draft_model_config
    layers = getattr(draft.hf_config, "n_predict", None) if draft is not None else None
    return None if layers else "The model has no MTP head: its configuration names no MTP layer."


def _first_sentence(text: str) -> str:
    """Shorten what vLLM says: after the first sentence it advises on its own command line."""
    return re.split(r"(?<=[a-z)\]'\"\d]\.)\s", text, maxsplit=1)[0]


if __name__ == "__main__":
    _main()
