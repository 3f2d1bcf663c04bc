"""What more verify rows cost a TensorRT engine: plan and activation bytes for max_drafts of 1, 4, 8 and 16.

Builds the recipe once for each value, with ``batch_max_drafts`` following it, so that the lone and the copy tier
widen and the others stay. Needs no GPU: plans are built ahead of time, and the bytes are from the build log.

    python -m benchmarks.tensorrt_rows [--layers N] [--out benchmarks/results/tensorrt_rows]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trtbuild import builder
from trtbuild.progress import TerminalProgress
from trtbuild.recipe import load_recipe
from trtbuild.targets.base import BuildInput
from trtbuild.targets.tensorrt import TARGET
from trtserve.executor import tensorrt_io as io

ROOT = Path(__file__).resolve().parents[1]
MAX_DRAFTS = (1, 4, 8, 16)


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


def build(recipe: Path, drafts: int, layers: int | None) -> dict[str, Any]:
    """One build's figures."""
    lookup = "speculative.prompt_lookup"
    overrides = [f"{lookup}.max_drafts={drafts}", f"{lookup}.batch_max_drafts={drafts}"]
    prepared = builder.prepare(load_recipe(recipe, overrides))
    config, checkpoint = prepared.config, prepared.checkpoint
    if layers is not None:
        windows = config.sliding_windows[:layers]
        config = config.model_copy(update={"num_layers": layers, "sliding_windows": windows})
        checkpoint = FirstLayers(checkpoint, layers)  # type: ignore[assignment]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        inputs = BuildInput(prepared.recipe, config, checkpoint)
        output = TARGET.build(inputs, Path(directory), TerminalProgress())
        info = io.PlanInfo.model_validate(output.target_info)
        plan_bytes = (Path(directory) / info.plan).stat().st_size
    return {
        "max_drafts": drafts,
        "plan_bytes": plan_bytes,
        "seconds": round(time.monotonic() - begin, 1),
        "runtime": f"{info.runtime} {info.runtime_version}",
        "fold_groups": info.fold_groups,
        "profiles": [
            {
                "label": p.label,
                "batch": p.batch,
                "rows": p.rows,
                "activation_bytes": logged,
                "predicted_bytes": predicted,
            }
            for p, logged, predicted in zip(
                info.profiles, info.activation_bytes, info.predicted_activation_bytes, strict=True
            )
        ],
    }


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
    builds = []
    for drafts in MAX_DRAFTS:
        builds.append(build(options.recipe, drafts, options.layers))
        print(f"max_drafts {drafts}: plan {builds[-1]['plan_bytes']:,} bytes", file=sys.stderr)
    layers = options.layers or builder.prepare(load_recipe(options.recipe)).config.num_layers
    result = {"recipe": options.recipe.name, "layers": layers, "builds": builds}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    plot(result, options.out.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
