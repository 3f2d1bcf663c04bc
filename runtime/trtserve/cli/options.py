"""Options that commands share. Those of lookup are made from ``settings``, where default and range are written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import annotated_types
import click
from pydantic import BaseModel

from trtserve.overrides import SAVE_INTERVAL, Overrides
from trtserve.settings import PolicyName, PromptLookup, SharedCache, Speculative

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def option(*names: str, **attrs: Any) -> Callable[[CommandT], CommandT]:
    """``click.option`` that shows its default and also reads ``TRTSERVE_<NAME>`` from the environment."""
    name = next(n for n in names if n.startswith("--")).split("/")[0].removeprefix("--")
    envvar = "TRTSERVE_" + name.upper().replace("-", "_")
    return click.option(*names, envvar=envvar, show_envvar=True, **{"show_default": True, **attrs})


def integer_range(model: type[BaseModel], field: str) -> click.IntRange:
    """The range of an integer field, from its constraints."""
    low = high = None
    for constraint in model.model_fields[field].metadata:
        if isinstance(constraint, annotated_types.Ge):
            low = constraint.ge
        elif isinstance(constraint, annotated_types.Le):
            high = constraint.le
    return click.IntRange(low, high)  # type: ignore[arg-type]


def _setting(flag: str, model: type[BaseModel], field: str) -> Callable[[CommandT], CommandT]:
    """An option that overrides one integer setting of the engine."""
    info = model.model_fields[field]
    return option(
        flag,
        type=integer_range(model, field),
        default=None,
        show_default=f"the engine's; a recipe's: {info.default}",
        help=info.description,
    )


def overrides_of(values: dict[str, Any]) -> Overrides:
    """Take the engine's options out of a command's keyword arguments. Raises OverrideError."""
    given = {name: values.pop(name) for name in Overrides.model_fields if name in values}
    return Overrides.parse({name: value for name, value in given.items() if value is not None})


_LOOKUP = (
    option(
        "--prompt-lookup-decoding/--no-prompt-lookup-decoding",
        default=None,
        show_default="the engine's",
        help="copy drafts from text seen before",
    ),
    option(
        "--prompt-lookup-policy",
        type=click.Choice(get_args(PolicyName)),
        default=None,
        show_default=f"the engine's; a recipe's: {PromptLookup.model_fields['policy'].default}",
        help=PromptLookup.model_fields["policy"].description,
    ),
    _setting("--prompt-lookup-ngram", PromptLookup, "ngram"),
    _setting("--prompt-lookup-max-drafts", PromptLookup, "max_drafts"),
    _setting("--prompt-lookup-min-match", PromptLookup, "min_match"),
    _setting("--prompt-lookup-miss-backoff", PromptLookup, "miss_backoff"),
    _setting("--prompt-lookup-max-seqs", PromptLookup, "max_seqs"),
    _setting("--prompt-lookup-batch-max-drafts", PromptLookup, "batch_max_drafts"),
    _setting("--prompt-lookup-shared-cache-mb", SharedCache, "mb"),
    _setting("--prompt-lookup-shared-cache-scopes", SharedCache, "scopes"),
    option(
        "--cost-curve",
        type=click.Path(dir_okay=False),
        default=None,
        show_default="the engine's",
        help=Overrides.model_fields["cost_curve"].description,
    ),
    option(
        "--shared-cache-path",
        type=click.Path(dir_okay=False),
        default=None,
        help=Overrides.model_fields["shared_cache_path"].description,
    ),
    option(
        "--shared-cache-save-interval",
        type=integer_range(Overrides, "shared_cache_save_interval"),
        default=None,
        show_default=str(SAVE_INTERVAL),
        help=Overrides.model_fields["shared_cache_save_interval"].description,
    ),
    option(
        "--exact-verify/--no-exact-verify",
        default=None,
        show_default="the engine's",
        help=Speculative.model_fields["exact_verify"].description,
    ),
    option(
        "--hermetic",
        is_flag=True,
        default=False,
        help=Overrides.model_fields["hermetic"].description,
    ),
    option(
        "--device",
        default=None,
        show_default="cpu; cuda:0 for TensorRT",
        help=Overrides.model_fields["device"].description,
    ),
    option(
        "--kernel-cache",
        metavar="DIRECTORY|off",
        default=None,
        show_default="trtlookup in the user's cache directory",
        help=Overrides.model_fields["kernel_cache"].description,
    ),
    option(
        "--threads",
        type=integer_range(Overrides, "threads"),
        default=None,
        show_default="one per core",
        help=Overrides.model_fields["threads"].description,
    ),
)


def engine_options(command: CommandT) -> CommandT:
    """The ENGINE_DIR argument and every option of ``Overrides`` but the queue's length."""
    for decorate in reversed(_LOOKUP):
        command = decorate(command)
    return click.argument("engine_dir", type=click.Path(path_type=Path))(command)


_SAMPLING = (
    option("--max-tokens", type=click.IntRange(1), default=512, help="output tokens, as far as the context allows"),
    option("--temperature", type=click.FloatRange(0, 100), default=0.0, help="0 is greedy"),
    option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="nucleus sampling"),
    option("--top-k", type=click.IntRange(0), default=0, help="0 keeps all"),
    option("--min-p", type=click.FloatRange(0, 1), default=0.0, help="drop tokens below this share of the likeliest"),
    option("--seed", type=int, default=None, show_default="drawn", help="the same seed gives the same text"),
    option("--stop", multiple=True, help="a stop string; can be given several times"),
    option(
        "--color/--no-color",
        default=None,
        show_default="where the output is a terminal",
        help="colour copied text by its source",
    ),
)


def sampling_options(command: CommandT) -> CommandT:
    """Options of generation that ``generate`` and ``chat`` share."""
    for decorate in reversed(_SAMPLING):
        command = decorate(command)
    return command
