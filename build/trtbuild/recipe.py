"""The recipe: one YAML file that says which checkpoint becomes an engine, for which target and with which limits.

The limits and the speculation settings are the runtime's own classes (``trtserve.settings``). A target adds a section
of its own, under its name, by exposing options in its module: the schema is put together from the targets found.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, create_model

from trtbuild import recipe_problems, recipe_source
from trtbuild.errors import Problem, RecipeError
from trtbuild.section import NAME_PATTERN, Section
from trtbuild.triton.deployment import Deployment, gpus_per_instance
from trtserve.model_config import Dtype
from trtserve.settings import Limits, PromptLookup, Speculative, plan_tiers

MIN_SHARE_TOKENS = 1024  # the shared cache refuses smaller shares when it starts; a recipe learns it sooner


class Model(Section):
    """Which checkpoint, and how its weights are stored."""

    checkpoint: str = Field(
        min_length=1,
        description="a Hugging Face directory or GGUF file (relative to the recipe), hf:ORG/REPO@REVISION, "
        "or package:MODULE/FILE",
    )
    dtype: Dtype = Field(default="float32", description="how the engine stores the weights")


class DraftModel(Section):
    """The smaller model of ``drafter: draft_model``."""

    checkpoint: str = Field(min_length=1, description="as model.checkpoint; it must share the model's tokenizer")
    dtype: Dtype = Field(default="float32", description="how the engine stores the draft model's weights")


def _false_is_off(value: object) -> object:
    return None if value is False else value


def _admit_false(schema: dict[str, Any]) -> None:
    schema["anyOf"].append({"const": False})


class RecipeSpeculative(Speculative):
    """Where drafts come from and what verifying them must guarantee."""

    prompt_lookup: Annotated[PromptLookup | None, BeforeValidator(_false_is_off)] = Field(
        default_factory=PromptLookup,
        description="copies from text seen before; null or false turns lookup off",
        json_schema_extra=_admit_false,
    )


OptionsT = TypeVar("OptionsT", bound=BaseModel)

#: Sections that a resolved recipe has where the recipe has them.
_OPTIONAL = ("draft_model", "triton")


class Recipe(Section):
    """A trtlookup recipe: one checkpoint, one target, the engine's limits and its speculation."""

    recipe: Literal[1] = Field(description="the recipe format's version")
    name: str = Field(
        pattern=NAME_PATTERN, description="the engine's name: its directory, and the model's id when served"
    )
    model: Model
    target: str = Field(description="what runs the engine")
    limits: Limits = Limits()
    speculative: RecipeSpeculative = RecipeSpeculative()
    draft_model: DraftModel | None = Field(default=None, description="required by speculative.drafter: draft_model")
    triton: Deployment | None = Field(default=None, description="what trtbuild triton makes of the engine")

    def options(self, kind: type[OptionsT]) -> OptionsT:
        """The chosen target's own section, or its defaults when the recipe has none."""
        section = getattr(self, self.target, None)
        return section if isinstance(section, kind) else kind()

    def resolved(self) -> dict[str, Any]:
        """Every value that decides the build, defaults written out; other targets' sections left out."""
        base = set(Recipe.model_fields)
        full = self.model_dump(mode="json")
        return {
            k: v
            for k, v in full.items()
            if (k in base and k not in _OPTIONAL) or (v is not None and k in (*_OPTIONAL, self.target))
        }

    def to_yaml(self) -> str:
        """The resolved recipe as a recipe file."""
        return yaml.safe_dump(self.resolved(), sort_keys=False, allow_unicode=True, width=120)

    @property
    def runtime_speculative(self) -> Speculative:
        """The speculation settings as the manifest records them."""
        return Speculative.model_validate_json(self.speculative.model_dump_json())


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe that passed its schema, and where each value came from."""

    recipe: Recipe
    path: Path
    source: recipe_source.Located

    def problem(self, key: str, message: str) -> Problem:
        """A problem with the value at dotted ``key``, at the line it (or its nearest section) was written."""
        return Problem(self.source.find(key.split(".")).where, key, message)


@functools.cache
def recipe_class() -> type[Recipe]:
    """The recipe's schema with the section of every target that has options of its own."""
    from trtbuild import targets

    names = targets.names()
    sections: dict[str, Any] = {
        name: (options | None, Field(default=None, description=f"for target {name} alone"))
        for name in names
        if (options := targets.get(name).options) is not None
    }
    sections["target"] = (Literal[names], Field(description="what runs the engine"))
    return create_model(
        "Recipe",
        __base__=Recipe,
        __doc__=Recipe.__doc__,
        **sections,
    )


