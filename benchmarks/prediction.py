"""An edit with its file as the predicted output, against the same edit with the file in the prompt.

``python -m benchmarks.prediction ENGINE_DIR [--curve NAME]``

The written answers of the code edits and JSON rewrites are forced, no model runs, and time is added up from a cost
curve; the engine and its drafting are the real ones. Prefill is not counted: the prompt without the file is shorter,
which is a gain on top.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from benchmarks.draft_model import NoText, ScriptedModel
from benchmarks.report import table
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
def main(directory: Path, curve: str) -> None:
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

    rows = []
    for kind in KINDS:
        rounds: dict[str, int] = defaultdict(int)
        times: dict[str, float] = defaultdict(float)
        tokens, slower = 0, 0
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
                rounds[way] += run(prompt, answer, prediction).rounds
                times[way] += model.time
                taken[way] = model.time
            slower += taken[WAYS[1]] > taken[WAYS[0]]
        plain = tokens * cost.step(1)
        rows.append([kind, *(f"{tokens / rounds[w]:.2f} ({plain / times[w]:.2f}x)" for w in WAYS), str(slower)])
    engine.close()
    click.echo(f"Tokens per round, and decoding's speed-up over plain under {curve}; the file's place:\n")
    click.echo(table(["", *WAYS, "cases slower as the prediction"], rows))


if __name__ == "__main__":
    main()
