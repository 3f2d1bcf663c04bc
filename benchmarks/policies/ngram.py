"""N-gram rules of other engines: a key of the last tokens, an earlier occurrence of it, a fixed number of drafts."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.policies.base import OneByOne, PlainSequence, Sequencer, occurrence
from trtserve.replay.policies import NO_DRAFT, Draft
from trtserve.replay.traces import Trace


class _Ngram(PlainSequence):
    def __init__(self, trace: Trace, rule: NgramRule) -> None:
        super().__init__(trace)
        self.rule = rule

    def propose(self, limit: int) -> Draft:
        rule, tokens = self.rule, self.tokens
        for size in range(min(rule.longest, len(tokens) - 1), rule.shortest - 1, -1):
            start = occurrence(tokens, tokens[-size:], latest=rule.latest)
            if start:
                drafts = tokens[start : start + min(rule.drafts, limit)]
                return Draft(drafts, rows=rule.drafts if rule.padded else 0, source="history", match=size)
        return Draft(rows=rule.drafts) if rule.padded else NO_DRAFT


class NgramRule(OneByOne):
    """The longest key of ``shortest`` to ``longest`` tokens that occurred before, its earliest or latest occurrence.

    transformers' prompt lookup: longest 2, shortest 1, earliest, 10 drafts. vLLM: shortest and longest are settings,
    earliest in its first runner and latest in its second, which verifies all rows whether filled or not (``padded``).
    """

    def __init__(
        self, name: str, *, longest: int, shortest: int, drafts: int, latest: bool = False, padded: bool = False
    ) -> None:
        self.name, self.longest, self.shortest, self.drafts = name, longest, shortest, drafts
        self.latest, self.padded = latest, padded

    def start(self, trace: Trace) -> Sequencer:
        return _Ngram(trace, self)


class _Pool(PlainSequence):
    def __init__(self, trace: Trace, rule: PoolRule) -> None:
        super().__init__(trace)
        self.rule = rule
        self.pool = rule.pool if rule.shared else {}
        self.entered = 0

    def propose(self, limit: int) -> Draft:
        rule, tokens = self.rule, self.tokens
        # Keys whose following tokens were not all there yet are entered again with more of them, as further values.
        for size in range(1, rule.longest + 1):
            for start in range(max(self.entered - size - rule.drafts, 0), len(tokens) - size):
                value = tuple(tokens[start + size : start + size + rule.drafts])
                self.pool.setdefault(tuple(tokens[start : start + size]), value)
        self.entered = len(tokens)
        for size in range(min(rule.longest, len(tokens)), 0, -1):
            value = self.pool.get(tuple(tokens[-size:]))
            if value:
                return Draft(value[:limit], rows=rule.drafts, source="pool", match=size)
        return Draft(rows=rule.drafts)


class PoolRule(OneByOne):
    """TensorRT-LLM's NGram: a pool from keys of up to ``longest`` tokens to what followed their oldest occurrence.

    By default one pool serves all requests (``shared``), and drafts are padded to their full number.
    """

    def __init__(self, name: str, *, longest: int = 3, drafts: int = 5, shared: bool = True) -> None:
        self.name, self.longest, self.drafts, self.shared = name, longest, drafts, shared
        self.pool: dict[tuple[int, ...], tuple[int, ...]] = {}

    def start(self, trace: Trace) -> Sequencer:
        return _Pool(trace, self)


class _Simple(PlainSequence):
    def __init__(self, trace: Trace, rule: SimpleRule) -> None:
        super().__init__(trace)
        self.rule = rule
        self.lengths: dict[tuple[int, ...], int] = {}

    def propose(self, limit: int) -> Draft:
        rule, tokens = self.rule, self.tokens
        key = tuple(tokens[-rule.key :])
        start = occurrence(tokens, key, latest=True) if len(tokens) > rule.key else 0
        # Position 0 is never looked at, and at least as many tokens as the key has must follow.
        if start <= rule.key or len(tokens) - start < rule.key:
            return NO_DRAFT
        most = min(rule.drafts, limit, self.lengths.get(key, rule.drafts))
        return Draft(tokens[start : start + most], source="history", match=rule.key) if most else NO_DRAFT

    def settle(self, draft: Draft, accepted: int) -> None:
        if self.rule.ratchet:
            self.lengths[tuple(self.tokens[-self.rule.key :])] = accepted


class SimpleRule(OneByOne):
    """llama.cpp's ngram-simple: a key of 12, the latest occurrence, up to 48 drafts.

    ``ratchet``: its ngram-map-k, where a key drafts no more than what was accepted the last time, so it only shrinks.
    """

    def __init__(self, name: str, *, key: int = 12, drafts: int = 48, ratchet: bool = False) -> None:
        self.name, self.key, self.drafts, self.ratchet = name, key, drafts, ratchet

    def start(self, trace: Trace) -> Sequencer:
        return _Simple(trace, self)


class _Mod(PlainSequence):
    def __init__(self, trace: Trace, rule: ModRule) -> None:
        super().__init__(trace)
        self.rule = rule
        self.entered = 0

    def propose(self, limit: int) -> Draft:
        rule, tokens = self.rule, self.tokens
        for end in range(max(self.entered, rule.key), len(tokens)):
            rule.table[tuple(tokens[end - rule.key : end])] = tokens[end]
        self.entered = len(tokens)
        drafts: list[int] = []
        tail = list(tokens[-rule.key :])
        while len(drafts) < rule.most:
            token = rule.table.get(tuple(tail))
            if token is None:
                break
            drafts.append(token)
            tail = [*tail[1:], token]
        if len(drafts) < rule.least:
            return NO_DRAFT
        return Draft(drafts[:limit], source="shared", match=rule.key)


class ModRule(OneByOne):
    """llama.cpp's ngram-mod: a table, one for all requests, from 24 tokens to the next; 48 to 64 drafts or none.

    Without its hash collisions and resets, which only lose.
    """

    def __init__(self, name: str, *, key: int = 24, least: int = 48, most: int = 64) -> None:
        self.name, self.key, self.least, self.most = name, key, least, most
        self.table: dict[tuple[int, ...], int] = {}

    def start(self, trace: Trace) -> Sequencer:
        return _Mod(trace, self)


__all__: Sequence[str] = ("ModRule", "NgramRule", "PoolRule", "SimpleRule")
