"""An engine directory becomes a running engine: the one place where the parts are put together."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import NamedTuple

from trtserve import drafters, engine_dir
from trtserve.drafters import ChainDrafter
from trtserve.engine.door import Recorder
from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import Engine
from trtserve.engine_dir import CostCurve, Manifest
from trtserve.executor.base import Executor, ExecutorError
from trtserve.lookup.drafter import Drafter
from trtserve.lookup.persistence import Persistence
from trtserve.lookup.scope_names import SnapshotError
from trtserve.lookup.shared import SharedCache
from trtserve.overrides import SAVE_INTERVAL, OverrideError, Overrides
from trtserve.replay.curves import CurveError, load_curve
from trtserve.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """A running engine and what speaks its language."""

    engine: Engine
    tokenizer: Tokenizer


def load_engine(
    directory: str | os.PathLike[str], overrides: Overrides | None = None, *, recorder: Recorder | None = None
) -> Loaded:
    """Load an engine directory and start its scheduler. Close the engine to free everything.

    ``recorder`` is called with each finished request's scope, prompt, output and prediction.

    Raises EngineDirError for a directory that is not what was built, OverrideError for settings it was not built for,
    and ExecutorError when its target cannot run here.
    """
    overrides = overrides or Overrides()
    path = Path(directory)
    manifest = engine_dir.load(path)
    speculative = overrides.speculative(manifest)
    for name in overrides.without_effect(speculative):
        _log.warning("%s does nothing with policy adaptive; it is for policy window", name)
    tokenizer = Tokenizer.load(path, manifest.tokenizer)
    if manifest.target == "tensorrt_llm":
        from trtserve.engine.tensorrt_llm import open_engine

        return Loaded(open_engine(path, manifest, overrides, speculative, tokenizer, recorder), tokenizer)
    lookup = speculative.prompt_lookup
    try:
        shared = SharedCache.from_settings(lookup) if lookup else None
    except ValueError as e:
        raise OverrideError(str(e)) from e
    drafter = Drafter(lookup, shared=shared, cost=cost_curve(manifest, overrides)) if lookup else None
    with contextlib.ExitStack() as opened:
        file = _shared_cache_file(shared, manifest, overrides)
        if file is not None:
            opened.callback(file.close)
        executor = load_executor(path, manifest, overrides)
        opened.callback(executor.close)
        chain_drafter = _open_chain_drafter(path, manifest, overrides, executor)
        if chain_drafter is not None:
            opened.callback(chain_drafter.close)
        if speculative.exact_verify and not executor.info.exact:
            _log.warning(
                "exact_verify: device %s cannot promise results that do not depend on the row count; texts with lookup "
                "on and off may differ at near-ties",
                executor.info.device,
            )
        engine = LocalEngine(
            executor,
            drafter,
            tokenizer,
            manifest,
            speculative=speculative,
            max_queue=overrides.max_queue,
            hermetic=overrides.hermetic,
            shared_cache=shared,
            shared_cache_file=file,
            chain_drafter=chain_drafter,
            recorder=recorder,
        )
        opened.pop_all()  # the engine's own from here on
    return Loaded(engine, tokenizer)


def cost_curve(manifest: Manifest, overrides: Overrides) -> CostCurve | None:
    """What drafts are weighed with: the curve asked for, or the build's where it was measured on the kind of device
    that serves; None where neither is.

    Raises OverrideError for a file that holds no curve.
    """
    if overrides.cost_curve is not None:
        try:
            return load_curve(str(overrides.cost_curve))
        except (CurveError, OSError) as e:
            raise OverrideError(f"cost_curve: {e}") from e
    device = overrides.device or ("cuda" if manifest.target == "tensorrt" else "cpu")
    curve = manifest.cost_curve
    if curve is None or curve.device.partition(":")[0] != device.partition(":")[0]:
        return None
    return curve


def _shared_cache_file(shared: SharedCache | None, manifest: Manifest, overrides: Overrides) -> Persistence | None:
    """The file the overrides ask for, with what it holds restored into the cache."""
    if shared is None or overrides.shared_cache_path is None:
        return None
    interval = overrides.shared_cache_save_interval
    try:
        return Persistence(
            shared,
            Path(overrides.shared_cache_path),
            manifest.model_key,
            interval=SAVE_INTERVAL if interval is None else interval,
        )
    except SnapshotError as e:
        raise OverrideError(f"shared_cache_path: {e}") from e


def _open_chain_drafter(
    path: Path, manifest: Manifest, overrides: Overrides, executor: Executor
) -> ChainDrafter | None:
    """What drafts in the rounds that have no copy, where the engine was built with it."""
    name = manifest.speculative.drafter
    if name == "none":
        return None
    return drafters.open_drafter(
        name, drafters.Opening(path, manifest, executor, device=overrides.device, threads=overrides.threads)
    )


def load_executor(path: Path, manifest: Manifest, overrides: Overrides) -> Executor:
    """The executor of the manifest's target. Imported when asked for: a target's libraries are its own users' need."""
    device = overrides.device
    if manifest.target == "torch":
        from trtserve.executor.torch import TorchExecutor

        return TorchExecutor.load(path, manifest, device=device or "cpu", threads=overrides.threads)
    if manifest.target == "tensorrt":
        from trtserve.executor.kernel_cache import directory_of
        from trtserve.executor.tensorrt import TensorRTExecutor

        kept = directory_of(overrides.kernel_cache)
        if overrides.kernel_cache is not None and kept is not None and not TensorRTExecutor.compiles(manifest):
            raise OverrideError(
                "kernel_cache does not apply to a plan of full TensorRT, which is compiled; allowed: off"
            )
        return TensorRTExecutor.load(
            path, manifest, device=_cuda_index(device), threads=overrides.threads, kernel_cache=kept
        )
    raise ExecutorError(f"{path}: target {manifest.target} does not run on an executor; allowed here: torch, tensorrt")


def _cuda_index(device: str | None) -> int:
    name, _, index = (device or "cuda:0").partition(":")
    if name != "cuda" or not (index or "0").isdigit():
        raise OverrideError(f"device: a TensorRT engine runs on cuda or cuda:N, not {device!r}")
    return int(index or "0")
