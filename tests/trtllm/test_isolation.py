"""Nobody copies another tenant's, adapter's or salt's text, and the KV cache is kept apart by the same salts."""

from __future__ import annotations

import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from trtserve import Engine
from trtserve.engine.protocol import Scope
from trtserve.engine.tensorrt_llm import scopes
from trtserve.engine.tensorrt_llm.scopes import Salts, takes_copies

from .conftest import Open, verify_executor, worker
from .fake.pytorch import get_cache_salt_id

# The answer to a text that does not repeat itself is copied only from another request.
FIRST = "A quick brown fox jumps over (the) lazy dog: 1 2 3."
PARAMS: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
CACHE = {"prompt_lookup": {"shared_cache": {"mb": 1, "scopes": 8}}}


def shared(engine: Engine, scope: Scope, **arguments: Any) -> int:
    """Drafts that a request took from earlier ones."""
    done = engine.generate(FIRST, **PARAMS, scope=scope, **arguments)
    return done.finish.stats.sources["shared"].proposed


@pytest.mark.parametrize("line", ["1.2", "1.3", "1.4"])
def test_tenants_and_salts(line: str, open_engine: Open) -> None:
    engine = open_engine(line, speculative=CACHE)
    alice = Scope(tenant="alice")
    assert shared(engine, alice) == 0
    assert shared(engine, Scope(tenant="bob")) == 0
    assert shared(engine, Scope(tenant="alice", salt="other")) == 0
    assert shared(engine, alice, lookup=False) == 0
    assert shared(engine, alice) > 0
    assert engine.metrics()["shared_cache_scopes"] == 3


def test_a_request_without_lookup_leaves_nothing(open_engine: Open) -> None:
    engine = open_engine("1.3", speculative=CACHE)
    scope = Scope(tenant="alice")
    assert shared(engine, scope, lookup=False) == 0
    assert shared(engine, scope) == 0
    assert shared(engine, scope) > 0


def test_adapters(open_engine: Open, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("adapter")
    engine = open_engine("1.3", speculative=CACHE, tensorrt_llm={"lora": {"adapters": {"one": str(place)}}})
    assert shared(engine, Scope(tenant="alice")) == 0
    assert shared(engine, Scope(tenant="alice", adapter="one")) == 0
    assert shared(engine, Scope(tenant="alice", adapter="one")) > 0


@pytest.mark.parametrize("line", ["1.2", "1.3"])
def test_hermetic(line: str, open_engine: Open) -> None:
    engine = open_engine(line, overrides={"hermetic": True}, speculative=CACHE)
    assert shared(engine, Scope(tenant="a")) == shared(engine, Scope(tenant="a")) == 0
    assert engine.metrics()["shared_cache_bytes"] == 0
    if line == "1.3":
        assert engine.engine._llm._fake.arguments["kv_cache_config"]["enable_block_reuse"] is False  # type: ignore[attr-defined]


def test_kv_blocks_are_kept_apart(open_engine: Open) -> None:
    engine = open_engine("1.2", speculative={"prompt_lookup": None})
    fake = verify_executor(engine)
    long = FIRST * 2
    for scope, found in ((Scope("alice"), 0), (Scope("bob"), 0), (Scope("alice", salt="x"), 0), (Scope("alice"), 96)):
        before = len(fake.reused)
        engine.generate(long, **{**PARAMS, "max_tokens": 1}, scope=scope)
        assert fake.reused[before] == found
    salts = {r.cache_salt_id for r in fake.requests}
    assert len(salts) == 3 and None not in salts


def test_salts_of_the_executor(open_engine: Open) -> None:
    engine = open_engine("1.3", speculative=CACHE)
    shared(engine, Scope(tenant="alice"))
    manager = next(iter(worker(engine).ranks[0].managers.resource_managers.values()))
    assert manager.plan.lookup.shared_cache.mb == 1
    # Another process has another secret: nobody can work out a salt that meets alice's.
    one, other = (Salts(get_cache_salt_id, "key") for _ in range(2))
    assert one.salt(Scope("alice"), lookup=True) != other.salt(Scope("alice"), lookup=True)


def test_salts() -> None:
    salts = Salts(get_cache_salt_id, "key", secret="s")
    scopes = [Scope(t, a, s) for t in ("", "a", "ab") for a in ("", "b", "1:b") for s in ("", "c")]
    seen = {salts.salt(scope, lookup=on) for scope in scopes for on in (True, False)}
    assert len(seen) == 2 * len(scopes) == len({number for _, number in seen})
    for scope in scopes:
        for on in (True, False):
            text, number = salts.salt(scope, lookup=on)
            assert number == get_cache_salt_id(text) and takes_copies(number) == on
            assert salts.salt(scope, lookup=on) == (text, number)
    assert not takes_copies(None)


class SlowToAnswer(OrderedDict[Any, Any]):
    """Lets other threads in between what was found and what is done with it."""

    def get(self, key: Any, default: Any = None) -> Any:
        found = super().get(key, default)
        time.sleep(1e-4)
        return found


def test_salts_are_asked_for_from_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scopes, "_REMEMBERED", 2)
    salts = Salts(get_cache_salt_id, "key", secret="s")
    salts._known = SlowToAnswer()
    tenants = [Scope(tenant=f"t{i}") for i in range(4)]
    alone = [salts.salt(scope, lookup=True) for scope in tenants]
    with ThreadPoolExecutor(4) as pool:
        asked = list(pool.map(lambda i: salts.salt(tenants[i % 4], lookup=True), range(400)))
    assert asked == [alone[i % 4] for i in range(400)]
