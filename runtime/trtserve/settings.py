"""Limits and speculation settings: the part of a recipe that the runtime obeys too.

The recipe's schema (``trtbuild.recipe``) embeds these classes, the manifest records them, and serve-time flags
override single fields of them, so a default and its range are written once, here.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

DrafterName = Literal["none", "draft_model", "mtp", "eagle3"]
PolicyName = Literal["adaptive", "window"]


MAX_KEY_LENGTH = 64
"""Tokens of an n-gram, of a match and of the shared cache's keys."""
MAX_SHARED_CACHE_MB = 65536
MAX_SCOPES = 256


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Limits(_Strict):
    """What the engine is built to hold."""

    max_batch_size: int = Field(default=8, ge=1, le=256, description="sequences verified in one forward (slots)")
    max_seq_len: int = Field(default=4096, ge=16, le=1 << 20, description="tokens of one sequence, prompt and output")
    prefill_chunk: int = Field(default=512, ge=16, le=16384, description="prompt tokens put through one forward")


class SharedCache(_Strict):
    """The cross-request cache: copies from earlier requests of the same scope."""

    mb: int = Field(default=0, ge=0, le=MAX_SHARED_CACHE_MB, description="MiB for all scopes together; 0 turns it off")
    scopes: int = Field(default=4, ge=1, le=MAX_SCOPES, description="scopes kept; each has an equal share of the bytes")


class PromptLookup(_Strict):
    """When a copy is proposed and how long it may be."""

    policy: PolicyName = Field(
        default="adaptive",
        description="adaptive: by expected gain, learned; window: latest match, a window that doubles and halves",
    )
    ngram: int = Field(
        default=4, ge=1, le=MAX_KEY_LENGTH, description="tokens of the key that finds an earlier occurrence"
    )
    max_drafts: int = Field(default=32, ge=1, le=64, description="drafts of one copy when one sequence is active")
    min_match: int = Field(
        default=8, ge=1, le=MAX_KEY_LENGTH, description="tokens that must match before a copy is proposed"
    )
    miss_backoff: int = Field(
        default=16, ge=0, le=1024, description="most rounds skipped after copies of which nothing was accepted"
    )
    max_seqs: int = Field(default=32, ge=1, le=128, description="active sequences above which no copies are proposed")
    batch_max_drafts: int = Field(
        default=8, ge=1, le=64, description="drafts of one copy when several sequences are active"
    )
    shared_cache: SharedCache = SharedCache()

    @property
    def effective_min_match(self) -> int:
        """``min_match``, at least ``ngram``: the key itself must match."""
        return max(self.ngram, self.min_match)

    def most_drafts(self, batch: int) -> int:
        """Most drafts of one copy where ``batch`` sequences are active; 0: no copies."""
        if batch > self.max_seqs:
            return 0
        return self.max_drafts if batch == 1 else self.batch_max_drafts

    @property
    def summary(self) -> str:
        """What is obeyed of these settings, the shared cache aside, for people."""
        rule = f"policy {self.policy}, n-gram {self.ngram}"
        if self.policy == "window":
            rule += f", match of {self.effective_min_match}, backoff {self.miss_backoff}"
        several = f"{self.batch_max_drafts} each for up to {self.max_seqs} sequences"
        return f"{rule}, up to {self.max_drafts} drafts, {several}"

    @property
    def shared_key_length(self) -> int:
        """Tokens of the shared cache's keys: what the policy wants to see repeated before it copies."""
        return self.ngram if self.policy == "adaptive" else self.effective_min_match


class Speculative(_Strict):
    """Where drafts come from and what verifying them must guarantee."""

    drafter: DrafterName = Field(default="none", description="drafts for rounds that have no copy")
    num_drafts: int = Field(default=0, ge=0, le=64, description="length of the drafter's own chain")
    exact_verify: bool = Field(
        default=False, description="row results do not depend on the row count, so text is identical with lookup off"
    )
    prompt_lookup: PromptLookup | None = Field(
        default_factory=PromptLookup, description="copies from text seen before; null turns lookup off"
    )

    @model_validator(mode="after")
    def _drafter_has_drafts(self) -> Speculative:
        if self.drafter == "none" and self.num_drafts:
            raise ValueError(f"num_drafts is {self.num_drafts} but drafter is none; allowed: 0")
        if self.drafter != "none" and not self.num_drafts:
            raise ValueError(f"drafter {self.drafter} needs num_drafts of 1 to 64; it is 0")
        return self


class Tier(_Strict):
    """A (batch, rows) shape the engine is built for."""

    name: Literal["lone", "copy", "full", "prefill"]
    batch: int = Field(ge=1)
    rows: int = Field(ge=1)


def plan_tiers(limits: Limits, speculative: Speculative) -> tuple[Tier, ...]:
    """The tiers an engine needs for these settings.

    ``lone`` is batch 1, ``copy`` the batch up to ``max_seqs`` that may carry copies, ``full`` the rest; ``prefill``
    is one sequence's chunk. With lookup off the drafter alone sizes the rows.
    """
    lookup, drafts = speculative.prompt_lookup, speculative.num_drafts
    lone = max(drafts, lookup.max_drafts) if lookup else drafts
    copy = max(drafts, lookup.batch_max_drafts) if lookup else drafts
    copy_batch = min(lookup.max_seqs, limits.max_batch_size) if lookup else limits.max_batch_size
    return (
        Tier(name="lone", batch=1, rows=lone + 1),
        Tier(name="copy", batch=copy_batch, rows=copy + 1),
        Tier(name="full", batch=limits.max_batch_size, rows=drafts + 1),
        Tier(name="prefill", batch=1, rows=limits.prefill_chunk),
    )


def plan_draft_tiers(limits: Limits) -> tuple[Tier, ...]:
    """The tiers of a draft model beside an engine of these limits.

    Two rows for each sequence: after a chain accepted whole, its last draft and the token behind it are both new.
    """
    return (
        Tier(name="lone", batch=1, rows=2),
        Tier(name="full", batch=limits.max_batch_size, rows=2),
        Tier(name="prefill", batch=1, rows=limits.prefill_chunk),
    )
