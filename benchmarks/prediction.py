"""An edit with its file as the predicted output, against the same edit with the file in the prompt.

``python -m benchmarks.prediction ENGINE_DIR [--curve NAME] [--cases] [--json FILE]``

The written answers of the code edits and JSON rewrites are forced, no model runs, and time is added up from a cost
curve; the engine and its drafting are the real ones. Prefill is not counted: the prompt without the file is shorter,
which is a gain on top.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import report
from benchmarks.draft_model import NoText, ScriptedModel
from benchmarks.workloads import cases
from trtserve import engine_dir
from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import Finish, GenerationRequest, GenerationStats
from trtserve.lookup.drafter import Drafter
from trtserve.replay.curves import CostModel, load_curve
from trtserve.sampling import SamplingParams
from trtserve.settings import Limits, PromptLookup, Speculative, plan_tiers
from trtserve.tokenizer import Tokenizer

KINDS = ("code_edit", "json_rewrite")
WAYS = ("in the prompt", "as the prediction", "both")


def split(prompt: str) -> tuple[str, str]:
    """A case's prompt as its task and its text, the part between the code fences, which stay with the text."""
    start = prompt.index("```")
    return prompt[:start].rstrip(), prompt[start:]


@click.command(help=__doc__)
@click.argument("directory", type=click.Path(path_type=Path, exists=True))
@click.option("--curve", default="gpu-modelled", show_default=True, help="a cost curve, by name or file")
@click.option("--cases", "single", is_flag=True, help="show the cases that are slower")
@click.option("--json", "out", type=click.Path(path_type=Path), help="also write the figures here")
def main(directory: Path, curve: str, single: bool, out: Path | None) -> None:
    manifest = engine_dir.load(directory)
    tokenizer = Tokenizer.load(directory, manifest.tokenizer)
    measured = load_curve(curve)
    cost = CostModel(measured)
    speculative = Speculative(prompt_lookup=PromptLookup())
    limits = Limits(max_batch_size=1)
    about = manifest.model_copy(
        update={"speculative": speculative, "limits": limits, "tiers": plan_tiers(limits, speculative)}
    )
    model = ScriptedModel(cost, speculative, manifest.model.vocab_size, "modelled")
    engine = LocalEngine(model, Drafter(PromptLookup(), cost=measured), NoText(), about, hermetic=True)

    def encode(text: str) -> list[int]:
        return [int(t) for t in tokenizer.encode(text, add_bos=False, allow_special=True)]

    def chat(content: str) -> list[int]:
        return encode(tokenizer.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True))

    def run(prompt: list[int], answer: list[int], prediction: Sequence[int]) -> GenerationStats:
        model.script = np.array([*prompt, *answer], np.int32)
        params = SamplingParams(temperature=0, max_tokens=len(answer), ignore_eos=True)
        for event in engine.submit(GenerationRequest(prompt, params, prediction=prediction)):
            if isinstance(event, Finish):
                if event.reason == "error":
                    raise RuntimeError(event.error)
                return event.stats
        raise RuntimeError("the generation ended without a finish")

    kinds: dict[str, Any] = {}
    for kind in KINDS:
        rounds: dict[str, int] = defaultdict(int)
        times: dict[str, float] = defaultdict(float)
        tokens = 0
        singles = []
        for case in (c for c in cases(kind) if c.answer):
            task, text = split(case.messages[-1]["content"])
            answer, predicted = encode(case.answer), encode(text)
            tokens += len(answer)
            taken = {}
            for way, prompt, prediction in (
                (WAYS[0], chat(f"{task}\n\n{text}"), ()),
                (WAYS[1], chat(task), predicted),
                (WAYS[2], chat(f"{task}\n\n{text}"), predicted),
            ):
                model.time = 0.0
                stats = run(prompt, answer, prediction)
                rounds[way] += stats.rounds
                times[way] += model.time
                taken[way] = {"time": model.time, "rounds": stats.rounds}
            singles.append({"name": case.name, "tokens": len(answer), "ways": taken})
        lost = [c["ways"][WAYS[1]]["time"] / c["ways"][WAYS[0]]["time"] - 1 for c in singles]
        kinds[kind] = {
            "tokens_per_round": {way: tokens / rounds[way] for way in WAYS},
            "speedup": {way: tokens * cost.step(1) / times[way] for way in WAYS},
            "cases": len(singles),
            "slower": sum(loss > 0 for loss in lost),
            "worst": max(*lost, 0.0),
            "slower_cases": [case for case, loss in zip(singles, lost, strict=True) if loss > 0],
        }
    engine.close()
    result = {"curve": curve, "kinds": kinds}
    click.echo(report.prediction(result))
    if single:
        rows = [
            [
                kind,
                c["name"],
                str(c["tokens"]),
                *(f"{c['ways'][w]['time']:.2f} ({c['ways'][w]['rounds']})" for w in WAYS),
            ]
            for kind, of in kinds.items()
            for c in of["slower_cases"]
        ]
        click.echo("\nSlower as the prediction; time in steps, and rounds:\n")
        click.echo(report.table(["", "case", "tokens", *WAYS], rows))
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
