"""How many drafts a sequence may have, and drafts that look like an end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import GenerationRequest
from trtserve.lookup.drafter import Drafter
from trtserve.sampling import SamplingParams
from trtserve.settings import PromptLookup

from .toy import EOS, ToyDrafter, ToyExecutor, WrongDrafter, collect, ids, reference, text_engine, token_ids

Make = Callable[..., LocalEngine]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def limits_seen(make_engine: Make, sequences: int, **lookup: int) -> tuple[list[list[int]], list[list[int]]]:
    """(limits given to the drafter, rows put through the executor) of ``sequences`` requests that run together."""
    drafter = WrongDrafter()
    engine = make_engine(drafter=drafter, lookup=lookup, limits={"prefill_chunk": 64})
    executor = engine._executor
    assert isinstance(executor, ToyExecutor)
    ready = threading.Event()
    executor.before_prefill = lambda *a: ready.wait(10) and None
    generations = [engine.submit(GenerationRequest(ids("abc"), GREEDY)) for _ in range(sequences)]
    ready.set()
    for g in generations:
        collect(g)
    return drafter.limits, executor.rows_seen


def test_one_sequence_may_have_max_drafts(make_engine: Make) -> None:
    limits, rows = limits_seen(make_engine, 1)
    # One token a round, for nothing is accepted; near the end the budget allows less, and the last round none.
    assert limits == [[8], [8], [8], [8], [7], [6], [5], [4], [3], [2], [1]]
    assert rows == [[n + 1] for (n,) in limits] + [[1]]


def test_several_may_have_batch_max_drafts(make_engine: Make) -> None:
    limits, rows = limits_seen(make_engine, 3, batch_max_drafts=2)
    assert {max(r) for r in rows if len(r) > 1} <= {3, 2, 1} and [3, 3, 3] in rows
    assert all(max(given) <= 2 for given in limits if len(given) > 1)


def test_more_than_max_seqs_have_none(make_engine: Make) -> None:
    limits, rows = limits_seen(make_engine, 4, max_seqs=3)
    assert [1, 1, 1, 1] in rows and all(max(r) == 1 for r in rows if len(r) == 4)
    assert all(len(given) < 4 for given in limits)


def test_a_sequence_without_copies_beside_one_with(make_engine: Make) -> None:
    """Rows of one batch differ, down to a plain step, and the drafter knows how large the whole batch is."""
    drafter = ToyDrafter()
    engine = make_engine(drafter=drafter, limits={"prefill_chunk": 64})
    executor = engine._executor
    assert isinstance(executor, ToyExecutor)
    ready = threading.Event()
    executor.before_prefill = lambda *a: ready.wait(10) and None
    prompts = [ids("the foo(abc) of the foo("), ids("zq"), ids("ab,ab.ab")]
    generations = [
        engine.submit(GenerationRequest(p, GREEDY, lookup=i != 1, prediction=())) for i, p in enumerate(prompts)
    ]
    ready.set()
    for prompt, generation in zip(prompts, generations, strict=True):
        assert token_ids(collect(generation)) == reference(prompt, GREEDY)
    assert any(len(set(rows)) > 1 and 1 in rows for rows in executor.rows_seen)
    asked = [(len(limits), others) for limits, others in zip(drafter.limits, drafter.others, strict=True)]
    assert (2, 1) in asked
    assert len(asked) <= len(executor.rows_seen)
    assert all(count + others <= 3 for count, others in asked)


@pytest.mark.parametrize("wanted", [True, False])
def test_an_end_token_copied_from_the_prompt_ends_only_if_the_model_chooses_it(make_engine: Make, wanted: bool) -> None:
    """Chat templates put the end token into the prompt, so copies contain it."""
    prompt = [*ids("abcde"), EOS, *ids("xyz"), *ids("abc")]
    text = [*ids("de"), *([EOS] if wanted else ids("fg")), *ids("hijk"), EOS]
    engine = text_engine(make_engine, prompt, text, drafts=False)
    engine._copies.drafter = Drafter(PromptLookup(ngram=2, min_match=2))
    done = collect(engine.submit(GenerationRequest(prompt, SamplingParams(temperature=0))))
    assert done.finish.reason == "stop"
    assert done.text == ("de" if wanted else "defghijk")
    sources = done.finish.stats.sources["history"]
    assert sources.proposed > 0 and sources.accepted == (2 if not wanted else sources.accepted)


def test_a_prompt_shorter_than_the_ngram(make_engine: Make) -> None:
    engine = make_engine(drafter=Drafter(PromptLookup(ngram=8)))
    for prompt in ([1], [1, 2], [1, 1, 1]):
        assert token_ids(collect(engine.submit(GenerationRequest(prompt, GREEDY)))) == reference(prompt, GREEDY)
