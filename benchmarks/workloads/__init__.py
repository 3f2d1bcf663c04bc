"""Prompts to measure and verify with: texts written for this project, eight kinds, thirty or more of each.

``cases(kind)`` gives a kind's cases in a fixed order. Every case is a chat; some carry an assistant *prefix* (the start
of the answer, for a model too small to begin an edit itself) and a written, right *answer* (for runs that force the
output, so that speed is measured on text a larger model would have produced).

``benchmarks.workloads.heldout`` has other tasks of the same kinds, to judge what was tuned on these.
"""

from __future__ import annotations

import importlib

from benchmarks.workloads.case import Case

#: Each the name of a module here, and of one in ``heldout``, with a function ``cases``.
KINDS = ("code_edit", "json_rewrite", "tool_echo", "retrieval", "chat", "agent_loop", "template", "prose")


def cases(kind: str, *, heldout: bool = False) -> list[Case]:
    """All cases of one kind. Raises KeyError for an unknown kind."""
    if kind not in KINDS:
        raise KeyError(kind)
    module = importlib.import_module(f"{__name__}.heldout.{kind}" if heldout else f"{__name__}.{kind}")
    return list(module.cases())


def all_cases(*, heldout: bool = False) -> list[Case]:
    """The cases of all kinds, kind by kind."""
    return [case for kind in KINDS for case in cases(kind, heldout=heldout)]


__all__ = ["KINDS", "Case", "all_cases", "cases"]
