"""``target: tensorrt``: a plan built through the TensorRT API, with TensorRT-RTX (no GPU needed) or full TensorRT."""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trtbuild.capacity import Footprint, size
from trtbuild.errors import BuildError
from trtbuild.progress import Progress
from trtbuild.recipe import Recipe
from trtbuild.section import Section
from trtbuild.targets.base import BuildInput, BuildOutput, Target
from trtserve import engine_dir
from trtserve.engine_dir import Choice, CostCurve, Manifest
from trtserve.executor import tensorrt_io as io
from trtserve.host_memory import available_memory
from trtserve.model_config import DecoderConfig
from trtserve.settings import Limits, Speculative, Tier, plan_tiers

if TYPE_CHECKING:
    import torch

PLAN_NAME = "decoder.plan"
#: What a build takes beside the weights as given, as TensorRT keeps them and as they are in the plan.
_BUILD_BYTES = 1 << 30

#: What TensorRT-RTX can build for, 10 * major + minor. Hopper (90) and datacenter Blackwell (100) are not among them.
RTX_COMPUTE_CAPABILITIES = (75, 80, 86, 89, 120, 121)
_WITHOUT_BFLOAT16 = (75,)

#: Why weights are in the plan, where a runtime could also leave them out and be given them when it loads.
_WEIGHTS_REASONS = {
    "tensorrt_rtx": "TensorRT-RTX strips weights from a plan only with a GPU at hand and for one compute capability; a "
    "whole plan is built anywhere, for several, and needs nothing beside it",
    "tensorrt": "a stripped plan would need the same bytes in a second file and a refit at every start",
}


class TensorRTOptions(Section):
    """What the ``tensorrt`` target alone has."""

    runtime: Literal["tensorrt", "tensorrt_rtx"] = Field(
        default="tensorrt_rtx",
        description="tensorrt_rtx builds on any machine for consumer and workstation GPUs; tensorrt builds for the GPU "
        "of this machine, Hopper included",
    )
    acceptance: Literal["layers", "plugin"] = Field(
        default="layers",
        description="what accepts drafts inside the engine: native layers, or with runtime tensorrt the CUDA kernels "
        "as a plugin compiled into it",
    )
    compute_capability: tuple[int, ...] = Field(
        default=(),
        description="GPUs an RTX plan is for, as 10 * major + minor (75, 80, 86, 89, 120, 121); empty: all but 75",
    )


@dataclass(frozen=True)
class TensorRTFootprint(Footprint):
    """Bytes as a plan takes them: activations of the tier's profiles, logits where one outputs them."""

    speculative: Speculative = field(default_factory=Speculative)

    def kv_positions(self, limits: Limits, speculative: Speculative) -> int:
        return io.cache_positions(limits, plan_tiers(limits, speculative))

    def activations(self, tier: Tier, limits: Limits) -> int:
        from trtbuild.network.activation import folding_is_smaller, predict_activation

        tiers = plan_tiers(limits, self.speculative)
        positions = io.cache_positions(limits, tiers)
        fold = folding_is_smaller(self.config, io.profiles_for(tiers), positions)
        # The tier asked about may be wider than the one planned: it is priced by its own shape.
        alone = io.profiles_for((tier,))
        return max(predict_activation(self.config, p, positions, fold_groups=fold) for p in alone)


