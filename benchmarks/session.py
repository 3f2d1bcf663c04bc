"""An engine opened for measuring: one executor, lookup on or off by request, output free or forced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.forced import ForcedExecutor
from benchmarks.workloads import Case
from trtserve import engine_dir
from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import Delta, Finish, GenerationRequest, GenerationStats
from trtserve.engine_dir import CostCurve
from trtserve.executor.torch import TorchExecutor
from trtserve.loading import cost_curve as measured_curve
from trtserve.lookup.drafter import Drafter
from trtserve.overrides import Overrides
from trtserve.sampling import SamplingParams
from trtserve.settings import PromptLookup
from trtserve.tokenizer import Tokenizer


@dataclass(frozen=True)
class Run:
    """One generation, measured."""

    tokens: list[int]
    text: str
    stats: GenerationStats

    @property
    def tokens_per_second(self) -> float:
        """Decode only: output tokens over the time from the first round's start to the last round's end."""
        return self.stats.completion_tokens / self.stats.decode_time

    @property
    def tokens_per_round(self) -> float:
        return self.stats.completion_tokens / max(self.stats.rounds, 1)


class Session:
    """Owns the engine. ``close`` it, or use it in a ``with``.

    ``cost_curve`` weighs drafts instead of the manifest's. Not ``hermetic``: slots keep prompts for later runs.
    """

    def __init__(
        self,
        directory: Path,
        *,
        lookup: PromptLookup | None = None,
        cost_curve: CostCurve | None = None,
        threads: int | None = None,
        hermetic: bool = True,
    ) -> None:
        self.manifest = engine_dir.load(directory)
        self.tokenizer = Tokenizer.load(directory, self.manifest.tokenizer)
        self.executor = ForcedExecutor(TorchExecutor.load(directory, self.manifest, threads=threads))
        settings = lookup or self.manifest.speculative.prompt_lookup or PromptLookup()
        drafter = Drafter(settings, cost=cost_curve or measured_curve(self.manifest, Overrides()))
        self.engine = LocalEngine(self.executor, drafter, self.tokenizer, self.manifest, hermetic=hermetic)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.engine.close()

    def prompt(self, case: Case, *, prefix: bool = False) -> list[int]:
        """The case's prompt as tokens, with the assistant's prefix at its end if asked for."""
        messages = list(case.messages)
        if prefix:
            messages.append({"role": "assistant", "content": case.prefix})
        text = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=not prefix, continue_final_message=prefix
        )
        return [int(t) for t in self.tokenizer.encode(text, add_bos=False, allow_special=True)]

    def tokens(self, text: str) -> list[int]:
        """A text as tokens, for a forced output."""
        return [int(t) for t in self.tokenizer.encode(text, add_bos=False, allow_special=False)]

    def run(
        self,
        prompt: list[int],
        *,
        lookup: bool,
        max_tokens: int,
        answer: list[int] | None = None,
        params: SamplingParams | None = None,
        on_delta: Callable[[Delta], None] | None = None,
    ) -> Run:
        """Generate once, alone. ``answer`` forces the output to those tokens.

        Raises RuntimeError when the generation fails.
        """
        self.executor.force(None if answer is None else [*prompt, *answer])
        if params is None:
            most = max_tokens if answer is None else len(answer)
            params = SamplingParams(temperature=0, max_tokens=most, ignore_eos=answer is not None)
        tokens: list[int] = []
        text: list[str] = []
        for event in self.engine.submit(GenerationRequest(prompt=prompt, params=params, lookup=lookup)):
            if isinstance(event, Finish):
                if event.reason == "error":
                    raise RuntimeError(event.error)
                return Run(tokens, "".join(text), event.stats)
            tokens += [t.token for t in event.tokens]
            text.append(event.text)
            if on_delta:
                on_delta(event)
        raise RuntimeError("the generation ended without a finish")


def median(values: list[float]) -> float:
    return float(np.median(values))
