"""What may be changed when an engine is served, without building it again.

The field names are the Python keywords of ``Engine.load`` and, with dashes, the flags of ``trtserve``. A field left at
None keeps what the engine was built with. Defaults and ranges are those of ``trtserve.settings``.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trtserve.engine_dir import Manifest
from trtserve.executor.base import MAX_THREADS
from trtserve.settings import PromptLookup, Speculative, Tier

MAX_QUEUE = 1 << 20
DEFAULT_QUEUE = 256
SAVE_INTERVAL = 300
"""Seconds between saves of the shared cache, where a path is given without an interval."""


class OverrideError(ValueError):
    """An override that is unknown, out of range, or more than the engine was built for. Says what is allowed."""


class Overrides(BaseModel):
    """Serve-time settings. Make one with ``parse``, which reports every problem at once."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    device: str | None = Field(default=None, description="where the torch target computes: cpu, cuda, cuda:1")
    threads: int | None = Field(default=None, ge=1, le=MAX_THREADS, description="CPU threads of one forward")
    max_queue: int = Field(default=DEFAULT_QUEUE, ge=1, le=MAX_QUEUE, description="requests that may wait for a slot")
    hermetic: bool = Field(
        default=False, description="refuse every cross-request channel: no shared cache, no KV reuse (for measurements)"
    )
    exact_verify: bool | None = Field(default=None, description="row results independent of the row count")
    prompt_lookup_decoding: bool | None = Field(default=None, description="copies on or off")
    prompt_lookup_policy: str | None = None
    prompt_lookup_ngram: int | None = None
    prompt_lookup_max_drafts: int | None = None
    prompt_lookup_min_match: int | None = None
    prompt_lookup_miss_backoff: int | None = None
    prompt_lookup_max_seqs: int | None = None
    prompt_lookup_batch_max_drafts: int | None = None
    prompt_lookup_shared_cache_mb: int | None = None
    prompt_lookup_shared_cache_scopes: int | None = None
    cost_curve: str | PathLike[str] | None = Field(
        default=None, description="what a verify costs, from trtserve calibrate, instead of what the build measured"
    )
    shared_cache_path: str | PathLike[str] | None = Field(
        default=None, description="a file that keeps the shared cache across restarts"
    )
    kernel_cache: str | PathLike[str] | None = Field(
        default=None,
        description="directory that keeps what TensorRT-RTX compiles for this GPU, so that the next start need not; "
        "off: nowhere",
    )
    shared_cache_save_interval: int | None = Field(
        default=None, ge=0, le=86400, description="seconds between saves of the shared cache; 0: on shutdown only"
    )

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Overrides:
        """Raises OverrideError naming each bad override, what was given and what is allowed."""
        try:
            return cls.model_validate(dict(given))
        except ValidationError as e:
            known = ", ".join(cls.model_fields)
            problems = [
                f"{x['loc'][0]} is not an override; allowed: {known}"
                if x["type"] == "extra_forbidden"
                else f"{x['loc'][0]}: {x['msg']}, not {x['input']!r}"
                for x in e.errors()
            ]
            raise OverrideError("; ".join(problems)) from e

    def speculative(self, manifest: Manifest) -> Speculative:
        """The speculation settings to serve with. Raises OverrideError where the engine was not built for them."""
        if manifest.target == "tensorrt_llm":
            self._check_tensorrt_llm()
        built = manifest.speculative
        lookup = self._lookup(built.prompt_lookup)
        self._check_used(lookup, manifest)
        if self.hermetic and lookup is not None and lookup.shared_cache.mb:
            if self.prompt_lookup_shared_cache_mb:
                raise OverrideError("hermetic refuses the shared cache, but prompt_lookup_shared_cache_mb asks for it")
            lookup = lookup.model_copy(update={"shared_cache": lookup.shared_cache.model_copy(update={"mb": 0})})
        if lookup is not None:
            _check_rows(lookup, manifest)
        self._check_snapshot(lookup, manifest)
        exact = built.exact_verify if self.exact_verify is None else self.exact_verify
        return built.model_copy(update={"prompt_lookup": lookup, "exact_verify": exact})

    def _check_tensorrt_llm(self) -> None:
        for name, value, why in (
            ("device", self.device, "TensorRT-LLM takes the GPUs that CUDA_VISIBLE_DEVICES names"),
            ("threads", self.threads, "TensorRT-LLM computes on GPUs"),
            ("cost_curve", self.cost_curve, "every verify of it has the same rows"),
        ):
            if value is not None:
                raise OverrideError(f"{name} does not apply to target tensorrt_llm: {why}")
        if self.exact_verify:
            raise OverrideError("exact_verify is not offered on target tensorrt_llm; allowed: false")

    def _check_used(self, lookup: PromptLookup | None, manifest: Manifest) -> None:
        if self.kernel_cache not in (None, "off") and manifest.target != "tensorrt":
            raise OverrideError(
                f"kernel_cache does not apply to target {manifest.target}: only TensorRT-RTX compiles where it serves; "
                "allowed: off, or target tensorrt"
            )
        if self.cost_curve is not None and (lookup is None or lookup.policy != "adaptive"):
            raise OverrideError(
                "cost_curve does nothing without prompt lookup of policy adaptive, which weighs with it"
            )
        if self.prompt_lookup_shared_cache_scopes is not None and lookup is not None and not lookup.shared_cache.mb:
            raise OverrideError(
                "prompt_lookup_shared_cache_scopes does nothing without a shared cache; set "
                "prompt_lookup_shared_cache_mb, 1 or more"
            )

    def without_effect(self, speculative: Speculative) -> list[str]:
        """The overrides of lookup that the policy served with does not obey, by name."""
        lookup = speculative.prompt_lookup
        if lookup is None or lookup.policy != "adaptive":
            return []
        names = ("prompt_lookup_min_match", "prompt_lookup_miss_backoff")
        return [name for name in names if getattr(self, name) is not None]

    def _check_snapshot(self, lookup: PromptLookup | None, manifest: Manifest) -> None:
        if self.shared_cache_path is None:
            if self.shared_cache_save_interval is not None:
                raise OverrideError("shared_cache_save_interval does nothing without shared_cache_path")
        elif manifest.target == "tensorrt_llm":
            raise OverrideError("shared_cache_path: target tensorrt_llm keeps no snapshot; allowed: torch, tensorrt")
        elif self.hermetic:
            raise OverrideError("hermetic refuses the shared cache, but shared_cache_path asks for it")
        elif lookup is None or not lookup.shared_cache.mb:
            raise OverrideError("shared_cache_path needs a shared cache; set prompt_lookup_shared_cache_mb, 1 or more")

    def _lookup(self, built: PromptLookup | None) -> PromptLookup | None:
        prefix = "prompt_lookup_"
        asked = {
            name.removeprefix(prefix): value
            for name, value in self
            if name.startswith(prefix) and name != "prompt_lookup_decoding" and value is not None
        }
        on = built is not None if self.prompt_lookup_decoding is None else self.prompt_lookup_decoding
        if not on:
            if asked:
                names = ", ".join(prefix + name for name in asked)
                raise OverrideError(f"prompt lookup is off, but {names} needs it; turn prompt_lookup_decoding on")
            return None
        fields = (built or PromptLookup()).model_dump()
        for name, value in asked.items():
            if name.startswith("shared_cache_"):
                fields["shared_cache"][name.removeprefix("shared_cache_")] = value
            else:
                fields[name] = value
        try:
            return PromptLookup.model_validate(fields)
        except ValidationError as e:
            problems = (f"{prefix}{'_'.join(map(str, x['loc']))}: {x['msg']}, not {x['input']!r}" for x in e.errors())
            raise OverrideError("; ".join(problems)) from e


def _check_rows(lookup: PromptLookup, manifest: Manifest) -> None:
    """Every draft asked for has a row to be verified in."""
    tiers: dict[str, Tier] = {tier.name: tier for tier in manifest.tiers}
    lone, copy = tiers["lone"], tiers["copy"]
    batch = min(lookup.max_seqs, manifest.limits.max_batch_size)
    for name, asked, most in (
        ("max_drafts", lookup.max_drafts, lone.rows - 1),
        ("batch_max_drafts", lookup.batch_max_drafts, copy.rows - 1),
        ("max_seqs", batch, copy.batch),
    ):
        if asked > most:
            what = f"copies for {most} sequences at once" if name == "max_seqs" else f"{most} drafts per sequence"
            raise OverrideError(
                f"prompt_lookup_{name} is {asked}, but this engine was built with rows for {what}; "
                f"build it again with --set speculative.prompt_lookup.{name}={asked} for more"
            )
