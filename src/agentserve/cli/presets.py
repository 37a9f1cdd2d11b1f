"""`presets`: list, show, check and import preset files."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec

from agentserve.cli import exit_codes
from agentserve.config.paths import AppPaths, app_paths
from agentserve.config.preset_files import PresetFiles
from agentserve.config.presets import PresetLibrary, check_preset_file
from agentserve.config.problem import ConfigProblem, ConfigProblemError
from agentserve.config.settings import load_settings
from agentserve.config.start_history import StartHistory
from agentserve.domain.preset import Preset, vllm_arguments
from agentserve.domain.serve_command import serve_command, shown_env


def presets(arguments: argparse.Namespace) -> int:
    """Run one of the actions list, show, command, import and validate.

    Returns:
        0; for validate 2 when there is a problem.
    """
    match arguments.action:
        case "show":
            return _show(PresetLibrary.load().get(arguments.name), as_json=arguments.json)
        case "command":
            print(serve_command(PresetLibrary.load().get(arguments.name)))
            return exit_codes.OK
        case "import":
            return _import(arguments.name, arguments.words)
        case "validate":
            return _validate([Path(name) for name in arguments.files], as_json=arguments.json)
        case _:
            return _list(PresetLibrary.load(), as_json=arguments.json)


def _list(library: PresetLibrary, *, as_json: bool) -> int:
    if as_json:
        _print_json([_described(preset) for preset in library.presets])
    else:
        width = max((len(preset.name) for preset in library.presets), default=0)
        for preset in library.presets:
            slot = str(preset.slot or "-")
            mark = f"  ({_overlay(preset)})" if preset.overlay else ""
            print(f"{slot}  {preset.name:<{width}}  {preset.device:<4}  {preset.title}{mark}")
    _print_problems(library.problems)
    return exit_codes.OK


def _show(preset: Preset, *, as_json: bool) -> int:
    if as_json:
        _print_json(_described(preset))
        return exit_codes.OK
    model_path = f"<{preset.engine.model}>" if preset.demo_model else None
    print(f"name      {preset.name} ({preset.source}: {preset.path})")
    print(f"title     {preset.title}")
    if preset.description:
        print(f"about     {preset.description}")
    if preset.evidence is not None:
        print(f"evidence  [{preset.evidence.level}] {preset.evidence.sentence}")
    if preset.overlay:
        print(f"overlay   {_overlay(preset)}")
    for name, value in shown_env(preset).items():
        print(f"env       {name}={value}")
    print("arguments " + shlex.join(vllm_arguments(preset, model_path)))
    return exit_codes.OK


def _import(name: str, words: list[str]) -> int:
    if not words and sys.stdin.isatty():
        print("Paste the command, then press Ctrl+D on a line of its own.", file=sys.stderr)
    command = shlex.join(words) if words else sys.stdin.read()
    paths = app_paths()
    files = PresetFiles(paths, running=lambda: None, history=StartHistory.in_folder_of(paths))
    files.import_command(command, name)
    preset = files.library.get(name)
    print(f"{preset.path}\n{preset.description}")
    return exit_codes.OK


def _overlay(preset: Preset) -> str:
    values = ", ".join(f"{name} {value}" for name, value in preset.overlay.items())
    return f"kept from the screen: {values}"


def _validate(files: list[Path], *, as_json: bool) -> int:
    problems: list[ConfigProblem] = []
    paths = app_paths()
    for file in files:
        is_settings = file.absolute() == paths.config_file
        problems += _setting_problems(paths) if is_settings else check_preset_file(file)[1]
    if not files:
        problems += (*_setting_problems(paths), *PresetLibrary.load().problems)
    if as_json:
        _print_json([msgspec.to_builtins(problem, enc_hook=str) for problem in problems])
    else:
        _print_problems(problems)
        if not problems:
            print("No problems found.")
    return exit_codes.USAGE if problems else exit_codes.OK


def _setting_problems(paths: AppPaths) -> tuple[ConfigProblem, ...]:
    """Check `config.toml`; of problems that stop a start only the first one is found."""
    try:
        return load_settings(paths)[1]
    except ConfigProblemError as error:
        return (error.problem,)


def _described(preset: Preset) -> dict[str, Any]:
    described: dict[str, Any] = msgspec.to_builtins(preset)
    return described


def _print_json(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value)).decode())


def _print_problems(problems: list[ConfigProblem] | tuple[ConfigProblem, ...]) -> None:
    for problem in problems:
        print(problem.sentence, file=sys.stderr)
