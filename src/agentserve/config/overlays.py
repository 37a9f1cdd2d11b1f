"""What the user toggled from the screen and wants to keep: one small file for each preset.

Owns the overlay files in the state folder. A preset file belongs to the person who wrote it and is
never rewritten; an overlay says in which toggles the preset differs from it. One that is broken,
or that repeats what the file says by now, is a problem and is not applied; the preset stays usable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import tomli_w

from agentserve.config.atomic_file import write_atomically
from agentserve.config.paths import AppPaths
from agentserve.config.problem import ConfigProblem
from agentserve.config.toml_source import TomlDocument, convert_document, nearest_name, read_toml
from agentserve.domain.errors import ConfigError
from agentserve.domain.pending import ToggleOption
from agentserve.domain.preset import Preset
from agentserve.domain.toggles import value_of, with_changes

_RESET = "reset the preset's overlay, or delete the file"

_Count = Annotated[int, msgspec.Meta(ge=1)]
_CountOrZero = Annotated[int, msgspec.Meta(ge=0)]


class _Values(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One field for each `ToggleOption`, of the same name."""

    max_num_batched_tokens: _Count | None = None
    num_speculative_tokens: _CountOrZero | None = None
    max_num_seqs: _Count | None = None
    max_model_len: _Count | None = None


class _OverlayFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    engine: _Values


def apply_overlays(
    presets: Iterable[Preset], names: Collection[str], folder: Path
) -> tuple[tuple[Preset, ...], tuple[ConfigProblem, ...]]:
    """Lay the kept toggles over the presets.

    Args:
        presets: As their files say.
        names: Of all preset files, usable or not.
        folder: Where the overlays are.

    Returns:
        The presets in the same order, and what is wrong with overlays that were not applied.
    """
    files = {path.stem: path for path in sorted(folder.glob("*.toml")) if _is_visible(path)}
    effective = []
    problems: list[ConfigProblem] = []
    for preset in presets:
        path = files.pop(preset.name, None)
        changes: Mapping[ToggleOption, int] = {}
        if path is not None:
            changes, wrong = _read(path, preset)
            problems += wrong
        effective.append(_with_overlay(preset, changes))
    problems += [
        ConfigProblem(
            path=path,
            line=None,
            message=f"there is no preset `{name}` that these toggles could belong to",
            remedy=f"did you mean `{near}`"
            if (near := nearest_name(name, sorted(names)))
            else "delete the file",
        )
        for name, path in files.items()
        if name not in names
    ]
    return tuple(effective), tuple(problems)


def save_overlay(paths: AppPaths, base_preset: Preset, changes: Mapping[ToggleOption, int]) -> None:
    """Keep changes on top of a preset, together with those that are kept already.

    A change back to what the file says is forgotten; when nothing is left the overlay goes.

    Args:
        paths: The folders of this instance.
        base_preset: The preset as the library gives it, before the changes.
        changes: New values.

    Raises:
        ConfigError: The overlay could not be written; the old one is unchanged.
    """
    written = base_preset.as_written
    kept = {**base_preset.overlay, **{option.value: value for option, value in changes.items()}}
    kept = {
        option.value: kept[option.value]
        for option in ToggleOption
        if option.value in kept and kept[option.value] != value_of(written, option)
    }
    if not kept:
        delete_overlay(paths, base_preset.name)
        return
    path = overlay_file(paths, base_preset.name)
    try:
        write_atomically(path, tomli_w.dumps({"engine": kept}).encode())
    except OSError as error:
        raise ConfigError(
            f"The changes could not be kept in {path}: {error.strerror or error}.",
            "They apply until the app ends.",
        ) from error


def delete_overlay(paths: AppPaths, name: str) -> None:
    """Forget what is kept on top of a preset; nothing happens when nothing is.

    Args:
        paths: The folders of this instance.
        name: Name of the preset.

    Raises:
        ConfigError: The file could not be deleted.
    """
    path = overlay_file(paths, name)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{path} could not be deleted: {error.strerror or error}.", "Delete it by hand."
        ) from error


def overlay_file(paths: AppPaths, name: str) -> Path:
    """Where the overlay of a preset is kept; the file need not exist."""
    return paths.overlays / f"{name}.toml"


def _read(
    path: Path, preset: Preset
) -> tuple[Mapping[ToggleOption, int], tuple[ConfigProblem, ...]]:
    document = read_toml(path)
    if isinstance(document, ConfigProblem):
        return {}, (document,)
    content, problems = convert_document(document, _OverlayFile)
    if content is None or problems:
        return {}, problems
    values = msgspec.structs.asdict(content.engine)
    changes = {
        option: values[option.value] for option in ToggleOption if values[option.value] is not None
    }
    outdated = tuple(
        _repeats_the_file(document, option, value)
        for option, value in changes.items()
        if value == value_of(preset, option)
    )
    return ({}, outdated) if outdated else (changes, ())


def _repeats_the_file(document: TomlDocument, option: ToggleOption, value: int) -> ConfigProblem:
    return ConfigProblem(
        path=document.path,
        line=document.line_of(("engine", option.value)),
        key=f"engine.{option.value}",
        message=f"the preset itself says {option.value} = {value} by now, so these toggles are out"
        " of date",
        remedy=_RESET,
    )


def _with_overlay(preset: Preset, changes: Mapping[ToggleOption, int]) -> Preset:
    if not changes:
        return preset
    return msgspec.structs.replace(
        with_changes(preset, changes),
        overlay={option.value: value for option, value in changes.items()},
        written_engine=preset.engine,
    )


def _is_visible(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".")
