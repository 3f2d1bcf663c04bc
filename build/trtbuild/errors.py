"""What can go wrong in a build, by who has to act on it. Each kind has its own exit code in ``trtbuild.cli``."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """One thing wrong with a recipe."""

    where: str
    """``FILE:LINE``, or the ``--set`` option the value came from."""
    key: str
    """The dotted key, empty for the file as a whole."""
    message: str
    """What was given and what is allowed."""

    def __str__(self) -> str:
        return ": ".join(part for part in self if part)


class RecipeError(Exception):
    """A recipe that cannot be built as written. Carries every problem found, in the order of the file."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class DoesNotFitError(Exception):
    """The engine needs more memory than it is given. The message has the numbers and what would fit."""


class BuildError(Exception):
    """A target could not build the engine. The message says what stopped it."""


class OutputError(Exception):
    """The output path cannot be used. Nothing was changed."""
