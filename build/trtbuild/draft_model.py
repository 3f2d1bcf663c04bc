"""The draft model's checkpoint: opened, and refused where its tokens are not the model's."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trtbuild.errors import RecipeError
from trtbuild.recipe import LoadedRecipe
from trtbuild.targets.base import DraftInput
from trtserve.engine_dir import TOKENIZER_DIR, TOKENIZER_NAME

if TYPE_CHECKING:
    from trtbuild.checkpoint import Checkpoint

_SHOWN = 3


def open_draft(loaded: LoadedRecipe, checkpoint: Checkpoint) -> DraftInput:
    """The draft model of a recipe that has one, beside the model's ``checkpoint``.

    Raises CheckpointError, and RecipeError where it cannot draft for this model: its vocabulary is another, or it
    knows fewer positions than the engine has.
    """
    from trtbuild.checkpoint import open_checkpoint

    recipe = loaded.recipe
    assert recipe.draft_model is not None
    draft = open_checkpoint(recipe.draft_model.checkpoint, base_dir=loaded.path.parent)
    config = draft.config(recipe.draft_model.dtype)
    problems = []
    if recipe.limits.max_seq_len > config.max_position:
        problems.append(
            f"knows {config.max_position} positions; allowed: at least the {recipe.limits.max_seq_len} of "
            "limits.max_seq_len"
        )
    if difference := vocabulary_difference(vocabulary(checkpoint), vocabulary(draft)):
        problems.append(
            f"has another vocabulary than model.checkpoint: {difference}; allowed: a checkpoint with the same tokens "
            "under the same ids"
        )
    if problems:
        raise RecipeError(*(loaded.problem("draft_model.checkpoint", problem) for problem in problems))
    return DraftInput(config, draft)


def vocabulary(checkpoint: Checkpoint) -> dict[str, int]:
    """A checkpoint's tokens and their ids, added tokens included."""
    from tokenizers import Tokenizer

    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / TOKENIZER_DIR
        directory.mkdir()
        checkpoint.save_tokenizer(directory)
        found: dict[str, int] = Tokenizer.from_file(str(directory / TOKENIZER_NAME)).get_vocab(with_added_tokens=True)
    return found


def vocabulary_difference(model: dict[str, int], draft: dict[str, int]) -> str:
    """What differs, for people: sizes, then the first ids whose tokens are not the same. Empty when nothing does."""
    if model == draft:
        return ""
    ours, theirs = ({i: token for token, i in tokens.items()} for tokens in (model, draft))
    differing = [i for i in sorted(ours.keys() | theirs.keys()) if ours.get(i) != theirs.get(i)]
    shown = ", ".join(f"token {i} is {_quoted(theirs.get(i))}, not {_quoted(ours.get(i))}" for i in differing[:_SHOWN])
    more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    sizes = "" if len(model) == len(draft) else f"{len(draft)} tokens, not {len(model)}; "
    return f"{sizes}{shown}{more}"


def _quoted(token: str | None) -> str:
    return "none" if token is None else json.dumps(token, ensure_ascii=False)