class TensorRTTarget(Target):
    name = "tensorrt"
    options = TensorRTOptions

    def check(self, recipe: Recipe) -> Iterator[tuple[str, str]]:
        options = recipe.options(TensorRTOptions)
        if recipe.speculative.drafter != "none":
            yield "speculative.drafter", f"given {recipe.speculative.drafter}; allowed with target tensorrt: none"
        if recipe.speculative.exact_verify:
            yield (
                "speculative.exact_verify",
                "given true; allowed with target tensorrt: false, because the runtime chooses kernels for each shape "
                "and promises nothing about their rounding",
            )
        targets = options.compute_capability
        if options.runtime == "tensorrt" and targets:
            yield (
                "tensorrt.compute_capability",
                f"given {list(targets)}; allowed with runtime tensorrt: none, it builds for the GPU of this machine",
            )
        elif unknown := [c for c in targets if c not in RTX_COMPUTE_CAPABILITIES]:
            yield (
                "tensorrt.compute_capability",
                f"given {unknown[0]}, which TensorRT-RTX does not support; allowed: "
                f"{', '.join(map(str, RTX_COMPUTE_CAPABILITIES))}"
                + ("; for Hopper use runtime: tensorrt" if unknown[0] == 90 else ""),
            )
        elif repeated := [c for i, c in enumerate(targets) if c in targets[:i]]:
            yield "tensorrt.compute_capability", f"given {repeated[0]} twice; allowed: each once"
        elif recipe.model.dtype == "bfloat16" and (without := [c for c in targets if c in _WITHOUT_BFLOAT16]):
            yield (
                "model.dtype",
                f"given bfloat16, which compute capability {without[0]} does not have; allowed: float16, float32",
            )

    def footprint(self, recipe: Recipe, config: DecoderConfig) -> Footprint:
        item = 4 if config.dtype == "float32" else 2
        return TensorRTFootprint(config, work_bytes=item, kv_bytes=item, speculative=recipe.speculative)

    def available_memory(self) -> int | None:
        """A GPU's free memory. A plan is usually built for another machine, so without a GPU nothing is known."""
        from trtserve.executor.tensorrt_cuda import free_memory

        return free_memory()

    def choices(self, recipe: Recipe, config: DecoderConfig) -> Mapping[str, Choice]:
        from trtbuild.network.activation import largest_activation
        from trtplugins.tensorrt_plugin import choose_acceptance

        options = recipe.options(TensorRTOptions)
        acceptance = choose_acceptance(options.runtime, options.acceptance)
        tiers = plan_tiers(recipe.limits, recipe.speculative)
        positions, profiles = io.cache_positions(recipe.limits, tiers), io.profiles_for(tiers)
        folded, repeated = (largest_activation(config, profiles, positions, fold_groups=fold) for fold in (True, False))
        if config.num_heads == config.num_kv_heads:
            groups = Choice(chosen="none", reason="every query head has a key head of its own")
        else:
            groups = Choice(
                chosen="folded" if folded < repeated else "repeated",
                reason=f"the largest profile needs {folded:,} bytes with the query heads of a group as rows of their "
                f"key head, {repeated:,} with keys repeated for each",
            )
        return {
            "acceptance": Choice(asked=options.acceptance, chosen=acceptance.kind, reason=acceptance.reason),
            "groups": groups,
            "weights": Choice(chosen="in the plan, once", reason=_WEIGHTS_REASONS[options.runtime]),
        }

    def build(self, inputs: BuildInput, out: Path, progress: Progress) -> BuildOutput:
        from trtbuild.network.acceptance import add_acceptance
        from trtbuild.network.activation import predict_activation
        from trtbuild.network.decoder import NetworkShape
        from trtbuild.network.plan import build_plan, load_runtime
        from trtbuild.network.plugin_acceptance import add_plugin_acceptance

        recipe, config = inputs.recipe, inputs.config
        options = recipe.options(TensorRTOptions)
        trt = load_runtime(options.runtime)
        tiers = plan_tiers(recipe.limits, recipe.speculative)
        positions, profiles = io.cache_positions(recipe.limits, tiers), io.profiles_for(tiers)
        choices = self.choices(recipe, config)
        choice, fold = choices["acceptance"], choices["groups"].chosen == "folded"
        if choice.chosen != options.acceptance:
            progress.note(f"acceptance by {choice.chosen}: {choice.reason}")
        plugin = choice.chosen == "plugin"
        _warn_of_little_memory(self.footprint(recipe, config).weights(), progress)
        acceptance = add_plugin_acceptance if plugin else add_acceptance
        weights, digest = read_weights(inputs, progress)
        with progress.bar(f"{options.runtime} engine", 1000) as advance:
            shown = 0

            def report(share: float) -> None:
                nonlocal shown
                advance(int(share * 1000) - shown)
                shown = int(share * 1000)

            plan = build_plan(
                trt,
                config,
                weights,
                NetworkShape(positions, fold, acceptance),
                profiles,
                compute_capability=options.compute_capability,
                report=report,
            )
        del weights
        (out / PLAN_NAME).write_bytes(memoryview(plan.data))
        predicted = tuple(predict_activation(config, p, positions, fold_groups=fold) for p in profiles)
        if plan.activation_bytes and len(plan.activation_bytes) != len(profiles):
            raise BuildError(
                f"the build log gives activation memory of {len(plan.activation_bytes)} profiles; built {len(profiles)}"
            )
        info = io.PlanInfo(
            runtime=options.runtime,
            runtime_version=trt.__version__,
            plan=PLAN_NAME,
            weights="plan",
            compute_capability=options.compute_capability,
            cache_positions=positions,
            fold_groups=fold,
            acceptance="plugin" if plugin else "layers",
            choices=dict(choices),
            profiles=profiles,
            activation_bytes=plan.activation_bytes,
            predicted_activation_bytes=predicted,
            activation_difference=tuple(a - b for a, b in zip(plan.activation_bytes, predicted, strict=False)),
            build_seconds=round(plan.seconds, 1),
            peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )
        for profile, logged, guess in zip(profiles, plan.activation_bytes, predicted, strict=False):
            progress.note(
                f"{profile.label:<14} batch {profile.batch:>3} rows {profile.rows:>5}: activations {logged:,} bytes, "
                f"predicted {guess:,} ({(guess - logged) / logged:+.1%})"
            )
        progress.note(
            f"plan of {plan.data.nbytes:,} bytes, built in {plan.seconds:.0f} s with at most "
            f"{info.peak_rss_bytes / 1e9:.1f} GB of memory"
        )
        tokenizer = out / engine_dir.TOKENIZER_DIR
        tokenizer.mkdir(exist_ok=True)
        return BuildOutput(
            tokenizer=inputs.checkpoint.save_tokenizer(tokenizer),
            weights_digest=digest,
            built_with={options.runtime: trt.__version__},
            target_info=info.model_dump(mode="json"),
        )

    def measure(self, engine_dir: Path, manifest: Manifest, progress: Progress) -> CostCurve | None:
        from trtserve.executor.calibrate import measure
        from trtserve.executor.tensorrt import TensorRTExecutor
        from trtserve.executor.tensorrt_cuda import missing_gpu

        if missing_gpu() is not None:
            return None
        executor = TensorRTExecutor.load(engine_dir, manifest)
        try:
            if manifest.target_info["runtime"] == "tensorrt_rtx":
                # A shape's own kernels are compiled in the background after its first run: what counts meets them.
                measure(executor, repeats=1)
            with progress.bar("measuring verify cost", 100) as advance:
                return measure(executor, progress=advance)
        finally:
            executor.close()


