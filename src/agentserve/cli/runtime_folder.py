"""The private folder of one running app: sockets, notes of engine processes.

The guardian removes it when an app dies with an engine; an app that dies earlier leaves it, so each
start sweeps the folders of apps that are gone.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

_OWNER = "owner"


def make_runtime_folder(parent: Path, app_id: str) -> Path:
    """Make the folder of this app, and remove those of dead ones.

    Args:
        parent: Holds the folders of all apps of this user; exists.
        app_id: Identifies this app.

    Returns:
        The folder, readable by this user only.
    """
    for other in parent.iterdir():
        if other.is_dir() and not _is_owned(other):
            shutil.rmtree(other, ignore_errors=True)
    folder = parent / app_id
    folder.mkdir(mode=0o700)
    process = psutil.Process()
    (folder / _OWNER).write_text(f"{process.pid} {process.create_time()}")
    return folder


def _is_owned(folder: Path) -> bool:
    """Tell whether the app of a folder lives; a folder without a readable note is left alone."""
    try:
        pid, created = (folder / _OWNER).read_text().split()
        return abs(psutil.Process(int(pid)).create_time() - float(created)) < 1.0
    except psutil.NoSuchProcess:
        return False
    except (OSError, ValueError, psutil.Error):
        return True
