"""Greedy acceptance as native layers: a round reads back three integers a sequence instead of logits.

The rule: row i's target token is the highest logit of row i. Row i's target is compared with the token of row
i + 1, the draft it would have produced. Drafts are accepted from the first on, up to the first that differs; the target
of the row after the last accepted draft is the round's next token. A row that has no target (a logit is NaN, or none is
above minus infinity) accepts nothing after it, and as the deciding row it makes the round failed for its sequence.
What makes logits NaN is in the row's hidden state, whose sum shows it whatever a search for the highest does with NaN;
summing the logits themselves would hold all of them in float32 once more.
"""

from __future__ import annotations

import torch

from trtbuild.network.graph import Graph
from trtbuild.network.trt_types import ITensor

#: Beyond this a float32 counts as infinite; NaN compares false with it.
LARGEST_FINITE = 3.0e38


def add_acceptance(
    g: Graph, hidden: ITensor, logits: ITensor, token_ids: ITensor, head_rows: ITensor, num_rows: ITensor
) -> ITensor:
    """The verdict, int32 ``[B, 3]``: drafts accepted, the next token, and 1 where the deciding row failed.

    ``logits``: float32 ``[B, L, V]``, made from ``hidden`` ``[B, L, H]``, of the rows ``head_rows`` (int32 ``[L]``,
    ascending by one) of ``token_ids`` (int32 ``[B, R]``). ``num_rows``: int32 ``[B]``, rows that count; a sequence
    with fewer than R, or none (an empty slot), accepts no more than ``num_rows - 1``.
    """
    value, index = g.highest(logits, axis=2)  # [B, L, 1]
    target = g.reshape(index, (0, 0))  # [B, L]
    spread = g.abs(g.sum(g.cast(hidden, torch.float32), axis=2))  # [B, L, 1]
    limit = g.float32(LARGEST_FINITE, rank=3)
    sound = g.both(g.less(spread, limit), g.greater(value, g.float32(-LARGEST_FINITE, rank=3)))
    has_target = g.reshape(sound, (0, 0))  # [B, L]

    last_row = g.sub(g.cast(g.size(token_ids, 1), torch.int32), g.int32(1))  # [1]
    following = g.add(head_rows, g.int32(1))  # [L]
    # The last row has no draft after it: the clamp only keeps the index legal, `counts` keeps the row out.
    drafts = g.take(token_ids, g.minimum(following, last_row), 1)  # [B, L]
    counts = g.less(g.reshape(following, (1, -1)), g.reshape(num_rows, (-1, 1)))  # [B, L]

    match = g.both(g.both(g.equal(target, drafts), counts), has_target)
    misses = g.running_sum(g.cast(g.negate(match), torch.int32), axis=1)
    kept = g.cast(g.equal(misses, g.int32(0, rank=2)), torch.int32)
    accepted = g.sum(kept, axis=1)  # [B, 1]
    next_token = g.take_elements(target, accepted, 1)
    failed = g.take_elements(g.cast(g.negate(has_target), torch.int32), accepted, 1)
    return g.concat((accepted, next_token, failed), 1)
