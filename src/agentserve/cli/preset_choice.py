"""Which presets there are, which one is in force, and what is kept of that for the next start."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agentserve.config.overlays import save_overlay
from agentserve.config.paths import AppPaths
from agentserve.config.presets import PresetLibrary
from agentserve.config.settings import RememberedState, load_state, save_state
from agentserve.domain.control import PresetSummary
from agentserve.domain.errors import ConfigError
from agentserve.domain.pending import ToggleOption
from agentserve.domain.preset import Preset, summarize
from agentserve.engine.app_log import log_line


class PresetChoice:
    """The preset library, and the choice from it.

    Args:
        paths: The folders of this instance.
        library: All presets, as read at the start.
        name: What the command line asks for, or None.
        first_name: What it asks for when nothing was chosen in an earlier run, or None.
        device: The kind of device here, `cuda` or `cpu`.

    Raises:
        ConfigError: There is no preset of that name.
    """

    def __init__(
        self,
        paths: AppPaths,
        library: PresetLibrary,
        name: str | None,
        first_name: str | None,
        device: Callable[[], str],
    ) -> None:
        self._paths = paths
        self._device = device
        self._remembered, self._state_problems = load_state(paths)
        self._chosen = name
        if name is None and self._remembered.last_preset is None:
            self._chosen = name = first_name
        self._in_force: Preset | None = None
        self.adopt(library)
        if name is not None:
            self._library.get(name)

    @property
    def summaries(self) -> tuple[PresetSummary, ...]:
        """All usable presets in display order."""
        return self._summaries

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong in the files, one sentence each."""
        return tuple(p.sentence for p in (*self._library.problems, *self._state_problems))

    @property
    def is_asked_for(self) -> bool:
        """True when the command line, or an earlier run, named a preset."""
        return self._chosen is not None or self._remembered.last_preset is not None

    @property
    def theme(self) -> str | None:
        """The theme that was chosen on the screen, in this run or an earlier one."""
        return self._remembered.theme

    @property
    def current(self) -> Preset:
        """The preset that runs, or ran last, as it is in force; else the one that would start."""
        return self._in_force or self.default()

    def adopt(self, library: PresetLibrary) -> None:
        """Take over all presets as they were read anew."""
        self._library = library
        self._summaries = tuple(summarize(preset) for preset in self._library.presets)

    def default(self) -> Preset:
        """Take what was asked for, else the last one, else the first that fits this machine.

        Raises:
            ConfigError: There is no usable preset.
        """
        for name in (self._chosen, self._remembered.last_preset):
            with contextlib.suppress(ConfigError):
                if name is not None:
                    return self._library.get(name)
        if not self._library.presets:
            raise ConfigError("There is no usable preset.", "Run agentserve-tui presets validate.")
        fitting = [p for p in self._library.presets if p.device in {self._device(), "any"}]
        return (fitting or list(self._library.presets))[0]

    def find(self, name: str | None) -> Preset:
        """Return a preset as its files say now.

        Args:
            name: Its name; None means the default.

        Raises:
            ConfigError: There is no such preset.
        """
        return self.default() if name is None else self._library.get(name)

    def put_in_force(self, preset: Preset) -> None:
        """Take note that `preset` is what starts now, and remember its name."""
        self._chosen = preset.name
        self._in_force = preset
        self._remember(last_preset=preset.name)

    def keep(self, preset: Preset, changes: Mapping[ToggleOption, int]) -> None:
        """Keep toggles on top of a preset's file; the library must be read anew then.

        Raises:
            ConfigError: They could not be written.
        """
        save_overlay(self._paths, self._library.get(preset.name), changes)

    def follow_rename(self, old: str, new: str) -> None:
        """Go on meaning the same preset under its new name."""
        if self._chosen == old:
            self._chosen = new
        if self._in_force is not None and self._in_force.name == old:
            self._in_force = msgspec.structs.replace(self._in_force, name=new)
        if self._remembered.last_preset == old:
            self._remember(last_preset=new)

    def remember_theme(self, name: str) -> None:
        """Keep the chosen theme for the next start."""
        self._remember(theme=name)

    def _remember(self, **changes: Any) -> None:
        remembered: RememberedState = msgspec.structs.replace(self._remembered, **changes)
        if remembered == self._remembered:
            return
        self._remembered = remembered
        try:
            save_state(self._paths, remembered)
        except OSError as error:
            log_line(f"What was chosen could not be kept: {error}")
