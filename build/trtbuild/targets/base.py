"""What a target is: the part of ``trtbuild`` that knows what will run the engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtserve.engine_dir import Choice, CostCurve, DraftModelRecord, TokenizerRecord
from trtserve.engine_dir import Target as TargetName
from trtserve.model_config import DecoderConfig
from trtserve.settings import plan_tiers

if TYPE_CHECKING:
    from pydantic import BaseModel

    from trtbuild.capacity import Footprint
    from trtbuild.checkpoint import Checkpoint
    from trtbuild.progress import Progress
    from trtbuild.recipe import Recipe
    from trtserve.engine_dir import Manifest


@dataclass(frozen=True)
class DraftInput:
    """The draft model's checkpoint, and its shape in the recipe's type."""

    config: DecoderConfig
    checkpoint: Checkpoint


@dataclass(frozen=True)
class BuildInput:
    """Everything a target may read."""

    recipe: Recipe
    config: DecoderConfig
    checkpoint: Checkpoint
    draft: DraftInput | None = None
    """With ``speculative.drafter: draft_model``, in a target whose ``check`` allows it."""


@dataclass(frozen=True)
class BuildOutput:
    """What a target wrote, for the manifest."""

    tokenizer: TokenizerRecord
    weights_digest: str
    """SHA-256 of the weights as built, 64 hex digits."""
    draft_model: DraftModelRecord | None = None
    """Where ``BuildInput`` has a draft."""
    built_with: dict[str, str] = field(default_factory=dict)
    target_info: dict[str, Any] = field(default_factory=dict)


def undeployed(recipe: Recipe) -> dict[str, Any]:
    """A resolved recipe without what no build ever reads: the engine's name, and the section ``triton``."""
    return {key: value for key, value in recipe.resolved().items() if key not in ("name", "triton")}


class Target(ABC):
    """One target. Stateless: what differs between builds comes in as arguments."""

    name: TargetName
    options: type[BaseModel] | None = None
    """The recipe section of the target's own, under the target's name; None when it has none. Every field needs a
    default. See ``Recipe.options``."""

    @abstractmethod
    def check(self, recipe: Recipe) -> Iterable[tuple[str, str]]:
        """What this target cannot honour in a recipe that passed its schema: (dotted key, message) for each."""

    @abstractmethod
    def footprint(self, recipe: Recipe, config: DecoderConfig) -> Footprint:
        """How many bytes an engine for this model takes where it runs."""

    @abstractmethod
    def available_memory(self) -> int | None:
        """Bytes free where the engine would run on this machine; None when unknown (the plan then refuses nothing)."""

    def choices(self, recipe: Recipe, config: DecoderConfig) -> Mapping[str, Choice]:
        """What a build of this model will choose, by name: ``trtbuild --plan`` says it, the manifest keeps it."""
        return {}

    def decisive(self, recipe: Recipe) -> dict[str, Any]:
        """What of a resolved recipe decides the build. Recipes that are equal in it, for checkpoints of equal bytes,
        make the same engine; what else they say is only written down in it: its name, how it is deployed, and the
        settings of prompt lookup that serving takes as its defaults. Those that need rows are in the tiers."""
        resolved = undeployed(recipe)
        for model in ("model", "draft_model"):
            resolved.get(model, {}).pop("checkpoint", None)  # where it lies: its bytes are hashed
        del resolved["speculative"]["prompt_lookup"]
        tiers = plan_tiers(recipe.limits, recipe.speculative)
        return {**resolved, "tiers": [tier.model_dump(mode="json") for tier in tiers]}

    @abstractmethod
    def build(self, inputs: BuildInput, out: Path, progress: Progress) -> BuildOutput:
        """Write the engine's own files and its tokenizer into the empty directory ``out``; not the manifest.

        Raises BuildError, or CheckpointError where the checkpoint is at fault.
        """

    def measure(self, engine_dir: Path, manifest: Manifest, progress: Progress) -> CostCurve | None:
        """The cost of a verify on this machine, or None where the engine cannot run here. ``manifest`` is not
        written yet. May raise anything: a build goes on without a curve."""
        return None

    def measure_draft(self, engine_dir: Path, manifest: Manifest, progress: Progress) -> CostCurve | None:
        """The same of the draft model's forwards, for a manifest that records one."""
        return None
