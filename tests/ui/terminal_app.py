"""The app on a scripted product, for tests that drive it in a pseudo terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from agentserve.ui.app import AgentServeApp

from . import scripted


def main() -> None:
    snapshot = scripted.serving() if sys.argv[1] == "ready" else scripted.stopped()
    control = scripted.ScriptedControl(snapshot)
    control.log(*(f"line {number}" for number in range(40)))
    if folder := os.environ.get("TEST_PRESET_FOLDER"):
        control.preset_files.folder = Path(folder)
    AgentServeApp(control).run()


if __name__ == "__main__":
    main()
