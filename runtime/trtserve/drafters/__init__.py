"""Drafters of their own chains. Each is one module here, found by the name that ``speculative.drafter`` gives it, with
one function ``open_drafter(opening: Opening) -> ChainDrafter``."""

from __future__ import annotations

import importlib
import pkgutil

from trtserve.drafters.base import ChainDrafter, ChainRequest, Opening
from trtserve.executor.base import ExecutorError

__all__ = ["ChainDrafter", "ChainRequest", "Opening", "names", "open_drafter"]


def names() -> tuple[str, ...]:
    """The drafters that exist here."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "base"))


def open_drafter(name: str, opening: Opening) -> ChainDrafter:
    """The drafter of that name, ready to draft. Raises ExecutorError when there is none or it cannot run here."""
    if name not in names():
        raise ExecutorError(
            f"{opening.engine_dir}: its drafter is {name}, which does not run in this process; allowed: none, "
            f"{', '.join(names())}"
        )
    module = importlib.import_module(f"{__name__}.{name}")
    drafter: ChainDrafter = module.open_drafter(opening)
    return drafter
