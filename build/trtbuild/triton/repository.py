"""A model in a Triton repository, written whole or not at all.

    REPO/NAME/config.pbtxt
    REPO/NAME/VERSION/model.py     imports trtserve.triton.backend, no more
    REPO/NAME/VERSION/engine       the engine directory, or a link to it

While it is written it lies beside NAME under a name that begins with a dot. A Triton that polls its repository may
notice that folder and log that it holds no model yet; explicit model control, the usual choice, never looks.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from trtbuild import output_dir
from trtbuild.errors import OutputError
from trtbuild.triton.config import MARK, ModelConfig
from trtserve.triton.interface import ENGINE_NAME

CONFIG_NAME = "config.pbtxt"
MODEL_CODE = '''"""The model is in trtserve; Triton looks for it here."""

from trtserve.triton.backend import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


def write_model(engine: Path, repository: Path, config: ModelConfig, *, link: bool, force: bool = False) -> Path:
    """Write or replace ``repository/NAME`` for a checked engine directory. Returns its path.

    Raises OutputError where something else is in the way; nothing is then changed.
    """
    out = repository / config.name
    with output_dir.locked(out, lambda message: click.echo(message, err=True)):
        _require_replaceable(out, force=force)
        with output_dir.replacing(out) as partial:
            version = partial / str(config.version)
            version.mkdir()
            (version / "model.py").write_text(MODEL_CODE, encoding="utf-8")
            target = version / ENGINE_NAME
            if link:
                target.symlink_to(engine.resolve(), target_is_directory=True)
            else:
                shutil.copytree(engine, target)
            (partial / CONFIG_NAME).write_text(config.to_pbtxt(), encoding="utf-8")
    return out


def _require_replaceable(out: Path, *, force: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise OutputError(f"{out}: is not a directory; give another name with --model-name")
    if force or not any(out.iterdir()):
        return
    config = out / CONFIG_NAME
    first = config.read_text(encoding="utf-8", errors="replace").partition("\n")[0] if config.is_file() else ""
    if first != MARK:
        raise OutputError(
            f"{out}: was not written by trtbuild triton and is not replaced; give another name with --model-name, or "
            "give it up with --force"
        )
