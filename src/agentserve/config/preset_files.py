"""Work on preset files: look at one closely, copy, rename, delete, import.

Owns the user's folder of presets and the overlays on top. Hand-written files are moved and deleted
on request, and never rewritten; a new file is checked as a preset before it is kept. Implements
`agentserve.domain.control.PresetPort`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from agentserve.config.atomic_file import write_atomically
from agentserve.config.overlays import delete_overlay, overlay_file
from agentserve.config.paths import AppPaths, shipped_dir
from agentserve.config.presets import PRESET_NAME, PresetLibrary, check_preset_file
from agentserve.config.problem import ConfigProblem
from agentserve.config.serve_command_import import parse_serve_command
from agentserve.config.start_history import StartHistory, settings_fingerprint
from agentserve.config.toml_source import nearest_name, read_toml
from agentserve.domain.control import OptionDifference, PresetDetail
from agentserve.domain.errors import ConfigError
from agentserve.domain.preset import Preset, summarize
from agentserve.domain.serve_command import differences, serve_command, shown_options
from agentserve.domain.text import printable


class PresetFiles:
    """The preset files of one instance (`PresetPort`). Not for several threads at once.

    Args:
        paths: The folders of this instance.
        running: Name of the preset that is running, or ran last, or None.
        history: What earlier starts took and gave.
        changed: Called after each change, with the library read anew.
        renamed: Called before `changed` with the old and the new name of a preset.
        shipped: Folder of the shipped presets, for tests.
    """

    def __init__(
        self,
        paths: AppPaths,
        *,
        running: Callable[[], str | None],
        history: StartHistory,
        changed: Callable[[PresetLibrary], None] = lambda _library: None,
        renamed: Callable[[str, str], None] = lambda _old, _new: None,
        shipped: Path | None = None,
    ) -> None:
        self._paths = paths
        self._shipped = shipped or shipped_dir("presets")
        self._running = running
        self._history = history
        self._changed = changed
        self._renamed = renamed
        self.library = PresetLibrary.load(paths, self._shipped)

    def detail(self, name: str) -> PresetDetail:
        """Everything about one preset.

        Raises:
            ConfigError: There is no usable preset of this name.
        """
        preset = self.library.get(name)
        fingerprint = settings_fingerprint(preset)
        return PresetDetail(
            summary=summarize(preset),
            description=preset.description,
            path=preset.path,
            options=tuple(shown_options(preset).items()),
            overlay=differences(preset.as_written, preset),
            differences=self._differences_to_running(preset),
            command=serve_command(preset),
            expected_start_s=self._history.expected_start_s(name, fingerprint),
            capacity_tokens=self._history.capacity_tokens(fingerprint),
        )

    def reload(self) -> None:
        """Read all files again, for example after an editor."""
        self.library = PresetLibrary.load(self._paths, self._shipped)
        self._changed(self.library)

    def duplicate(self, name: str, new_name: str) -> None:
        """Write a user's file that extends `name`; kept toggles are written into it.

        Raises:
            ConfigError: There is no usable preset `name`, or the new name cannot be taken.
        """
        preset = self.library.get(name)
        content: dict[str, Any] = {"extends": name, "title": f"Copy of {preset.title or name}"}
        engine = {
            option: getattr(preset.engine, option)
            for option in preset.engine.__struct_fields__
            if getattr(preset.engine, option) != getattr(preset.as_written.engine, option)
        }
        if engine:
            # An empty table switches off what the base switches on; TOML has no null.
            content["engine"] = {
                option: {} if value is None else value for option, value in engine.items()
            }
        self._keep_new(new_name, content)

    def rename(self, name: str, new_name: str) -> None:
        """Rename a user's file, and its overlay.

        Raises:
            ConfigError: It is shipped, others extend it, or the new name cannot be taken.
        """
        path = self._own_file(name, "renamed")
        target = self._free_place(new_name)
        overlay = overlay_file(self._paths, name)
        try:
            path.rename(target)
            if overlay.exists():
                overlay.rename(overlay_file(self._paths, new_name))
            else:
                # Left by a preset of that name which was deleted by hand.
                delete_overlay(self._paths, new_name)
        except OSError as error:
            raise _file_error(path, "renamed", error) from error
        self._renamed(name, new_name)
        self.reload()

    def delete(self, name: str) -> None:
        """Delete a user's file, and its overlay.

        Raises:
            ConfigError: It is shipped, or others extend it.
        """
        path = self._own_file(name, "deleted")
        try:
            path.unlink()
        except OSError as error:
            raise _file_error(path, "deleted", error) from error
        delete_overlay(self._paths, name)
        self.reload()

    def reset_overlay(self, name: str) -> None:
        """Forget the toggles kept on top of a preset.

        Raises:
            ConfigError: The overlay cannot be deleted.
        """
        if PRESET_NAME.fullmatch(name):
            delete_overlay(self._paths, name)
        self.reload()

    def import_command(self, command: str, new_name: str) -> None:
        """Write a user's file from a `vllm serve` command line.

        What a preset does not hold, such as host and port, is named in its description.

        Raises:
            ConfigError: It is no such command, a preset cannot express it, or the new name cannot
                be taken.
        """
        self._free_place(new_name)
        imported = parse_serve_command(command)
        left_out = "; ".join(imported.left_out)
        description = "Imported from a command line."
        if left_out:
            description += f" Left out: {left_out}."
        content: dict[str, Any] = {"title": new_name, "description": printable(description, 1_900)}
        tables = {"engine": imported.engine, "server": imported.server, "env": imported.env}
        content.update({table: values for table, values in tables.items() if values})
        self._keep_new(new_name, content)

    def problems_of(self, name: str) -> tuple[str, ...]:
        """What is wrong with one preset's file or overlay, one sentence each."""
        return tuple(
            problem.sentence for problem in self.library.problems if problem.path.stem == name
        )

    def _differences_to_running(self, preset: Preset) -> tuple[OptionDifference, ...]:
        running = self._running()
        for other in self.library.presets:
            if other.name == running and other.name != preset.name:
                return differences(other, preset)
        return ()

    def _keep_new(self, name: str, content: Mapping[str, Any]) -> None:
        """Check a new file as a preset, then put it into the user's folder."""
        place = self._free_place(name)
        data = tomli_w.dumps(content).encode()
        with tempfile.TemporaryDirectory() as folder:
            trial = Path(folder, place.name)
            trial.write_bytes(data)
            _, problems = check_preset_file(trial, self._paths, self._shipped)
        if problems:
            raise _cannot_be_a_preset(name, problems[0])
        delete_overlay(self._paths, name)
        try:
            write_atomically(place, data)
        except OSError as error:
            raise _file_error(place, "written", error) from error
        self.reload()

    def _free_place(self, name: str) -> Path:
        """Return where a new file of this name would stand."""
        if not PRESET_NAME.fullmatch(name):
            raise ConfigError(
                printable(f"{name!r} cannot be a preset's name."),
                "Use 1 to 64 letters, digits, dots, dashes and underscores; begin with a letter"
                " or a digit.",
            )
        for folder in (self._paths.user_presets, self._shipped):
            if (folder / f"{name}.toml").exists():
                raise ConfigError(
                    f"There is a preset called {name!r} already.", "Choose another name."
                )
        return self._paths.user_presets / f"{name}.toml"

    def _own_file(self, name: str, what: str) -> Path:
        """Return the user's file of a preset that may be renamed or deleted."""
        own = {path.stem: path for path in self._paths.user_presets.glob("*.toml")}
        path = own.get(name)
        if path is None:
            if (self._shipped / f"{name}.toml").exists():
                raise ConfigError(
                    f"{name} comes with agentserve-tui and cannot be {what}.", "Duplicate it."
                )
            near = nearest_name(name, list(own))
            raise ConfigError(
                printable(f"There is no preset of yours called {name!r}."),
                f"Did you mean {near!r}?" if near else "",
            )
        dependents = [
            other for other, file in sorted(own.items()) if other != name and _extends(file) == name
        ]
        if dependents:
            raise ConfigError(
                f"{name} cannot be {what}, because {', '.join(dependents)}"
                f" extend{'s' if len(dependents) == 1 else ''} it.",
                f"Change `extends` in {dependents[0]}.toml first.",
            )
        return path


def _extends(path: Path) -> object:
    document = read_toml(path)
    return None if isinstance(document, ConfigProblem) else document.data.get("extends")


def _cannot_be_a_preset(name: str, problem: ConfigProblem) -> ConfigError:
    """Report a problem without the place of a trial file, which nobody can look at."""
    remedy = f"{problem.remedy[:1].upper()}{problem.remedy[1:]}." if problem.remedy else ""
    return ConfigError(printable(f"{name} would not be a valid preset: {problem.message}."), remedy)


def _file_error(path: Path, what: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path} could not be {what}: {error.strerror or error}.",
        "Check the folder's permissions and the free space.",
    )
