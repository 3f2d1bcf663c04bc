"""Prompts to measure and verify with: texts written for this project, eight kinds, thirty or more of each.

``cases(kind)`` gives a kind's cases in a fixed order. Every case is a chat; some carry an assistant *prefix* (the start
of the answer, for a model too small to begin an edit itself) and a written, right *answer* (for runs that force the
output, so that speed is measured on text a larger model would have produced).
"""

from __future__ import annotations

from benchmarks.workloads import (
    agent_loop,
    chat,
    code_edit,
    json_rewrite,
    prose,
    retrieval,
    template,
    tool_echo,
)
from benchmarks.workloads.case import Case

_MODULES = {
    "code_edit": code_edit,
    "json_rewrite": json_rewrite,
    "tool_echo": tool_echo,
    "retrieval": retrieval,
    "chat": chat,
    "agent_loop": agent_loop,
    "template": template,
    "prose": prose,
}
KINDS = tuple(_MODULES)


def cases(kind: str) -> list[Case]:
    """All cases of one kind. Raises KeyError for an unknown kind."""
    return list(_MODULES[kind].cases())


def all_cases() -> list[Case]:
    return [case for kind in KINDS for case in cases(kind)]


__all__ = ["KINDS", "Case", "all_cases", "cases"]
