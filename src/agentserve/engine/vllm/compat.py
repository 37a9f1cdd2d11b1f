"""Differences between vLLM 0.32 and 0.33, in one place.

Everything that moved or changed between the supported versions is imported from here by the other
modules of this package, and nowhere else.
"""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from agentserve.domain.errors import AgentServeError


def vllm_version() -> str:
    """Version of the installed vLLM, from the module itself: the CPU build has another name."""
    from vllm.version import __version__

    return str(__version__)


def serve_parser() -> Any:
    """vLLM's own parser for server arguments, which raises instead of ending the process."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser  # 0.32
    except ImportError:
        from vllm.entrypoints.common.cli_args import make_arg_parser  # 0.33

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise AgentServeError(
                f"vLLM refuses the preset's arguments: {message}.", "Correct the preset."
            )

    return make_arg_parser(Parser())


def validate_arguments(arguments: argparse.Namespace) -> None:
    """vLLM's checks across arguments.

    Raises:
        TypeError: Two arguments do not go together.
    """
    try:
        from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args  # 0.32
    except ImportError:
        from vllm.entrypoints.common.cli_args import validate_parsed_serve_args  # 0.33
    validate_parsed_serve_args(arguments)


def http_application_parts() -> tuple[Any, Any]:
    """vLLM's `build_app` and `init_app_state`, from their home in both versions."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    return build_app, init_app_state
