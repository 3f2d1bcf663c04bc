"""Rules that search for the longest suffix of the text: automata, trees and tries of other engines."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.policies.base import OneByOne, PlainSequence, Sequencer
from trtserve.replay.policies import NO_DRAFT, Draft
from trtserve.replay.traces import Trace


class SuffixMatches:
    """A text, with the length of the match that ends before every one of its positions and at a query's end.

    ``feed`` one query token at a time; afterwards ``lengths[i]`` tokens before position i equal the query's last ones.
    """

    def __init__(self, text: Sequence[int] = ()) -> None:
        self._text = np.array(text, np.int32)
        self.size = len(text)
        self._lengths = np.zeros(self.size + 1, np.int32)

    def append(self, token: int) -> None:
        if self.size == len(self._text):
            self._text = np.concatenate((self._text, np.zeros(max(self.size, 256), np.int32)))
            self._lengths = np.concatenate(
                (self._lengths, np.zeros(len(self._text) + 1 - len(self._lengths), np.int32))
            )
        self._text[self.size] = token
        self.size += 1

    def feed(self, token: int) -> None:
        before = self._lengths[: self.size]
        after = np.where(self._text[: self.size] == token, before + 1, 0)
        self._lengths[1 : self.size + 1] = after
        self._lengths[0] = 0

    @property
    def text(self) -> NDArray[np.int32]:
        return self._text[: self.size]

    @property
    def lengths(self) -> NDArray[np.int32]:
        """By position of the token that would be copied, so without the text's end. [size]"""
        return self._lengths[: self.size]


class _Longest(PlainSequence):
    def __init__(self, trace: Trace, rule: LongestRule) -> None:
        super().__init__(trace)
        self.rule = rule
        self.own = SuffixMatches()
        self.pool = rule.texts() if rule.shared else None
        for token in trace.prompt:
            self._feed(token)

    def _feed(self, token: int) -> None:
        # The position the token takes is matched against what came before it, so it is fed first.
        self.own.feed(token)
        self.own.append(token)
        if self.pool is not None:
            self.pool.feed(token)

    def observe(self, tokens: Sequence[int]) -> None:
        super().observe(tokens)
        for token in tokens:
            self._feed(token)

    def propose(self, limit: int) -> Draft:
        best = NO_DRAFT
        for matches, source in ((self.own, "history"), (self.pool, "shared")):
            if matches is None or matches.size == 0:
                continue
            lengths = np.minimum(matches.lengths, 64)
            longest = int(lengths.max(initial=0))
            if longest >= self.rule.shortest and longest > best.match:
                start = int(np.flatnonzero(lengths == longest)[-1])
                text = matches.text[start : start + min(self.rule.drafts, limit)]
                drafts = [int(t) for t in text]
                if -1 in drafts:
                    drafts = drafts[: drafts.index(-1)]
                if drafts:
                    best = Draft(drafts, source=source, match=longest)
        return best

    def finish(self) -> None:
        if self.rule.shared:
            self.rule.keep(self.tokens)


class LongestRule(OneByOne):
    """TensorRT-LLM's suffix automaton: the longest suffix that occurred before, its latest occurrence, fixed drafts.

    ``shared``: finished requests are searched too (its global pool). ``shortest`` above 1 is a threshold.
    """

    def __init__(self, name: str, *, drafts: int, shortest: int = 1, shared: bool = False, slots: int = 1024) -> None:
        self.name, self.drafts, self.shortest, self.shared, self.slots = name, drafts, shortest, shared, slots
        self._kept: list[list[int]] = []

    def texts(self) -> SuffixMatches:
        """Finished texts in one, with a token between them that equals no other."""
        return SuffixMatches([t for kept in self._kept for t in (*kept, -1)])

    def keep(self, tokens: Sequence[int]) -> None:
        self._kept = [*self._kept, list(tokens)][-self.slots :]

    def start(self, trace: Trace) -> Sequencer:
        return _Longest(trace, self)


class _Frequent(PlainSequence):
    def __init__(self, trace: Trace, rule: FrequentRule) -> None:
        super().__init__(trace)
        self.rule = rule

    def propose(self, limit: int) -> Draft:
        rule = self.rule
        own = self._best(self._places(self.tokens, self.tokens), limit)
        best = (own, "history")
        if rule.shared:
            everywhere = self._best(rule.places(self.tokens[-rule.depth :]), limit)
            if everywhere[0] > own[0]:
                best = (everywhere, "shared")
        (_, drafts, match), source = best
        return Draft(drafts, source=source, match=match) if drafts else NO_DRAFT

    def _places(self, text: list[int], tail: list[int]) -> list[tuple[list[int], int, int]]:
        """(text, position, match) after each occurrence of the last token."""
        last = tail[-1]
        return [(text, i, _match(text, i, tail, self.rule.depth)) for i in range(1, len(text)) if text[i - 1] == last]

    def _best(self, places: list[tuple[list[int], int, int]], limit: int) -> tuple[float, list[int], int]:
        """The walk with the highest sum of probabilities, over all match lengths."""
        best: tuple[float, list[int], int] = (0.0, [], 0)
        walk: tuple[list[int], list[float]] = ([], [])
        held = -1
        for match in range(1, max((m for _, _, m in places), default=0) + 1):
            at = [(text, i) for text, i, m in places if m >= match]
            if len(at) != held:  # the same occurrences give the same walk, which is only cut differently
                walk, held = self._walk(at, limit), len(at)
            most = min(limit, self.rule.depth - match, int(self.rule.factor * match))
            score = sum(walk[1][:most])
            if score > best[0]:
                best = (score, walk[0][:most], match)
        return best

    def _walk(self, at: list[tuple[list[int], int]], limit: int) -> tuple[list[int], list[float]]:
        drafts: list[int] = []
        chances: list[float] = []
        chance = 1.0
        for step in range(min(limit, self.rule.drafts)):
            counts: dict[int, int] = {}
            for text, i in at:
                if i + step < len(text):
                    counts[text[i + step]] = counts.get(text[i + step], 0) + 1
            if not counts:
                break
            token = max(counts, key=lambda t: counts[t])
            chance *= counts[token] / len(at)
            if chance < self.rule.least:
                break
            drafts.append(token)
            chances.append(chance)
            at = [(text, i) for text, i in at if i + step < len(text) and text[i + step] == token]
        return drafts, chances

    def finish(self) -> None:
        if self.rule.shared:
            self.rule.keep(self.tokens[-(len(self.tokens) - self.prompt_length) :])

    @property
    def prompt_length(self) -> int:
        return self._prompt_length

    _prompt_length = 0


