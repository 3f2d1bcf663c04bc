"""``make verify``: on every prompt of every workload, text with lookup on equals text with lookup off.

Greedy and seeded at temperature 0.8; alone, and with eight requests at a time that arrive at odd moments. It is for
engines whose executor is exact, as on a CPU: their texts must agree token for token.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from benchmarks.session import Session
from benchmarks.workloads import KINDS, cases
from trtserve.engine.protocol import Delta, GenerationRequest
from trtserve.sampling import SamplingParams


def _tokens(session: Session, request: GenerationRequest) -> list[int]:
    out: list[int] = []
    for event in session.engine.submit(request):
        if isinstance(event, Delta):
            out += [t.token for t in event.tokens]
        elif event.reason == "error":
            raise RuntimeError(event.error)
    return out


def without_lookup(session: Session, requests: list[GenerationRequest]) -> list[list[int]]:
    """Each request's tokens, generated alone and with lookup off."""
    return [_tokens(session, GenerationRequest(prompt=r.prompt, params=r.params, lookup=False)) for r in requests]


def with_lookup(
    session: Session, requests: list[GenerationRequest], *, concurrency: int, seed: int = 0
) -> list[list[int]]:
    """Each request's tokens with lookup on, ``concurrency`` at a time, arriving at odd moments."""
    rng = random.Random(seed)
    pauses = [rng.expovariate(10) if concurrency > 1 else 0.0 for _ in requests]
    gate = threading.Lock()

    def run(index: int) -> list[int]:
        with gate:  # arrivals follow one another
            time.sleep(pauses[index])
        return _tokens(session, requests[index])

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(run, range(len(requests))))


@click.command(help=__doc__)
@click.argument("engine", type=click.Path(path_type=Path))
@click.option("--tokens", default=48, show_default=True, type=click.IntRange(4, 1024), help="output tokens per prompt")
@click.option("--every", default=1, show_default=True, type=click.IntRange(1, 100), help="use every n-th prompt")
def main(engine: Path, tokens: int, every: int) -> None:
    failures = total = 0
    with Session(engine) as session:
        if not session.executor.info.exact:
            raise click.ClickException(f"{session.executor.info.device} does not promise exact results; use a CPU")
        for name, temperature in (("greedy", 0.0), ("temperature 0.8", 0.8)):
            for kind in KINDS:
                requests = [
                    GenerationRequest(
                        prompt=session.prompt(case, prefix=bool(case.prefix) and number % 2 == 1),
                        params=SamplingParams(temperature=temperature, seed=number, max_tokens=tokens),
                    )
                    for number, case in enumerate(cases(kind)[::every])
                ]
                expected = without_lookup(session, requests)
                for concurrency in (1, 8):
                    started = time.perf_counter()
                    actual = with_lookup(session, requests, concurrency=concurrency)
                    wrong = [i for i, tokens_out in enumerate(actual) if tokens_out != expected[i]]
                    total += len(requests)
                    failures += len(wrong)
                    names = ", ".join(cases(kind)[::every][i].name for i in wrong)
                    click.echo(
                        f"{name:16} {kind:13} {concurrency} at a time: {len(requests) - len(wrong)} of {len(requests)} "
                        f"equal, {time.perf_counter() - started:.0f} s" + (f"; differ: {names}" if wrong else "")
                    )
    click.echo(f"{total - failures} passed, {failures} failed")
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
