"""A built wheel, installed elsewhere, finds its presets and themes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(180)
def test_an_installed_wheel_is_complete(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)], check=True
    )
    (wheel,) = tmp_path.glob("agentserve_tui-*.whl")
    target = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(target),
        "AGENTSERVE_HOME": str(tmp_path / "home"),
    }
    listed = subprocess.run(
        [sys.executable, "-m", "agentserve", "presets", "list", "--json"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    presets = {preset["name"]: preset for preset in json.loads(listed.stdout)}
    assert {"cpu-tiny", "cpu-tiny-mtp", "qwen38-100k"} <= set(presets)
    assert all(str(target) in preset["path"] for preset in presets.values())
    for needed in (
        "agentserve/_data/themes/agentserve-dark.toml",
        "agentserve/ui/app.tcss",
        "agentserve/engine/demo_models/chat_template.jinja",
        "agentserve/engine/vllm/child_site/sitecustomize.py",
        "agentserve/py.typed",
    ):
        assert (target / needed).is_file(), needed
