"""Which enqueues a step takes: sequences in arbitrary slots, profiles that take neighbouring slots.

A plan's batch dimension runs over neighbouring slots of the cache, bound at the first of them. So a step's sequences
are grouped into spans; a slot inside a span that takes no part has no rows that count. Weights are read once for each
enqueue, so the fewest enqueues win.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trtserve.executor.tensorrt_io import Profile


class Launch(NamedTuple):
    """One enqueue of a step."""

    profile: int
    """Index in the plan's profiles."""
    first_slot: int
    batch: int
    """Neighbouring slots, from ``first_slot``."""
    rows: int
    """Rows of each of them, the most that any member has."""
    members: tuple[int, ...]
    """The sequences in it, as indices into the step's batch, by ascending slot."""


def choose_profile(profiles: Sequence[Profile], batch: int, rows: int, *, logits: bool) -> int | None:
    """The narrowest verify profile that takes ``batch`` slots of ``rows`` rows, by batch, then rows; None if none."""
    fitting = [
        (p.batch, p.rows, i)
        for i, p in enumerate(profiles)
        if "prefill" not in p.tiers and p.logits == logits and batch <= p.batch and rows <= p.rows
    ]
    return min(fitting)[2] if fitting else None


def plan_launches(
    profiles: Sequence[Profile], slots: Sequence[int], num_rows: Sequence[int], needs_logits: Sequence[bool]
) -> list[Launch]:
    """The fewest enqueues that cover every sequence, in ascending slot order. All sequences are ``[B]`` long.

    Taking each span as far as a profile allows is optimal, because part of a span that fits also fits. Raises
    ValueError for a sequence that no profile takes alone.
    """
    launches: list[Launch] = []
    members: list[int] = []
    current: Launch | None = None
    for b in sorted(range(len(slots)), key=lambda i: slots[i]):
        extended = _span(profiles, slots, num_rows, needs_logits, [*members, b])
        if extended is None:
            if current is not None:
                launches.append(current)
            members = []
            extended = _span(profiles, slots, num_rows, needs_logits, [b])
            if extended is None:
                raise ValueError(f"no profile of the plan takes {num_rows[b]} rows of one sequence")
        members.append(b)
        current = extended
    return [*launches, current] if current is not None else launches


def _span(
    profiles: Sequence[Profile],
    slots: Sequence[int],
    num_rows: Sequence[int],
    needs_logits: Sequence[bool],
    members: Sequence[int],
) -> Launch | None:
    first = slots[members[0]]
    batch = slots[members[-1]] - first + 1
    rows = max(num_rows[b] for b in members)
    profile = choose_profile(profiles, batch, rows, logits=any(needs_logits[b] for b in members))
    return None if profile is None else Launch(profile, first, batch, rows, tuple(members))
