"""The tensorrt_llm target on a GPU, against TensorRT-LLM itself: everything the tests prove over a stand-in, for real.

Checked: the classes our drafter builds on; greedy text with our drafter, batched and alone, against the same engine
without it (a difference is reported with where it begins; kernels of other shapes may break ties otherwise); counters
that come from the worker; a cancel; two tenants that must not share; predictions and stop strings that the worker must
learn of. Timed: output tokens per second with our drafter,
with TensorRT-LLM's own n-gram pool and suffix automaton, and without drafts, over text whose output repeats its input.

    python -m benchmarks.gpu_tensorrt_llm [--checkpoint DIR] [--json FILE]

Without --checkpoint a small Llama with random weights is written and used. Ends with 1 when a check fails, 2 when there
is nothing to run on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from trtbuild import builder
from trtbuild.recipe import load_recipe
from trtserve import Engine
from trtserve.engine.protocol import Finish, Scope
from trtserve.engine.tensorrt_llm import versions
from trtserve.executor.base import ExecutorError

OUTPUT = 96
#: Characters of greedy text that must agree where kernels may break ties: below it something is wrong.
AGREE = 0.5
CODE = "def total(items):\n    amount = 0\n    for item in items:\n        amount += item.price\n    return amount\n"
PROMPTS = (
    CODE + CODE + "def total(items):\n",
    '{"name": "a", "values": [1, 2, 3]}\n' * 6,
    "the quick brown fox jumps over the lazy dog. " * 6,
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20",
)


class Failures(list[str]):
    """What did not hold."""

    def require(self, held: bool, what: str) -> None:
        print(f"{'ok    ' if held else 'FAILED'}  {what}", flush=True)
        if not held:
            self.append(what)


def random_checkpoint(directory: Path) -> Path:
    """A Llama of 130 million random weights with a byte tokenizer: no download, and long repeats in greedy text."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<s>": 0, "</s>": 1, **{piece: i + 2 for i, piece in enumerate(alphabet)}}
    vocab |= {f"<{i}>": i for i in range(len(vocab), 512)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    return directory


def build(directory: Path, checkpoint: Path, line: str, name: str, **changes: Any) -> Path:
    """An engine directory, with our drafter unless ``changes`` say otherwise."""
    lookup: dict[str, Any] | None = {
        "ngram": 3,
        "min_match": 3,
        "max_drafts": 8,
        "batch_max_drafts": 8,
        "max_seqs": 8,
        "shared_cache": {"mb": 16 if name == "trtlookup" else 0, "scopes": 4},
    }
    if name == "none":
        lookup = None
    recipe = {
        "recipe": 1,
        "name": f"gpu-{name}",
        "model": {"checkpoint": str(checkpoint), "dtype": "bfloat16"},
        "target": "tensorrt_llm",
        "tensorrt_llm": {"version": line, "kv_cache": {"free_gpu_memory_fraction": 0.3}, **changes},
        "limits": {"max_batch_size": 8, "max_seq_len": 2048, "prefill_chunk": 512},
        "speculative": {"prompt_lookup": lookup},
    }
    out = directory / name
    out.mkdir()
    path = out / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    builder.build(builder.prepare(load_recipe(path)), out / "engine", measure=False)
    return out / "engine"


def texts(engine: Engine, together: bool, scope: Scope | None = None) -> list[list[int]]:
    """Greedy tokens of every prompt."""

    def one(prompt: str) -> list[int]:
        done = engine.generate(prompt, temperature=0, max_tokens=OUTPUT, ignore_eos=True, scope=scope)
        return [t.token for t in done.tokens]

    if not together:
        return [one(p) for p in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(one, PROMPTS))


def agreement(a: Sequence[Sequence[int]], b: Sequence[Sequence[int]]) -> list[int]:
    """Tokens up to the first that differs, of each text."""
    return [
        next((i for i, (x, y) in enumerate(zip(p, q, strict=True)) if x != y), len(p))
        for p, q in zip(a, b, strict=True)
    ]


def speed(engine: Engine) -> float:
    """Output tokens per second of all prompts at once; the better of three."""
    texts(engine, True)
    best = 0.0
    for _ in range(3):
        begin = time.perf_counter()
        count = sum(map(len, texts(engine, True)))
        best = max(best, count / (time.perf_counter() - begin))
    return best


def check(engine: Engine, wanted: list[list[int]], failures: Failures, results: dict[str, Any]) -> None:
    """Everything that must hold of an engine with our drafter."""
    for together in (False, True):
        agreed = agreement(texts(engine, together), wanted)
        results["agreement_together" if together else "agreement_alone"] = agreed
        failures.require(
            sum(agreed) >= AGREE * sum(map(len, wanted)),
            f"greedy text {'in a batch' if together else 'alone'} as without drafts: {agreed} of {OUTPUT} tokens agree",
        )
    metrics = engine.metrics()
    drafts = {
        "proposed": sum(metrics["draft_tokens_total"].values()),
        "accepted": sum(metrics["accepted_tokens_total"].values()),
        "rounds": metrics["rounds_total"],
        "tokens": metrics["generation_tokens_total"],
    }
    results["drafts"] = drafts
    failures.require(drafts["proposed"] > 0, f"the drafter's counters reach this process: {drafts}")
    failures.require(drafts["accepted"] > 0, "drafts are accepted")
    before = metrics["draft_tokens_total"]["shared"]
    fresh = "isolation 7f3a: " + "".join(chr(97 + i * 7 % 26) for i in range(60))
    for scope in (Scope("alice"), Scope("bob"), Scope("alice", salt="x")):
        engine.generate(fresh, temperature=0, max_tokens=32, ignore_eos=True, scope=scope)
    after = engine.metrics()["draft_tokens_total"]["shared"]
    failures.require(after == before, "no tenant copies from another's text")
    engine.generate(fresh, temperature=0, max_tokens=32, ignore_eos=True, scope=Scope("alice"))
    failures.require(engine.metrics()["draft_tokens_total"]["shared"] > after, "a tenant copies from its own")
    check_carried(engine, fresh, failures, results)
    generation = engine.submit(PROMPTS[0], temperature=0, max_tokens=1500, ignore_eos=True)
    events = iter(generation)
    next(events)
    generation.cancel()
    last = list(events)[-1]
    failures.require(isinstance(last, Finish) and last.reason == "cancelled", "a cancelled request ends as cancelled")


def check_carried(engine: Engine, prompt: str, failures: Failures, results: dict[str, Any]) -> None:
    """A prediction is copied from, and what a stop string ended is found by its tenant's next request."""
    results["carries"] = getattr(engine.engine, "carries", True)
    if not results["carries"]:
        print("not offered by this version: predictions, and a shared cache of what stop strings end", flush=True)
        return
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 32, "ignore_eos": True}
    whole = engine.generate(prompt, **greedy, lookup=False)
    prediction = [t.token for t in whole.tokens]
    before = engine.metrics()["draft_tokens_total"]
    engine.generate(prompt, **greedy, scope=Scope("carol"), prediction=prediction)
    after = engine.metrics()["draft_tokens_total"]
    failures.require(after["prediction"] > before["prediction"], "a prediction is a source of drafts")
    stop, scope = whole.text[12:16], Scope("dave")
    ended = engine.generate(prompt, **greedy, stop=(stop,), scope=scope)
    before = engine.metrics()["draft_tokens_total"]
    engine.generate(prompt, **greedy, stop=(stop,), scope=scope)
    after = engine.metrics()["draft_tokens_total"]
    failures.require(
        ended.finish is not None and ended.finish.reason == "stop" and after["shared"] > before["shared"],
        "what a stop string ended is copied by its tenant's next request",
    )


