"""Keys and values of earlier requests are used again where they are right, and only there."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import Completion, GenerationRequest, Scope
from trtserve.executor.base import StepInput
from trtserve.sampling import SamplingParams

from .toy import ToyExecutor, WrongDrafter, collect, ids, reference, token_ids

Make = Callable[..., LocalEngine]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def toy(engine: LocalEngine) -> ToyExecutor:
    assert isinstance(engine._executor, ToyExecutor)
    return engine._executor


def cached(done: Completion) -> int:
    return done.finish.stats.cached_tokens


def ask(engine: LocalEngine, prompt: list[int], **fields: object) -> Completion:
    done = collect(engine.submit(GenerationRequest(prompt, GREEDY, **fields)))
    assert token_ids(done) == reference(prompt, GREEDY)
    return done


@pytest.mark.parametrize("drafter", [None, WrongDrafter])
def test_a_continued_conversation_prefills_its_new_turn_only(make_engine: Make, drafter: type | None) -> None:
    engine = make_engine(drafter=drafter)
    first = ids("the foo(abc) of the foo(")
    answer = token_ids(ask(engine, first))
    toy(engine).prefills.clear()
    second = [*first, *answer, *ids("and then")]
    done = ask(engine, second)
    # The last token of the answer was never put through a forward.
    assert cached(done) == len(first) + len(answer) - 1
    assert toy(engine).prefills == [(0, cached(done), len(second) - 1 - cached(done))]
    stats = engine.metrics()
    assert stats["cached_tokens_total"] == cached(done)
    assert stats["prompt_tokens_total"] == len(first) + len(second)


def test_the_same_prompt_again_computes_its_last_row_only(make_engine: Make) -> None:
    engine, prompt = make_engine(), ids("abcdefghijkl")
    assert cached(ask(engine, prompt)) == 0
    toy(engine).prefills.clear()
    for _ in range(6):
        assert cached(ask(engine, prompt)) == len(prompt) - 1
    assert toy(engine).prefills == []


def test_a_shorter_prompt_and_a_diverging_one(make_engine: Make) -> None:
    engine = make_engine(limits={"max_batch_size": 1})
    ask(engine, ids("abcdefghijkl"))
    assert cached(ask(engine, ids("abcdefgh"))) == 7
    assert cached(ask(engine, ids("abcdxyz"))) == 4


@pytest.mark.parametrize("other", [Scope("b"), Scope(adapter="b"), Scope(salt="b")], ids=["tenant", "adapter", "salt"])
def test_scopes_never_mix(make_engine: Make, other: Scope) -> None:
    engine = make_engine(copy_min=1)
    prompt = ids("abcdefghijkl")
    ask(engine, prompt)
    assert cached(ask(engine, prompt, scope=other)) == 0
    assert cached(ask(engine, prompt, scope=other)) == len(prompt) - 1
    assert all(source != 0 for source, _, _ in toy(engine).copied), "slot 0 holds the first scope's text"
    scopes = {s.scope for s in engine._copies.drafter.started}  # type: ignore[union-attr]
    assert len(scopes) == 2 and None not in scopes


def test_hermetic_refuses_every_channel(make_engine: Make) -> None:
    engine = make_engine(hermetic=True, copy_min=1)
    prompt = ids("abcdefghijkl")
    for _ in range(3):
        assert cached(ask(engine, prompt)) == 0
    generations = [engine.submit(GenerationRequest(prompt, GREEDY)) for _ in range(6)]
    assert [cached(collect(g)) for g in generations] == [0] * 6
    drafter = engine._copies.drafter
    assert {s.scope for s in drafter.started} == {None} and not drafter.stored  # type: ignore[union-attr]
    assert toy(engine).copied == []


def test_choices_of_one_prompt_share_its_prefill(make_engine: Make) -> None:
    engine = make_engine(copy_min=8)
    prompt = ids("abcdefghijklmnopqrstuvwxyz" * 2)
    gate = threading.Event()
    toy(engine).before_prefill = lambda *_: gate.wait(10) and None
    generations = [engine.submit(GenerationRequest(prompt, GREEDY)) for _ in range(4)]
    gate.set()
    done = [collect(g) for g in generations]
    assert sorted(map(cached, done)) == [0, *[len(prompt) - 1] * 3]
    assert len(toy(engine).copied) == 3 and sum(n for _, _, n in toy(engine).prefills) == len(prompt) - 1
    assert all(token_ids(d) == reference(prompt, GREEDY) for d in done)


def test_a_burst_does_not_evict_the_prefix_before_it_is_copied(make_engine: Make) -> None:
    engine = make_engine()
    prompt = ids("abcdefghijkl")
    ask(engine, prompt)
    gate = threading.Event()
    toy(engine).before_step = lambda batch: gate.wait(10) and None
    running = engine.submit(GenerationRequest(ids("zz"), SamplingParams(temperature=0, max_tokens=1)))
    # Admitted in one turn: the first finds the prefix in a slot that the last of them takes over.
    burst = [engine.submit(GenerationRequest(p, GREEDY)) for p in (prompt, *map(ids, ("mnop", "qrst", "uvwx")))]
    gate.set()
    collect(running)
    done = [collect(g) for g in burst]
    assert cached(done[0]) == len(prompt) - 1 and token_ids(done[0]) == reference(prompt, GREEDY)


def test_a_failed_copy_of_a_prefix_ends_that_sequence_alone(make_engine: Make) -> None:
    engine = make_engine()
    prompt = ids("abcdefghijkl")
    ask(engine, prompt)
    copy = toy(engine).copy_prefix

    def fail(source: int, target: int, length: int) -> None:
        raise RuntimeError("no copy")

    toy(engine).copy_prefix = fail  # type: ignore[method-assign]
    finish = collect(engine.submit(GenerationRequest(prompt, GREEDY))).finish
    assert finish is not None and finish.reason == "error" and "no copy" in (finish.error or "")
    toy(engine).copy_prefix = copy  # type: ignore[method-assign]
    assert cached(ask(engine, prompt)) == len(prompt) - 1


def test_a_prefix_shorter_than_copy_min_is_prefilled(make_engine: Make) -> None:
    engine = make_engine(copy_min=64)
    prompt = ids("abcdefghijklmnopqrstuvwxyz" * 2)
    generations = [engine.submit(GenerationRequest(prompt, GREEDY)) for _ in range(2)]
    assert all(token_ids(collect(g)) == reference(prompt, GREEDY) for g in generations)
    assert toy(engine).copied == []


def test_after_a_cancel_in_the_middle_of_the_prefill_only_what_was_written_counts(make_engine: Make) -> None:
    engine = make_engine(limits={"max_batch_size": 1})
    prompt = ids("abcdefghijklmnopqrstuvwxyz" * 3)
    calls = []

    def cancel_at_second_chunk(slot: int, start: int, tokens: NDArray[np.int32]) -> None:
        if tokens.tolist() == ids("z"):
            return  # the blocker's
        calls.append(start)
        if start == 16:
            generation.cancel()

    toy(engine).before_prefill = cancel_at_second_chunk
    ready = threading.Event()
    toy(engine).before_step = lambda batch: ready.wait(10) and None
    blocker = engine.submit(GenerationRequest(ids("zz"), SamplingParams(temperature=0, max_tokens=1)))
    generation = engine.submit(GenerationRequest(prompt, GREEDY))
    ready.set()
    collect(blocker)
    finish = collect(generation).finish
    assert finish is not None and finish.reason == "cancelled"
    assert calls == [0, 16], "no chunk after the cancel"
    assert cached(ask(engine, prompt)) == 32


def test_after_a_cancel_while_decoding_no_rejected_row_is_reused(make_engine: Make) -> None:
    """A drafter that is always wrong leaves garbage after the committed length; the next request of the same scope
    continues past it."""
    engine = make_engine(drafter=WrongDrafter, limits={"max_batch_size": 1})
    prompt = ids("abcdefgh")
    ready = threading.Event()

    def cancel_at_twenty(batch: StepInput) -> None:
        assert ready.wait(10)
        if int(batch.lengths[0]) == 20:
            generation.cancel()

    toy(engine).before_step = cancel_at_twenty
    generation = engine.submit(GenerationRequest(prompt, GREEDY.model_copy(update={"max_tokens": None})))
    ready.set()
    done = collect(generation)
    assert done.finish.reason == "cancelled"
    follow_up = [*prompt, *token_ids(done), *ids("xyz")]
    assert cached(ask(engine, follow_up)) == len(prompt) + len(done.tokens) - 1


def test_requests_with_a_shared_prefix_while_others_are_cancelled(make_engine: Make) -> None:
    engine = make_engine(copy_min=4, limits={"max_batch_size": 3})
    prefix = ids("the foo(abc) of the foo(abc) of ")
    for turn in range(20):
        prompts = [[*prefix, *ids("abcdefghij"[turn % 10 : turn % 10 + 2]), k] for k in range(5)]
        generations = [engine.submit(GenerationRequest(p, GREEDY)) for p in prompts]
        generations[turn % 5].cancel()
        for k, (prompt, generation) in enumerate(zip(prompts, generations, strict=True)):
            got = token_ids(collect(generation))
            want = reference(prompt, GREEDY)
            assert got == want[: len(got)] if k == turn % 5 else got == want


def test_a_failed_sequence_leaves_nothing_behind(make_engine: Make) -> None:
    engine = make_engine(limits={"max_batch_size": 1})
    prompt = ids("abcdefgh")
    toy(engine).poisoned = set(ids("h"))
    finish = collect(engine.submit(GenerationRequest(prompt, GREEDY))).finish
    assert finish is not None and finish.reason == "error"
    toy(engine).poisoned = set()
    assert cached(ask(engine, prompt)) == 0


def test_lookup_off_for_one_request_takes_and_leaves_no_copies(make_engine: Make) -> None:
    engine = make_engine()
    ask(engine, ids("abcabcabc"), lookup=False)
    drafter = engine._copies.drafter
    assert not drafter.started and not drafter.stored  # type: ignore[union-attr]
