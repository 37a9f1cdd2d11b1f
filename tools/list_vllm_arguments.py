"""Notes which options the installed vLLM accepts, for the test of the shipped presets.

The list holds, for each minor version, the options of the engine and those of the API server, named
as in a preset. It changes with a new version only. To make it anew, run this file in an environment
that has agentserve-tui and that vLLM (the CPU build has the same options), once for each version:

    python tools/list_vllm_arguments.py tests/data/vllm_arguments.json

Each run replaces the entry of the version that it finds and keeps the others. Negations are not
listed: an option that can be switched on can be switched off as `--no-NAME` in every version.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from agentserve.engine.vllm import compat, torchvision_ops

_SERVER_GROUP = "Frontend"
"""vLLM's title of the argument group that only the API server reads."""


def list_options() -> dict[str, list[str]]:
    """Ask vLLM's own parser.

    Returns:
        Sorted option names under `engine` and `server`.
    """
    server: set[str] = set()
    engine: set[str] = set()
    for group in compat.serve_parser()._action_groups:
        names = server if group.title == _SERVER_GROUP else engine
        names.update(
            action.dest
            for action in group._group_actions
            if action.option_strings and action.dest != "help"
        )
    return {"engine": sorted(engine), "server": sorted(server)}


def main() -> None:
    """Replace the installed version's entry of the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    file: Path = parser.parse_args().file
    torchvision_ops.install()
    versions = json.loads(file.read_text()) if file.exists() else {}
    minor_version = ".".join(compat.vllm_version().split(".")[:2])
    versions[minor_version] = list_options()
    file.write_text(json.dumps(versions, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