def run(checkpoint: Path | None, failures: Failures) -> dict[str, Any]:
    package = versions.installed()
    line = versions.line_of(str(package.__version__)).recipe
    results: dict[str, Any] = {"tensorrt_llm": str(package.__version__), "tokens_per_second": {}}
    print(f"TensorRT-LLM {package.__version__}, line {line}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        model = checkpoint or random_checkpoint(directory / "model")
        ways: dict[str, dict[str, Any]] = {"none": {}, "trtlookup": {}}
        if line == "1.3":
            ways |= {"ngram": {"copies": "ngram"}, "sa": {"copies": "sa"}}
        wanted: list[list[int]] = []
        for name, changes in ways.items():
            with Engine.load(build(directory, model, line, name, **changes)) as engine:
                if name == "none":
                    wanted = texts(engine, False)
                elif name == "trtlookup":
                    check(engine, wanted, failures, results)
                results["tokens_per_second"][name] = round(speed(engine), 1)
                print(f"{name:<10} {results['tokens_per_second'][name]:>8} output tokens/s", flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="a Hugging Face directory; default: random weights")
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    os.environ.setdefault("TRTLLM_NO_USAGE_STATS", "1")
    failures = Failures()
    try:
        results = run(arguments.checkpoint, failures)
    except ExecutorError as e:
        print(e, file=sys.stderr)
        return 2
    results["failures"] = list(failures)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
