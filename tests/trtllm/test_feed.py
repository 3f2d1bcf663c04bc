"""The side channel: exact when all goes well, never in the way when it does not, and across a process boundary."""

from __future__ import annotations

import json
import os
import pickle
import socket
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from trtserve import Engine
from trtserve.engine.protocol import Scope
from trtserve.engine.tensorrt_llm.feed import Announced, FeedReader, FeedWriter, Shared

from .conftest import Open, worker
from .fake import process, pytorch
from .test_executor import LONG, REPEAT
from .test_isolation import CACHE, FIRST, PARAMS


@pytest.fixture
def reader() -> Iterator[FeedReader]:
    made = FeedReader()
    yield made
    made.close()


def entry(client: int, output: int, drafts: tuple[int, ...] = ()) -> Announced:
    return Announced(client, output, "history" if drafts else None, drafts, 4, False, 1)


def test_announcements_arrive_in_order(reader: FeedReader) -> None:
    writer = pickle.loads(pickle.dumps(FeedWriter(reader.address)))
    writer.announce([entry(1, 1), entry(2, 5, (7, 8))], Shared(10, 20, 1, 0))
    writer.announce([entry(1, 2, (9,))], Shared(11, 20, 2, 1))
    reader.drain()
    assert (reader.rounds_total, reader.lost_total) == (2, 0)
    assert reader.shared == Shared(11, 20, 2, 1)
    assert reader.next_start(1, 0) == 1 and reader.next_start(1, 1) == 2 and reader.next_start(1, 2) is None
    assert reader.take(1, 1) == entry(1, 1) and reader.take(1, 1) is None
    assert reader.take(2, 5) == entry(2, 5, (7, 8)) and reader.take(3, 0) is None
    assert reader.latest(1) == entry(1, 2, (9,))
    reader.forget(1)
    assert reader.latest(1) is None and reader.take(1, 2) is None
    writer.close()
    reader.drain()


def test_nobody_else_may_enter(reader: FeedReader) -> None:
    path = Path(reader.address)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700 and path.parent.stat().st_uid == os.getuid()
    reader.close()
    assert not path.parent.exists()


def test_a_full_socket_loses_rounds_and_says_so(reader: FeedReader) -> None:
    writer = FeedWriter(reader.address)
    sent = 20000
    for i in range(sent):
        writer.announce([entry(1, i, tuple(range(64)))], Shared())
    reader.drain()
    writer.announce([entry(1, sent)], Shared())
    reader.drain()
    assert 0 < reader.lost_total < sent and reader.rounds_total + reader.lost_total == sent + 1


def test_without_a_reader_nothing_happens(tmp_path: Path, reader: FeedReader) -> None:
    nobody = FeedWriter(str(tmp_path / "none"))
    nobody.announce([entry(1, 1)], Shared())
    writer = FeedWriter(reader.address)
    writer.announce([entry(1, 1)], Shared())
    reader.close()
    for _ in range(3):
        writer.announce([entry(1, 1)], Shared())


def test_what_is_no_announcement_is_counted_and_dropped(reader: FeedReader) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(reader.address)
        for message in (b"\xff", b"[]", b"{}", json.dumps([0, [1, 2, 3, 4], [[1, 2]]]).encode()):
            stranger.send(message)
        reader.drain()
    assert reader.lost_total == 4 and reader.rounds_total == 0


def test_text_does_not_depend_on_the_channel(open_engine: Open, reference: Engine) -> None:
    engine = open_engine("1.3")
    wanted = reference.generate(REPEAT, **LONG)
    feed = engine.engine._feed  # type: ignore[attr-defined]
    lossy = feed._read
    seen = 0

    def lose_half(message: bytes) -> None:
        nonlocal seen
        seen += 1
        if seen % 2:
            lossy(message)

    feed._read = lose_half
    done = engine.generate(REPEAT, **LONG)
    assert (done.text, [t.token for t in done.tokens]) == (wanted.text, [t.token for t in wanted.tokens])
    stats = done.finish.stats
    # Every token is accounted for; rounds nobody heard of count as rounds without drafts.
    assert stats.completion_tokens == 60 and 0 < stats.rounds <= 60
    assert stats.sources["history"].accepted <= stats.sources["history"].proposed
    everything = sum(len(d) for r in worker(engine).drafted for d in r.values())
    assert stats.sources["history"].proposed < everything


@pytest.mark.slow
def test_counters_cross_the_process_boundary(
    open_engine: Open, reference: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The new process imports this directory's modules by the names they have here.
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    monkeypatch.setattr(pytorch, "make_worker", partial(process.ProcessWorker, "1.3"))
    engine = open_engine("1.3", speculative=CACHE, tensorrt_llm={"tensor_parallel_size": 2})
    arguments: dict[str, Any] = {**LONG, "scope": Scope(tenant="alice")}
    first, second = engine.generate(REPEAT, **arguments), engine.generate(REPEAT, **arguments)
    wanted = reference.generate(REPEAT, **LONG)
    assert first.text == second.text == wanted.text
    assert first.finish is not None and second.finish is not None
    assert first.finish.stats.sources["history"].accepted > 0
    assert second.finish.stats.sources["shared"].accepted > 0
    assert second.finish.stats.rounds < first.finish.stats.rounds
    metrics = engine.metrics()
    assert metrics["shared_cache_bytes"] > 0 and metrics["shared_cache_scopes"] == 1
    assert (
        sum(metrics["accepted_tokens_total"].values()) == 120 - first.finish.stats.rounds - second.finish.stats.rounds
    )
    # What a request carries crosses it too.
    alone = reference.generate(FIRST, **PARAMS)
    third = engine.generate(FIRST, **PARAMS, scope=Scope(tenant="bob"), prediction=[t.token for t in alone.tokens])
    assert third.text == alone.text
    assert third.finish is not None and third.finish.stats.sources["prediction"].accepted > 0
    generation = engine.submit(REPEAT, **{**arguments, "max_tokens": 200})
    generation.cancel()
    assert list(generation)[-1].reason == "cancelled"  # type: ignore[union-attr]
