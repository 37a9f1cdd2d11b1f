"""Fixtures for tests that run the whole product."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nvml_stub.build import build_nvml_stub


@pytest.fixture(scope="session", autouse=True)
def no_folders_for_sockets_left() -> Iterator[None]:
    """Remove what homes with long paths leave in the temporary folder: an app keeps its own."""

    def found() -> set[Path]:
        return set(Path(tempfile.gettempdir()).glob(f"agentserve-{os.getuid()}-*"))

    before = found()
    yield
    for folder in found() - before:
        with contextlib.suppress(OSError):
            folder.rmdir()


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for the whole run: the demo models are made once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Path:
    """A home of its own for each module's instance, with the shared cache linked in."""
    return make_home(tmp_path_factory.mktemp("home"), shared_cache)


@pytest.fixture(scope="session")
def nvml_stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a compiled `libnvidia-ml.so.1` that plays two 16 GB cards."""
    return build_nvml_stub(tmp_path_factory.mktemp("nvml")).parent


def make_home(folder: Path, shared_cache: Path) -> Path:
    (folder / "cache").symlink_to(shared_cache)
    return folder
