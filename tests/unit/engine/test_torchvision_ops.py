"""The hook is tried in fresh processes, on small packages that fail as the real ones do."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentserve.engine.vllm import torchvision_ops

CHILD_SITE = Path(torchvision_ops.__file__).parent / "child_site"

# A torch that knows operators by name only, enough to import what the tests write.
TORCH_LIBRARY = """
operators = set()

class Library:
    def __init__(self, name, kind):
        self.name = name

    def define(self, schema):
        operators.add(f"{self.name}::{schema.partition('(')[0]}")

def register_fake(name):
    if name not in operators:
        raise RuntimeError(f"operator {name} does not exist")
"""
TORCHVISION = """
import torchvision.early
from torch.library import register_fake
register_fake("torchvision::nms")
register_fake("torchvision::qnms")
__version__ = "1"
"""
TORCHAUDIO_EXTENSION = """
def _load_lib(name):
    raise OSError("Could not load this library: torchaudio/lib/_torchaudio.so")
"""


def run_child(code: str, *paths: Path, options: tuple[str, ...] = ()) -> str:
    existing = os.pathsep.join(str(path) for path in paths)
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**os.environ, "PYTHONPATH": torchvision_ops.child_python_path(existing)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A torch, and a torchvision whose operators are missing."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "library.py").write_text(TORCH_LIBRARY)
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(TORCHVISION)
    (tmp_path / "torchvision" / "early.py").write_text("import sys\nruns = []\n")
    return tmp_path


def test_a_torchvision_without_its_operators_imports_in_a_child(packages: Path) -> None:
    code = (
        "import torchvision, torch.library\n"
        "print(torchvision.__version__, sorted(torch.library.operators))"
    )
    assert run_child(code, packages) == "1 ['torchvision::nms', 'torchvision::qnms']"


def test_the_module_ends_up_whole_with_new_submodules(packages: Path) -> None:
    code = (
        "import sys, torchvision\n"
        "print(torchvision is sys.modules['torchvision'],"
        " torchvision.early is sys.modules['torchvision.early'])"
    )
    assert run_child(code, packages) == "True True"


def test_a_torchvision_that_works_is_not_touched(packages: Path) -> None:
    (packages / "torchvision" / "__init__.py").write_text("__version__ = 'fine'\n")
    code = "import sys, torchvision; print(torchvision.__version__, 'torch' in sys.modules)"
    assert run_child(code, packages) == "fine False"


def test_another_failure_of_torchvision_stays_what_it_is(packages: Path) -> None:
    (packages / "torchvision" / "__init__.py").write_text("raise RuntimeError('another')\n")
    code = (
        "try:\n    import torchvision\nexcept RuntimeError as error:\n    print(error)\n"
        "import sys\nprint('torchvision' in sys.modules, 'torch' in sys.modules)"
    )
    assert run_child(code, packages) == "another\nFalse False"


def test_a_torchaudio_whose_extension_does_not_load_imports_without_it(tmp_path: Path) -> None:
    folder = tmp_path / "torchaudio"
    (folder / "_extension").mkdir(parents=True)
    (folder / "__init__.py").write_text("from torchaudio import _extension\n")
    (folder / "_extension" / "utils.py").write_text(TORCHAUDIO_EXTENSION)
    (folder / "_extension" / "__init__.py").write_text(
        "from .utils import _load_lib\navailable = _load_lib('_torchaudio')\n"
    )
    code = "import torchaudio; print(torchaudio._extension.available)"
    assert run_child(code, tmp_path) == "False"


def test_a_torchcodec_whose_library_does_not_load_is_a_failed_import(tmp_path: Path) -> None:
    (tmp_path / "torchcodec").mkdir()
    (tmp_path / "torchcodec" / "__init__.py").write_text("raise OSError('no libnvrtc')\n")
    code = (
        "try:\n    import torchcodec\nexcept ImportError as error:\n    print(error, error.name)\n"
    )
    assert run_child(code, tmp_path) == "no libnvrtc torchcodec"


def test_a_missing_package_is_still_missing() -> None:
    # Without site-packages, and so without sitecustomize: the hook is installed by hand.
    code = (
        "import importlib.util, torchvision_ops\ntorchvision_ops.install()\n"
        "print([importlib.util.find_spec(name) for name in ('torchvision', 'torchaudio')])"
    )
    assert run_child(code, CHILD_SITE.parent, options=("-S",)) == "[None, None]"


def test_a_child_that_never_asks_loads_no_torch(packages: Path) -> None:
    code = (
        "import sys\nprint([name for name in sys.modules if name.partition('.')[0] in"
        " ('torch', 'torchvision', 'vllm', 'agentserve')])"
    )
    assert run_child(code, packages) == "[]"


def test_the_hook_is_installed_once_even_with_the_package_itself() -> None:
    source = Path(torchvision_ops.__file__).parents[3]
    code = (
        "import sys\nfrom agentserve.engine.vllm import torchvision_ops\n"
        "before = list(sys.meta_path)\ntorchvision_ops.install()\n"
        "print(sys.meta_path == before, type(sys.meta_path[0]).__name__)"
    )
    assert run_child(code, source) == "True _CudaBuildFinder"


def test_the_next_sitecustomize_runs_as_well(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.other_was_here = __name__\n")
    code = (
        "import sys\nprint(sys.other_was_here, type(sys.meta_path[0]).__name__,"
        " sys.modules['sitecustomize'].__file__)"
    )
    shown = run_child(code, tmp_path)
    assert shown == f"sitecustomize _CudaBuildFinder {tmp_path / 'sitecustomize.py'}"


@pytest.mark.parametrize(
    ("existing", "expected"),
    [
        (None, []),
        ("", []),
        (f"/a{os.pathsep}/b", ["/a", "/b"]),
        (f"{os.pathsep}/a{os.pathsep}", ["/a"]),
        (f"{CHILD_SITE}{os.pathsep}/a", ["/a"]),
        (f"/a{os.pathsep}{CHILD_SITE}", ["/a"]),
    ],
)
def test_our_folder_comes_first_and_once(existing: str | None, expected: list[str]) -> None:
    path = torchvision_ops.child_python_path(existing)
    assert path.split(os.pathsep) == [str(CHILD_SITE), *expected]
    assert torchvision_ops.child_python_path(path) == path


@pytest.mark.skipif(find_spec("torchvision") is None, reason="comes with the engine extras")
def test_the_real_torchvision_imports_beside_the_real_torch() -> None:
    source = Path(torchvision_ops.__file__).parents[3]
    assert run_child("import torchvision; print('imported')", source) == "imported"
