"""Folders of presets for tests, apart from the developer's own."""

from __future__ import annotations

from pathlib import Path

from agentserve.config.paths import AppPaths, app_paths
from agentserve.config.presets import PresetLibrary


class World:
    """A shipped and a user's folder of presets."""

    def __init__(self, root: Path) -> None:
        self.paths: AppPaths = app_paths({"AGENTSERVE_HOME": str(root / "home")})
        self.shipped = root / "shipped"
        self.shipped.mkdir()
        self.user = self.paths.user_presets
        self.user.mkdir(parents=True)

    def ship(self, name: str, text: str) -> None:
        (self.shipped / f"{name}.toml").write_text(text)

    def write(self, name: str, text: str) -> Path:
        path = self.user / f"{name}.toml"
        path.write_text(text)
        return path

    def overlay(self, name: str, text: str) -> Path:
        self.paths.overlays.mkdir(parents=True, exist_ok=True)
        path = self.paths.overlays / f"{name}.toml"
        path.write_text(text)
        return path

    def load(self) -> PresetLibrary:
        return PresetLibrary.load(self.paths, self.shipped)
