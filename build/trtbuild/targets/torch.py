"""``target: torch``: PyTorch on the CPU, or on a GPU where there is one. The engine is weights and a tokenizer."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Iterator
from pathlib import Path

from trtbuild.capacity import Footprint
from trtbuild.host_memory import available_memory
from trtbuild.progress import Progress
from trtbuild.recipe import Recipe
from trtbuild.targets.base import BuildInput, BuildOutput, Target
from trtserve import engine_dir
from trtserve.engine_dir import CostCurve, Manifest
from trtserve.model_config import DecoderConfig

_DRAFTERS = ("none",)


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
        from trtbuild.weights_file import WeightsFile

        shapes = inputs.config.tensor_shapes()
        weights = out / engine_dir.WEIGHTS_NAME
        with (
            progress.bar("weights", sum(map(math.prod, shapes.values()))) as advance,
            WeightsFile(weights, shapes, inputs.config.dtype) as file,
        ):
            for name, tensor in inputs.checkpoint.tensors():
                advance(file.write(name, tensor))
        tokenizer = out / engine_dir.TOKENIZER_DIR
        tokenizer.mkdir()
        return BuildOutput(
            tokenizer=inputs.checkpoint.save_tokenizer(tokenizer),
            weights_digest=engine_dir.sha256_file(weights),
            built_with={"torch": importlib.metadata.version("torch")},
        )

    def measure(self, engine_dir: Path, manifest: Manifest, progress: Progress) -> CostCurve | None:
        import torch

        from trtserve.executor.calibrate import measure
        from trtserve.executor.torch import TorchExecutor

        executor = TorchExecutor.load(engine_dir, manifest, device="cpu")
        try:
            with progress.bar("measuring verify cost", 100) as advance:
                return measure(executor, threads=torch.get_num_threads(), progress=advance)
        finally:
            executor.close()


TARGET = TorchTarget()
