"""The draft model's keys and values are those of the committed tokens at every round: each chain equals that of a fresh
draft model which was prefilled with nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import Delta, GenerationRequest, Scope
from trtserve.executor.base import StepInput, StepOutput
from trtserve.lookup.drafter import Drafter
from trtserve.sampling import SamplingParams

from .tiny import LIMITS, LOOKUP, MAIN, CheckedDraftModel, checked_draft_model, collect, open_engine, related, token_ids

Open = Callable[..., tuple[LocalEngine, CheckedDraftModel]]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture
def opened(caplog: pytest.LogCaptureFixture) -> Iterator[Open]:
    """Engines with a draft model that is often right and often wrong; every chain of theirs was right at the end."""
    pairs: list[tuple[LocalEngine, CheckedDraftModel]] = []

    def make(noise: float = 0.05, **options: Any) -> tuple[LocalEngine, CheckedDraftModel]:
        chain = checked_draft_model(MAIN, related(noise), options.get("limits", LIMITS))
        engine = open_engine(chain, **options)
        pairs.append((engine, chain))
        return engine, chain

    yield make
    for engine, chain in pairs:
        engine.close()
        assert chain.differing == []
        assert any(any(lengths) for lengths in chain.asked)
    assert not any("drafter" in record.getMessage() for record in caplog.get_records("call"))


def prompts(count: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    out = []
    for _ in range(count):
        block = [draw.randrange(2, 64) for _ in range(draw.randint(2, 9))]
        out.append([draw.randrange(2, 64) for _ in range(draw.randint(0, 5))] + block * draw.randint(1, 5))
    return out


def test_through_copies_and_rejections(opened: Open) -> None:
    engine, _ = opened(drafter=Drafter(LOOKUP))
    for n, prompt in enumerate(prompts(12, 1)):
        temperature = 0.7 * (n % 2)
        params = GREEDY.model_copy(update={"temperature": temperature, "seed": n})
        collect(engine.submit(GenerationRequest(prompt, params)))
    metrics = engine.metrics()
    for source in ("history", "model"):
        proposed, accepted = metrics["draft_tokens_total"][source], metrics["accepted_tokens_total"][source]
        assert 0 < accepted < proposed
        assert metrics["copies_total"][source] > 10


def test_through_a_batch_whose_sequences_come_and_go(opened: Open) -> None:
    engine, chain = opened(drafter=Drafter(LOOKUP))
    draw, step = random.Random(2), engine._executor.step
    asked = [
        GenerationRequest(p, GREEDY.model_copy(update={"max_tokens": draw.randint(2, 24)})) for p in prompts(24, 3)
    ]
    waiting, arrived = iter(asked), []

    def step_and_arrive(batch: StepInput) -> StepOutput:
        while draw.random() < 0.35 and (request := next(waiting, None)) is not None:
            arrived.append(engine.submit(request))
        return step(batch)

    engine._executor.step = step_and_arrive  # type: ignore[method-assign]
    done = 0
    while done < len(asked):
        if done == len(arrived):
            arrived.append(engine.submit(next(waiting)))
        collect(arrived[done])
        done += 1
    sizes = {len(lengths) for lengths in chain.asked}
    assert {1, 2, 3, 4} <= sizes
    # Four at once are more than may copy, so all of them have chains.
    assert engine.metrics()["copies_total"]["history"] > 0


def test_one_forward_per_place_of_the_chain_for_the_whole_batch(opened: Open) -> None:
    engine, chain = opened(noise=0.0)
    calls: list[list[int]] = []
    model: Any = chain._model
    predict = model.predict

    def counted(slots: Any, lengths: Any, num_rows: Any, tokens: Any) -> Any:
        calls.append(num_rows.tolist())
        return predict(slots, lengths, num_rows, tokens)

    model.predict = counted
    asked = [GenerationRequest([n, n + 1], GREEDY.model_copy(update={"max_tokens": 25})) for n in (5, 15, 25)]
    gate = engine._executor.step
    generations: list[Any] = []

    def arrive_together(batch: StepInput) -> StepOutput:
        if not generations:
            generations.extend(engine.submit(request) for request in asked[1:])
        return gate(batch)

    engine._executor.step = arrive_together  # type: ignore[method-assign]
    first = engine.submit(asked[0])
    collect(first)
    for generation in generations:
        collect(generation)
    # Accepted whole: the last draft and the token behind it are new in the next round, in its first forward.
    assert [1] not in calls[:1] and calls[0] == [2]
    assert calls[1:4] == [[1], [1], [1]]
    assert calls[4] in ([2, 2, 2], [2, 2]) and [1, 1, 1] in calls
    assert all(len(rows) <= 3 for rows in calls)
    rounds = len(chain.asked)
    assert len(calls) == 4 * rounds


def test_a_prompt_that_continues_an_earlier_text_is_not_computed_again(opened: Open) -> None:
    engine, chain = opened()
    rows: list[int] = []
    model: Any = chain._model
    predict = model.predict

    def counted(slots: Any, lengths: Any, num_rows: Any, tokens: Any) -> Any:
        rows.append(len(tokens))
        return predict(slots, lengths, num_rows, tokens)

    model.predict = counted
    first = prompts(1, 5)[0] * 2
    answer = token_ids(collect(engine.submit(GenerationRequest(first, GREEDY))))
    rows.clear()
    again = [*first, *answer, 9, 8, 7]
    done = collect(engine.submit(GenerationRequest(again, GREEDY)))
    assert done.finish.stats.cached_tokens > len(first)
    # It held at least all but the answer's last round.
    assert rows[0] <= 3 + 6


@pytest.mark.parametrize("salt", ["", "other"])
def test_prefixes_from_other_slots(opened: Open, salt: str) -> None:
    """A second request of a scope takes the draft model's prefix along with the main model's; of another, nothing."""
    engine, chain = opened()
    copied: list[tuple[int, int, int]] = []
    model: Any = chain._model
    copy_prefix = model.copy_prefix
    model.copy_prefix = lambda *args: (copied.append(args), copy_prefix(*args))
    stem = list(range(10, 50))
    collect(engine.submit(GenerationRequest([*stem, 3, 4], GREEDY)))
    scope = Scope(salt=salt)
    # Shares less than half of what the slot holds, so the prefix is copied and the slot left alone.
    other = collect(engine.submit(GenerationRequest([*stem[:20], 5, 6], GREEDY, scope=scope)))
    if salt:
        assert copied == [] and other.finish.stats.cached_tokens == 0
    else:
        assert [c[2] for c in copied] == [20] and other.finish.stats.cached_tokens == 20


def test_nothing_of_another_scope_is_used(opened: Open) -> None:
    engine, chain = opened(limits=LIMITS.model_copy(update={"max_batch_size": 1}))
    lengths: list[int] = []
    model: Any = chain._model
    predict = model.predict

    def counted(slots: Any, starts: Any, num_rows: Any, tokens: Any) -> Any:
        lengths.append(int(starts[0]))
        return predict(slots, starts, num_rows, tokens)

    model.predict = counted
    prompt = list(range(10, 30))
    for salt in ("a", "b", "a"):
        lengths.clear()
        collect(engine.submit(GenerationRequest(prompt, GREEDY, scope=Scope(salt=salt))))
        assert lengths[0] == 0
    lengths.clear()
    collect(engine.submit(GenerationRequest(prompt, GREEDY, scope=Scope(salt="a"))))
    assert lengths[0] == len(prompt) - 1


def test_hermetic_uses_nothing_again(opened: Open) -> None:
    engine, chain = opened(hermetic=True, limits=LIMITS.model_copy(update={"max_batch_size": 1}))
    prompt, firsts = list(range(10, 30)), []
    model: Any = chain._model
    predict = model.predict

    def counted(slots: Any, starts: Any, num_rows: Any, tokens: Any) -> Any:
        firsts.append(int(starts[0]))
        return predict(slots, starts, num_rows, tokens)

    model.predict = counted
    for _ in range(2):
        firsts.clear()
        collect(engine.submit(GenerationRequest(prompt, GREEDY)))
        assert firsts[0] == 0


def test_after_cancellations(opened: Open) -> None:
    engine, _ = opened(drafter=Drafter(LOOKUP))
    draw = random.Random(8)
    for prompt in prompts(16, 9):
        generation = engine.submit(GenerationRequest(prompt, GREEDY))
        if draw.random() < 0.6:
            for seen, event in enumerate(generation):
                if isinstance(event, Delta) and seen >= draw.randint(0, 3):
                    generation.cancel()
        else:
            collect(generation)
    again = prompts(16, 9)[3]
    collect(engine.submit(GenerationRequest([*again, 4, 5], GREEDY)))
    assert engine.metrics()["finished_total"]["cancelled"] > 2


def test_a_stop_in_the_middle_of_a_chain(opened: Open) -> None:
    engine, _ = opened(noise=0.0)
    prompt = list(range(20, 30))
    whole = collect(engine.submit(GenerationRequest(prompt, GREEDY)))
    stop = token_ids(whole)[7]
    first = token_ids(whole).index(stop)
    params = GREEDY.model_copy(update={"stop_token_ids": (stop,)})
    for _ in range(2):
        done = collect(engine.submit(GenerationRequest(prompt, params)))
        assert token_ids(done) == token_ids(whole)[: first + 1]
        continued = [*prompt, *token_ids(done), 5]
        collect(engine.submit(GenerationRequest(continued, GREEDY)))


def test_a_failed_round_of_the_main_model_leaves_the_drafter_right(opened: Open) -> None:
    engine, _ = opened()
    step, calls = engine._executor.step, iter(range(1000))

    def failing(batch: StepInput) -> StepOutput:
        if next(calls) == 3:
            raise RuntimeError("a broken device")
        return step(batch)

    engine._executor.step = failing  # type: ignore[method-assign]
    prompt = list(range(20, 40))
    failed = collect(engine.submit(GenerationRequest(prompt, GREEDY)))
    assert failed.finish.reason == "error"
    done = collect(engine.submit(GenerationRequest(prompt, GREEDY)))
    assert done.finish.reason == "length"


def test_a_long_prompt_is_caught_up_with_over_several_rounds(opened: Open) -> None:
    engine, chain = opened(noise=0.0)
    room = chain._model.max_packed_rows
    prompt = np.random.default_rng(4).integers(2, 64, 3 * room + 5).tolist()
    done = collect(engine.submit(GenerationRequest(prompt, GREEDY.model_copy(update={"max_tokens": 20}))))
    assert [lengths[0] for lengths in chain.asked[:5]] == [0, 0, 0, 4, 4]
    assert done.finish.stats.rounds == 3 + 4
