"""Engines of a tiny random main model and a drafter, and the check that a draft model's chains are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.tiny import model
from trtserve.drafters.base import ChainDrafter, ChainRequest
from trtserve.drafters.draft_model import DraftModel
from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import Completion, Generation
from trtserve.engine_dir import CostCurve, DraftModelRecord, Manifest, TokenizerRecord
from trtserve.executor.torch import TorchExecutor
from trtserve.model_config import DecoderConfig
from trtserve.settings import Limits, PromptLookup, Speculative, plan_draft_tiers, plan_tiers

VOCAB = 64
END = 1
LIMITS = Limits(max_batch_size=4, max_seq_len=160, prefill_chunk=24)
LOOKUP = PromptLookup(policy="window", ngram=2, min_match=2, max_seqs=3)


def config(layers: int, vocab_size: int = VOCAB) -> DecoderConfig:
    return model.config(num_layers=layers, vocab_size=vocab_size, max_position=LIMITS.max_seq_len)


MAIN, OTHER = config(2), config(1)


def weights(of: DecoderConfig, seed: int) -> dict[str, torch.Tensor]:
    return model.weights(of, seed, 0.4)


def related(noise: float) -> dict[str, torch.Tensor]:
    """The main model's weights, disturbed: a draft model that is often right and often wrong."""
    generator = torch.Generator().manual_seed(77)
    return {
        name: w if name.endswith("norm") else w + torch.randn(w.shape, generator=generator) * noise
        for name, w in weights(MAIN, 1).items()
    }


def speculative(num_drafts: int, lookup: PromptLookup | None = LOOKUP) -> Speculative:
    drafter: Any = "draft_model" if num_drafts else "none"
    return Speculative(drafter=drafter, num_drafts=num_drafts, prompt_lookup=lookup)


def draft_executor(of: DecoderConfig, tensors: dict[str, torch.Tensor], limits: Limits = LIMITS) -> TorchExecutor:
    return TorchExecutor(of, tensors.items(), limits, plan_draft_tiers(limits), threads=1)


def draft_model(
    of: DecoderConfig, tensors: dict[str, torch.Tensor], kind: type[DraftModel] = DraftModel, limits: Limits = LIMITS
) -> DraftModel:
    return kind(
        draft_executor(of, tensors, limits),
        slots=limits.max_batch_size,
        positions=limits.max_seq_len,
        vocab_size=VOCAB,
    )


class PlainText:
    """Every token is one character."""

    def stream_decoder(self) -> PlainText:
        return self

    def push(self, ids: Sequence[int]) -> str:
        return "".join(chr(48 + i) for i in ids)

    def flush(self) -> str:
        return ""


def manifest(spec: Speculative, limits: Limits = LIMITS, curves: tuple[CostCurve, CostCurve] | None = None) -> Manifest:
    return Manifest(
        name="tiny",
        target="torch",
        model=MAIN,
        tokenizer=TokenizerRecord(vocab_size=VOCAB, eos_token_ids=(END,)),
        limits=limits,
        speculative=spec,
        tiers=plan_tiers(limits, spec),
        inputs_digest="0" * 64,
        weights_digest="1" * 64,
        tokenizer_digest="2" * 64,
        built_with={},
        cost_curve=curves[0] if curves else None,
        draft_model=DraftModelRecord(model=OTHER, weights_digest="3" * 64, cost_curve=curves[1]) if curves else None,
    )


def open_engine(
    chain: ChainDrafter | None,
    *,
    num_drafts: int = 4,
    drafter: Any = None,
    lookup: PromptLookup | None = LOOKUP,
    limits: Limits = LIMITS,
    curves: tuple[CostCurve, CostCurve] | None = None,
    **options: Any,
) -> LocalEngine:
    spec = speculative(num_drafts if chain is not None else 0, lookup)
    executor = TorchExecutor(MAIN, weights(MAIN, 1).items(), limits, plan_tiers(limits, spec), threads=1)
    return LocalEngine(
        executor, drafter, PlainText(), manifest(spec, limits, curves), chain_drafter=chain, copy_min=2, **options
    )


def collect(generation: Generation) -> Completion:
    return Completion.collect(generation)


def token_ids(done: Completion) -> list[int]:
    return [t.token for t in done.tokens]


def fresh_chain(executor: TorchExecutor, tokens: NDArray[np.int32], limit: int, vocab_size: int = VOCAB) -> list[int]:
    """What a draft model that never saw anything else drafts after ``tokens``: prefilled, then one row at a time."""
    for start in range(0, len(tokens) - 1, executor.info.prefill_chunk):
        executor.prefill(0, start, tokens[start : min(start + executor.info.prefill_chunk, len(tokens) - 1)])
    chain: list[int] = []
    row = np.array([tokens[-1]], np.int32)
    while len(chain) < limit:
        logits = executor.logits(0, len(tokens) - 1 + len(chain), row)[0]
        best = int(logits.argmax())
        if best >= vocab_size:
            break
        chain.append(best)
        row = np.array([best], np.int32)
    return chain


class CheckedDraftModel(DraftModel):
    """Compares every chain with that of a fresh model, ``reference``, of the same weights.

    Differences are kept, not raised: the scheduler would take an error for the drafter's own and go on.
    """

    reference: TorchExecutor

    def __init__(self, model: Any, **shape: Any) -> None:
        super().__init__(model, **shape)
        self.differing: list[tuple[list[int], list[int]]] = []
        self.asked: list[list[int]] = []
        """Chain lengths, by call."""

    def draft(self, wanted: Sequence[ChainRequest]) -> list[NDArray[np.int32]]:
        chains = super().draft(wanted)
        for request, chain in zip(wanted, chains, strict=True):
            if len(chain):
                right = fresh_chain(self.reference, request.tokens, request.limit)
                if chain.tolist() != right:
                    self.differing.append((chain.tolist(), right))
        self.asked.append([len(chain) for chain in chains])
        return chains


def checked_draft_model(
    of: DecoderConfig, tensors: dict[str, torch.Tensor], limits: Limits = LIMITS
) -> CheckedDraftModel:
    drafter = draft_model(of, tensors, CheckedDraftModel, limits)
    assert isinstance(drafter, CheckedDraftModel)
    drafter.reference = draft_executor(of, tensors, limits)
    return drafter
