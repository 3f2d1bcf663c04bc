"""An engine that keeps its shared cache in a file: what survives a restart, and what may not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny.engine import write_tiny_engine
from trtserve import Engine, Scope
from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import GenerationRequest
from trtserve.engine_dir import Manifest
from trtserve.lookup.drafter import Drafter
from trtserve.lookup.persistence import Persistence
from trtserve.lookup.scope_names import KeyFile
from trtserve.lookup.shared import SharedCache
from trtserve.lookup.snapshot import Snapshot
from trtserve.overrides import OverrideError, Overrides
from trtserve.sampling import SamplingParams
from trtserve.settings import Limits, PromptLookup, Speculative

from .toy import collect, toy_manifest

Make = Callable[..., LocalEngine]
SETTINGS = PromptLookup(ngram=2, min_match=2)
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
CACHE = {"prompt_lookup_shared_cache_mb": 1, "threads": 1}
TEXT = "The quick brown fox jumps over the lazy dog"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine(tmp_path_factory.mktemp("engines") / "tiny")


def kept_in(path: Path) -> tuple[Drafter, SharedCache, Persistence]:
    shared = SharedCache(1, 4, SETTINGS.shared_key_length)
    return Drafter(SETTINGS, shared=shared), shared, Persistence(shared, path, "ab" * 32)


def shared_copies(engine: Engine, scope: Scope) -> int:
    done = engine.generate(TEXT, max_tokens=30, temperature=0, ignore_eos=True, scope=scope)
    return done.finish.stats.sources["shared"].proposed if "shared" in done.finish.stats.sources else 0


def scopes_in(path: Path) -> dict[str, int]:
    with KeyFile(path, create=False, lock=False) as key, Snapshot(path, key.key) as saved:
        return {record.name: record.documents for record in saved.records}


def test_drain_saves_and_close_saves_again(make_engine: Make, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    drafter, shared, file = kept_in(path)
    engine = make_engine(drafter=drafter, shared_cache=shared, shared_cache_file=file)
    for tenant in ("a", "b", "a"):
        collect(engine.submit(GenerationRequest(range(2, 12), GREEDY, Scope(tenant))))
    assert not path.exists()
    assert engine.metrics()["shared_cache_saves_total"] == 0
    assert engine.drain(60)
    saved = engine.metrics()
    assert saved["shared_cache_saves_total"] == 1 and saved["shared_cache_save_failures_total"] == 0
    assert saved["shared_cache_save_bytes"] == path.stat().st_size and saved["shared_cache_save_seconds"] > 0
    expected = {file.names(Scope("a")): 2, file.names(Scope("b")): 1}
    assert scopes_in(path) == expected
    shared.insert(file.names(Scope("c")), list(range(9)))
    engine.close()
    assert scopes_in(path) == {**expected, file.names(Scope("c")): 1}
    KeyFile(path).close()  # given up


def test_close_alone_saves(make_engine: Make, tmp_path: Path) -> None:
    drafter, shared, file = kept_in(tmp_path / "cache")
    engine = make_engine(drafter=drafter, shared_cache=shared, shared_cache_file=file)
    collect(engine.submit(GenerationRequest(range(2, 12), GREEDY, Scope("a"))))
    engine.close()
    assert list(scopes_in(tmp_path / "cache").values()) == [1]


def test_a_restarted_engine_copies_for_the_same_tenant_and_no_other(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with Engine.load(directory, shared_cache_path=path, **CACHE) as engine:
        text = engine.generate(TEXT, max_tokens=30, temperature=0, ignore_eos=True, scope=Scope("a")).text
    assert b"quick" not in path.read_bytes()  # tokens, not text; and no names
    with Engine.load(directory, shared_cache_path=str(path), shared_cache_save_interval=0, **CACHE) as engine:
        assert shared_copies(engine, Scope("b")) == 0
        assert shared_copies(engine, Scope("a", salt="s")) == 0
        assert shared_copies(engine, Scope("a")) > 0
        again = engine.generate(TEXT, max_tokens=30, temperature=0, ignore_eos=True, scope=Scope("a"))
        assert again.text == text
    assert len(scopes_in(path)) == 3


def test_another_engine_does_not_read_it(directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "cache"
    shared = SharedCache(1, 4, 2)
    file = Persistence(shared, path, "ab" * 32)
    shared.insert(file.names(Scope("a")), list(range(9)))
    file.close()
    with caplog.at_level(logging.WARNING), Engine.load(directory, shared_cache_path=path, **CACHE) as engine:
        assert shared_copies(engine, Scope("a")) == 0
    assert caplog.text.count("is of another model or tokenizer") == 1
    assert (tmp_path / "cache.bad").exists() and len(scopes_in(path)) == 1


def test_an_engine_that_cannot_start_gives_the_file_up(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with pytest.raises(Exception, match="device"):
        Engine.load(directory, shared_cache_path=path, device="no-such-device", **CACHE)
    KeyFile(path).close()
    with (
        Engine.load(directory, shared_cache_path=path, **CACHE),
        pytest.raises(OverrideError, match=r"shared_cache_path: .*another process holds this snapshot"),
    ):
        Engine.load(directory, shared_cache_path=path, **CACHE)
    with pytest.raises(OverrideError, match=r"shared_cache_path: .*there is no directory"):
        Engine.load(directory, shared_cache_path=tmp_path / "none" / "cache", **CACHE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shared_cache_path": "x"}, "needs a shared cache; set prompt_lookup_shared_cache_mb"),
        ({"shared_cache_path": "x", "prompt_lookup_decoding": False}, "needs a shared cache"),
        ({"shared_cache_path": "x", "hermetic": True}, "hermetic refuses the shared cache, but shared_cache_path"),
        ({"shared_cache_save_interval": 9}, "does nothing without shared_cache_path"),
        ({"shared_cache_path": "x", "shared_cache_save_interval": 86401}, "less than or equal to 86400"),
        ({"shared_cache_path": 3}, "shared_cache_path"),
    ],
)
def test_refusals(given: dict[str, object], message: str) -> None:
    with pytest.raises(OverrideError, match=message):
        Overrides.parse(given).speculative(toy_manifest(Limits(), Speculative()))


def test_a_target_without_a_snapshot_says_so() -> None:
    manifest: Manifest = toy_manifest(Limits(), Speculative()).model_copy(update={"target": "tensorrt_llm"})
    given = {"shared_cache_path": "x", "prompt_lookup_shared_cache_mb": 1}
    with pytest.raises(OverrideError, match="target tensorrt_llm keeps no snapshot; allowed: torch, tensorrt"):
        Overrides.parse(given).speculative(manifest)
