"""Lookup on against off in batches: a tiny model's real runs, and replays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import batches, report
from benchmarks.session import Session
from tests.tiny.engine import write_tiny_engine


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    directory = write_tiny_engine(tmp_path_factory.mktemp("engines") / "tiny")
    with Session(directory, threads=1, hermetic=False) as opened:
        yield opened


@pytest.fixture
def short(session: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Prompts cut to what the tiny model's context holds."""
    whole = session.prompt
    monkeypatch.setattr(session, "prompt", lambda case: whole(case)[:80])
    return session


def test_a_turn_ends_with_its_first_sequence(short: Session) -> None:
    prompts = batches.prompts_of(short, "mix", 4)
    off = batches.run(short, prompts, 24, lookup=False)
    on = batches.run(short, prompts, 24, lookup=True)
    assert off.tokens_per_round == 1.0
    assert off.drafted == 0
    assert max(map(len, off.tokens)) == 24
    assert max(map(len, on.tokens)) == 24
    assert on.drafted > 0
    for a, b in zip(off.tokens, on.tokens, strict=True):
        assert a[: len(b)] == b[: len(a)]


def test_rows_of_every_set_and_batch(short: Session) -> None:
    rows = batches.measure(short, batches=(1, 4), tokens=8, repeats=2)
    assert [(r["set"], r["batch"]) for r in rows] == [("mix", 1), ("mix", 4), ("prose", 1), ("prose", 4)]
    assert [r["turns"] for r in rows] == [8, 2, 8, 2], "a small batch has more turns"
    assert all(r["ratio"] > 0 and r["differing"] == 0 for r in rows)
    with pytest.raises(ValueError, match="holds 4 sequences"):
        batches.measure(short, batches=(8,))
    text = report.batches(
        {"tokens": 8, "repeats": 2, "rows": rows, "modelled": batches.modelled(("row-0.05",), batches=(1, 32))}
    )
    assert "| all kinds | 4 |" in text
    assert "| row-0.05, prose | " in text


def test_lookup_costs_no_batch_more_than_two_hundredths_under_the_shipped_curves() -> None:
    """Modelled, so it depends on no machine: prose, where there is hardly anything to copy, and all kinds."""
    for row in batches.modelled():
        assert row["speedup"] >= 0.98, row
