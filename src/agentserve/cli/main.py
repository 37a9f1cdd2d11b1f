"""Command-line arguments and which command they mean.

Each command imports what it needs when it runs: `--version` and `status` must not wait for Textual.
"""

from __future__ import annotations

import argparse
import os
import sys

from agentserve import __version__
from agentserve.cli import exit_codes
from agentserve.domain.errors import AgentServeError

PROGRAM = "agentserve-tui"

_MOST_DAYS = 3650


def run(words: list[str]) -> int:
    """Run one command.

    Args:
        words: The arguments, without the program's name.

    Returns:
        The process exit status, one of `exit_codes`.
    """
    try:
        return _run(words)
    except BrokenPipeError:
        # Python writes once more what it holds when it ends, which must not fail again.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for fd in (1, 2):
            os.dup2(nowhere, fd)
        return exit_codes.READER_GONE


def _run(words: list[str]) -> int:
    try:
        return _dispatch(_parser().parse_args(words))
    except AgentServeError as error:
        print(f"{PROGRAM}: {error.message}", error.hint, file=sys.stderr)
        return exit_codes.ERROR
    finally:
        # A reader that has gone must be noticed here, and not when Python ends.
        print(end="", flush=True)


def _dispatch(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "serve":
            from agentserve.cli.serve import serve

            return serve(arguments)
        case "status":
            from agentserve.cli.status import status

            return status(arguments)
        case "presets":
            from agentserve.cli.presets import presets

            return presets(arguments)
        case "history":
            from agentserve.cli.history import history

            return history(arguments)
        case "doctor":
            from agentserve.cli.doctor import doctor

            return doctor(arguments)
        case _:
            from agentserve.cli.screen import screen

            return screen(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Control panel of a local coding-agent server: runs, watches and explains a "
        "tensor-parallel vLLM engine. Without a command it opens the screen.",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    _add_start_options(parser)
    parser.add_argument(
        "--no-start", action="store_true", help="open the screen without starting the engine"
    )
    parser.add_argument(
        "--first-preset", metavar="NAME", help="preset to start when none was ever chosen"
    )
    parser.add_argument("--theme", metavar="NAME", help="look of the screen")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the engine without a screen")
    _add_start_options(serve)
    serve.add_argument(
        "--json", action="store_true", help="print one JSON object per change of state"
    )

    status = commands.add_parser("status", help="ask a running instance")
    where = status.add_mutually_exclusive_group()
    where.add_argument(
        "--port",
        metavar="PORT",
        type=int,
        # As with `serve`: what stands before the command must not be overwritten.
        default=argparse.SUPPRESS,
        help="port of an instance on this machine; default: that of config.toml, else 8000",
    )
    where.add_argument("--url", metavar="URL", help="base URL of the instance")
    status.add_argument("--json", action="store_true", help="print the whole snapshot as JSON")

    presets = commands.add_parser("presets", help="list, show, check and import presets")
    actions = presets.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="all presets")
    listing.add_argument("--json", action="store_true")
    show = actions.add_parser("show", help="one preset, as vLLM gets it")
    show.add_argument("name", metavar="NAME")
    show.add_argument("--json", action="store_true")
    command = actions.add_parser("command", help="the equivalent `vllm serve` command")
    command.add_argument("name", metavar="NAME")
    importing = actions.add_parser("import", help="make a preset of a `vllm serve` command")
    importing.add_argument("name", metavar="NAME", help="name of the new preset")
    importing.add_argument(
        "words",
        metavar="COMMAND",
        nargs="*",
        help="the command after --; without it, it is read from standard input",
    )
    validate = actions.add_parser(
        "validate", help="check config.toml and all presets, or some files"
    )
    validate.add_argument("files", metavar="FILE", nargs="*")
    validate.add_argument("--json", action="store_true")

    history = commands.add_parser("history", help="what past requests reused and computed")
    history.add_argument(
        "--days",
        metavar="N",
        type=_days,
        default=14,
        help="calendar days, today included; default: %(default)s",
    )
    history.add_argument(
        "--sessions",
        metavar="N",
        type=_sessions,
        help="list the N newest sessions; default: 8, with --json all",
    )
    history.add_argument("--json", action="store_true", help="print all totals as JSON")

    doctor = commands.add_parser("doctor", help="check this machine")
    doctor.add_argument("--json", action="store_true")
    return parser


def _add_start_options(parser: argparse.ArgumentParser) -> None:
    # A subcommand's default must not overwrite what stood before it.
    missing = argparse.SUPPRESS if parser.prog != PROGRAM else None
    parser.add_argument(
        "--preset", metavar="NAME", default=missing, help="preset to start; default: the last one"
    )
    parser.add_argument("--host", metavar="HOST", default=missing, help="address to listen on")
    parser.add_argument("--port", metavar="PORT", type=int, default=missing, help="port of the API")
    parser.add_argument(
        "--simulate",
        action="store_true",
        default=argparse.SUPPRESS if missing else False,
        help="play an invented engine, for a look around; nothing is computed",
    )


def _days(word: str) -> int:
    days = int(word)
    if not 1 <= days <= _MOST_DAYS:
        raise argparse.ArgumentTypeError(f"{days} is not between 1 and {_MOST_DAYS}")
    return days


def _sessions(word: str) -> int:
    sessions = int(word)
    if sessions < 0:
        raise argparse.ArgumentTypeError(f"{sessions} is less than 0")
    return sessions
