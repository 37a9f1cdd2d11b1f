"""`python -m bench`: measure, print the table, end everything that was started."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import msgspec

from agentserve.config.paths import app_paths
from agentserve.config.presets import PresetLibrary
from agentserve.engine.demo_models import ensure_demo_model
from bench.flood_cost import measure_flood_cost
from bench.idle_cost import measure_idle_cost
from bench.machine import machine_facts
from bench.report import Report, Section, markdown
from bench.screen_cost import measure_screen_cost
from bench.servers import AppServer, PlainServer, app_server
from bench.session_cost import measure_many_sessions, measure_prompt_cost
from bench.switch_time import measure_switch_time
from bench.waiting import BenchError

PRESET = "cpu-tiny"
_PARTS = ("a", "b", "c", "d")


def main() -> int:
    """Run the parts that were asked for.

    Returns:
        0, also when an aim is missed: the table says so; 1 when something could not be measured.
    """
    arguments = _parser().parse_args()
    # SIGINT as well: what a shell starts in the background ignores it, and so would Python.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _end)
    facts = machine_facts()
    sections: list[Section] = []
    try:
        with tempfile.TemporaryDirectory(prefix="agentserve-bench-") as folder:
            for section in _measure(arguments, Path(folder)):
                sections.append(section)
                print(markdown(Report(machine=(), sections=(section,))), file=sys.stderr)
    except (BenchError, KeyboardInterrupt) as error:
        print(f"bench: {str(error) or 'interrupted'}", file=sys.stderr)
        return 1
    report = Report(machine=facts, sections=tuple(sections))
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    print(markdown(report))
    return 0


def _measure(arguments: argparse.Namespace, folder: Path) -> Iterator[Section]:
    rounds, parts = arguments.rounds, arguments.only or _PARTS
    # What is made once is shared with all other runs; everything else begins empty.
    cache = app_paths().cache
    cache.mkdir(parents=True, exist_ok=True)
    if "b" in parts:
        _say(f"part b: {rounds} rounds of {arguments.idle_seconds:g} s idle")
        yield measure_idle_cost(
            _home(folder / "idle", cache), rounds=rounds, idle_s=arguments.idle_seconds
        )
    if "d" in parts:
        _say(f"part d: {rounds} rounds of large prompts, then 1,000 sessions twice (minutes)")
        yield measure_prompt_cost(rounds=rounds)
        yield from measure_many_sessions(rounds=rounds)
        _say(f"part d: {rounds} rounds of 3 x {arguments.load_seconds:g} s load")
        with _app(folder / "flood", cache) as (app, model):
            yield measure_flood_cost(app, model, rounds=rounds, seconds=arguments.load_seconds)
    if not {"a", "c"} & set(parts):
        return
    _say(f"starting both servers with the preset {PRESET}")
    with _both_servers(folder, cache) as (app, plain, model):
        if "a" in parts:
            _say(f"part a: {rounds} rounds of 2 x {arguments.load_seconds:g} s load")
            yield measure_screen_cost(
                app, plain, model, rounds=rounds, seconds=arguments.load_seconds
            )
        if "c" in parts:
            _say(f"part c: {rounds} rounds of 2 switches")
            yield measure_switch_time(app, plain, model, rounds=rounds)


@contextlib.contextmanager
def _both_servers(folder: Path, cache: Path) -> Iterator[tuple[AppServer, PlainServer, str]]:
    """Run both servers, each with an engine that has answered."""
    preset = PresetLibrary.load().get(PRESET)
    model_name = preset.demo_model
    if model_name is None:
        raise BenchError(f"the preset {PRESET} has no demo model")
    model_path = ensure_demo_model(model_name, cache)
    plain_home = folder / "plain"
    plain_home.mkdir()
    plain = PlainServer(preset, model_path, plain_home)
    with _app(folder / "app", cache) as (app, model), contextlib.closing(plain):
        # One after the other: two starts at once on two cores take longer than both.
        plain.start()
        plain.wait_answer(model, tokens=4)
        yield app, plain, model


@contextlib.contextmanager
def _app(home: Path, cache: Path) -> Iterator[tuple[AppServer, str]]:
    """Run the app with an engine that is ready; gives the served name too."""
    with app_server(_home(home, cache), "--preset", PRESET, probed=True) as app:
        served = app.wait_ready(generation=1).engine.model
        if served is None:
            raise BenchError(f"the engine of {PRESET} does not say what it serves")
        yield app, served


def _home(folder: Path, cache: Path) -> Path:
    folder.mkdir()
    (folder / "cache").symlink_to(cache)
    return folder


def _end(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures the app against the plain vLLM server. Part a: what the screen costs "
        "under load; part b: the app without an engine; part c: a switch of the engine; "
        "part d: following agent sessions.",
    )
    parser.add_argument("--only", action="append", choices=_PARTS, help="a part; repeatable")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument("--load-seconds", type=float, default=10.0, metavar="S")
    parser.add_argument("--idle-seconds", type=float, default=20.0, metavar="S")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round there too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
