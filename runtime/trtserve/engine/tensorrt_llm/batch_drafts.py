"""What our drafter does inside TensorRT-LLM's executor, free of TensorRT-LLM's classes.

A round, seen from here: ``draft`` is called before each forward with the requests in generation. Each request's new
tokens, which are what its last round emitted, settle its last proposal and join its history, and all are asked for
drafts, in one call of the drafter. ``finish`` is called when a request's resources are freed: at its end, when it is
cancelled or fails, and when it is paused to come back later.

Everything is decided by the requests' own tokens and ids, in the order of their ids, so every rank of a tensor-parallel
group, each with a copy of this, drafts the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtserve.engine.protocol import SOURCES
from trtserve.engine.tensorrt_llm.carried import Carried
from trtserve.engine.tensorrt_llm.feed import Announced, FeedWriter, Shared
from trtserve.engine.tensorrt_llm.scopes import takes_copies
from trtserve.engine_dir import CostCurve, CostPoint, TokenizerRecord
from trtserve.lookup.drafter import Drafter, SequenceDrafter
from trtserve.lookup.shared import SharedCache, scope_name
from trtserve.settings import PromptLookup
from trtserve.tokenizer import Tokenizer


@dataclass(frozen=True)
class LookupPlan:
    """What every rank is told, by pickle."""

    lookup: PromptLookup
    max_draft_len: int
    max_batch_size: int
    max_seq_len: int
    feed_address: str | None
    hermetic: bool = False
    """Take copies from the request's own text only."""
    tokenizer: tuple[str, TokenizerRecord] | None = None
    """The text of the engine's ``tokenizer.json`` and its record, to find where stop strings ended an output."""


@dataclass
class _Live:
    """A request that takes copies."""

    drafter: SequenceDrafter
    known: int
    """Tokens of the request that its history has."""
    prompt_len: int
    carried: Carried
    waiting: tuple[int, ...] = ()
    """Drafts of the last round, not settled yet."""
    source: str | None = None

    def shown(self, tokens: Sequence[int]) -> tuple[int, list[int]]:
        """Of the request's tokens: drafts of the last round that were accepted, -1 where none was verified, and what is
        new."""
        new = list(tokens[self.known :])
        return common_prefix(new, self.waiting) if self.waiting and new else -1, new

    def begin_round(self, new: int, drafts: tuple[int, ...], source: str | None) -> None:
        """The history has ``new`` tokens more, and these drafts wait."""
        self.known += new
        self.waiting, self.source = drafts, source