def _match(text: list[int], position: int, tail: list[int], most: int) -> int:
    count = 0
    while count < min(most, position, len(tail)) and text[position - 1 - count] == tail[-1 - count]:
        count += 1
    return count


class FrequentRule(OneByOne):
    """SuffixDecoding, from its published rule: for every match length the walk to the most frequent next tokens, as
    long as a factor of the match and while its probability is at least ``least``; the walk whose probabilities sum to
    the most. ``depth``, that of its trees, bounds match and drafts together: 64 by default, 24 in vLLM. ``shared``: a
    second tree of earlier outputs, of which the sequence's own wins ties.

    On the shipped traces it needs as many rounds as the authors' package (``arctic.ArcticRule``), to within 0.3%.
    """

    def __init__(
        self, name: str, *, depth: int = 64, factor: float = 1.0, least: float = 0.1, shared: bool = False
    ) -> None:
        self.name, self.depth, self.drafts = name, depth, depth
        self.factor, self.least, self.shared = factor, least, shared
        self._outputs: list[list[int]] = []
        self._after: dict[int, list[tuple[int, int]]] = {}

    def keep(self, output: list[int]) -> None:
        self._outputs.append(output)
        for i in range(1, len(output)):
            self._after.setdefault(output[i - 1], []).append((len(self._outputs) - 1, i))

    def places(self, tail: list[int]) -> list[tuple[list[int], int, int]]:
        return [
            (self._outputs[k], i, _match(self._outputs[k], i, tail, self.depth))
            for k, i in self._after.get(tail[-1], ())
        ]

    def start(self, trace: Trace) -> Sequencer:
        sequence = _Frequent(trace, self)
        sequence._prompt_length = len(trace.prompt)
        return sequence


class _Node:
    __slots__ = ("children",)

    def __init__(self) -> None:
        self.children: OrderedDict[int, _Node] = OrderedDict()  # latest last


class _Trie(PlainSequence):
    def __init__(self, trace: Trace, rule: TrieRule) -> None:
        super().__init__(trace)
        self.rule = rule

    def observe(self, tokens: Sequence[int]) -> None:
        super().observe(tokens)
        recent = self.tokens[-self.rule.depth :]
        for start in range(len(recent)):
            node = self.rule.root
            for token in recent[start:]:
                node = node.children.setdefault(token, _Node())
                # The order of use is the children's order.
            self._touch(recent[start:])

    def _touch(self, path: Sequence[int]) -> None:
        node = self.rule.root
        for token in path:
            node.children.move_to_end(token)
            node = node.children[token]

    def propose(self, limit: int) -> Draft:
        rule = self.rule
        drafts: list[int] = []
        parents: list[int] = []
        for size in range(min(rule.depth, len(self.tokens)), 0, -1):
            node: _Node | None = rule.root
            for token in self.tokens[-size:]:
                node = node.children.get(token) if node else None
            if node and node.children:
                self._grow(node, drafts, parents, rule.rows)
            if len(drafts) >= rule.rows:
                break
        keep = min(len(drafts), rule.rows)
        return Draft(drafts[:keep], parents[:keep], rows=rule.rows, source="shared")

    @staticmethod
    def _grow(anchor: _Node, drafts: list[int], parents: list[int], most: int) -> None:
        """Breadth first, the latest children first; what is there already is shared."""
        frontier = [(anchor, -1)]
        while frontier and len(drafts) < most:
            node, parent = frontier.pop(0)
            for token, child in reversed(node.children.items()):
                at = next((i for i, p in enumerate(parents) if p == parent and drafts[i] == token), -1)
                if at < 0:
                    if len(drafts) >= most:
                        return
                    drafts.append(token)
                    parents.append(parent)
                    at = len(drafts) - 1
                frontier.append((child, at))


class TrieRule(OneByOne):
    """SGLang's NGRAM, approximated: one trie for all requests, of the last 18 tokens after every verify and never of a
    prompt as such; a tree of 12 drafts, breadth first from the longest suffix that is in it, always 12 rows.
    """

    def __init__(self, name: str, *, depth: int = 18, rows: int = 12) -> None:
        self.name, self.depth, self.rows = name, depth, rows
        self.root = _Node()

    def start(self, trace: Trace) -> Sequencer:
        return _Trie(trace, self)
