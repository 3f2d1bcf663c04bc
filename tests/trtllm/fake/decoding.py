"""The model under the fake: our torch executor over the checkpoint's own weights, driven one forward at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtbuild.checkpoint import open_checkpoint
from trtserve.executor.base import StepInput, StepOutput
from trtserve.executor.torch import TorchExecutor
from trtserve.sampling import SamplingParams, SamplingState
from trtserve.settings import Limits, Tier


class Model:
    """Slots of one torch executor. ``max_rows``: most rows of one sequence in a forward."""

    def __init__(self, checkpoint: str, dtype: str, slots: int, positions: int, max_rows: int) -> None:
        opened = open_checkpoint(checkpoint, base_dir=Path("/"))
        config = opened.config(dtype)  # type: ignore[arg-type]
        # Padded drafts may reach past the last position that can be kept.
        self.limits = Limits(max_batch_size=slots, max_seq_len=positions + max_rows, prefill_chunk=512)
        tiers = (Tier(name="full", batch=slots, rows=max_rows), Tier(name="prefill", batch=1, rows=512))
        self.executor = TorchExecutor(config, opened.tensors(), self.limits, tiers, threads=1)
        self.vocab_size = config.vocab_size

    def prefill(self, slot: int, start: int, tokens: Sequence[int]) -> None:
        array = np.asarray(tokens, np.int32)
        for at in range(0, len(array), self.limits.prefill_chunk):
            self.executor.prefill(slot, start + at, array[at : at + self.limits.prefill_chunk])

    def forward(self, rows: Sequence[tuple[int, int, Sequence[int], SamplingState]]) -> StepOutput:
        """One forward of (slot, length, tokens, sampling) sequences."""
        return self.executor.step(
            StepInput(
                slots=np.array([r[0] for r in rows], np.int32),
                lengths=np.array([r[1] for r in rows], np.int32),
                num_rows=np.array([len(r[2]) for r in rows], np.int32),
                tokens=np.array([t for r in rows for t in r[2]], np.int32),
                sampling=[r[3] for r in rows],
            )
        )

    def close(self) -> None:
        self.executor.close()


def sampling_state(
    given: dict[str, Any], prompt: NDArray[np.int32], vocab_size: int, ends: tuple[int, ...]
) -> SamplingState:
    """Our sampling state for TensorRT-LLM's settings, read as TensorRT-LLM documents them."""
    top_k, top_p = given.get("top_k"), given.get("top_p")
    greedy = top_k in (None, 1) and top_p in (None, 0)
    bias = given.get("embedding_bias")
    biases = {}
    if bias is not None:
        assert tuple(bias.shape) == (vocab_size,)
        biases = {i: max(float(v), -100.0) for i, v in enumerate(bias.tolist()) if v}
    params = SamplingParams(
        temperature=0 if greedy else given.get("temperature") or 1.0,
        top_k=0 if greedy else top_k or 0,
        top_p=1.0 if greedy else top_p or 1.0,
        min_p=given.get("min_p") or 0.0,
        seed=given.get("seed") or 0,
        min_tokens=given.get("min_tokens") or 0,
        logit_bias=biases,
        logprobs=given.get("logprobs"),
    )
    return SamplingState.start(params, prompt, vocab_size, ends)