def _warn_of_little_memory(weights_bytes: int, progress: Progress) -> None:
    """TensorRT may end the process where memory runs out, without a word: say so before it can."""
    least = _BUILD_BYTES + 3 * weights_bytes
    if (free := available_memory()) is not None and free < least:
        progress.warn(
            f"a build of {size(weights_bytes)} of weights takes at least {size(least)} of this machine's memory, of "
            f"which {size(free)} is free; where it runs out, TensorRT may end the process without a message"
        )


def read_weights(inputs: BuildInput, progress: Progress) -> tuple[dict[str, torch.Tensor], str]:
    """Every tensor in the engine's dtype, and the SHA-256 of them all: a plan's own bytes differ between builds."""
    import torch

    from trtbuild.network.decoder import TORCH_DTYPES

    config = inputs.config
    dtype = TORCH_DTYPES[config.dtype]
    weights: dict[str, torch.Tensor] = {}
    with progress.bar("weights", len(config.tensor_shapes())) as advance:
        for name, tensor in inputs.checkpoint.tensors():
            stored = tensor.detach().to(dtype).contiguous()
            if not bool(torch.isfinite(stored).all()):
                cause = "the checkpoint is damaged"
                if bool(torch.isfinite(tensor).all()):
                    cause = f"its largest is {tensor.abs().max():.6g}; set model.dtype to bfloat16 or float32"
                raise BuildError(f"checkpoint tensor {name} has values that are not finite in {config.dtype}: {cause}")
            weights[name] = stored
            advance(1)
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name} {config.dtype} {list(weights[name].shape)}\n".encode())
        digest.update(weights[name].reshape(-1).view(torch.uint8).numpy().data)
    return weights, digest.hexdigest()


TARGET = TensorRTTarget()