class BatchDrafts:
    """The drafts of one executor's requests. One thread calls it."""

    def __init__(self, plan: LookupPlan, feed: FeedWriter | None) -> None:
        self.plan = plan
        self._feed = feed
        self._shared = None if plan.hermetic else SharedCache.from_settings(plan.lookup)
        self._drafter = Drafter(plan.lookup, shared=self._shared, cost=padded_cost(plan.max_draft_len))
        self._live: dict[int, _Live] = {}
        # Only what is kept needs an end.
        self._tokenizer = None if self._shared is None or plan.tokenizer is None else Tokenizer(*plan.tokenizer)

    def draft(self, requests: Iterable[Any]) -> dict[int, list[int]]:
        """Drafts for one round, by request id; requests without any are left out.

        ``requests``: the requests in generation, dummies left out. A request whose speculation was switched off counts
        as active and gets none.
        """
        batch = sorted(requests, key=lambda r: r.py_request_id)
        most = min(self.plan.lookup.most_drafts(len(batch)), self.plan.max_draft_len)
        ids: list[int] = []
        live: list[_Live] = []
        accepted: list[int] = []
        emitted: list[list[int]] = []
        limits: list[int] = []
        for request in batch:
            one = self._live.get(request.py_request_id) or self._begin(request)
            if one is None:
                continue
            right, new = one.shown(request.get_tokens(0))
            ids.append(request.py_request_id)
            live.append(one)
            accepted.append(right)
            emitted.append(new)
            limits.append(self._limit(request, one.known + len(new), most))
        drafts: dict[int, list[int]] = {}
        if live:
            others = len(batch) - len(live)
            found = self._drafter.step([one.drafter for one in live], accepted, emitted, limits, others)
            for row, (one, count, source) in enumerate(
                zip(live, found.counts.tolist(), found.sources.tolist(), strict=True)
            ):
                tokens = found.tokens[row, :count].tolist()
                one.begin_round(len(emitted[row]), tuple(tokens), SOURCES[source - 1] if count else None)
                if count:
                    drafts[ids[row]] = tokens
        self._announce(batch)
        return drafts

    def finish(self, request: Any) -> None:
        """A request's resources are freed. What it leaves in the shared cache is its text, if it came to its end."""
        live = self._live.pop(request.py_request_id, None)
        if live is None:
            return
        tokens = request.get_tokens(0)
        accepted, new = live.shown(tokens)
        if accepted >= 0:
            live.drafter.settle(accepted)
        live.drafter.observe(new)
        length = self._own_length(request, live, tokens)
        if 0 < length < len(tokens):
            live.drafter.rewind(length)
        self._drafter.finish(live.drafter, store=length > 0)

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()

    def _own_length(self, request: Any, live: _Live, tokens: Sequence[int]) -> int:
        """Tokens up to the request's own end; 0: it came to none.

        The executor goes on for some tokens past a stop string, which it knows nothing of; they are not the request's.
        """
        carried = live.carried
        if self._tokenizer is not None and (carried.stop or carried.end_tokens):
            output = carried.end_of(tokens[live.prompt_len :], self._tokenizer.stream_decoder())
            if output is not None:
                return live.prompt_len + output
        return len(tokens) if ended(request, tokens) else 0

    def _limit(self, request: Any, length: int, most: int) -> int:
        """Most drafts of a request of ``length`` tokens; -1: it has no part in the round."""
        end = request.py_orig_prompt_len + request.py_max_new_tokens
        limit = min(most, end - length - 1, self.plan.max_seq_len - length - 1)
        return -1 if limit < 1 or request.py_disable_speculative_decoding else limit

    def _begin(self, request: Any) -> _Live | None:
        """A new request's drafter; None for one that takes no copies."""
        salt = request.cache_salt_id
        if not takes_copies(salt):
            return None
        prompt_len = request.py_orig_prompt_len
        prompt = np.asarray(request.get_tokens(0)[:prompt_len], np.int32)
        scope = None if self.plan.hermetic else scope_name(str(request.lora_task_id), str(salt))
        carried = Carried.of(request)
        drafter = self._drafter.start(prompt, prediction=carried.prediction, scope=scope)
        live = self._live[request.py_request_id] = _Live(drafter, prompt_len, prompt_len, carried)
        return live

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
        self._feed.announce(rounds, shared)


def padded_cost(max_draft_len: int) -> CostCurve:
    """What drafts cost here: nothing. The executor pads every round to ``max_draft_len`` of them."""
    points = (CostPoint(batch=1, rows=rows, context=0, seconds=1.0) for rows in (1, max_draft_len + 1))
    return CostCurve(device="padded", points=tuple(points))


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens at the start of ``a`` and ``b`` are equal: of a round's tokens and its drafts, those accepted."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def ended(request: Any, tokens: Sequence[int]) -> bool:
    """Whether the executor ended a request: by its budget, its end token or a stop token.

    One that was cancelled, failed or paused has not; TensorRT-LLM frees the resources of all of them alike.
    """
    if len(tokens) >= request.py_orig_prompt_len + request.py_max_new_tokens:
        return True
    if len(tokens) <= request.py_orig_prompt_len:
        return False
    stops = request.py_stop_words_list
    # [tokens, offsets] of stop words; ours are single tokens.
    return bool(tokens[-1] == request.py_end_id or (stops and tokens[-1] in stops[0]))
