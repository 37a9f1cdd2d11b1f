"""Makes CUDA builds of torchvision, torchaudio and torchcodec harmless beside a CPU build of torch.

The default package index delivers the three built for CUDA. Their compiled parts do not load beside
CPU torch, and then their Python parts fail: torchvision because two operators were never declared,
torchaudio because it takes an extension that is there and does not load for an error, torchcodec
with an OSError where those who can do without it expect an ImportError. vLLM imports all of them in
every process: the app, EngineCore, each worker and the short-lived process that inspects model
classes. The `Qwen3_5` classes need torchvision for real; no text model calls an operator of any.

This module owns one import hook. It acts only when one of the three has failed in exactly that way;
a package that works is never touched. It imports neither torch nor vLLM before that, so processes
that never ask for them pay nothing. `child_site/sitecustomize.py` loads this file by its path in
child processes, so it must not import the rest of the package.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_TORCHVISION_OPERATOR_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_TORCHAUDIO_EXTENSION_LOADER = "torchaudio._extension.utils"
_HOOK_MARK = "imports_cuda_builds_beside_cpu_torch"

# The registrations of a torch.library.Library end with the object, so it lives as long as we do.
_declared: list[object] = []


class _TorchvisionLoader(SourceFileLoader):
    """Executes torchvision, and once more with its operators declared if they were missing."""

    def exec_module(self, module: ModuleType) -> None:
        try:
            super().exec_module(module)
        except RuntimeError as error:
            if "operator torchvision::nms does not exist" not in str(error):
                raise
            _declare_torchvision_operators()
            _forget_submodules("torchvision")
            super().exec_module(module)


class _TorchaudioLoader(SourceFileLoader):
    """Executes torchaudio, and once more without its extension if that did not load."""

    def exec_module(self, module: ModuleType) -> None:
        try:
            super().exec_module(module)
        except OSError as error:
            extension_loader = sys.modules.get(_TORCHAUDIO_EXTENSION_LOADER)
            if "torchaudio" not in str(error) or extension_loader is None:
                raise
            # False is torchaudio's own answer for "installed without the extension".
            vars(extension_loader)["_load_lib"] = lambda _library: False
            _forget_submodules("torchaudio", keep=_TORCHAUDIO_EXTENSION_LOADER)
            super().exec_module(module)


class _TorchcodecLoader(SourceFileLoader):
    """Executes torchcodec and reports libraries that do not load as a failed import."""

    def exec_module(self, module: ModuleType) -> None:
        try:
            super().exec_module(module)
        except OSError as error:
            raise ImportError(str(error), name=self.name) from error


_LOADERS: dict[str, type[SourceFileLoader]] = {
    "torchvision": _TorchvisionLoader,
    "torchaudio": _TorchaudioLoader,
    "torchcodec": _TorchcodecLoader,
}


class _CudaBuildFinder:
    """Meta-path finder that hands out the three packages, and only those, with our loaders."""

    imports_cuda_builds_beside_cpu_torch = True

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find one of the three packages the usual way and exchange its loader.

        Args:
            fullname: Absolute name of the module that is imported.
            path: Search path of the parent package; None for a top-level module.
            target: Module that is being reloaded, if any.

        Returns:
            The spec of the package; None for any other module and for a package that is not
            plain source, which the other finders then handle.
        """
        loader = _LOADERS.get(fullname)
        if loader is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None
        spec.loader = loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Install the hook in this process; a second call does nothing."""
    # By attribute and not by class: a child has loaded this file under another module name too.
    if not any(hasattr(finder, _HOOK_MARK) for finder in sys.meta_path):
        sys.meta_path.insert(0, _CudaBuildFinder())


def child_python_path(existing: str | None) -> str:
    """Give the PYTHONPATH with which child processes install the hook as they start.

    Args:
        existing: The current PYTHONPATH; None or empty when there is none.

    Returns:
        The folder of our `sitecustomize` first, then every existing entry in its order.
    """
    child_site = str(Path(__file__).resolve().parent / "child_site")
    # Python takes an empty entry for the current folder; as none was meant here, none is kept.
    kept = [entry for entry in (existing or "").split(os.pathsep) if entry and entry != child_site]
    return os.pathsep.join([child_site, *kept])


def _declare_torchvision_operators() -> None:
    import torch.library

    library = torch.library.Library("torchvision", "DEF")
    for schema in _TORCHVISION_OPERATOR_SCHEMAS:
        library.define(schema)
    _declared.append(library)


def _forget_submodules(package: str, keep: str | None = None) -> None:
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        if name != keep:
            del sys.modules[name]
