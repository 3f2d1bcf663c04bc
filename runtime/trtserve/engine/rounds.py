"""A round's arrays: from sequences and their drafts to the executor's rows, and from its targets to output tokens."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trtserve.engine.protocol import Source, TokenOut
from trtserve.engine.sequence import Sequence
from trtserve.executor.base import ExecutorInfo, StepInput, TokenLogprobs


@dataclass(frozen=True)
class Drafts:
    """What one sequence puts through this round's verify: a copy, or a drafter's own chain (source ``model``)."""

    tokens: NDArray[np.int32]
    source: Source


def checked_drafts(tokens: ArrayLike, vocab_size: int, *, least: int, most: int) -> NDArray[np.int32]:
    """What a drafter proposed, int32 ``[n]``. Raises ValueError for what may not be verified: fewer than ``least`` or
    more than ``most`` drafts, or what is no token id; nothing that a drafter does is trusted."""
    drafts = np.asarray(tokens, np.int32)
    if drafts.ndim != 1 or not least <= len(drafts) <= most:
        raise ValueError(f"drafts of shape {drafts.shape}; allowed: {least} to {most} drafts")
    if len(drafts) and not 0 <= int(drafts.min()) <= int(drafts.max()) < vocab_size:
        raise ValueError(f"drafts outside the vocabulary; allowed: 0 to {vocab_size - 1}")
    return drafts


class RowPacker:
    """Packs rounds into one buffer, made once for the widest tier; a packed round holds until the next."""

    def __init__(self, info: ExecutorInfo) -> None:
        widest = max((t.batch * t.rows for t in info.tiers if t.name != "prefill"), default=0)
        self._rows = np.empty(widest, np.int32)

    def pack(self, batch: Tokens[Sequence], drafts: Tokens[Drafts | None]) -> StepInput:
        """The round as the executor takes it: per sequence its last token, then its drafts."""
        rows, end = self._rows, 0
        slots, lengths, num_rows = [], [], []
        for sequence, own in zip(batch, drafts, strict=True):
            slots.append(sequence.slot_index)
            lengths.append(sequence.length)
            rows[end] = sequence.last_token
            start, end = end, end + 1
            if own is not None:
                end += len(own.tokens)
                rows[start + 1 : end] = own.tokens
            num_rows.append(end - start)
        return StepInput(
            slots=np.array(slots, np.int32),
            lengths=np.array(lengths, np.int32),
            num_rows=np.array(num_rows, np.int32),
            tokens=rows[:end],
            sampling=[s.sampling for s in batch],
        )


def tokens_out(
    tokens: Tokens[int], source: Source | None, accepted: int, logprobs: Tokens[TokenLogprobs] | None
) -> tuple[TokenOut, ...]:
    """A round's kept tokens, of which the first ``accepted`` were drafts of ``source``, as its reader gets them."""
    if logprobs is None:
        return tuple(TokenOut(token, source if i < accepted else None) for i, token in enumerate(tokens))
    return tuple(
        TokenOut(
            token,
            source if i < accepted else None,
            float(entry.chosen),
            tuple(zip(entry.top_tokens.tolist(), entry.top_values.tolist(), strict=True)),
        )
        for i, (token, entry) in enumerate(zip(tokens, logprobs, strict=False))
    )
