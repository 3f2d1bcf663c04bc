"""What an engine holds and what it costs in bytes: tiers, KV cache, activations, logits, and one more draft.

The tiers come from the recipe alone (``trtserve.settings.plan_tiers``). The bytes depend on what runs the engine, so a
target describes them as a ``Footprint``; the plan, what fits and what would fit are worked out here for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, computed_field

from trtbuild.errors import DoesNotFitError
from trtserve.model_config import DecoderConfig
from trtserve.settings import Limits, Speculative, Tier, plan_draft_tiers, plan_tiers

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True)
class Footprint:
    """Bytes of an engine's parts. The defaults hold for a decoder that works and caches in one floating-point type.

    A target subclasses it where its runtime differs: another way to hold weights, activations predicted per profile.
    """

    config: DecoderConfig
    work_bytes: int = 4
    """Bytes of one activation."""
    kv_bytes: int = 4
    """Bytes of one cached key or value element."""

    def weights(self) -> int:
        """Weights as the running engine holds them."""
        elements = sum(math.prod(shape) for shape in self.config.tensor_shapes().values())
        return elements * DTYPE_BYTES[self.config.dtype]

    def kv_per_token(self) -> int:
        """Keys and values of one position, all layers."""
        return 2 * self.config.num_layers * self.config.kv_size * self.kv_bytes

    def kv_positions(self, limits: Limits, speculative: Speculative) -> int:
        """Positions that one slot has memory for, at least ``max_seq_len``."""
        return limits.max_seq_len

    def activations(self, tier: Tier, limits: Limits) -> int:
        """The most that is alive at once in one forward of the tier, without logits.

        Per row: the residual stream, its normed copy and a layer's output, then the wider of attention (queries, keys,
        values, result) and MLP (gate, up, product). Plus one sequence's attention scores over the longest context.
        """
        c, rows = self.config, tier.batch * tier.rows
        widest = max(2 * c.q_size + 2 * c.kv_size, 3 * c.intermediate_size)
        scores = c.num_heads * tier.rows * limits.max_seq_len
        return (rows * (3 * c.hidden_size + widest) + scores) * self.work_bytes

    def logits(self, tier: Tier) -> int:
        """Logits of one forward, float32; prefill computes none."""
        return 0 if tier.name == "prefill" else tier.batch * tier.rows * self.config.vocab_size * 4


class TierPlan(BaseModel):
    """One tier's bytes."""

    model_config = ConfigDict(frozen=True)

    name: str
    batch: int
    rows: int
    activation_bytes: int
    logits_bytes: int
    next_draft_bytes: int | None
    """What one more draft per sequence would add in this tier; None for prefill, which has no drafts."""


class DraftPlan(BaseModel):
    """A draft model's bytes. It has the engine's slots and runs between the engine's own forwards."""

    model_config = ConfigDict(frozen=True)

    weights_bytes: int
    kv_bytes_per_token: int
    working_bytes: int

    def kv_bytes(self, slots: int, max_seq_len: int) -> int:
        """Its KV cache."""
        return self.kv_bytes_per_token * slots * max_seq_len

    def total_bytes(self, slots: int, max_seq_len: int) -> int:
        return self.weights_bytes + self.kv_bytes(slots, max_seq_len) + self.working_bytes


class CapacityPlan(BaseModel):
    """An engine's bytes. Tiers run one at a time, so only the largest one's working memory counts."""

    model_config = ConfigDict(frozen=True)

    slots: int
    max_seq_len: int
    kv_positions: int
    """Positions that one slot has memory for: ``max_seq_len``, and what the target adds."""
    weights_bytes: int
    kv_bytes_per_token: int
    tiers: tuple[TierPlan, ...]
    memory_bytes: int | None
    """What the engine is given; None when unknown."""
    draft_model: DraftPlan | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def kv_bytes_per_slot(self) -> int:
        return self.kv_bytes_per_token * self.kv_positions

    @computed_field  # type: ignore[prop-decorator]
    @property
    def kv_bytes(self) -> int:
        return self.kv_bytes_per_slot * self.slots

    @computed_field  # type: ignore[prop-decorator]
    @property
    def working_bytes(self) -> int:
        return max(t.activation_bytes + t.logits_bytes for t in self.tiers)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total_bytes(self) -> int:
        own = self.weights_bytes + self.kv_bytes + self.working_bytes
        return own if self.draft_model is None else own + self.draft_model.total_bytes(self.slots, self.max_seq_len)

    @property
    def fits(self) -> bool:
        return self.memory_bytes is None or self.total_bytes <= self.memory_bytes


