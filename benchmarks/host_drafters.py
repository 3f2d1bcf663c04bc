"""Drafters whose cost on the host is measured: ours, and others' or the rules they follow.

Each drafts for a sequence whose output begins as a copy of ``prompt``'s start. A *round* is a search, and all that the
drafter itself has to do before the next: what was emitted joins its text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from operator import getitem
from typing import Any, Protocol, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from benchmarks.policies import arctic
from trtserve.lookup.drafter import Drafter
from trtserve.settings import PromptLookup

#: Drafts a round may have, and tokens of the copy that is under way when rounds begin.
DRAFTS, BEGUN = 8, 64

Tokens = NDArray[np.int32]


class Subject(Protocol):
    """A drafter at work on one prompt, whose making builds its index."""

    @property
    def bytes(self) -> float | None:
        """Of its index; None where it has none."""
        ...

    def copying(self, count: int) -> None:
        """Rounds whose drafts are all accepted: the output copies the prompt."""
        ...

    def searching(self, text: Tokens) -> None:
        """One round for each token of ``text``, which is emitted whatever was drafted."""
        ...


class OneByOne:
    """A subject whose parts are calls of their own."""

    bytes: float | None = None

    def __init__(self, prompt: Tokens) -> None:
        self.room = np.empty(len(prompt) + (1 << 17), np.int32)
        self.room[: len(prompt)] = prompt
        self.length = len(prompt)
        self.begin(prompt)
        self.emit(prompt[:BEGUN])

    def begin(self, prompt: Tokens) -> None:
        """Index the prompt."""

    def propose(self) -> Any:
        """Drafts, as the drafter gives them."""
        raise TypeError(f"{type(self).__name__} does not draft")

    def observe(self, tokens: Tokens) -> None:
        """Enter into the index what was emitted."""

    def emit(self, tokens: Tokens) -> None:
        # Others keep their requests' tokens too; writing them down is part of the round.
        self.room[self.length : self.length + len(tokens)] = tokens
        self.length += len(tokens)
        self.observe(tokens)

    @property
    def text(self) -> Tokens:
        return self.room[: self.length]

    def copying(self, count: int) -> None:
        for _ in range(count):
            drafts = self.propose()
            self.emit(drafts if len(drafts) else self.room[:1])

    def searching(self, text: Tokens) -> None:
        for at in range(len(text)):
            self.propose()
            self.emit(text[at : at + 1])


class Rescan(OneByOne):
    """The window policy's lookup without an index, in NumPy: the last n-gram is compared with every position."""

    def propose(self) -> Tokens:
        return rescan(self.text, 4, DRAFTS)


def rescan(history: Tokens, ngram: int, limit: int) -> Tokens:
    """What followed the latest earlier occurrence of the last n-gram."""
    windows = sliding_window_view(history[:-1], ngram)
    found = np.flatnonzero((windows == history[-ngram:]).all(axis=1))
    return history[found[-1] + ngram :][:limit] if len(found) else history[:0]


class VllmRule(OneByOne):
    """vLLM's n-gram proposer on the CPU, its rule compiled by numba as there: one pass over the reversed text."""

    def begin(self, prompt: Tokens) -> None:
        self.search = compiled()
        self.search(prompt, 2, 5, DRAFTS)

    def propose(self) -> Tokens:
        return self.search(self.text, 2, 5, DRAFTS)


def longest_earliest(text: Tokens, shortest: int, longest: int, drafts: int) -> Tokens:
    """What followed the earliest occurrence of the longest suffix of ``shortest`` to ``longest`` tokens that occurred
    before. ``policies.ngram.NgramRule`` is the same rule, searched.

    Knuth, Morris and Pratt's search (1977) for the reversed tail in the reversed text: at every position the longest
    part of the tail that ends there, in one step on average, whatever repeats.
    """
    last = text.size - 1
    most = min(longest, last)
    if most < shortest:
        return text[:0]
    # borders[k]: of the tail's last k + 1 tokens, read backwards, the longest beginning that is their end too.
    borders = np.zeros(most, np.int32)
    matched = 0
    for k in range(1, most):
        while matched and text[last - matched] != text[last - k]:
            matched = borders[matched - 1]
        if text[last - matched] == text[last - k]:
            matched += 1
        borders[k] = matched
    best = start = matched = 0
    for at in range(last - 1, -1, -1):
        if matched == most:
            matched = borders[most - 1]
        while matched and text[last - matched] != text[at]:
            matched = borders[matched - 1]
        if text[last - matched] == text[at]:
            matched += 1
        if matched and matched >= best:
            best, start = matched, at + matched
    return text[start : start + drafts] if best >= shortest else text[:0]


@lru_cache(maxsize=1)
def compiled() -> Callable[[Tokens, int, int, int], Tokens]:
    """``longest_earliest``, compiled once."""
    from numba import njit

    return cast("Callable[[Tokens, int, int, int], Tokens]", njit(longest_earliest))


