from __future__ import annotations

from pathlib import Path

import pytest

from tests.nvml_stub.build import build_nvml_stub


@pytest.fixture(scope="session")
def nvml_stub_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stub of the driver library."""
    return build_nvml_stub(tmp_path_factory.mktemp("nvml_stub")).parent


@pytest.fixture(scope="session")
def old_nvml_stub_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stub that lacks the second version of the memory call."""
    return build_nvml_stub(tmp_path_factory.mktemp("old_nvml_stub"), memory_v2=False).parent
