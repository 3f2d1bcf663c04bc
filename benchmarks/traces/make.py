"""Makes the traces: every case of the workloads with up to three outputs, as gzipped JSON lines.

``python -m benchmarks.traces.make ENGINE_DIR [--heldout] [--labels written,model,prefix] [--tokens 160]``

Each line is ``{"kind", "name", "label", "group", "prompt": [ids], "output": [ids]}``. The label says where the output
came from:

``written``  the right answer, written with the case (only cases that have one); needs the tokenizer alone
``model``    the engine's own greedy output, of cases that are not ``written_only``
``prefix``   the same after the first words of the right answer, for a model too small to begin an edit by itself

With ``--heldout`` the cases are those of ``benchmarks.workloads.heldout`` and the files ``heldout-LABEL.jsonl.gz``.

A label's file holds the cases in the order of the workloads, so that replaying it with the shared cache meets the
cases of a group one after another. A run that was broken off goes on where it stopped (``*.partial`` beside the files).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before torch is imported: spinning OpenMP threads slow each other down on shared cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from benchmarks.workloads import Case, all_cases
from trtserve import engine_dir
from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import Finish, GenerationRequest
from trtserve.executor.torch import TorchExecutor
from trtserve.sampling import SamplingParams
from trtserve.tokenizer import Tokenizer

LABELS = ("written", "model", "prefix")
HERE = Path(__file__).resolve().parent


def able(case: Case, label: str) -> bool:
    """Whether a case has what the label needs."""
    return bool({"written": case.answer, "model": not case.written_only, "prefix": case.prefix}[label])


def encode(tokenizer: Tokenizer, text: str, *, allow_special: bool) -> list[int]:
    return [int(t) for t in tokenizer.encode(text, add_bos=False, allow_special=allow_special)]


def prompt_of(tokenizer: Tokenizer, case: Case, *, prefix: bool) -> list[int]:
    """The chat as tokens; ``prefix`` continues an assistant message that begins with the case's prefix."""
    messages = list(case.messages)
    if prefix:
        messages.append({"role": "assistant", "content": case.prefix})
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=not prefix, continue_final_message=prefix)
    return encode(tokenizer, text, allow_special=True)


def trace(case: Case, label: str, prompt: list[int], output: list[int]) -> dict[str, Any]:
    return {
        "kind": case.kind,
        "name": case.name,
        "label": label,
        "group": case.group,
        "prompt": prompt,
        "output": output,
    }


def written(tokenizer: Tokenizer, cases: list[Case]) -> Iterator[dict[str, Any]]:
    """The right answers, in the order of the cases."""
    for case in cases:
        prompt = prompt_of(tokenizer, case, prefix=False)
        yield trace(case, "written", prompt, encode(tokenizer, case.answer, allow_special=False))


def generated(
    engine: LocalEngine, tokenizer: Tokenizer, cases: list[Case], label: str, tokens: int
) -> Iterator[dict[str, Any]]:
    """Greedy outputs of the engine, as many at once as it has slots; in the order of the cases."""
    params = SamplingParams(temperature=0, max_tokens=tokens)
    waiting = []
    for case in cases:
        prompt = prompt_of(tokenizer, case, prefix=label == "prefix")
        waiting.append((case, prompt, engine.submit(GenerationRequest(prompt=prompt, params=params, lookup=False))))
    for case, prompt, generation in waiting:
        output: list[int] = []
        for event in generation:
            if not isinstance(event, Finish):
                output += [t.token for t in event.tokens]
            elif event.reason == "error":
                raise RuntimeError(f"{case.name}: {event.error}")
        yield trace(case, label, prompt, output)


def write(name: str, lines: list[str]) -> None:
    """The file of that name, byte for byte the same for the same lines."""
    with (
        (HERE / f"{name}.jsonl.gz").open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as f,
    ):
        f.write("".join(line + "\n" for line in lines).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the traces from the workloads.")
    parser.add_argument("engine", type=Path, help="a torch engine directory of SmolLM2-135M-Instruct")
    parser.add_argument("--heldout", action="store_true", help="make those that nothing is fitted or chosen on")
    parser.add_argument("--labels", default=",".join(LABELS), help="which to make")
    parser.add_argument("--tokens", type=int, default=160, help="most output tokens of a generated trace")
    arguments = parser.parse_args()
    labels = arguments.labels.split(",")
    if unknown := set(labels) - set(LABELS):
        parser.error(f"labels {', '.join(sorted(unknown))} are not known; allowed: {', '.join(LABELS)}")
    manifest = engine_dir.load(arguments.engine)
    tokenizer = Tokenizer.load(arguments.engine, manifest.tokenizer)
    everything = all_cases(heldout=arguments.heldout)
    for label in labels:
        name = f"heldout-{label}" if arguments.heldout else label
        cases = [c for c in everything if able(c, label)]
        if label == "written":
            write(name, [json.dumps(line) for line in written(tokenizer, cases)])
            continue
        partial = HERE / f"{name}.partial"
        lines = [json.loads(line) for line in partial.read_text().splitlines()] if partial.exists() else []
        done = {(line["kind"], line["name"]) for line in lines}
        cases = [c for c in cases if (c.kind, c.name) not in done]
        executor = TorchExecutor.load(arguments.engine, manifest)
        engine = LocalEngine(executor, None, tokenizer, manifest, max_queue=len(everything))
        begin = time.monotonic()
        try:
            with partial.open("a") as f:
                for line in generated(engine, tokenizer, cases, label, arguments.tokens):
                    lines.append(line)
                    f.write(json.dumps(line) + "\n")
                    f.flush()
                    print(f"{name}: {len(lines)} after {time.monotonic() - begin:.0f} s", flush=True)
        finally:
            engine.close()
        write(name, [json.dumps(line) for line in lines])
        partial.unlink()


if __name__ == "__main__":
    main()
