"""A policy whose sequences draft one by one, each from its own history: what other engines' rules have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trtserve.replay.policies import Draft
from trtserve.replay.traces import Trace


class Sequencer(Protocol):
    """One sequence of such a policy. ``tokens`` is its prompt and output."""

    tokens: list[int]

    def propose(self, limit: int) -> Draft: ...

    def settle(self, draft: Draft, accepted: int) -> None: ...

    def observe(self, tokens: Sequence[int]) -> None: ...

    def finish(self) -> None: ...


class PlainSequence:
    """A sequence that does nothing but hold its tokens."""

    def __init__(self, trace: Trace) -> None:
        self.tokens = list(trace.prompt)

    def settle(self, draft: Draft, accepted: int) -> None:
        """Fixed rules learn nothing."""

    def observe(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)

    def finish(self) -> None:
        """Nothing outlives the sequence."""


class OneByOne:
    """Adapts sequences that draft one by one to a batch of them."""

    name = ""

    def start(self, trace: Trace) -> Sequencer:
        raise TypeError(f"{type(self).__name__} starts no sequence")

    def propose(self, sequences: Sequence[Sequencer], limits: Sequence[int]) -> list[Draft]:
        return [s.propose(limit) for s, limit in zip(sequences, limits, strict=True)]

    def settle(self, sequence: Sequencer, draft: Draft, accepted: int) -> None:
        sequence.settle(draft, accepted)

    def observe(self, sequence: Sequencer, tokens: Sequence[int]) -> None:
        sequence.observe(tokens)

    def finish(self, sequence: Sequencer) -> None:
        sequence.finish()


def occurrence(tokens: Sequence[int], key: Sequence[int], *, latest: bool) -> int:
    """The position after the earliest or latest occurrence of ``key`` that a token follows; 0 where there is none."""
    size, key = len(key), list(key)
    places = range(size, len(tokens))
    for position in reversed(places) if latest else places:
        if tokens[position - 1] == key[-1] and list(tokens[position - size : position]) == key:
            return position
    return 0
