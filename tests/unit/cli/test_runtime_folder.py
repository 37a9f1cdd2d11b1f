"""Folders of dead apps are swept, those of living ones are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from agentserve.cli.runtime_folder import make_runtime_folder

DIE = """
import sys
from pathlib import Path
from agentserve.cli.runtime_folder import make_runtime_folder
make_runtime_folder(Path(sys.argv[1]), "dead")
"""


def test_the_folder_of_a_dead_app_goes_and_a_living_ones_stays(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", DIE, str(tmp_path)], check=True)
    assert (tmp_path / "dead").is_dir()
    living = make_runtime_folder(tmp_path, "living")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    second = make_runtime_folder(tmp_path, "second")
    assert not (tmp_path / "dead").exists()
    assert living.is_dir()
    assert foreign.is_dir()
    assert second.stat().st_mode & 0o077 == 0
