"""All copy sources of one engine: what each sequence's next round may verify.

A round, for the sequences that take part in it::

    proposals = drafter.propose(sequences, limits)   # one call for the batch
    ...                                              # verify
    sequence.settle(accepted)                        # where its proposal was verified, else sequence.abandon()
    sequence.observe(emitted)                        # the round's committed tokens

or, in one call for all three, with the results in arrays: ``Drafter.step``.

Sources are ``history`` (the sequence's own prompt and output), ``prediction`` (its predicted output) and ``shared``
(finished requests of its scope). Whether, from where and how long a sequence copies is its policy's choice:

``policy="adaptive"``
    Every way to go on is a candidate: the copy under way, the places around where one broke, and earlier occurrences of
    the last tokens, long or short, in any source. Each has a learned chance; the batch's rows go to the likeliest
    drafts as long as the round's expected tokens per time grow, by what a row costs on this engine. ``min_match`` and
    ``miss_backoff`` have no part in it. See ``docs/policy.md``.

``policy="window"``
    Sources in order. The latest earlier occurrence of the last ``ngram`` tokens counts when the match spans
    ``min_match``. Length: the least of the limit, the window, and what is left of the source. Each call of ``propose``
    that names the sequence is one round for its miss backoff, whatever the limit.

The prediction is searched like the history, with the sequence's own last tokens: by ``adaptive`` as if it stood before
the prompt, though no copy or match runs from one into the other; by ``window`` where the history has nothing. Besides,
it is anchored at the output's start: while all output so far equals the prediction's beginning (with no output yet,
trivially), the copy is what comes next in the prediction, whatever the length of the match, which is 0 at the first
token.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from trtserve.engine.protocol import SOURCES, Source
from trtserve.engine_dir import CostCurve
from trtserve.lookup import _native
from trtserve.lookup._native import SequenceDrafter
from trtserve.lookup.cost import verify_cost
from trtserve.lookup.shared import SharedCache
from trtserve.settings import PromptLookup

__all__ = ["NO_COPY", "Drafter", "Drafts", "Proposal", "SequenceDrafter"]

_NO_TOKENS: NDArray[np.int32] = np.empty(0, np.int32)
_NO_TOKENS.flags.writeable = False


class Proposal(NamedTuple):
    """One sequence's drafts for one round. Without a copy: no tokens, no source, match 0."""

    tokens: NDArray[np.int32]  # [n] drafts; a view, of which no other proposal sees any part
    source: Source | None
    match: int  # tokens before the copy's start that equal the sequence's last tokens, counted to 64


NO_COPY = Proposal(_NO_TOKENS, None, 0)


class Drafts(NamedTuple):
    """A batch's drafts for one round, int32. The next ``step`` of as many sequences overwrites them."""

    tokens: NDArray[np.int32]  # [B, max_drafts] row b's first counts[b] are its drafts; what follows means nothing
    counts: NDArray[np.int32]  # [B]
    sources: NDArray[np.int32]  # [B] 0: no copy; k: SOURCES[k - 1]
    matches: NDArray[np.int32]  # [B] as Proposal.match


class Drafter(_native.Drafter):
    """Drafts for the sequences of one engine. One thread calls it and its sequences; another gets a RuntimeError.

    ``start``, ``propose``, ``step`` and ``finish`` are native; ``_native.pyi`` describes them.

    Args:
        settings: ``policy``, ``ngram``, ``max_drafts``, ``min_match`` and ``miss_backoff`` are obeyed here.
            ``max_seqs`` and ``batch_max_drafts`` depend on the batch: the caller obeys them through its limits.
        shared: the cross-request cache, made with ``key_length=settings.shared_key_length``.
        cost: the engine's measured curve, which policy ``adaptive`` weighs with; None: 0.05 of a step per draft row.
        priors: shares of the adaptive policy instead of the shipped ones, in thousandths, for measuring policies.
    """

    def __init__(
        self,
        settings: PromptLookup,
        *,
        shared: SharedCache | None = None,
        cost: CostCurve | None = None,
        priors: list[int] | None = None,
    ) -> None:
        super().__init__(
            ngram=settings.ngram,
            max_drafts=settings.max_drafts,
            min_match=settings.effective_min_match,
            miss_backoff=settings.miss_backoff,
            shared=shared.native if shared else None,
            policy=settings.policy,
            shared_key=settings.shared_key_length,
            cost=verify_cost(cost),
            priors=priors,
            proposal=Proposal,
            no_copy=NO_COPY,
            sources=cast("tuple[str, str, str]", SOURCES[:3]),
            drafts=Drafts,
            empty=np.empty,
            int32=np.dtype(np.int32),
        )
