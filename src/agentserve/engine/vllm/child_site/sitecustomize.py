"""Runs at the start of every engine process: installs the torchvision hook, nothing more.

Python imports the first `sitecustomize` on its path and no other, so this one runs the next one
itself. It must stay cheap and must not import torch, vLLM or the rest of the package.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def _install_torchvision_hook() -> None:
    # By path: in a child the package itself may not be importable yet, and need not be.
    spec = spec_from_file_location(
        "_agentserve_torchvision_ops", _HERE.parent / "torchvision_ops.py"
    )
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    # Kept in sys.modules: the operators that it declares live as long as the module does.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.install()


def _run_next_sitecustomize() -> None:
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    # Under its own name, as if it had been found first.
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_install_torchvision_hook()
_run_next_sitecustomize()
