"""Preset files: shipped ones, the user's, and what a preset takes over from another one.

Owns the form of a preset file and which file wins. A user's preset replaces the shipped one of the
same name; one that cannot be used is a problem and hides nothing. What the user toggled from the
screen lies on top as an overlay. It must not know what vLLM makes of the values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from agentserve.config.overlays import apply_overlays
from agentserve.config.paths import AppPaths, app_paths, shipped_dir
from agentserve.config.problem import ConfigProblem
from agentserve.config.toml_lines import KeyPath
from agentserve.config.toml_source import (
    TomlDocument,
    convert_document,
    dotted,
    nearest_name,
    read_toml,
)
from agentserve.domain.errors import ConfigError
from agentserve.domain.preset import (
    Device,
    EngineOptions,
    Environment,
    Evidence,
    Preset,
    ServerOptions,
    Slot,
    Source,
    option_problem,
)
from agentserve.domain.text import printable

_TITLE_CHARACTERS = 80
_DESCRIPTION_CHARACTERS = 2_000
PRESET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OWN_KEYS = frozenset({"title", "description", "slot", "evidence", "extends"})
"""What a file says about itself, so it is never taken over from a base."""


class _PresetFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form of a preset file."""

    engine: EngineOptions
    server: ServerOptions = ServerOptions()
    env: Environment = msgspec.field(default_factory=dict)
    title: str = ""
    description: str = ""
    device: Device = "any"
    slot: Slot | None = None
    evidence: Evidence | None = None
    extends: str | None = None
    """Name of the preset that this one only changes."""


class PresetLibrary(msgspec.Struct, frozen=True):
    """All presets that can be used, and what is wrong with the others."""

    presets: tuple[Preset, ...]
    """In display order: by slot, then by name."""
    problems: tuple[ConfigProblem, ...]

    @classmethod
    def load(cls, paths: AppPaths | None = None, shipped: Path | None = None) -> Self:
        """Read the shipped and the user's presets.

        Args:
            paths: The folders of this instance; those of the environment by default.
            shipped: Folder of the shipped presets, for tests.
        """
        paths = paths or app_paths()
        reader = _Reader(shipped or shipped_dir("presets"), paths.user_presets)
        written, collisions = _without_slot_collisions(reader.read_all())
        presets, outdated = apply_overlays(written, reader.names, paths.overlays)
        return cls(presets, (*reader.problems, *collisions, *outdated))

    def get(self, name: str) -> Preset:
        """Return the preset of this name, with its overlay.

        Raises:
            ConfigError: There is none; the hint names the nearest one, or what is wrong with its
                file.
        """
        for preset in self.presets:
            if preset.name == name:
                return preset
        for problem in self.problems:
            if problem.path.stem == name:
                raise problem.as_error()
        names = [preset.name for preset in self.presets]
        near = nearest_name(name, names)
        raise ConfigError(
            printable(f"There is no preset called {name!r}."),
            f"Did you mean {near!r}?" if near else f"There are: {', '.join(names) or 'none'}.",
        )

    def in_slot(self, slot: int) -> Preset | None:
        """Return the preset that a digit key selects, or None."""
        return next((preset for preset in self.presets if preset.slot == slot), None)


def check_preset_file(
    path: Path, paths: AppPaths | None = None, shipped: Path | None = None
) -> tuple[Preset | None, tuple[ConfigProblem, ...]]:
    """Check one file as if it stood in the user's folder.

    Args:
        path: The file; it may stand anywhere.
        paths: The folders of this instance, for what it extends.
        shipped: Folder of the shipped presets, for tests.

    Returns:
        The preset, or None, and the problems of this file and of those that it extends.
    """
    paths = paths or app_paths()
    reader = _Reader(shipped or shipped_dir("presets"), paths.user_presets)
    preset = reader.read_file(path)
    return preset, tuple(reader.problems)


