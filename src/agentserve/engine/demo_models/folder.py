"""Finds or makes the folder of a demo model, so that nobody ever sees half of one.

A folder is built under a temporary name beside its place and renamed when it is complete. Its name
holds a fingerprint of the code that made it: other code makes another folder, and old ones are left
to whoever still runs on them. `complete.json`, written last, holds the digest of each file; a
folder that does not agree with it is replaced.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import shutil
import tempfile
import time
from pathlib import Path

from agentserve.domain.errors import ConfigError, EngineMissingError

DEMO_MODEL_NAMES = ("hybrid", "mtp")
_MANIFEST = "complete.json"
_UNFINISHED_PREFIX = ".unfinished-"
# A build takes seconds; what is older than this was left by a builder that was ended.
_ABANDONED_AFTER_S = 600.0


def ensure_demo_model(name: str, cache_dir: Path) -> Path:
    """Give the folder of a demo model; make it when it is missing, damaged or of other code.

    Several processes may call this at the same time: each builds its own copy, the first to finish
    puts it in place, and the others use that one.

    Args:
        name: One of `DEMO_MODEL_NAMES`.
        cache_dir: Folder that holds the models; made when missing.

    Returns:
        A complete model folder.

    Raises:
        ConfigError: There is no demo model of that name, or the folder cannot be written.
        EngineMissingError: A library that comes with vLLM is missing, and so is the model.
    """
    if name not in DEMO_MODEL_NAMES:
        near = difflib.get_close_matches(name, DEMO_MODEL_NAMES, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(DEMO_MODEL_NAMES)}."
        raise ConfigError(f"There is no demo model {name!r}.", hint)
    folder = cache_dir / f"{name}-{_recipe_fingerprint()}"
    if _is_complete(folder):
        return folder
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(cache_dir)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED_PREFIX}{name}-", dir=cache_dir))
        try:
            _build(name, unfinished)
            _put_in_place(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"The demo model cannot be written to {cache_dir}: {error.strerror or error}.",
            "Free some space there or choose another cache folder.",
        ) from error
    return folder


def _build(name: str, unfinished: Path) -> None:
    try:
        from agentserve.engine.demo_models.checkpoint import write_model
    except ImportError as error:
        raise EngineMissingError(
            f"The demo model cannot be made: {error.name} is not installed.",
            "Install the extra 'cpu' or 'cuda'.",
        ) from error
    write_model(name, unfinished)
    digests = {path.name: _digest(path) for path in sorted(unfinished.iterdir())}
    (unfinished / _MANIFEST).write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")
    # mkdtemp makes a private folder; the engine may run as somebody else.
    unfinished.chmod(0o755)


def _put_in_place(unfinished: Path, folder: Path) -> None:
    for _ in range(2):
        try:
            unfinished.rename(folder)
        except OSError:
            if _is_complete(folder):
                return
            # Something damaged is in the way. It is moved aside in one step, as others look.
            aside = Path(tempfile.mkdtemp(prefix=_UNFINISHED_PREFIX, dir=folder.parent))
            try:
                folder.rename(aside / folder.name)
            except FileNotFoundError:
                pass  # another builder has moved it
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        else:
            return
    if not _is_complete(folder):
        unfinished.rename(folder)


def _is_complete(folder: Path) -> bool:
    try:
        digests = json.loads((folder / _MANIFEST).read_bytes())
        return bool(digests) and all(
            _digest(folder / file_name) == digest for file_name, digest in digests.items()
        )
    except (OSError, ValueError, AttributeError):
        return False


def _remove_abandoned(cache_dir: Path) -> None:
    now = time.time()
    for path in cache_dir.glob(f"{_UNFINISHED_PREFIX}*"):
        try:
            abandoned = now - path.stat().st_mtime > _ABANDONED_AFTER_S
        except FileNotFoundError:
            continue
        if abandoned:
            shutil.rmtree(path, ignore_errors=True)


def _recipe_fingerprint() -> str:
    """Digest of this package's own files: every change of the recipe gives another folder."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.iterdir()):
        if path.suffix in {".py", ".jinja"}:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
