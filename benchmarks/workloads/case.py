"""One prompt of a workload."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A chat to answer. ``prefix`` starts the assistant's answer; ``answer`` is the whole right answer."""

    kind: str
    name: str
    messages: tuple[dict[str, str], ...]
    prefix: str = ""
    answer: str = ""
    group: str = ""
    """Cases of one group follow each other in one conversation or come from one template."""
    written_only: bool = False
    """Asked for its answer alone: what a model says to it is not recorded."""


def ask(kind: str, name: str, prompt: str, *, prefix: str = "", answer: str = "", group: str = "") -> Case:
    """A case of a single user message."""
    return Case(kind, name, ({"role": "user", "content": prompt},), prefix, answer, group)


def first_lines(text: str, count: int) -> str:
    """The first lines of ``text`` without the last line break: a prefix that ends where a line does."""
    return "\n".join(text.split("\n")[:count])


def replaced(text: str, changes: list[tuple[str, str]], where: str) -> str:
    """``text`` after the changes, one after another, everywhere. Raises ValueError for one that changes nothing."""
    for old, new in changes:
        if old not in text:
            raise ValueError(f"{where}: {old!r} is not in the text")
        text = text.replace(old, new)
    return text
