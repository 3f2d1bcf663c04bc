"""What a plan's tensors are called and which shapes its profiles allow: agreed between network builder and executor.

Inputs of a plan (B sequences in neighbouring slots, R rows each, L head rows, P logit rows):

==================  ===========================  ==============================================================
``token_ids``       int32 ``[B, R]``             row i of sequence b is at position ``lengths[b] + i``
``lengths``         int32 ``[B]``                tokens whose keys and values the slot holds
``num_rows``        int32 ``[B]``                rows that count; 0 for a slot that takes no part
``head_rows``       int32 ``[L]``                rows that get a target token: all in a verify, the last in a prefill
``logit_rows``      int32 ``[P]``                which of the head rows' logits are output; P is 0 in a greedy profile
``k_cache_{i}``     T ``[B, KH, S, D]``          layer i's keys; ``v_cache_{i}`` its values
==================  ===========================  ==============================================================

Outputs: ``verdict`` int32 ``[B, 3]`` (accepted, next token, failed), ``logits`` float32 ``[B, P, V]``, and
``k_out_{i}`` and ``v_out_{i}``, which are the cache inputs updated in place (same address).

A cache has ``S`` positions: the sequence's, then scratch. Every enqueue writes R rows in each of the B slots, so rows
beyond ``num_rows`` need room after the last position, and a slot that takes no part writes into the scratch at
``S - R``, where nothing ever looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from trtserve.engine_dir import Choice
from trtserve.model_config import DecoderConfig
from trtserve.settings import Limits, Tier

TOKEN_IDS = "token_ids"
LENGTHS = "lengths"
NUM_ROWS = "num_rows"
HEAD_ROWS = "head_rows"
LOGIT_ROWS = "logit_rows"
VERDICT = "verdict"
LOGITS = "logits"

RuntimeName = Literal["tensorrt", "tensorrt_rtx"]

#: A slot's start must be aligned like any TensorRT binding; with this many positions every dtype and head size is.
CACHE_ALIGNMENT = 64


def cache_input(kind: str, layer: int) -> str:
    """The name of a cache input; ``kind`` is ``k`` or ``v``."""
    return f"{kind}_cache_{layer}"


def cache_output(kind: str, layer: int) -> str:
    """The name of the output that aliases ``cache_input(kind, layer)``."""
    return f"{kind}_out_{layer}"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Profile(_Record):
    """One optimization profile: the largest shapes it takes. The smallest batch and row count are 1."""

    tiers: tuple[str, ...]
    """The tiers it serves."""
    batch: int = Field(ge=1)
    rows: int = Field(ge=1)
    head_rows: int = Field(ge=1)
    """Most head rows: as many as rows in a verify, 1 in a prefill."""
    logits: bool
    """Whether the head rows' logits are output."""

    @property
    def label(self) -> str:
        return "+".join(self.tiers) + (" logits" if self.logits else "")


class PlanInfo(_Record):
    """``target_info`` of a tensorrt engine's manifest."""

    runtime: RuntimeName
    runtime_version: str
    plan: str
    """The plan's file, relative to the engine directory."""
    weights: Literal["plan"]
    """Where the weights are: in the plan, once."""
    compute_capability: tuple[int, ...]
    """The targets it was built for, 10 * major + minor; empty: the runtime's default set."""
    cache_positions: int = Field(ge=1)
    """S: positions of one slot, scratch included."""
    fold_groups: bool
    """Whether the query heads of a group are rows of one key head, instead of keys repeated for each."""
    acceptance: Literal["layers", "plugin"] = "layers"
    """What computes the verdict."""
    choices: dict[str, Choice] = {}
    """What the build chose and why: ``acceptance``, ``groups``, ``weights``."""
    profiles: tuple[Profile, ...]
    """In the plan's order."""
    activation_bytes: tuple[int, ...] = ()
    """What the build log says each profile needs."""
    predicted_activation_bytes: tuple[int, ...] = ()
    """What ``trtbuild --plan`` said."""
    activation_difference: tuple[int, ...] = ()
    """Logged less predicted."""
    build_seconds: float = 0.0
    peak_rss_bytes: int = 0


def cache_positions(limits: Limits, tiers: Iterable[Tier]) -> int:
    """S: the sequence's positions and as many of scratch as one enqueue writes rows, aligned."""
    rows = max(t.rows for t in tiers if t.name != "prefill")
    needed = limits.max_seq_len + rows
    return -(-needed // CACHE_ALIGNMENT) * CACHE_ALIGNMENT


def cache_bytes_per_slot(config: DecoderConfig, positions: int) -> int:
    """Bytes of one slot's keys and values over all layers."""
    item = 4 if config.dtype == "float32" else 2
    return 2 * config.num_layers * config.kv_size * positions * item


def profiles_for(tiers: Sequence[Tier]) -> tuple[Profile, ...]:
    """The profiles of a plan: one for each distinct tier shape, then those that output logits.

    A greedy round runs in the first set and reads back integers; a round that samples, penalizes or reports
    log-probabilities runs in the second. Both sets share one plan's weights, which is why there is one plan: of
    SmolLM2-135M in float16 it has 375 MB, a greedy plan 340 MB and one with logits 305 MB. The second set has no
    profile whose shapes another of it takes: such rounds are rarer, and every profile adds about 20 MB of code.
    """
    verify: dict[tuple[int, int], tuple[str, ...]] = {}
    for t in tiers:
        if t.name != "prefill":
            verify[t.batch, t.rows] = (*verify.get((t.batch, t.rows), ()), t.name)
    greedy = [
        Profile(tiers=names, batch=batch, rows=rows, head_rows=rows, logits=False)
        for (batch, rows), names in verify.items()
    ]
    prefill = [
        Profile(tiers=("prefill",), batch=t.batch, rows=t.rows, head_rows=1, logits=False)
        for t in tiers
        if t.name == "prefill"
    ]
    widest = [p for p in greedy if not any(q != p and q.batch >= p.batch and q.rows >= p.rows for q in greedy)]
    return (*greedy, *prefill, *(p.model_copy(update={"logits": True}) for p in widest))
