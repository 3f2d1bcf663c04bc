"""Copy lookup: the kernel on emulated threads and the host build, against the rule written plainly."""

from __future__ import annotations

import numpy as np
import pytest

from trtplugins.acceptance import LookupResult, LookupRule, lookup_host

from .kernel_emulation import ORDERS, Emulated


def plain(history: list[int], allowed: int, rule: LookupRule, max_rows: int) -> tuple[list[int], int]:
    """(rows, start) by the rule's words."""
    if not history:
        return [], -1
    length, best = len(history), (0, -1)
    for p in range(rule.ngram, length):
        match = 0
        while match < p and history[p - 1 - match] == history[length - 1 - match]:
            match += 1
        if match >= rule.ngram:
            best = max(best, (min(match, rule.depth), p))
    p = best[1]
    if p < 0 or history[p - min(p, rule.min_match) : p] != history[length - rule.min_match :] or p < rule.min_match:
        return history[-1:], -1
    copy = history[p : p + max(0, min(allowed, max_rows - 1))]
    return history[-1:] + copy, p if copy else -1


def emulate(
    emulated: Emulated, history: np.ndarray, lengths: np.ndarray, allowed: np.ndarray, rule: LookupRule, max_rows: int,
    *, threads: int, splits: int, order: str, seed: int,
) -> LookupResult:  # fmt: skip
    batch, max_len = history.shape
    ngram, min_match, depth = rule.checked()
    arrived = np.zeros(batch, np.uint32)
    out = LookupResult(np.full((batch, max_rows), -7, np.int32), *(np.full(batch, 99, np.int32) for _ in range(2)))
    ints = [np.int32(v) for v in (ngram, min_match, depth, max_rows)]
    partial = np.zeros(batch * splits, np.uint64)
    emulated.launch(
        "tl_lookup",
        (splits, batch),
        threads,
        [history, np.int32(max_len), lengths, allowed, *ints, partial, arrived, *out],
        order,
        seed,
    )
    assert not arrived.any()
    for b in range(batch):
        assert (out.tokens[b, out.num_rows[b] :] == -7).all(), "rows beyond num_rows are not written"
    return out


@pytest.mark.parametrize("order", ORDERS)
def test_random_histories(emulated: Emulated, order: str) -> None:
    rng = np.random.default_rng(7)
    found = 0
    for case in range(60):
        batch, max_len = 12, int(rng.integers(1, 150))
        alphabet = int(rng.choice([1, 2, 3, 30]))
        history = rng.integers(0, alphabet, (batch, max_len)).astype(np.int32)
        lengths = rng.integers(0, max_len + 1, batch).astype(np.int32)
        allowed = rng.integers(-1, 12, batch).astype(np.int32)
        ngram = int(rng.integers(1, 5))
        rule = LookupRule(ngram, int(rng.integers(1, 9)), int(rng.choice([ngram, 8, 256]))).checked()
        max_rows = int(rng.integers(1, 10))
        on_host = lookup_host(history, lengths, allowed, rule, max_rows)
        emulation = emulate(
            emulated, history, lengths, allowed, rule, max_rows,
            threads=int(rng.choice([32, 64])), splits=int(rng.integers(1, 5)), order=order, seed=case,
        )  # fmt: skip
        for result in (on_host, emulation):
            for b in range(batch):
                rows, start = plain(history[b, : lengths[b]].tolist(), int(allowed[b]), rule, max_rows)
                assert result.tokens[b, : result.num_rows[b]].tolist() == rows
                assert result.start[b] == start
                found += start >= 0
    assert found > 300


def test_latest_and_longest_differ() -> None:
    one = np.ones(1, np.int32)
    #                    0  1  2  3  4  5  6  7  8  9 10
    history = np.array([[1, 2, 3, 9, 5, 3, 8, 1, 2, 3]], np.int32)
    latest = lookup_host(history, one * 10, one * 2, LookupRule(1, 1, 1), 4)
    longest = lookup_host(history, one * 10, one * 2, LookupRule(1, 1, 8), 4)
    assert (latest.start.tolist(), latest.tokens[0, :3].tolist()) == ([6], [3, 8, 1])
    assert (longest.start.tolist(), longest.tokens[0, :3].tolist()) == ([3], [3, 9, 5])


def test_of_equal_matches_the_latest() -> None:
    one = np.ones(1, np.int32)
    history = np.array([[1, 2, 7, 1, 2, 8, 1, 2]], np.int32)
    assert lookup_host(history, one * 8, one, LookupRule(2, 2, 16), 2).start.tolist() == [5]


@pytest.mark.parametrize(
    ("rule", "max_rows", "message"),
    [
        (LookupRule(0, 1, 4), 2, "ngram"),
        (LookupRule(4, 4, 3), 2, "depth"),
        (LookupRule(4, 4, 257), 2, "256"),
        (LookupRule(), 0, "max_rows"),
    ],
)
def test_what_is_refused(rule: LookupRule, max_rows: int, message: str) -> None:
    one = np.ones(1, np.int32)
    with pytest.raises(ValueError, match=message):
        lookup_host(np.zeros((1, 4), np.int32), one, one, rule, max_rows)


def test_a_length_beyond_the_history_is_refused() -> None:
    one = np.ones(1, np.int32)
    with pytest.raises(ValueError, match="lengths"):
        lookup_host(np.zeros((1, 4), np.int32), one * 5, one, LookupRule(), 2)
