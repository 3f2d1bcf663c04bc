"""What a TensorRT engine takes: plan, activations, build time and memory; as shipped, and for more verify rows.

Builds the recipe as it is in float16 and bfloat16; then for ``max_drafts`` of 1, 4, 8 and 16 with ``batch_max_drafts``
following it, so that the lone and the copy tier widen and the others stay; then its greedy profiles and those with
logits apart, the two plans that one plan with both is chosen over. Each build has a process of its own, so that its
peak memory is its own. Needs no GPU: plans are built ahead of time, and the bytes are from the build log.

    python -m benchmarks.tensorrt_rows [--layers N] [--out benchmarks/results/tensorrt_rows]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtbuild import builder
from trtbuild.network.decoder import NetworkShape
from trtbuild.network.plan import build_plan, load_runtime
from trtbuild.progress import Progress, TerminalProgress
from trtbuild.recipe import load_recipe
from trtbuild.targets.base import BuildInput
from trtbuild.targets.tensorrt import TARGET, TensorRTOptions, read_weights
from trtserve.executor import tensorrt_io as io
from trtserve.settings import plan_tiers

ROOT = Path(__file__).resolve().parents[1]
MAX_DRAFTS = (1, 4, 8, 16)
DTYPES = ("float16", "bfloat16")


class FirstLayers:
    """A checkpoint cut to its first layers: activations do not depend on how many there are, build time does."""

    def __init__(self, checkpoint: Any, layers: int) -> None:
        self._checkpoint, self._layers = checkpoint, layers

    def tensors(self) -> Any:
        for name, tensor in self._checkpoint.tensors():
            if not name.startswith("layers.") or int(name.split(".")[1]) < self._layers:
                yield name, tensor

    def save_tokenizer(self, directory: Path) -> Any:
        return self._checkpoint.save_tokenizer(directory)


def inputs_of(recipe: Path, overrides: list[str], layers: int | None) -> BuildInput:
    prepared = builder.prepare(load_recipe(recipe, overrides))
    config, checkpoint = prepared.config, prepared.checkpoint
    if layers is not None:
        windows = config.sliding_windows[:layers]
        config = config.model_copy(update={"num_layers": layers, "sliding_windows": windows})
        checkpoint = FirstLayers(checkpoint, layers)  # type: ignore[assignment]
    return BuildInput(prepared.recipe, config, checkpoint)


def build(recipe: Path, overrides: list[str], layers: int | None) -> dict[str, Any]:
    """One build's figures."""
    begin, processor = time.monotonic(), time.process_time()
    inputs = inputs_of(recipe, overrides, layers)
    with tempfile.TemporaryDirectory() as directory:
        output = TARGET.build(inputs, Path(directory), TerminalProgress())
        info = io.PlanInfo.model_validate(output.target_info)
        plan_bytes = (Path(directory) / info.plan).stat().st_size
    lookup = inputs.recipe.speculative.prompt_lookup
    return {
        "max_drafts": lookup.max_drafts if lookup else 0,
        "batch_max_drafts": lookup.batch_max_drafts if lookup else 0,
        "dtype": inputs.config.dtype,
        "plan_bytes": plan_bytes,
        "weights_bytes": TARGET.footprint(inputs.recipe, inputs.config).weights(),
        "seconds": round(time.monotonic() - begin, 1),
        "processor_seconds": round(time.process_time() - processor, 1),
        "peak_rss_bytes": info.peak_rss_bytes,
        "runtime": f"{info.runtime} {info.runtime_version}",
        "fold_groups": info.fold_groups,
        "choices": {name: choice.model_dump(mode="json") for name, choice in info.choices.items()},
        "profiles": [
            {
                "label": p.label,
                "batch": p.batch,
                "rows": p.rows,
                "logits": p.logits,
                "activation_bytes": logged,
                "predicted_bytes": predicted,
                "difference_bytes": difference,
            }
            for p, logged, predicted, difference in zip(
                info.profiles,
                info.activation_bytes,
                info.predicted_activation_bytes,
                info.activation_difference,
                strict=True,
            )
        ],
    }


def build_apart(recipe: Path, logits: bool, layers: int | None) -> dict[str, Any]:
    """The bytes of a plan of the profiles with logits alone, or of the others alone."""
    inputs = inputs_of(recipe, [], layers)
    options = inputs.recipe.options(TensorRTOptions)
    tiers = plan_tiers(inputs.recipe.limits, inputs.recipe.speculative)
    profiles = [p for p in io.profiles_for(tiers) if p.logits == logits]
    fold = TARGET.choices(inputs.recipe, inputs.config)["groups"].chosen == "folded"
    plan = build_plan(
        load_runtime(options.runtime),
        inputs.config,
        read_weights(inputs, Progress())[0],
        NetworkShape(io.cache_positions(inputs.recipe.limits, tiers), fold),
        profiles,
        compute_capability=options.compute_capability,
    )
    return {"profiles": [p.label for p in profiles], "plan_bytes": plan.data.nbytes}


def alone(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """``function(*arguments)`` in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def plot(result: dict[str, Any], path: Path) -> None:
    """Plan bytes, and each tier's activation bytes, against the rows of one verify."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6))
    rows = [build["max_drafts"] + 1 for build in result["builds"]]
    left.plot(rows, [b["plan_bytes"] / 1e6 for b in result["builds"]], "o-", color="black")
    left.set_ylim(0, 1.15 * max(b["plan_bytes"] for b in result["builds"]) / 1e6)
    left.set_title("plan, MB")
    for label in ("lone", "copy", "full", "prefill", "lone logits", "copy logits"):
        points = [
            (b["max_drafts"] + 1, p["activation_bytes"] / 1e6, p["predicted_bytes"] / 1e6)
            for b in result["builds"]
            for p in b["profiles"]
            if p["label"] == label
        ]
        if points:
            line = right.plot([x for x, _, _ in points], [y for _, y, _ in points], "o-", label=label)
            right.plot([x for x, _, _ in points], [z for _, _, z in points], "+", color=line[0].get_color())
    right.set_ylim(bottom=0)
    right.set_title("activations, MB (o logged, + predicted)")
    right.legend(fontsize=7)
    for axes in (left, right):
        axes.set_xlabel("rows of one verify (max_drafts + 1)")
        axes.set_xticks(rows)
        axes.grid(alpha=0.3)
    figure.suptitle(f"{result['recipe']}, {result['layers']} layers", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "smollm2-135m-rtx.yaml")
    parser.add_argument("--layers", type=int, default=None, help="build only the model's first layers")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "tensorrt_rows")
    options = parser.parse_args()
    recipe, layers = options.recipe, options.layers
    lookup = "speculative.prompt_lookup"

    def built(overrides: list[str]) -> dict[str, Any]:
        figures = alone(build, recipe, overrides, layers)
        print(f"{' '.join(overrides)}: plan {figures['plan_bytes']:,} bytes", file=sys.stderr)
        return figures

    result = {
        "recipe": recipe.name,
        "layers": layers or builder.prepare(load_recipe(recipe)).config.num_layers,
        "as_shipped": {dtype: built([f"model.dtype={dtype}"]) for dtype in DTYPES},
        "builds": [built([f"{lookup}.max_drafts={n}", f"{lookup}.batch_max_drafts={n}"]) for n in MAX_DRAFTS],
        "apart": {
            name: alone(build_apart, recipe, logits, layers) for name, logits in (("greedy", False), ("logits", True))
        },
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    plot(result, options.out.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
