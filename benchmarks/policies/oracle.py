"""The oracle: the best that copies could do for a policy that knows the output.

Before each token it knows the longest copy from anywhere in the text seen so far (prompt, output and, if asked for,
the texts of earlier traces) that the output will repeat; a copy may run past the text's end into itself, as a repeat
does. Of these it picks the lengths that make the whole output's decode time least under the cost of its rows. It
drafts one copy a round, so a policy that joins copies in one draft could beat it (see ``benchmarks.bounds``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.policies.base import OneByOne, PlainSequence, Sequencer
from trtserve.replay.policies import NO_DRAFT, Draft
from trtserve.replay.traces import Trace


def longest_copies(trace: Trace, seen: Sequence[int], most: int, *, match: int = 0) -> list[int]:
    """For each position of the output the length, up to ``most``, of the longest copy, of those before whose source
    the last ``match`` tokens stand."""
    text = np.array([*seen, *trace.prompt, *trace.output], np.int32)
    first = len(seen) + len(trace.prompt)
    ahead = np.zeros(len(text) + 1, np.int32)  # by source: tokens from it that equal those from the position on
    lengths = [0] * len(trace.output)
    for position in range(len(text) - 1, first - 1, -1):
        equal = text[:position] == text[position]
        ahead[:position] = np.where(equal, np.minimum(ahead[1 : position + 1] + 1, most), 0)
        told = ahead[match:position]
        for back in range(1, min(match, position) + 1):
            told = np.where(text[match - back : position - back] == text[position - back], told, 0)
        lengths[position - first] = int(told.max(initial=0))
    return lengths


def best_lengths(copies: Sequence[int], cost: Callable[[int], float]) -> list[int]:
    """Drafts to propose at each position so that the time of the whole is least; ``cost(drafts)`` in steps."""
    size = len(copies)
    time = [0.0] * (size + 1)
    chosen = [0] * size
    for position in range(size - 1, -1, -1):
        options = range(min(copies[position], size - position - 1) + 1)
        chosen[position] = min(options, key=lambda n: cost(n) + time[position + n + 1])
        time[position] = cost(chosen[position]) + time[position + chosen[position] + 1]
    return chosen


class _Knowing(PlainSequence):
    def __init__(self, trace: Trace, rule: Oracle) -> None:
        super().__init__(trace)
        self.rule, self.output = rule, trace.output
        seen = rule.seen if rule.shared else []
        self.chosen = best_lengths(longest_copies(trace, seen, rule.most), rule.cost)
        self.at = 0

    def propose(self, limit: int) -> Draft:
        count = min(self.chosen[self.at], limit)
        return Draft(self.output[self.at : self.at + count], source="oracle") if count else NO_DRAFT

    def observe(self, tokens: Sequence[int]) -> None:
        super().observe(tokens)
        self.at += len(tokens)

    def finish(self) -> None:
        if self.rule.shared:
            self.rule.seen = [*self.rule.seen, *self.tokens, -1]


class Oracle(OneByOne):
    """``cost(drafts)``: a lone sequence's verify in steps. ``most``: drafts a copy may have."""

    def __init__(self, cost: Callable[[int], float], *, most: int, shared: bool = False) -> None:
        self.name, self.cost, self.most, self.shared = "oracle", cost, most, shared
        self.seen: list[int] = []

    def start(self, trace: Trace) -> Sequencer:
        return _Knowing(trace, self)
