"""What every mapping in a recipe has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

#: What names an engine, a model or a request parameter.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


class Section(BaseModel):
    """A mapping in a recipe: no unknown keys, no silent conversions, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
