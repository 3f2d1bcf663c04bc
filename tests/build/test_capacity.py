"""The capacity plan: bytes against arithmetic done by hand, what fits, and what would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtbuild.capacity import Footprint, format_plan, plan_capacity, require_fit, size
from trtbuild.errors import DoesNotFitError
from trtserve.host_memory import available_memory
from trtserve.model_config import DecoderConfig
from trtserve.settings import Limits, PromptLookup, Speculative, Tier

CONFIG = DecoderConfig(
    architecture="llama",
    vocab_size=100,
    hidden_size=8,
    intermediate_size=16,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    max_position=4096,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
)
LIMITS = Limits(max_batch_size=8, max_seq_len=64, prefill_chunk=16)
SPECULATIVE = Speculative(prompt_lookup=PromptLookup(max_drafts=8, batch_max_drafts=3))


def test_bytes_are_those_of_the_tensors() -> None:
    plan = plan_capacity(Footprint(CONFIG), LIMITS, Speculative(), None)
    # embed, then per layer two norms, q and o, k and v, gate, up and down, then the final norm
    elements = 100 * 8 + 3 * (2 * 8 + 2 * 8 * 8 + 2 * 4 * 8 + 3 * 8 * 16) + 8
    assert plan.weights_bytes == 4 * elements
    half = CONFIG.model_copy(update={"dtype": "float16"})
    assert plan_capacity(Footprint(half), LIMITS, Speculative(), None).weights_bytes == 2 * elements
    assert plan.kv_bytes_per_token == 2 * 3 * (2 * 2) * 4
    assert plan.kv_bytes_per_slot == 64 * plan.kv_bytes_per_token
    assert plan.kv_bytes == 8 * plan.kv_bytes_per_slot
    assert plan.total_bytes == plan.weights_bytes + plan.kv_bytes + plan.working_bytes


def test_tiers_and_the_next_draft() -> None:
    footprint = Footprint(CONFIG)
    plan = plan_capacity(footprint, LIMITS, SPECULATIVE, None)
    assert [(t.name, t.batch, t.rows) for t in plan.tiers] == [
        ("lone", 1, 9),
        ("copy", 8, 4),
        ("full", 8, 1),
        ("prefill", 1, 16),
    ]
    assert [t.logits_bytes for t in plan.tiers] == [9 * 400, 8 * 4 * 400, 8 * 400, 0]
    wider = plan_capacity(
        footprint, LIMITS, Speculative(prompt_lookup=PromptLookup(max_drafts=9, batch_max_drafts=3)), None
    )
    lone, more = plan.tiers[0], wider.tiers[0]
    assert lone.next_draft_bytes == (
        more.activation_bytes + more.logits_bytes - lone.activation_bytes - lone.logits_bytes
    )
    # Widening max_drafts widens the lone tier and nothing else.
    assert wider.tiers[1:] == plan.tiers[1:]
    assert plan.tiers[-1].next_draft_bytes is None


def test_a_target_describes_its_own_bytes() -> None:
    class Profiled(Footprint):
        def activations(self, tier: Tier, limits: Limits) -> int:
            return 1000 * tier.rows

    plan = plan_capacity(Profiled(CONFIG, kv_bytes=2), LIMITS, SPECULATIVE, None)
    assert [t.activation_bytes for t in plan.tiers] == [9000, 4000, 1000, 16000]
    assert plan.kv_bytes_per_token == 2 * 3 * 4 * 2
    assert plan.working_bytes == max(9000 + 9 * 400, 4000 + 32 * 400, 1000 + 8 * 400, 16000)


def test_what_fits_passes() -> None:
    footprint = Footprint(CONFIG)
    total = plan_capacity(footprint, LIMITS, Speculative(), None).total_bytes
    for memory in (None, total):
        plan = plan_capacity(footprint, LIMITS, Speculative(), memory)
        assert plan.fits
        require_fit(plan, footprint, LIMITS, Speculative())


@settings(max_examples=100, deadline=None)
@given(share=st.floats(0.05, 0.999), batch=st.integers(1, 32), length=st.integers(16, 4096))
def test_what_is_said_to_fit_fits_and_one_more_does_not(share: float, batch: int, length: int) -> None:
    footprint, speculative = Footprint(CONFIG), Speculative()
    limits = Limits(max_batch_size=batch, max_seq_len=length, prefill_chunk=min(64, length))
    memory = int(plan_capacity(footprint, limits, speculative, None).total_bytes * share)
    plan = plan_capacity(footprint, limits, speculative, memory)
    with pytest.raises(DoesNotFitError) as caught:
        require_fit(plan, footprint, limits, speculative)
    message = str(caught.value)
    assert size(plan.total_bytes) in message
    assert size(memory) in message

    def fits(changes: dict[str, int]) -> bool:
        values = {**limits.model_dump(), **changes}
        values["prefill_chunk"] = min(values["prefill_chunk"], values["max_seq_len"])
        return plan_capacity(footprint, Limits(**values), speculative, memory).fits

    for key, low in (("max_batch_size", 1), ("max_seq_len", 16)):
        if found := re.search(rf"limits\.{key} up to (\d+) \(now {getattr(limits, key)}\)", message):
            best = int(found[1])
            assert fits({key: best})
            assert not fits({key: best + 1})
        else:
            assert not fits({key: low})


def test_the_table_is_aligned_and_complete() -> None:
    text = format_plan(plan_capacity(Footprint(CONFIG), LIMITS, Speculative(), 1 << 30))
    parts, tiers = text.split("\n\n")
    assert "8 slots of 64 tokens" in parts
    assert "of 1.0 GiB given" in parts
    lines = tiers.splitlines()
    assert lines[0].split("  ")[0] == "tier"
    assert len({len(line) for line in lines}) == 1
    assert [line.split()[0] for line in lines[1:]] == ["lone", "copy", "full", "prefill"]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB"), (1 << 62, "4096.0 PiB")]
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert size(count) == text


def test_available_memory_heeds_every_control_group_around(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert available_memory(tmp_path) is None
    write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    assert available_memory(tmp_path) == 8000 * 1024
    write("proc/self/cgroup", "0::/outer/inner\n")
    write("sys/fs/cgroup/outer/inner/memory.max", "max\n")
    write("sys/fs/cgroup/outer/inner/memory.current", "1000\n")
    write("sys/fs/cgroup/outer/memory.max", "5000\n")
    write("sys/fs/cgroup/outer/memory.current", "2000\n")
    assert available_memory(tmp_path) == 3000
    write("sys/fs/cgroup/outer/memory.stat", "anon 7\ninactive_file 500\n")
    assert available_memory(tmp_path) == 3500
    write("sys/fs/cgroup/outer/memory.current", "9000\n")
    assert available_memory(tmp_path) == 0


def test_available_memory_in_an_old_control_group(tmp_path: Path) -> None:
    where = tmp_path / "sys/fs/cgroup/memory"
    where.mkdir(parents=True)
    (where / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (where / "memory.usage_in_bytes").write_text("100\n")
    assert available_memory(tmp_path) is None
    (where / "memory.limit_in_bytes").write_text("1100\n")
    assert available_memory(tmp_path) == 1000
