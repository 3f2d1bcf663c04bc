"""What our drafter does inside TensorRT-LLM's executor, free of TensorRT-LLM's classes.

A round, seen from here: ``draft`` is called before each forward with the requests in generation. First each request's
new tokens, which are what its last round emitted, settle its last proposal and join its history; then all are asked for
drafts together. ``finish`` is called when a request's resources are freed: at its end, when it is cancelled or fails,
and when it is paused to come back later.

Everything is decided by the requests' own tokens and ids, in the order of their ids, so every rank of a tensor-parallel
group, each with a copy of this, drafts the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtserve.engine.tensorrt_llm.feed import Announced, FeedWriter, Shared
from trtserve.engine.tensorrt_llm.scopes import takes_copies
from trtserve.engine_dir import CostCurve, CostPoint
from trtserve.lookup.drafter import Drafter, SequenceDrafter
from trtserve.lookup.shared import SharedCache, scope_name
from trtserve.settings import PromptLookup


@dataclass(frozen=True)
class LookupPlan:
    """What every rank is told. Small and picklable."""

    lookup: PromptLookup
    max_draft_len: int
    max_batch_size: int
    max_seq_len: int
    feed_address: str | None
    hermetic: bool = False
    """Take copies from the request's own text only."""


@dataclass
class _Live:
    """A request that takes copies."""

    drafter: SequenceDrafter
    known: int
    """Tokens of the request that its history has."""
    prompt_len: int
    waiting: tuple[int, ...] = ()
    """Drafts of the last round, not settled yet."""
    source: str | None = None


class BatchDrafts:
    """The drafts of one executor's requests. One thread calls it."""

    def __init__(self, plan: LookupPlan, feed: FeedWriter | None) -> None:
        self.plan = plan
        self.errors = 0
        self._feed = feed
        self._shared = None if plan.hermetic else SharedCache.from_settings(plan.lookup)
        self._drafter = Drafter(plan.lookup, shared=self._shared, cost=padded_cost(plan.max_draft_len))
        self._live: dict[int, _Live] = {}

    def draft(self, requests: Iterable[Any]) -> dict[int, list[int]]:
        """Drafts for one round, by request id; requests without any are left out.

        ``requests``: the requests in generation, dummies left out. A request whose speculation was switched off counts
        as active and gets none.
        """
        batch = sorted(requests, key=lambda r: r.py_request_id)
        most = min(self._most_drafts(len(batch)), self.plan.max_draft_len)
        takers: list[tuple[Any, _Live]] = []
        limits: list[int] = []
        for request in batch:
            live = self._caught_up(request)
            if live is None or request.py_disable_speculative_decoding:
                continue
            end = request.py_orig_prompt_len + request.py_max_new_tokens
            limit = min(most, end - live.known - 1, self.plan.max_seq_len - live.known - 1)
            if limit > 0:
                takers.append((request, live))
                limits.append(limit)
        drafts: dict[int, list[int]] = {}
        if takers:
            proposals = self._drafter.propose([live.drafter for _, live in takers], np.array(limits, np.int32))
            for (request, live), proposal in zip(takers, proposals, strict=True):
                if proposal.source is not None:
                    live.waiting, live.source = tuple(proposal.tokens.tolist()), proposal.source
                    drafts[request.py_request_id] = list(live.waiting)
        self._announce(batch)
        return drafts

    def finish(self, request: Any) -> None:
        """A request's resources are freed. What it leaves in the shared cache is its text, if it came to its end."""
        live = self._live.pop(request.py_request_id, None)
        if live is None:
            return
        tokens = request.get_tokens(0)
        self._settle(live, tokens)
        self._drafter.finish(live.drafter, store=ended(request, tokens))

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()

    def _most_drafts(self, batch: int) -> int:
        lookup = self.plan.lookup
        if batch > lookup.max_seqs:
            return 0
        return lookup.max_drafts if batch == 1 else lookup.batch_max_drafts

    def _caught_up(self, request: Any) -> _Live | None:
        """The request's drafter, which knows all its tokens; None for one that takes no copies."""
        live = self._live.get(request.py_request_id)
        if live is not None:
            self._settle(live, request.get_tokens(0))
            return live
        salt = request.cache_salt_id
        if not takes_copies(salt):
            return None
        tokens = np.asarray(request.get_tokens(0), np.int32)
        prompt_len = request.py_orig_prompt_len
        scope = None if self.plan.hermetic else scope_name(str(request.lora_task_id), str(salt))
        drafter = self._drafter.start(tokens[:prompt_len], scope=scope)
        if len(tokens) > prompt_len:
            drafter.observe(tokens[prompt_len:])
        live = self._live[request.py_request_id] = _Live(drafter, len(tokens), prompt_len)
        return live

    def _settle(self, live: _Live, tokens: Sequence[int]) -> None:
        new = tokens[live.known :]
        if live.waiting:
            if new:
                live.drafter.settle(common_prefix(new, live.waiting))
            else:
                live.drafter.abandon()
            live.waiting, live.source = (), None
        if new:
            live.drafter.observe(np.asarray(new, np.int32))
            live.known = len(tokens)

    def _announce(self, batch: Sequence[Any]) -> None:
        if self._feed is None:
            return
        rounds = []
        for request in batch:
            live = self._live.get(request.py_request_id)
            output = request.get_num_tokens(0) - request.py_orig_prompt_len
            if live is None:
                rounds.append(Announced(request.py_client_id, output, None, (), 0, False, 0))
            else:
                d = live.drafter
                rounds.append(
                    Announced(
                        request.py_client_id,
                        output,
                        live.source,
                        live.waiting,
                        d.window,
                        d.backing_off,
                        d.rounds_skipped,
                    )
                )
        shared = Shared() if self._shared is None else Shared(*self._shared.stats()[:4])
        self._feed.announce(rounds, shared, self.errors)


def padded_cost(max_draft_len: int) -> CostCurve:
    """What drafts cost here: nothing. The executor pads every round to ``max_draft_len`` of them."""
    points = (CostPoint(batch=1, rows=rows, context=0, seconds=1.0) for rows in (1, max_draft_len + 1))
    return CostCurve(device="padded", points=tuple(points))


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens at the start of ``a`` and ``b`` are equal: of a round's tokens and its drafts, those accepted."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def ended(request: Any, tokens: Sequence[int]) -> bool:
    """Whether a request came to its own end: its budget, its end token or a stop token.

    One that was cancelled, failed or paused has not; TensorRT-LLM frees the resources of all of them alike.
    """
    if len(tokens) >= request.py_orig_prompt_len + request.py_max_new_tokens:
        return True
    if len(tokens) <= request.py_orig_prompt_len:
        return False
    stops = request.py_stop_words_list
    # [tokens, offsets] of stop words; ours are single tokens.
    return bool(tokens[-1] == request.py_end_id or (stops and tokens[-1] in stops[0]))
