"""A policy that drafts what it is told, for tests of the replay."""

from __future__ import annotations

from collections.abc import Sequence

from trtserve.replay.policies import NO_DRAFT, Draft
from trtserve.replay.traces import Trace


class Fixed:
    """Gives the drafts of the list, one a call for a sequence, then none."""

    name = "fixed"

    def __init__(self, drafts: list[list[int]]) -> None:
        self.drafts = list(reversed(drafts))
        self.limits: list[int] = []

    def start(self, trace: Trace) -> list[int]:
        return list(trace.prompt)

    def propose(self, sequences: Sequence[list[int]], limits: Sequence[int]) -> list[Draft]:
        self.limits += limits
        given = [self.drafts.pop() if self.drafts else [] for _ in sequences]
        return [
            Draft(d[:limit], source="history", match=1) if d else NO_DRAFT
            for d, limit in zip(given, limits, strict=True)
        ]

    def settle(self, sequence: list[int], draft: Draft, accepted: int) -> None:
        assert draft.tokens

    def observe(self, sequence: list[int], tokens: Sequence[int]) -> None:
        sequence.extend(tokens)

    def finish(self, sequence: list[int]) -> None:
        sequence.clear()
