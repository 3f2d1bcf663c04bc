"""The acceptance rule on host threads: the kernels' source compiled for the CPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtplugins import _host
from trtplugins.sampling_arrays import SamplingArrays, pack_sampling


class AcceptResult(NamedTuple):
    """What a verify decided. Rows are packed as the call's were."""

    targets: NDArray[np.int32]  # [T] row i's target token for rows 0 to accepted of a sequence; -1 for the rows after
    accepted: NDArray[np.int32]  # [B] drafts accepted
    failed: NDArray[np.bool_]  # [B] the deciding row (row ``accepted``) has no target: its entry in targets is -1
    next: NDArray[np.int32]  # [B] the deciding row's target: the token after the accepted drafts; -1 if failed


def accept_host(
    logits: Any,
    row_start: NDArray[np.int32],
    num_rows: NDArray[np.int32],
    tokens: NDArray[np.int32],
    sampling: SamplingArrays | None,
    threads: int,
) -> AcceptResult:
    """Choose each row's target token and accept the drafts that equal the targets before them.

    ``logits``: ``[T, V]`` float32, float16, bfloat16, or uint16 holding bfloat16 bits; a NumPy array or a CPU tensor
    (anything with DLPack); rows contiguous, any stride between them. Sequence b owns rows ``row_start[b]`` to
    ``row_start[b] + num_rows[b] - 1``, which no other sequence may own; the same entries of ``tokens`` ``[T]`` are its
    last committed token, then its drafts. ``num_rows[b]`` 0: nothing is done for b. ``sampling`` None: greedy on the
    raw logits. Addresses in ``sampling`` must be of host memory that outlives the call.

    The rule, for each sequence::

        for i in range(num_rows):
            target[i] = choose(processed(logits[i]), position + i)
            if i + 1 == num_rows or target[i] is None or target[i] != tokens[i + 1]:
                accepted, next = i, target[i]
                break

    A row has no target when a processed logit is NaN or none is above -inf: the sequence is then ``failed``. A NaN
    at a token that a ban, a bias of -inf or the mask excludes does not count. Rows after the deciding one may not be
    looked at. Choices do not depend on ``threads``, on the row count or on the rest of the batch, and are the
    device kernels' bit for bit; ``docs/acceptance.md`` defines them.

    Up to ``threads`` threads work, fewer where starting one would cost more than it saves; the interpreter's lock is
    released. Raises ValueError for shapes, types or values that are not as above.
    """
    batch = len(row_start)
    packed = None if sampling is None else pack_sampling(sampling, batch).view(np.uint8)
    return AcceptResult(
        *_host.accept(
            logits,
            _int32("row_start", row_start),
            _int32("num_rows", num_rows),
            _int32("tokens", tokens),
            packed,
            threads,
        )
    )


#: Longest match that ``LookupRule.depth`` tells apart.
MAX_DEPTH = 256


class LookupRule(NamedTuple):
    """Which copy a lookup proposes: of the places where the last ``ngram`` tokens of a history occur before, the one
    of the longest match counted up to ``depth`` tokens, the latest of equals; if its match reaches ``min_match``.

    ``depth = ngram`` is the latest occurrence (the design's ``match: latest``); a greater depth, the longest match.
    """

    ngram: int = 4
    min_match: int = 8  # at least ngram
    depth: int = 4  # ngram to MAX_DEPTH

    def checked(self) -> LookupRule:
        """This rule with ``min_match`` raised to ``ngram``. Raises ValueError for a value out of range."""
        if not 1 <= self.ngram <= self.depth <= MAX_DEPTH:
            raise ValueError(
                f"lookup: ngram {self.ngram} and depth {self.depth} given; allowed: 1 <= ngram <= depth <= {MAX_DEPTH}"
            )
        return self._replace(min_match=max(self.min_match, self.ngram))


class LookupResult(NamedTuple):
    """The next round's rows of each sequence."""

    tokens: NDArray[np.int32]  # [B, max_rows] the history's last token, then the copy; only num_rows of them defined
    num_rows: NDArray[np.int32]  # [B] 1 + the copy's length; 0 for an empty history
    start: NDArray[np.int32]  # [B] where in the history the copy starts; -1: no copy


def lookup_host(
    history: NDArray[np.int32],
    lengths: NDArray[np.int32],
    allowed: NDArray[np.int32],
    rule: LookupRule,
    max_rows: int,
) -> LookupResult:
    """Find each sequence's copy in its own history: ``csrc/lookup.cuh`` on the host, a scan of the whole history.

    ``history``: int32 ``[B, max_len]``, of which ``lengths`` ``[B]`` tokens count. ``allowed`` ``[B]``: most drafts of
    each sequence, cut to ``max_rows - 1``. A copy never runs past its history's end. Raises ValueError for shapes,
    types or values that are not as above. For incremental lookup on the host use ``trtserve.lookup``; this is what
    the device kernel computes.
    """
    ngram, min_match, depth = rule.checked()
    if history.dtype != np.int32 or history.ndim != 2:
        raise ValueError(f"history: {history.dtype} of {history.ndim} dimensions given; allowed: int32 of 2 dimensions")
    if max_rows < 1:
        raise ValueError(f"max_rows: {max_rows} given; allowed: at least 1")
    return LookupResult(
        *_host.lookup(
            np.ascontiguousarray(history),
            _int32("lengths", lengths),
            _int32("allowed", allowed),
            ngram,
            min_match,
            depth,
            max_rows,
        )
    )


def _int32(name: str, values: NDArray[np.int32]) -> NDArray[np.int32]:
    array = np.ascontiguousarray(values)
    if array.dtype != np.int32 or array.ndim != 1:
        raise ValueError(f"{name}: {array.dtype} of {array.ndim} dimensions given; allowed: int32 of 1 dimension")
    return array
