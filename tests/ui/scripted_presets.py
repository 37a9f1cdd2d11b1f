"""Preset files of a scripted product: kept in memory, written only where a test gives a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agentserve.domain.control import OptionDifference, PresetDetail, PresetSummary
from agentserve.domain.errors import AgentServeError, ConfigError

if TYPE_CHECKING:
    from .scripted import ScriptedControl


class ScriptedPresetFiles:
    """A `PresetPort` on the presets of a `ScriptedControl`; every call that writes is remembered.

    Args:
        control: Holds the list of presets that this changes.
    """

    def __init__(self, control: ScriptedControl) -> None:
        self._control = control
        self.calls: list[tuple[str, ...]] = []
        self.folder: Path | None = None
        """Where the files of the user stand; none are written without it."""
        self.broken: dict[str, str] = {}
        """Name of a file that cannot be used, and the sentence why."""
        self.refusal: AgentServeError | None = None
        """Raised by the next call that writes."""
        self.descriptions: dict[str, str] = {}
        self.details_asked = 0

    def detail(self, name: str) -> PresetDetail:
        self.details_asked += 1
        summary = self._find(name)
        return PresetDetail(
            summary=summary,
            description=self.descriptions.get(name, f"What {name} is good for."),
            path=str((self.folder or Path("/presets")) / f"{name}.toml"),
            options=(
                ("engine.model", "example/Hybrid-27B-NVFP4"),
                ("engine.tensor_parallel_size", "2"),
                ("engine.max_model_len", str(summary.max_model_len)),
                ("engine.max_num_seqs", str(summary.max_num_seqs)),
            ),
            overlay=(OptionDifference("engine.max_num_batched_tokens", "4096", "2048"),)
            if summary.has_overlay
            else (),
            differences=(OptionDifference("engine.max_num_seqs", "4", str(summary.max_num_seqs)),),
            command=f"vllm serve example/Hybrid-27B-NVFP4 --max-num-seqs {summary.max_num_seqs}",
            expected_start_s=41.0,
            capacity_tokens=126_812,
        )

    def reload(self) -> None:
        """Read the user's files again; one with the word `broken` in it cannot be used."""
        self.calls.append(("reload",))
        if self.folder is None:
            return
        for path in sorted(self.folder.glob("*.toml")):
            if "broken" in path.read_text():
                self.broken[path.stem] = f"{path}:1: broken is no key; write a table."
                self._drop(path.stem)
            else:
                self.broken.pop(path.stem, None)
                if path.stem not in {each.name for each in self._control.known_presets}:
                    self._add(PresetSummary(name=path.stem, title=path.stem, source="user"))
        self._control.problems = tuple(self.broken.values())

    def duplicate(self, name: str, new_name: str) -> None:
        self._write("duplicate", name, new_name)
        self._add_new(self._find(name), new_name)

    def rename(self, name: str, new_name: str) -> None:
        self._write("rename", name, new_name)
        summary = self._find(name)
        self._add_new(summary, new_name, slot=summary.slot)
        self._drop(name)

    def delete(self, name: str) -> None:
        self._write("delete", name)
        self._drop(name)

    def reset_overlay(self, name: str) -> None:
        self._write("reset_overlay", name)
        kept = msgspec.structs.replace(self._find(name), has_overlay=False)
        self._control.known_presets = tuple(
            kept if each.name == name else each for each in self._control.known_presets
        )

    def import_command(self, command: str, new_name: str) -> None:
        self._write("import_command", command, new_name)
        self._add_new(PresetSummary(name=new_name, title=new_name, source="user"), new_name)

    def problems_of(self, name: str) -> tuple[str, ...]:
        return (self.broken[name],) if name in self.broken else ()

    def _write(self, *call: str) -> None:
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise refusal
        self.calls.append(call)

    def _find(self, name: str) -> PresetSummary:
        for each in self._control.known_presets:
            if each.name == name:
                return each
        raise ConfigError(f"There is no preset called {name!r}.", "Choose one of the list.")

    def _add_new(self, like: PresetSummary, name: str, slot: int | None = None) -> None:
        if any(each.name == name for each in self._control.known_presets):
            raise ConfigError(f"There is a preset called {name} already.", "Choose another name.")
        self._add(msgspec.structs.replace(like, name=name, source="user", slot=slot))
        if self.folder is not None:
            (self.folder / f"{name}.toml").write_text(f'extends = "{like.name}"\n')

    def _add(self, summary: PresetSummary) -> None:
        self._control.known_presets = (*self._control.known_presets, summary)

    def _drop(self, name: str) -> None:
        self._control.known_presets = tuple(
            each for each in self._control.known_presets if each.name != name
        )
