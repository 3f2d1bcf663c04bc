"""Reading a generation from coroutines."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable

from trtserve.engine.generation import LocalGeneration, deliver
from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import Completion, Finish, Generation, GenerationRequest, GenerationStats
from trtserve.sampling import SamplingParams

from .toy import ToyExecutor, collect, ids, reference, token_ids

Make = Callable[..., LocalEngine]
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
PROMPTS = [ids("the foo(abc) of the foo("), ids("abcabcabc"), ids("{x}{x}{"), ids("END of END")]


def toy(engine: LocalEngine) -> ToyExecutor:
    assert isinstance(engine._executor, ToyExecutor)
    return engine._executor


async def acollect(generation: Generation) -> Completion:
    return collect([event async for event in generation])


def test_many_readers_on_one_loop(make_engine: Make) -> None:
    engine = make_engine()

    async def main() -> list[Completion]:
        return await asyncio.gather(*(acollect(engine.submit(GenerationRequest(p, GREEDY))) for p in PROMPTS * 8))

    for prompt, done in zip(PROMPTS * 8, asyncio.run(main()), strict=True):
        assert token_ids(done) == reference(prompt, GREEDY)


def test_an_event_that_comes_just_before_the_reader_waits_is_not_lost() -> None:
    generation = LocalGeneration(GenerationRequest(PROMPTS[0], GREEDY), lambda: None)
    finish = Finish("length", GenerationStats(1, 0, 0, 0, {}))

    async def main() -> list[object]:
        loop = asyncio.get_running_loop()
        create_future = loop.create_future

        def deliver_and_create() -> asyncio.Future[None]:
            # The reader found nothing and has not shown yet that it waits: the scheduler wakes nobody.
            loop.create_future = create_future  # type: ignore[method-assign]
            deliver([(generation, finish)])
            return create_future()

        async def read() -> list[object]:
            loop.create_future = deliver_and_create  # type: ignore[method-assign]
            return [event async for event in generation]

        return await asyncio.wait_for(read(), 10)

    assert asyncio.run(main()) == [finish]


def test_several_loops_and_threads_at_once(make_engine: Make) -> None:
    engine = make_engine()
    results: dict[int, list[int]] = {}

    def client(number: int) -> None:
        request = GenerationRequest(PROMPTS[number % 4], GREEDY)
        done = asyncio.run(acollect(engine.submit(request))) if number % 2 else collect(engine.submit(request))
        results[number] = token_ids(done)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert results == {n: reference(PROMPTS[n % 4], GREEDY) for n in range(12)}


def test_one_wake_up_per_loop_and_round(make_engine: Make) -> None:
    """However many streams wait, the scheduler calls into their loop once per round."""
    engine = make_engine(drafter=None)
    calls = []
    ready = threading.Event()
    toy(engine).before_prefill = lambda *a: ready.wait(10) and None

    async def main() -> None:
        loop = asyncio.get_running_loop()
        inner = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *a, **k: (calls.append(1), inner(*a, **k))[1]  # type: ignore[method-assign]
        generations = [engine.submit(GenerationRequest(p, GREEDY)) for p in PROMPTS]
        ready.set()
        await asyncio.gather(*map(acollect, generations))

    asyncio.run(main())
    rounds = engine.metrics()["rounds_total"]
    assert engine.metrics()["round_sequences_total"] > 2 * rounds
    # One more for what is not a round: the loop's own shutdown of its executor.
    assert len(calls) <= rounds + 1


def test_a_reader_that_stops_reading_holds_nobody_up(make_engine: Make) -> None:
    engine = make_engine()

    async def main() -> None:
        lazy = engine.submit(GenerationRequest(PROMPTS[0], GREEDY))
        async for _ in lazy:
            break
        for prompt in PROMPTS:
            done = await acollect(engine.submit(GenerationRequest(prompt, GREEDY)))
            assert token_ids(done) == reference(prompt, GREEDY)
        rest = [event async for event in lazy]
        assert isinstance(rest[-1], Finish) and rest[-1].reason == "length"

    asyncio.run(main())


def test_a_loop_that_is_gone_harms_nobody(make_engine: Make) -> None:
    engine = make_engine()
    gate = threading.Event()
    toy(engine).before_step = lambda batch: gate.wait(10) and None

    async def leave() -> Generation:
        generation = engine.submit(GenerationRequest(PROMPTS[0], GREEDY))
        task = asyncio.ensure_future(acollect(generation))
        await asyncio.sleep(0.01)
        task.cancel()
        return generation

    generation = asyncio.run(leave())
    gc.collect()
    gate.set()
    assert token_ids(collect(generation)) == reference(PROMPTS[0], GREEDY)
    assert engine.healthy


def test_a_cancelled_task_can_cancel_its_generation(make_engine: Make) -> None:
    engine = make_engine(limits={"max_batch_size": 1})
    gate = threading.Event()
    toy(engine).before_step = lambda batch: gate.wait(10) and None

    async def main() -> None:
        generation = engine.submit(GenerationRequest(PROMPTS[0], GREEDY))

        async def client() -> None:
            try:
                await acollect(generation)
            finally:
                generation.cancel()

        task = asyncio.ensure_future(client())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gate.set()
        assert token_ids(await acollect(engine.submit(GenerationRequest(PROMPTS[1], GREEDY)))) == reference(
            PROMPTS[1], GREEDY
        )

    asyncio.run(main())
    assert engine.drain(10) and engine.metrics()["finished_total"]["cancelled"] == 1
