"""Profiles and enqueues: which tiers a plan has, and which of them a step runs in."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtserve.executor import tensorrt_io as io
from trtserve.executor.tensorrt_cache import CacheLayout
from trtserve.executor.tensorrt_launch import Launch, choose_profile, plan_launches
from trtserve.settings import Limits, PromptLookup, Speculative, plan_tiers

from .models import config_of

LIMITS = Limits(max_batch_size=8, max_seq_len=512, prefill_chunk=128)


def profiles(**lookup: int) -> tuple[io.Profile, ...]:
    settings = {"max_drafts": 8, "batch_max_drafts": 3, "max_seqs": 8, **lookup}
    return io.profiles_for(plan_tiers(LIMITS, Speculative(prompt_lookup=PromptLookup(**settings))))


def shapes(found: tuple[io.Profile, ...]) -> list[tuple[str, int, int, int]]:
    return [(p.label, p.batch, p.rows, p.head_rows) for p in found]


def test_one_profile_for_each_tier_and_logits_where_none_other_takes_them() -> None:
    assert shapes(profiles(max_seqs=4)) == [
        ("lone", 1, 9, 9),
        ("copy", 4, 4, 4),
        ("full", 8, 1, 1),
        ("prefill", 1, 128, 1),
        ("lone logits", 1, 9, 9),
        ("copy logits", 4, 4, 4),
        ("full logits", 8, 1, 1),
    ]
    assert [p.label for p in profiles(max_seqs=8)][4:] == ["lone logits", "copy logits"]


def test_tiers_of_one_shape_share_a_profile() -> None:
    tiers = plan_tiers(LIMITS, Speculative(prompt_lookup=None))
    assert shapes(io.profiles_for(tiers)) == [
        ("lone", 1, 1, 1),
        ("copy+full", 8, 1, 1),
        ("prefill", 1, 128, 1),
        ("copy+full logits", 8, 1, 1),
    ]


@pytest.mark.parametrize("max_drafts", [1, 4, 17, 64])
def test_widening_max_drafts_widens_the_lone_tier_alone(max_drafts: int) -> None:
    base, wide = profiles(), profiles(max_drafts=max_drafts)
    changed = {
        p.label
        for p, q in itertools.product(base, wide)
        if p.label == q.label and (p.batch, p.rows, p.head_rows) != (q.batch, q.rows, q.head_rows)
    }
    # At one draft the copy tier takes the lone tier's logits, so there is no such profile to widen.
    assert changed == {"lone", "lone logits"} - ({"lone logits"} if max_drafts == 1 else set())


def test_widening_batch_max_drafts_widens_the_copy_tier_alone() -> None:
    base, wide = profiles(), profiles(batch_max_drafts=6)
    assert {p.label for p in base if p not in wide} == {"copy", "copy logits"}


def test_the_narrowest_profile_is_chosen() -> None:
    found = profiles(max_seqs=4)
    names = {
        (batch, rows): None if (i := choose_profile(found, batch, rows, logits=False)) is None else found[i].label
        for batch, rows in ((1, 1), (1, 9), (2, 1), (4, 4), (5, 1), (8, 1), (5, 2), (1, 10), (9, 1))
    }
    assert names == {
        (1, 1): "lone",
        (1, 9): "lone",
        (2, 1): "copy",
        (4, 4): "copy",
        (5, 1): "full",
        (8, 1): "full",
        (5, 2): None,
        (1, 10): None,
        (9, 1): None,
    }
    assert found[choose_profile(found, 1, 3, logits=True) or 0].label == "lone logits"


def fewest(found: tuple[io.Profile, ...], slots: list[int], rows: list[int], needs: list[bool]) -> int:
    """The fewest spans, by trying every way to cut the sorted slots."""
    order = sorted(range(len(slots)), key=lambda i: slots[i])
    best = len(slots)
    for cuts in itertools.product((False, True), repeat=len(slots) - 1):
        spans: list[list[int]] = [[order[0]]]
        for cut, b in zip(cuts, order[1:], strict=True):
            if cut:
                spans.append([b])
            else:
                spans[-1].append(b)
        if all(
            choose_profile(
                found,
                slots[span[-1]] - slots[span[0]] + 1,
                max(rows[b] for b in span),
                logits=any(needs[b] for b in span),
            )
            is not None
            for span in spans
        ):
            best = min(best, len(spans))
    return best


@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(1, 9), st.booleans()), min_size=1, max_size=8, unique_by=lambda x: x[0]
    ),
    st.sampled_from([1, 2, 4, 8]),
)
def test_every_sequence_runs_once_in_the_fewest_enqueues(sequences: list[tuple[int, int, bool]], max_seqs: int) -> None:
    found = profiles(max_seqs=max_seqs)
    slots, rows, needs = ([s[i] for s in sequences] for i in range(3))
    launches: list[Launch] = plan_launches(found, slots, rows, needs)
    assert sorted(b for launch in launches for b in launch.members) == list(range(len(sequences)))
    for launch in launches:
        profile = found[launch.profile]
        assert launch.batch <= profile.batch
        assert launch.rows <= profile.rows
        assert profile.logits == any(needs[b] for b in launch.members)
        assert all(launch.first_slot <= slots[b] < launch.first_slot + launch.batch for b in launch.members)
        assert launch.rows == max(rows[b] for b in launch.members)
    assert len(launches) == fewest(found, slots, rows, needs)


def test_rows_that_no_profile_takes_are_refused() -> None:
    with pytest.raises(ValueError, match="no profile of the plan takes 10 rows of one sequence"):
        plan_launches(profiles(), [0], [10], [False])


@given(st.integers(16, 5000), st.integers(1, 64))
def test_the_scratch_takes_a_rounds_rows_and_keeps_slots_aligned(max_seq_len: int, max_drafts: int) -> None:
    limits = Limits(max_batch_size=3, max_seq_len=max_seq_len, prefill_chunk=16)
    tiers = plan_tiers(limits, Speculative(prompt_lookup=PromptLookup(max_drafts=max_drafts)))
    positions = io.cache_positions(limits, tiers)
    assert positions >= max_seq_len + max(t.rows for t in tiers if t.name != "prefill")
    for dtype in ("float16", "float32"):
        layout = CacheLayout(config_of("llama", dtype=dtype, head_dim=2), 3, positions)
        assert layout.slot_bytes % 256 == 0
        assert [*layout.parts()] == [part * 3 * layout.slot_bytes for part in range(4)]
        assert layout.nbytes == 4 * 3 * layout.slot_bytes
        assert layout.nbytes == 3 * io.cache_bytes_per_slot(config_of("llama", dtype=dtype, head_dim=2), positions)
