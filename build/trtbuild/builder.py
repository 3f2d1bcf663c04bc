"""From a recipe to an engine directory: check, plan, build beside, write the manifest last, move into place."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trtbuild import __version__, capacity, inputs, output_dir, targets
from trtbuild.draft_model import open_draft
from trtbuild.errors import BuildError, OutputError, RecipeError
from trtbuild.progress import Progress
from trtbuild.recipe import LoadedRecipe, Recipe
from trtserve import engine_dir
from trtserve.engine_dir import RECIPE_NAME, Choice, EngineDirError, Manifest
from trtserve.model_config import DecoderConfig
from trtserve.settings import plan_tiers

if TYPE_CHECKING:
    from trtbuild.checkpoint import Checkpoint


@dataclass(frozen=True)
class Prepared:
    """A recipe whose checkpoint was found and whose bytes were planned: all that can be known before building."""

    loaded: LoadedRecipe
    checkpoint: Checkpoint
    config: DecoderConfig
    footprint: capacity.Footprint
    plan: capacity.CapacityPlan
    draft: targets.DraftInput | None = None

    @property
    def recipe(self) -> Recipe:
        return self.loaded.recipe

    @property
    def choices(self) -> Mapping[str, Choice]:
        """What the target will choose in the build, by what is chosen."""
        return targets.get(self.recipe.target).choices(self.recipe, self.config)

    def require_fit(self) -> None:
        """Raise DoesNotFitError unless the engine fits the memory it is given."""
        recipe = self.recipe
        draft = None if self.draft is None else targets.get(recipe.target).footprint(recipe, self.draft.config)
        capacity.require_fit(self.plan, self.footprint, recipe.limits, recipe.speculative, draft)


@dataclass(frozen=True)
class Outcome:
    """What ``build`` did."""

    status: Literal["built", "updated", "up_to_date"]
    """``updated``: the recipe says something else that no build depends on, and the engine was told."""
    manifest: Manifest
    seconds: float


def find_current(loaded: LoadedRecipe, out: Path) -> Manifest | None:
    """The manifest of ``out`` when it is plain, without opening the checkpoint, that there is nothing to build.

    That is so for a checkpoint of one file whose size and time are those recorded. None says nothing: ``build`` finds
    out. Raises CheckpointError when the checkpoint cannot be found.
    """
    from trtbuild.checkpoint.references import resolve

    known = inputs.read_inputs(out)
    if known is None or len(known.files) != 1 or loaded.recipe.draft_model is not None:
        return None
    path = resolve(loaded.recipe.model.checkpoint, loaded.path.parent)
    if not path.is_file() or not inputs.is_unchanged(path, known.files[0]):
        return None
    decisive = targets.get(loaded.recipe.target).decisive(loaded.recipe)
    manifest = _current(out, inputs.digest_inputs(decisive, (path,), known.checkpoint, known, Progress()).digest)
    return manifest if _says(out, loaded.recipe) else None


def prepare(loaded: LoadedRecipe, memory_bytes: int | None = None) -> Prepared:
    """Open a recipe's checkpoint and plan the engine's capacity. Writes nothing.

    ``memory_bytes``: what the engine may take; None: what this machine has free. Raises RecipeError or
    CheckpointError; a plan that does not fit is the caller's to refuse.
    """
    from trtbuild.checkpoint import open_checkpoint

    recipe = loaded.recipe
    target = targets.get(recipe.target)
    checkpoint = open_checkpoint(recipe.model.checkpoint, base_dir=loaded.path.parent)
    config = checkpoint.config(recipe.model.dtype)
    if recipe.limits.max_seq_len > config.max_position:
        message = (
            f"given {recipe.limits.max_seq_len}; allowed: up to {config.max_position}, the positions this model knows"
        )
        raise RecipeError(loaded.problem("limits.max_seq_len", message))
    draft = None if recipe.draft_model is None else open_draft(loaded, checkpoint)
    plan = plan_capacity(recipe, config, memory_bytes, None if draft is None else draft.config)
    return Prepared(loaded, checkpoint, config, target.footprint(recipe, config), plan, draft)


def plan_capacity(
    recipe: Recipe, config: DecoderConfig, memory_bytes: int | None = None, draft: DecoderConfig | None = None
) -> capacity.CapacityPlan:
    """The bytes of a recipe's engine for a model, and for a draft model beside it. ``memory_bytes`` as for
    ``prepare``."""
    target = targets.get(recipe.target)
    memory = target.available_memory() if memory_bytes is None else memory_bytes
    beside = None if draft is None else target.footprint(recipe, draft)
    return capacity.plan_capacity(target.footprint(recipe, config), recipe.limits, recipe.speculative, memory, beside)


def build(
    prepared: Prepared, out: Path, *, force: bool = False, measure: bool = True, progress: Progress | None = None
) -> Outcome:
    """Bring the engine directory ``out`` up to date with the recipe and its checkpoint.

    ``force`` builds even when nothing changed. ``measure`` times the finished engine and keeps its cost curve; a
    build goes on without one. Raises CheckpointError, DoesNotFitError, BuildError or OutputError; ``out`` is then as
    it was before.
    """
    progress = progress or Progress()
    begin = time.monotonic()
    try:
        out = Path(out).resolve()
    except (OSError, RuntimeError) as e:  # a loop of links
        raise OutputError(f"{out}: {e}; give another path with -o") from e
    if not out.name:
        raise OutputError(f"{out}: is not a directory to build in; give another path with -o")
    try:
        with output_dir.locked(out, progress.note):
            # With force nothing is taken on trust, the recorded digests neither.
            known = None if force else inputs.read_inputs(out)
            built_from = _digest(prepared, known, progress)
            manifest = None if force else _current(out, built_from.digest)
            if manifest is not None and _says(out, prepared.recipe):
                return Outcome("up_to_date", manifest, time.monotonic() - begin)
            output_dir.require_replaceable(out, force=force)
            if manifest is not None:
                with output_dir.replacing(out) as directory:
                    manifest = _update_in(directory, out, manifest, prepared.recipe, built_from)
                return Outcome("updated", manifest, time.monotonic() - begin)
            prepared.require_fit()
            with output_dir.replacing(out) as directory:
                manifest = _build_in(directory, prepared, built_from, measure, progress)
            return Outcome("built", manifest, time.monotonic() - begin)
    except OSError as e:
        raise BuildError(f"{e.filename or out}: {e.strerror or e}") from e


def _digest(prepared: Prepared, known: inputs.Inputs | None, progress: Progress) -> inputs.Inputs:
    about = prepared.checkpoint.describe()
    draft_files: tuple[Path, ...] = ()
    if (draft := prepared.draft) is not None:
        about = {**about, "draft_model": draft.checkpoint.describe()}
        draft_files = draft.checkpoint.files
    decisive = targets.get(prepared.recipe.target).decisive(prepared.recipe)
    return inputs.digest_inputs(decisive, prepared.checkpoint.files, about, known, progress, draft_files=draft_files)


def _build_in(
    directory: Path, prepared: Prepared, built_from: inputs.Inputs, measure: bool, progress: Progress
) -> Manifest:
    recipe, target = prepared.recipe, targets.get(prepared.recipe.target)
    given = targets.BuildInput(recipe, prepared.config, prepared.checkpoint, prepared.draft)
    output = target.build(given, directory, progress)
    _write_account(directory, recipe, built_from)
    manifest = Manifest(
        name=recipe.name,
        target=target.name,
        model=prepared.config,
        tokenizer=output.tokenizer,
        limits=recipe.limits,
        speculative=recipe.runtime_speculative,
        tiers=plan_tiers(recipe.limits, recipe.speculative),
        inputs_digest=built_from.digest,
        weights_digest=output.weights_digest,
        tokenizer_digest=digest_directory(directory / engine_dir.TOKENIZER_DIR),
        draft_model=output.draft_model,
        built_with={"trtlookup": __version__, "python": platform.python_version(), **output.built_with},
        target_info=output.target_info,
    )
    if measure:
        manifest = _with_cost_curve(directory, manifest, prepared, progress)
    return engine_dir.write(directory, manifest)


def _write_account(directory: Path, recipe: Recipe, built_from: inputs.Inputs) -> None:
    """Write what an engine says of its origin."""
    (directory / RECIPE_NAME).write_text(recipe.to_yaml(), encoding="utf-8")
    inputs.write_inputs(directory, built_from)


def _update_in(directory: Path, out: Path, manifest: Manifest, recipe: Recipe, built_from: inputs.Inputs) -> Manifest:
    """Make the engine of ``out`` anew in ``directory`` with another account of itself and the same files."""
    same = {name: record for name, record in manifest.files.items() if name not in (RECIPE_NAME, inputs.INPUTS_NAME)}
    output_dir.link(out, directory, same)
    _write_account(directory, recipe, built_from)
    changes = {"name": recipe.name, "speculative": recipe.runtime_speculative}
    return engine_dir.write(directory, manifest.model_copy(update=changes), unchanged=same)


def _says(out: Path, recipe: Recipe) -> bool:
    """Whether the engine of ``out`` has this recipe written down."""
    try:
        return (out / RECIPE_NAME).read_text(encoding="utf-8") == recipe.to_yaml()
    except (OSError, ValueError):
        return False


def _with_cost_curve(directory: Path, manifest: Manifest, prepared: Prepared, progress: Progress) -> Manifest:
    target = targets.get(prepared.recipe.target)
    free = target.available_memory()
    if free is not None and prepared.plan.total_bytes > free:
        needed = capacity.size(prepared.plan.total_bytes)
        progress.warn(f"not measured: the engine needs {needed} and this machine has {capacity.size(free)} free")
        return manifest
    try:
        curve = target.measure(directory, manifest, progress)
        draft = manifest.draft_model
        if draft is not None:
            draft = draft.model_copy(update={"cost_curve": target.measure_draft(directory, manifest, progress)})
    except Exception as e:
        # A curve improves decisions; the engine is right without it, whatever stopped the measurement.
        progress.warn(f"the verify cost was not measured: {type(e).__name__}: {e}")
        return manifest
    return manifest.model_copy(update={"cost_curve": curve, "draft_model": draft})


def _current(out: Path, digest: str) -> Manifest | None:
    """The manifest of ``out`` when it was built from these inputs and its files have their sizes."""
    try:
        manifest = engine_dir.read(out)
    except EngineDirError:
        return None
    whole = all(
        (path := out / name).is_file() and path.stat().st_size == record.bytes
        for name, record in manifest.files.items()
    )
    return manifest if manifest.inputs_digest == digest and whole else None


def digest_directory(directory: Path) -> str:
    """SHA-256 over the names and contents of the files below ``directory``."""
    digest = hashlib.sha256()
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(directory).as_posix()}\n{engine_dir.sha256_file(path)}\n".encode())
    return digest.hexdigest()