class Transformers(OneByOne):
    """transformers' own prompt lookup, 10 drafts after the last two tokens or the last one."""

    def begin(self, prompt: Tokens) -> None:
        import torch
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

        self.ids = torch.empty((1, len(self.room)), dtype=torch.int64)
        self.ids[0, : len(prompt)] = torch.from_numpy(prompt.astype(np.int64))
        self.generator: Any = PromptLookupCandidateGenerator(
            num_output_tokens=10, max_matching_ngram_size=2, max_length=2 * len(self.room)
        )

    def propose(self) -> Tokens:
        candidates, _ = self.generator.get_candidates(self.ids[:, : self.length])
        return np.asarray(candidates[0, self.length :])

    def observe(self, tokens: Tokens) -> None:
        import torch

        self.ids[0, self.length - len(tokens) : self.length] = torch.from_numpy(tokens.astype(np.int64))


class Arctic(OneByOne):
    """SuffixDecoding's own package: a suffix tree of the request, as deep as vLLM's, and none of other requests."""

    depth = 24

    def begin(self, prompt: Tokens) -> None:
        self.cache = arctic.new_cache(depth=self.depth, shared=False)
        self.cache.start_request(0, prompt)

    def propose(self) -> list[int]:
        tail = self.room[self.length - self.depth : self.length]
        found = self.cache.speculate(
            0, tail, max_spec_tokens=DRAFTS, max_spec_factor=arctic.FACTOR, min_token_prob=arctic.LEAST
        )
        return list(found.token_ids)

    def observe(self, tokens: Tokens | list[int]) -> None:
        self.cache.add_active_response(0, tokens)

    @property
    def bytes(self) -> float | None:  # type: ignore[override]
        return float(self.cache._local_trees[0].estimate_memory())


def our_drafter(policy: str) -> Drafter:
    return Drafter(PromptLookup.model_validate({"policy": policy}))


class Ours:
    """Our drafter, called part by part."""

    def __init__(self, drafter: Drafter, prompt: Tokens) -> None:
        self.drafter = drafter
        self.sequence = self.drafter.start(prompt, scope=None)
        self.sequence.observe(prompt[:BEGUN])
        self.first = prompt[:1]

    @property
    def bytes(self) -> float | None:
        return self.sequence.bytes

    def copying(self, count: int) -> None:
        drafter, sequence = self.drafter, self.sequence
        for _ in range(count):
            tokens = drafter.propose([sequence], [DRAFTS])[0].tokens
            if len(tokens):
                sequence.settle(len(tokens))
                sequence.observe(tokens)
            else:
                sequence.observe(self.first)

    def searching(self, text: Tokens) -> None:
        drafter, sequence = self.drafter, self.sequence
        for token in text.tolist():
            if drafter.propose([sequence], [DRAFTS])[0].source:
                sequence.settle(0)
            sequence.observe((token,))


class OursInOneCall:
    """The same for ``batch`` sequences of one prompt, by one call of ``step`` a round. The drafter is its own."""

    def __init__(self, drafter: Drafter, prompt: Tokens, batch: int = 1) -> None:
        self.drafter = drafter
        self.sequences = [self.drafter.start(prompt, scope=None) for _ in range(batch)]
        self.limits = [DRAFTS] * batch
        self.drafts = self.drafter.step(self.sequences, [0] * batch, [prompt[:BEGUN]] * batch, self.limits)
        # What is emitted would lie in an executor's arrays. Here it lies in the drafts' own, as they are right, and is
        # put together once for each counts of drafts: doing so is no part of a drafter's round.
        self.rows = [[prompt[:1], *(self.drafts.tokens[b, :n] for n in range(1, DRAFTS + 1))] for b in range(batch)]
        self.emitted: dict[bytes, list[Tokens]] = {}

    @property
    def bytes(self) -> float | None:
        return self.sequences[0].bytes

    def copying(self, count: int) -> None:
        step, sequences, limits, emitted = self.drafter.step, self.sequences, self.limits, self.emitted
        counts = self.drafts.counts
        key = counts.tobytes
        for _ in range(count):
            tokens = emitted.get(key())
            if tokens is None:
                tokens = emitted[key()] = list(map(getitem, self.rows, counts.tolist()))
            step(sequences, counts, tokens, limits)

    def searching(self, text: Tokens) -> None:
        step, sequences, limits = self.drafter.step, self.sequences, self.limits
        none = [0] * len(sequences)
        for token in text.tolist():
            step(sequences, none, [(token,)] * len(sequences), limits).counts.tolist()


def peers() -> dict[str, Callable[[Tokens], Subject]]:
    """Others' drafters by name and version, those that are installed; the last is the plain rescan."""
    found: dict[str, Callable[[Tokens], Subject]] = {}
    if find_spec("numba"):
        found[f"vLLM's n-gram rule (numba {version('numba')})"] = VllmRule
    if release := arctic.installed():
        found[f"arctic-inference {release}"] = Arctic
    if find_spec("torch") and find_spec("transformers"):
        found[f"transformers {version('transformers')}"] = Transformers
    found["rescan (NumPy)"] = Rescan
    return found
