"""Where a recipe's ``model.checkpoint`` points: a local path, ``package:MODULE/FILE`` or ``hf:ORG/REPO@REVISION``."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path, PurePosixPath

from trtbuild.checkpoint.base import CheckpointError
from trtbuild.checkpoint.hf_files import CONFIG, TOKENIZER_INPUTS

WANTED = ("*.safetensors", "*.safetensors.index.json", CONFIG, *TOKENIZER_INPUTS)
"""The files of a hub repository that a build reads. Everything else stays there."""

_HUB = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)@(?P<revision>[\w./-]+)")


def resolve(reference: str, base_dir: Path) -> Path:
    """The local file or directory a reference stands for, downloaded first if it must be.

    Relative paths count from ``base_dir``, the recipe's directory. Raises CheckpointError.
    """
    if reference.startswith("package:"):
        return _in_package(reference)
    if reference.startswith("hf:"):
        return _from_hub(reference)
    path = base_dir / Path(reference).expanduser()
    if not path.exists():
        raise CheckpointError(f"model.checkpoint is {reference!r}: {path} does not exist")
    return path


def _in_package(reference: str) -> Path:
    """A data file of an installed package, found without importing (and so without running) the package."""
    module, _, inner = reference.removeprefix("package:").partition("/")
    if not re.fullmatch(r"[A-Za-z_]\w*", module) or not inner:
        raise CheckpointError(
            f"model.checkpoint is {reference!r}; expected package:MODULE/FILE with the name of a top-level module"
        )
    parts = PurePosixPath(inner).parts
    if "\\" in inner or inner.startswith("/") or ".." in parts:
        raise CheckpointError(f"model.checkpoint is {reference!r}; the file must lie inside the package")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    if not roots:
        raise CheckpointError(
            f"model.checkpoint is {reference!r}; no package {module!r} is installed in this Python environment"
        )
    for root in roots:
        path = root.joinpath(*parts)
        if path.exists():
            if not path.resolve().is_relative_to(root.resolve()):
                raise CheckpointError(f"model.checkpoint is {reference!r}; the file must lie inside the package")
            return path
    raise CheckpointError(f"model.checkpoint is {reference!r}; the package {module!r} has no {inner}")


def _from_hub(reference: str) -> Path:
    match = _HUB.fullmatch(reference.removeprefix("hf:"))
    if match is None:
        raise CheckpointError(
            f"model.checkpoint is {reference!r}; expected hf:ORG/REPO@REVISION. The revision (a commit, tag or branch) "
            "is required, so that the same recipe means the same weights"
        )
    repo, revision = match["repo"], match["revision"]
    try:
        import huggingface_hub
    except ImportError as e:
        raise CheckpointError(
            f"model.checkpoint is {reference!r}: downloading needs huggingface_hub: pip install 'trtlookup[build]'"
        ) from e
    try:
        return Path(huggingface_hub.snapshot_download(repo, revision=revision, allow_patterns=list(WANTED)))
    except Exception as e:  # network, authorisation, missing repository, full disk: the library has no common base
        raise CheckpointError(
            f"model.checkpoint is {reference!r}: not in the local cache, and the download failed: {e}"
        ) from e