def plan_capacity(
    footprint: Footprint,
    limits: Limits,
    speculative: Speculative,
    memory_bytes: int | None,
    draft: Footprint | None = None,
) -> CapacityPlan:
    """The plan for these settings. ``draft``: the draft model's, where there is one. Refuses nothing: see
    ``require_fit``."""
    tiers = []
    for tier in plan_tiers(limits, speculative):
        activations, logits = footprint.activations(tier, limits), footprint.logits(tier)
        wider = Tier(name=tier.name, batch=tier.batch, rows=tier.rows + 1)
        more = footprint.activations(wider, limits) + footprint.logits(wider) - activations - logits
        tiers.append(
            TierPlan(
                name=tier.name,
                batch=tier.batch,
                rows=tier.rows,
                activation_bytes=activations,
                logits_bytes=logits,
                next_draft_bytes=None if tier.name == "prefill" else more,
            )
        )
    return CapacityPlan(
        slots=limits.max_batch_size,
        max_seq_len=limits.max_seq_len,
        kv_positions=footprint.kv_positions(limits, speculative),
        weights_bytes=footprint.weights(),
        kv_bytes_per_token=footprint.kv_per_token(),
        tiers=tuple(tiers),
        memory_bytes=memory_bytes,
        draft_model=None if draft is None else _plan_draft(draft, limits),
    )


def _plan_draft(footprint: Footprint, limits: Limits) -> DraftPlan:
    tiers = plan_draft_tiers(limits)
    return DraftPlan(
        weights_bytes=footprint.weights(),
        kv_bytes_per_token=footprint.kv_per_token(),
        working_bytes=max(footprint.activations(t, limits) + footprint.logits(t) for t in tiers),
    )


def require_fit(
    plan: CapacityPlan, footprint: Footprint, limits: Limits, speculative: Speculative, draft: Footprint | None = None
) -> None:
    """Raise DoesNotFitError, with the numbers and the largest limits that would fit, unless the plan fits."""
    if plan.memory_bytes is None or plan.fits:
        return

    def fits(changes: dict[str, int]) -> bool:
        changed = {**limits.model_dump(), **changes}
        changed["prefill_chunk"] = min(changed["prefill_chunk"], changed["max_seq_len"])
        return plan_capacity(footprint, Limits(**changed), speculative, plan.memory_bytes, draft).fits

    batch = _largest(1, limits.max_batch_size, lambda n: fits({"max_batch_size": n}))
    length = _largest(16, limits.max_seq_len, lambda n: fits({"max_seq_len": n}))
    ways = []
    if batch:
        ways.append(f"limits.max_batch_size up to {batch} (now {limits.max_batch_size})")
    if length:
        ways.append(f"limits.max_seq_len up to {length} (now {limits.max_seq_len})")
    beside = ""
    if plan.draft_model is not None:
        beside = f", draft model {size(plan.draft_model.total_bytes(plan.slots, plan.max_seq_len))}"
    advice = f"would fit: {', or '.join(ways)}" if ways else "neither a smaller batch nor shorter sequences would fit"
    raise DoesNotFitError(
        f"the engine needs {size(plan.total_bytes)} (weights {size(plan.weights_bytes)}, KV cache "
        f"{size(plan.kv_bytes)}, working memory {size(plan.working_bytes)}{beside}) but is given "
        f"{size(plan.memory_bytes)}; {advice}. --memory SIZE plans for another machine."
    )


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest n in low..high that fits, taking it that everything below a fitting n fits; 0 when none does."""
    if not fits(low):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def size(count: int) -> str:
    """Bytes as people read them, in powers of 1024."""
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows in aligned columns, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _draft_rows(plan: CapacityPlan) -> list[tuple[str, str, str]]:
    draft = plan.draft_model
    if draft is None:
        return []
    kv_bytes = draft.kv_bytes(plan.slots, plan.max_seq_len)
    return [
        ("draft model", size(draft.total_bytes(plan.slots, plan.max_seq_len)), "beside the model"),
        ("  weights", size(draft.weights_bytes), ""),
        ("  KV cache", size(kv_bytes), f"{size(draft.kv_bytes_per_token)} per token"),
        ("  working memory", size(draft.working_bytes), ""),
    ]


def format_plan(plan: CapacityPlan) -> str:
    """The plan as two aligned tables: bytes by part, then bytes by tier."""
    given = "unknown" if plan.memory_bytes is None else size(plan.memory_bytes)
    parts = [
        ("weights", size(plan.weights_bytes), ""),
        ("KV cache", size(plan.kv_bytes), f"{plan.slots} slots of {plan.max_seq_len} tokens"),
        ("  per slot", size(plan.kv_bytes_per_slot), f"{size(plan.kv_bytes_per_token)} per token"),
        ("working memory", size(plan.working_bytes), "the largest tier's activations and logits"),
        *_draft_rows(plan),
        ("total", size(plan.total_bytes), f"of {given} given"),
    ]
    first, second = (max(len(p[i]) for p in parts) for i in (0, 1))
    lines = [f"{a:<{first}}  {b:>{second}}  {c}".rstrip() for a, b, c in parts]
    rows: list[tuple[str, ...]] = [("tier", "batch", "rows", "activations", "logits", "one more draft")]
    for tier in plan.tiers:
        more = "-" if tier.next_draft_bytes is None else f"+{size(tier.next_draft_bytes)}"
        rows.append(
            (tier.name, str(tier.batch), str(tier.rows), size(tier.activation_bytes), size(tier.logits_bytes), more)
        )
    return "\n".join([*lines, "", table(rows)])
