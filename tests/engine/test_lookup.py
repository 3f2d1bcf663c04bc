"""The engine with the real drafter and the real shared cache, over the toy model."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import GenerationRequest, Scope
from trtserve.lookup.drafter import Drafter
from trtserve.lookup.shared import SharedCache
from trtserve.sampling import SamplingParams
from trtserve.settings import PromptLookup

from .toy import collect, ids, reference, text_engine, token_ids
from .workload import check, workload

Make = Callable[..., LocalEngine]
SETTINGS = PromptLookup(ngram=2, min_match=2)
WINDOW = SETTINGS.model_copy(update={"policy": "window"})
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


def shared_drafter() -> tuple[Drafter, SharedCache]:
    shared = SharedCache(1, 4, SETTINGS.effective_min_match)
    return Drafter(SETTINGS, shared=shared), shared


@pytest.mark.parametrize("max_batch_size", [1, 4])
def test_equality_with_every_source(make_engine: Make, max_batch_size: int) -> None:
    requests = workload()
    expected = [reference(list(r.prompt), r.params) for r in requests]
    draw = random.Random(3)
    # A prediction is right in part: what the model writes, with a hole in it.
    requests = [
        r if draw.random() < 0.5 else GenerationRequest(r.prompt, r.params, prediction=[*text[:9], 1, 2, *text[12:]])
        for r, text in zip(requests, expected, strict=True)
    ]
    drafter, shared = shared_drafter()
    engine = make_engine(drafter=drafter, shared_cache=shared, limits={"max_batch_size": max_batch_size})
    generations = [engine.submit(r) for r in requests]
    check([collect(g) for g in generations], expected)
    stats = engine.metrics()
    for source in ("history", "prediction", "shared"):
        assert stats["copies_total"][source] > 0
        assert 0 < stats["accepted_tokens_total"][source] <= stats["draft_tokens_total"][source]
    assert stats["shared_cache_bytes"] == shared.stats().bytes <= stats["shared_cache_budget_bytes"] == 1 << 20
    assert stats["shared_cache_scopes"] == 1


def test_a_right_prediction_is_accepted_and_reported(make_engine: Make) -> None:
    prompt, text = ids("the foo("), ids("abcdefghijklmnopqrstuvwxyz")
    engine = text_engine(make_engine, prompt, text, drafts=False)
    engine._copies.drafter = Drafter(SETTINGS)
    done = collect(
        engine.submit(GenerationRequest(prompt, GREEDY.model_copy(update={"max_tokens": 26}), prediction=text))
    )
    assert done.text == "abcdefghijklmnopqrstuvwxyz"
    stats = done.finish.stats
    assert stats.sources["prediction"].accepted == stats.sources["prediction"].proposed > 15
    assert stats.rounds == 26 - stats.sources["prediction"].accepted
    assert sum(t.source == "prediction" for t in done.tokens) == stats.sources["prediction"].accepted


@pytest.mark.parametrize("other", [Scope("b"), Scope(adapter="b"), Scope(salt="b"), Scope("1", "2"), Scope("12")])
def test_nothing_of_one_scope_is_proposed_in_another(make_engine: Make, other: Scope) -> None:
    drafter, shared = shared_drafter()
    engine = make_engine(drafter=drafter, shared_cache=shared)
    prompt = ids("abcdefghij")

    def shared_drafts(scope: Scope) -> int:
        done = collect(engine.submit(GenerationRequest(prompt, GREEDY, scope=scope)))
        assert token_ids(done) == reference(prompt, GREEDY)
        return done.finish.stats.sources["shared"].proposed

    first = Scope("1", "2" if other == Scope("12") else "")
    assert shared_drafts(first) == 0
    assert shared_drafts(first) > 0
    assert shared_drafts(other) == 0
    assert engine.metrics()["shared_cache_scopes"] == 2


def test_hermetic_and_lookup_off_leave_nothing_in_the_shared_cache(make_engine: Make) -> None:
    for options, lookup in (({"hermetic": True}, True), ({}, False)):
        drafter, shared = shared_drafter()
        engine = make_engine(drafter=drafter, shared_cache=shared, **options)
        collect(engine.submit(GenerationRequest(ids("abcdefgh"), GREEDY, lookup=lookup)))
        assert engine.drain(10) and shared.stats().documents == 0


def test_only_finished_requests_are_stored_and_only_what_was_kept(make_engine: Make) -> None:
    drafter, shared = shared_drafter()
    prompt, text = ids("the foo("), ids("abcdeENDxyzxyzxyz")
    engine = text_engine(make_engine, prompt, text, drafts=False)
    engine._copies.drafter = drafter
    ready = threading.Event()
    engine._executor.before_step = lambda batch: ready.wait(10) and None  # type: ignore[attr-defined]
    cancelled = engine.submit(GenerationRequest(prompt, GREEDY))
    cancelled.cancel()
    ready.set()
    collect(cancelled)
    assert shared.stats().documents == 0
    params = GREEDY.model_copy(update={"stop": ("END",), "max_tokens": 20})
    done = collect(engine.submit(GenerationRequest(prompt, params, prediction=text)))
    assert done.text == "abcde" and engine.drain(10)
    assert shared.stats().documents == 1 and shared.stats().tokens == len(prompt) + len(ids("abcdeEND"))


def test_miss_backoff_shows_in_the_statistics(make_engine: Make) -> None:
    """A model that never repeats anything, on a text that always looks as if it would."""
    forced = ids("abcabdabeabfabgabhabiabjabkablabmabnabo")
    engine = make_engine(drafter=Drafter(WINDOW), executor={"forced": forced})
    done = collect(engine.submit(GenerationRequest(ids("abcabd"), GREEDY.model_copy(update={"max_tokens": 30}))))
    assert done.finish.stats.rounds_skipped > 0
    assert engine.metrics()["rounds_skipped_total"] == done.finish.stats.rounds_skipped