class _Reader:
    """Reads preset files once each and remembers their merged values."""

    def __init__(self, shipped: Path, user: Path) -> None:
        self.problems: list[ConfigProblem] = []
        self._files: dict[tuple[Source, str], Path] = {}
        self._presets: dict[tuple[Source, str], Preset | None] = {}
        self._merged: dict[tuple[Source, str], dict[str, Any]] = {}
        self._open: list[tuple[Source, str]] = []
        self._loops: dict[tuple[Source, str], str] = {}
        folders: tuple[tuple[Source, Path], ...] = (("shipped", shipped), ("user", user))
        for source, folder in folders:
            for path in sorted(folder.glob("*.toml")):
                if path.is_file() and not path.name.startswith("."):
                    self._files[source, path.stem] = path

    @property
    def names(self) -> frozenset[str]:
        """Names of all files, usable or not."""
        return frozenset(name for _, name in self._files)

    def read_all(self) -> list[Preset]:
        """Read every file; of two with one name the user's counts, if it can be used."""
        chosen: dict[str, Preset] = {}
        for source, name in self._files:
            preset = self._read(source, name)
            if preset is not None:
                chosen[name] = preset
        return list(chosen.values())

    def read_file(self, path: Path) -> Preset | None:
        """Read one file in the place of the user's preset of that name."""
        self._files["user", path.stem] = path
        return self._read("user", path.stem)

    def _read(self, source: Source, name: str) -> Preset | None:
        key = (source, name)
        if key not in self._presets:
            self._open.append(key)
            self._presets[key] = self._read_now(source, name)
            self._open.pop()
        return self._presets[key]

    def _read_now(self, source: Source, name: str) -> Preset | None:
        path = self._files[source, name]
        document = read_toml(path)
        if isinstance(document, ConfigProblem):
            self.problems.append(document)
            return None
        if not PRESET_NAME.fullmatch(name):
            self.problems.append(
                ConfigProblem(
                    path=path,
                    line=None,
                    message="the file's name is the preset's name and has odd characters",
                    remedy="use letters, digits, dots, dashes and underscores",
                )
            )
            return None
        base = self._base_of(document, source, name)
        if base is None:
            return None
        merged = _merge(base, document.data)
        content, problems = convert_document(document, _PresetFile, data=merged, advice=_advice)
        problems = (*problems, *_forbidden_keys(document, source))
        if content is None or problems:
            self.problems.extend(problems)
            return None
        self._merged[source, name] = merged
        return Preset(
            name=name,
            title=printable(content.title or name, _TITLE_CHARACTERS),
            description=printable(content.description, _DESCRIPTION_CHARACTERS),
            device=content.device,
            slot=content.slot,
            engine=content.engine,
            server=content.server,
            env=content.env,
            evidence=content.evidence,
            source=source,
            path=str(path),
        )

    def _base_of(
        self, document: TomlDocument, source: Source, name: str
    ) -> Mapping[str, Any] | None:
        """Return the values to start from; None when the file extends what cannot be used."""
        base = document.data.get("extends")
        if base is None:
            return {}
        if not isinstance(base, str):
            self._refuse_base(document, "`extends` must be the name of a preset in quotes")
            return None
        # A user's preset may extend the shipped one that it replaces.
        sources: tuple[Source, ...] = ("user", "shipped")
        if source == "shipped" or base == name:
            sources = ("shipped",)
        keys = [(each, base) for each in sources if (each, base) in self._files]
        if not keys:
            near = nearest_name(base, [each for _, each in self._files if each != name])
            self._refuse_base(
                document,
                f"extends `{base}`, which does not exist",
                f"did you mean `{near}`" if near else "give the name of a preset, without .toml",
            )
            return None
        if keys[0] in self._open:
            members = self._open[self._open.index(keys[0]) :]
            way = " -> ".join([*(each for _, each in members), base])
            self._loops.update(dict.fromkeys(members, way))
        elif self._read(*keys[0]) is not None:
            return self._merged[keys[0]]
        if loop := self._loops.get((source, name)):
            self._refuse_base(
                document,
                f"presets extend each other in a loop: {loop}",
                "let one of them stand alone",
            )
        else:
            self._refuse_base(
                document, f"extends `{base}`, which cannot be used itself", "correct that file"
            )
        return None

    def _refuse_base(self, document: TomlDocument, message: str, remedy: str = "") -> None:
        self.problems.append(
            ConfigProblem(
                path=document.path,
                line=document.line_of(("extends",)),
                key="extends",
                message=message,
                remedy=remedy,
            )
        )


