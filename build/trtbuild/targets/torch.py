"""``target: torch``: PyTorch on the CPU, or on a GPU where there is one. The engine is weights and a tokenizer."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.capacity import Footprint
from trtbuild.progress import Progress
from trtbuild.recipe import Recipe
from trtbuild.targets.base import BuildInput, BuildOutput, Target
from trtserve import engine_dir
from trtserve.engine_dir import DRAFT_MODEL_DIR, CostCurve, DraftModelRecord, Manifest
from trtserve.host_memory import available_memory
from trtserve.model_config import DecoderConfig
from trtserve.settings import plan_draft_tiers

if TYPE_CHECKING:
    from trtbuild.checkpoint import Checkpoint
    from trtserve.executor.torch import TorchExecutor

_DRAFTERS = ("none", "draft_model")


class TorchTarget(Target):
    name = "torch"

    def check(self, recipe: Recipe) -> Iterator[tuple[str, str]]:
        if recipe.speculative.drafter not in _DRAFTERS:
            yield (
                "speculative.drafter",
                f"given {recipe.speculative.drafter}; allowed with target torch: {', '.join(_DRAFTERS)}",
            )

    def footprint(self, recipe: Recipe, config: DecoderConfig) -> Footprint:
        """Activations and KV cache are float32 on a CPU, whatever the weights' type."""
        return Footprint(config)

    def available_memory(self) -> int | None:
        return available_memory()

    def build(self, inputs: BuildInput, out: Path, progress: Progress) -> BuildOutput:
        digest = _write_weights("weights", out, inputs.config, inputs.checkpoint, progress)
        draft_model = None
        if (draft := inputs.draft) is not None:
            directory = out / engine_dir.DRAFT_MODEL_DIR
            directory.mkdir()
            draft_digest = _write_weights("draft model", directory, draft.config, draft.checkpoint, progress)
            draft_model = DraftModelRecord(model=draft.config, weights_digest=draft_digest)
        tokenizer = out / engine_dir.TOKENIZER_DIR
        tokenizer.mkdir()
        return BuildOutput(
            tokenizer=inputs.checkpoint.save_tokenizer(tokenizer),
            weights_digest=digest,
            draft_model=draft_model,
            built_with={"torch": importlib.metadata.version("torch")},
        )

    def measure(self, engine_dir: Path, manifest: Manifest, progress: Progress) -> CostCurve | None:
        from trtserve.executor.torch import TorchExecutor

        return _measure("measuring verify cost", TorchExecutor.load(engine_dir, manifest, device="cpu"), progress)

    def measure_draft(self, engine_dir: Path, manifest: Manifest, progress: Progress) -> CostCurve | None:
        from trtserve.executor.torch import TorchExecutor

        if manifest.draft_model is None:
            return None
        executor = TorchExecutor.load_weights(
            engine_dir / DRAFT_MODEL_DIR,
            manifest.draft_model.model,
            manifest.limits,
            plan_draft_tiers(manifest.limits),
            device="cpu",
        )
        return _measure("measuring draft cost", executor, progress)


def _write_weights(
    label: str, directory: Path, config: DecoderConfig, checkpoint: Checkpoint, progress: Progress
) -> str:
    """Write a checkpoint's weights into ``directory``. Returns their SHA-256."""
    from trtbuild.weights_file import WeightsFile

    shapes = config.tensor_shapes()
    path = directory / engine_dir.WEIGHTS_NAME
    with (
        progress.bar(label, sum(map(math.prod, shapes.values()))) as advance,
        WeightsFile(path, shapes, config.dtype) as file,
    ):
        for name, tensor in checkpoint.tensors():
            advance(file.write(name, tensor))
    return engine_dir.sha256_file(path)


def _measure(label: str, executor: TorchExecutor, progress: Progress) -> CostCurve:
    import torch

    from trtserve.executor.calibrate import measure, stopwatch

    try:
        with progress.bar(label, 100) as advance:
            return measure(executor, threads=torch.get_num_threads(), progress=advance, timer=stopwatch(executor))
    finally:
        executor.close()


TARGET = TorchTarget()