def json_schema() -> dict[str, Any]:
    """The recipe's JSON Schema (draft 2020-12), with descriptions, defaults and ranges, for editors and scripts."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **recipe_class().model_json_schema()}


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Read and check a recipe. ``overrides`` are ``KEY=VALUE`` texts with a dotted KEY and a YAML value.

    Raises RecipeError with every problem of the first stage that has any: the file as YAML, the overrides, the
    schema, then what values must hold between them.
    """
    from trtbuild import targets

    source = recipe_source.read_file(path)
    recipe_source.apply_overrides(source, overrides)
    try:
        # Through JSON, because pydantic's strict mode takes a list for a tuple there and still no text for a number.
        recipe = recipe_class().model_validate_json(json.dumps(source.plain()))
    except ValidationError as e:
        raise RecipeError(*recipe_problems.explain(e, source, json_schema())) from e
    recipe = _within_context(recipe)
    loaded = LoadedRecipe(recipe, path, source)
    problems = [
        loaded.problem(key, message)
        for key, message in (*_cross_checks(recipe), *targets.get(recipe.target).check(recipe))
    ]
    if problems:
        raise RecipeError(*problems)
    return loaded


def _within_context(recipe: Recipe) -> Recipe:
    """The recipe with nothing wider than its longest sequence: the prefill chunk, whoever chose it, since a longer one
    would only widen buffers; and draft lengths that the recipe does not mention."""
    limits, speculative = recipe.limits, recipe.speculative
    chunk = min(limits.prefill_chunk, limits.max_seq_len)
    changes: dict[str, Any] = {"limits": limits.model_copy(update={"prefill_chunk": chunk})}
    if (lookup := speculative.prompt_lookup) is not None:
        unset = {"max_drafts", "batch_max_drafts"} - lookup.model_fields_set
        shorter = {key: min(getattr(lookup, key), limits.max_seq_len - 1) for key in unset}
        fitted = lookup.model_copy(update=shorter)
        changes["speculative"] = speculative.model_copy(update={"prompt_lookup": fitted})
    return recipe.model_copy(update=changes)


def _cross_checks(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """What must hold between values, whatever the target: (key, message) for each thing that does not."""
    limits, speculative = recipe.limits, recipe.speculative
    keys = {"lone": "max_drafts", "copy": "batch_max_drafts"}
    for tier in plan_tiers(limits, speculative):
        if tier.name in keys and tier.rows > limits.max_seq_len:
            from_drafter = speculative.num_drafts == tier.rows - 1
            key = "num_drafts" if from_drafter else f"prompt_lookup.{keys[tier.name]}"
            yield (
                f"speculative.{key}",
                f"given {tier.rows - 1}, which needs {tier.rows} rows in one verify; "
                f"allowed: up to {limits.max_seq_len - 1} with limits.max_seq_len {limits.max_seq_len}",
            )
    if (lookup := speculative.prompt_lookup) and (cache := lookup.shared_cache).mb:
        most = next((n for n in range(cache.scopes, 0, -1) if _share_tokens(cache.mb, n) >= MIN_SHARE_TOKENS), 0)
        if most < cache.scopes:
            yield (
                "speculative.prompt_lookup.shared_cache.scopes",
                f"given {cache.scopes}, which leaves each scope {_share_tokens(cache.mb, cache.scopes)} tokens of "
                f"{cache.mb} MiB; allowed: up to {most} scopes, for at least {MIN_SHARE_TOKENS} tokens each",
            )
    if speculative.drafter == "draft_model" and recipe.draft_model is None:
        yield "draft_model", "is missing; allowed: a mapping with checkpoint, since speculative.drafter is draft_model"
    if speculative.drafter != "draft_model" and recipe.draft_model is not None:
        yield (
            "draft_model",
            f"is given but speculative.drafter is {speculative.drafter}; allowed: no draft_model, or "
            "speculative.drafter: draft_model",
        )
    if recipe.triton is not None:
        span = gpus_per_instance(recipe.target, recipe.resolved())
        yield from ((f"triton.{key}", message) for key, message in recipe.triton.problems(recipe.target, span))


def _share_tokens(mb: int, scopes: int) -> int:
    """Tokens in one scope's share: what its table, 8-byte entries of a power of two within half the share, leaves."""
    share = (mb << 20) // scopes
    entries = 1 << ((share // 16).bit_length() - 1)
    return (share - 8 * entries) // 4
