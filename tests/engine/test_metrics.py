"""Counters, gauges and the per-request account."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import SOURCES, EngineMetrics, GenerationRequest
from trtserve.executor.base import StepInput
from trtserve.sampling import SamplingParams

from .toy import ToyExecutor, collect, ids, text_engine

Make = Callable[..., LocalEngine]
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def test_keys_are_those_of_the_protocol(make_engine: Make) -> None:
    snapshot = make_engine().metrics()
    assert set(snapshot) == set(EngineMetrics.__annotations__)
    for key in ("draft_tokens_total", "accepted_tokens_total", "copies_total"):
        assert set(snapshot[key]) == set(SOURCES)  # type: ignore[literal-required]
    assert set(snapshot["finished_total"]) == {"stop", "length", "cancelled", "error"}
    assert snapshot["kv_tokens_capacity"] == 4 * 128


def test_a_finish_is_counted_before_it_is_seen(make_engine: Make) -> None:
    engine = make_engine()
    for n in range(1, 30):
        finish = collect(engine.submit(GenerationRequest(ids("abcabc"), GREEDY))).finish
        stats = engine.metrics()
        assert finish is not None and stats["finished_total"]["length"] == n
        assert stats["generation_tokens_total"] == 20 * n and stats["prompt_tokens_total"] == 6 * n


def test_totals_agree_with_the_requests_own_accounts(make_engine: Make) -> None:
    engine = make_engine()
    prompts = [ids("the foo(abc) of the foo("), ids("abcabcabc"), ids("{x}{x}{"), ids("END of END")] * 3
    finishes = [collect(g).finish for g in [engine.submit(GenerationRequest(p, GREEDY)) for p in prompts]]
    accounts = [f.stats for f in finishes if f is not None]
    total = engine.metrics()
    assert len(accounts) == 12
    assert total["prompt_tokens_total"] == sum(a.prompt_tokens for a in accounts)
    assert total["cached_tokens_total"] == sum(a.cached_tokens for a in accounts) > 0
    assert total["generation_tokens_total"] == sum(a.completion_tokens for a in accounts)
    assert total["round_sequences_total"] == sum(a.rounds for a in accounts)
    for source in SOURCES:
        assert total["draft_tokens_total"][source] == sum(a.sources[source].proposed for a in accounts)
        assert total["accepted_tokens_total"][source] == sum(a.sources[source].accepted for a in accounts)
    for a in accounts:
        assert a.completion_tokens == a.rounds + a.sources["history"].accepted
        assert a.queue_time >= 0 and a.prefill_time >= 0 and a.decode_time > 0
    assert total["forward_seconds_total"] > 0 and total["scheduler_seconds_total"] > 0
    assert total["requests_running"] == total["requests_waiting"] == total["kv_tokens_used"] == 0


def test_gauges_while_running(make_engine: Make) -> None:
    engine = make_engine(limits={"max_batch_size": 2})
    executor = engine._executor
    assert isinstance(executor, ToyExecutor)
    reached, gate = threading.Event(), threading.Event()

    def hold(batch: StepInput) -> None:
        if executor.steps == 3:
            reached.set()
            assert gate.wait(10)

    executor.before_step = hold
    generations = [engine.submit(GenerationRequest(ids("abcdef"), GREEDY)) for _ in range(5)]
    assert reached.wait(10)
    stats = engine.metrics()
    assert stats["requests_running"] + stats["requests_waiting"] == 5
    assert 1 <= stats["requests_running"] <= 2
    assert stats["kv_tokens_used"] >= 6 + 2 and stats["mean_window"] > 0
    gate.set()
    for g in generations:
        collect(g)


@pytest.mark.parametrize("drafts", [True, False])
def test_spans_and_sources_account_for_every_token(make_engine: Make, drafts: bool) -> None:
    prompt, text = ids("the foo("), ids("abcdefghijklmnopqrst")
    engine = text_engine(make_engine, prompt, text, drafts=drafts)
    copied = ""
    done = []
    for event in engine.submit(GenerationRequest(prompt, GREEDY)):
        done.append(event)
        copied += "".join(t for t, source in getattr(event, "spans", ()) if source == "history")
    finish = done[-1]
    # Rounds of eight drafts and the model's own token; the last is limited by the budget.
    assert copied == ("abcdefgh" + "jklmnopq" + "s" if drafts else "")
    assert finish.stats.sources["history"].accepted == len(copied)  # type: ignore[union-attr]


def test_a_snapshot_never_shows_half_a_turn(make_engine: Make) -> None:
    engine = make_engine(drafter=None)
    stop, problems = threading.Event(), []

    def watch() -> None:
        last = 0
        while not stop.is_set():
            stats = engine.metrics()
            # Without drafts every sequence of a round emits one token.
            if stats["generation_tokens_total"] != stats["round_sequences_total"]:
                problems.append(stats)
            if stats["generation_tokens_total"] < last:
                problems.append(stats)
            last = stats["generation_tokens_total"]

    watcher = threading.Thread(target=watch)
    watcher.start()
    for g in [engine.submit(GenerationRequest(ids("abcabc"), GREEDY)) for _ in range(40)]:
        collect(g)
    stop.set()
    watcher.join()
    assert not problems