def _merge(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Lay a file over its base.

    Tables of options are merged key by key, their `extra` too; everything else is replaced whole,
    so that `speculative_config = {}` switches off what the base switched on.
    """
    merged = {key: value for key, value in base.items() if key not in _OWN_KEYS}
    for key, value in own.items():
        below = merged.get(key)
        if key in ("engine", "server", "env", "extra") and isinstance(below, Mapping):
            merged[key] = _merge(below, value) if isinstance(value, Mapping) else value
        else:
            merged[key] = value
    return merged


def _advice(path: KeyPath) -> tuple[str, str] | None:
    """Say what is wrong with a key that is not one of ours."""
    name, table = str(path[-1]), dotted(path[:-1])
    engine, server = EngineOptions.__struct_fields__, ServerOptions.__struct_fields__
    own = {"engine": engine, "server": server, "": _PresetFile.__struct_fields__}.get(table)
    if own is None or name in own:
        return None
    unknown = f"unknown key `{dotted(path)}`"
    if table and (reason := option_problem(table, name)):
        return f"`{dotted(path)}` cannot be set in a preset: {reason}", "remove the line"
    for home, names in (("engine", engine), ("server", server)):
        if name in names and name != "extra":
            return unknown, f"`{name}` belongs under [{home}]"
    if table and nearest_name(name, own) is None:
        return unknown, f"an argument of vLLM that is not listed belongs under [{table}.extra]"
    return None


def _forbidden_keys(document: TomlDocument, source: Source) -> list[ConfigProblem]:
    """Find keys that are valid TOML of the right type and still may not stand there."""
    problems = []

    def refuse(path: KeyPath, message: str) -> None:
        problems.append(
            ConfigProblem(
                path=document.path,
                line=document.line_of(path),
                key=dotted(path),
                message=message,
                remedy="remove the line",
            )
        )

    tables: tuple[KeyPath, ...] = (("engine", "extra"), ("server", "extra"), ("env",))
    for path in tables:
        table: Any = document.data
        for step in path:
            table = table.get(str(step), {}) if isinstance(table, Mapping) else {}
        for name in table if isinstance(table, Mapping) else ():
            if reason := option_problem(dotted(path), name):
                refuse((*path, name), f"`{dotted((*path, name))}` cannot be set here: {reason}")
    engine = document.data.get("engine")
    if source == "shipped" and isinstance(engine, Mapping) and engine.get("trust_remote_code"):
        refuse(
            ("engine", "trust_remote_code"),
            "`engine.trust_remote_code` runs code that comes with a model,"
            " which only a user's own file may allow",
        )
    return problems


def _without_slot_collisions(
    presets: list[Preset],
) -> tuple[tuple[Preset, ...], list[ConfigProblem]]:
    """Sort for display and let each digit key select one preset: the user's goes first."""
    problems = []
    owners: dict[int, Preset] = {}
    settled = []
    for preset in sorted(presets, key=lambda each: (each.source != "user", each.name)):
        owner = owners.setdefault(preset.slot, preset) if preset.slot is not None else preset
        if owner is preset:
            settled.append(preset)
            continue
        settled.append(msgspec.structs.replace(preset, slot=None))
        if owner.source == preset.source:
            problems.append(
                ConfigProblem(
                    path=Path(preset.path),
                    line=None,
                    key="slot",
                    message=f"slot {preset.slot} belongs to preset `{owner.name}` already",
                    remedy="choose another digit; until then no key selects this preset",
                )
            )
    settled.sort(key=lambda each: (each.slot is None, each.slot or 0, each.name))
    return tuple(settled), problems
