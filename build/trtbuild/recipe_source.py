"""YAML with the place of every value kept: a recipe's file and its ``--set`` overrides as one tree.

What YAML allows and a recipe does not is refused here: a key twice in one mapping, keys that are not text, merge keys,
and documents large or deep enough to be an attack. Everything is reported, not only the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import yaml

from trtbuild.errors import Problem, RecipeError

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"

MAX_BYTES = 1 << 20
MAX_VALUES = 10_000  # aliases make a short file expand without bound; what a recipe holds is far below this
MAX_DEPTH = 32
_TEXT_TAGS = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")  # YAML's own readings that no key here wants


@dataclass
class Located:
    """A value and where it was written. Mappings and lists hold Located values in turn."""

    value: bool | int | float | str | list[Located] | dict[str, Located] | None
    where: str

    def plain(self) -> Plain:
        """The value without its places."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def find(self, path: Sequence[str | int]) -> Located:
        """The value at ``path``, or where there is none its nearest parent that exists."""
        node = self
        for step in path:
            if isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
            elif isinstance(node.value, dict) and step in node.value:
                node = node.value[str(step)]
            else:
                break
        return node


class _Composer:
    """Turns one YAML document's nodes into Located values, collecting problems."""

    def __init__(self, name: str, *, lines: bool) -> None:
        self.name, self.lines = name, lines
        self.problems: list[Problem] = []
        self.values = 0

    def where(self, mark: yaml.Mark | None) -> str:
        return f"{self.name}:{mark.line + 1}" if self.lines and mark is not None else self.name

    def refuse(self, mark: yaml.Mark | None, key: str, message: str) -> RecipeError:
        return RecipeError(Problem(self.where(mark), key, message))

    def read(self, text: str) -> Located:
        try:
            loader = yaml.SafeLoader(text)
        except yaml.reader.ReaderError as e:
            line = text.count("\n", 0, e.position) + 1
            where = f"{self.name}:{line}" if self.lines else self.name
            raise RecipeError(Problem(where, "", f"is not valid YAML: has the character {e.character:#x}")) from e
        try:
            node = loader.get_single_node()
            if node is None:
                return Located(None, f"{self.name}:1" if self.lines else self.name)
            return self._value(loader, node, "", 0)
        except yaml.MarkedYAMLError as e:
            what = ", ".join(part for part in (e.context, e.problem) if part)
            raise self.refuse(e.problem_mark or e.context_mark, "", f"is not valid YAML: {what}") from e
        except yaml.YAMLError as e:
            raise self.refuse(None, "", f"is not valid YAML: {e}") from e
        except RecursionError as e:
            raise self.refuse(None, "", f"is nested too deeply; allowed: {MAX_DEPTH} levels") from e
        finally:
            loader.dispose()

    def _value(self, loader: yaml.SafeLoader, node: yaml.Node, key: str, depth: int) -> Located:
        self.values += 1
        if self.values > MAX_VALUES:
            raise self.refuse(node.start_mark, "", f"holds too many values; allowed: {MAX_VALUES}, aliases written out")
        if depth > MAX_DEPTH:
            raise self.refuse(node.start_mark, key, f"is nested too deeply; allowed: {MAX_DEPTH} levels")
        where = self.where(node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return Located(self._mapping(loader, node, key, depth), where)
        if isinstance(node, yaml.SequenceNode):
            items = [self._value(loader, n, f"{key}[{i}]", depth + 1) for i, n in enumerate(node.value)]
            return Located(items, where)
        if node.tag in _TEXT_TAGS:
            return Located(str(node.value), where)
        try:
            value = loader.construct_object(node)
        except (ValueError, LookupError):  # a number of more digits than Python converts, or a tag that does not hold
            value = str(node.value)
        if not isinstance(value, bool | int | float | str | None):
            raise self.refuse(
                node.start_mark, key, "is of a YAML type that no recipe has; allowed: text, numbers, booleans"
            )
        if isinstance(value, str) and not value.isascii() and value != value.encode(errors="replace").decode():
            raise self.refuse(node.start_mark, key, "holds half a character (a lone surrogate); allowed: whole text")
        return Located(value, where)

    def _mapping(self, loader: yaml.SafeLoader, node: yaml.MappingNode, key: str, depth: int) -> dict[str, Located]:
        children: dict[str, Located] = {}
        lines: dict[str, yaml.Mark] = {}
        for key_node, value_node in node.value:
            mark = key_node.start_mark
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(self.where(mark), key, "a key is not text"))
                continue
            name = str(key_node.value)
            dotted = f"{key}.{name}" if key else name
            if key_node.tag == "tag:yaml.org,2002:merge":
                self.problems.append(
                    Problem(self.where(mark), dotted, "merge keys are not allowed; write the keys out")
                )
                continue
            if name in lines:
                first = lines[name].line + 1
                self.problems.append(Problem(self.where(mark), dotted, f"is given twice; first on line {first}"))
                continue
            lines[name] = mark
            children[name] = self._value(loader, value_node, dotted, depth + 1)
            # A block's first line is its first child's; a reader looks for the key.
            children[name].where = self.where(mark)
        return children


def read_file(path: Path) -> Located:
    """The tree of a recipe file, whose root is a mapping. Raises RecipeError with every problem found."""
    try:
        with path.open("rb") as f:
            content = f.read(MAX_BYTES + 1)  # a pipe or a device has no size to ask for
        if len(content) > MAX_BYTES:
            raise RecipeError(Problem(str(path), "", f"is too large; allowed: up to {MAX_BYTES} bytes"))
        text = content.decode("utf-8")
    except UnicodeDecodeError as e:
        raise RecipeError(Problem(str(path), "", f"is not UTF-8 text: {e}")) from e
    except OSError as e:
        raise RecipeError(Problem(str(path), "", f"cannot be read: {e.strerror}")) from e
    composer = _Composer(str(path), lines=True)
    root = composer.read(text)
    if composer.problems:
        raise RecipeError(*composer.problems)
    if not isinstance(root.value, dict):
        raise RecipeError(
            Problem(root.where, "", "is not a mapping; allowed: keys such as recipe, name, model, target")
        )
    return root


def apply_overrides(root: Located, overrides: Sequence[str]) -> None:
    """Write ``KEY=VALUE`` texts into the tree, in order. KEY is dotted, VALUE is YAML.

    A section on the way that is absent, null or false comes into being, so ``a.b=1`` turns ``a`` on. Raises
    RecipeError with every override that cannot be placed.
    """
    if problems := [problem for text in overrides for problem in _apply(root, text)]:
        raise RecipeError(*problems)


def _apply(root: Located, text: str) -> Iterator[Problem]:
    where = f"--set {text}"
    dotted, equals, value = text.partition("=")
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        yield Problem(where, "", "is not KEY=VALUE; allowed: for example --set limits.max_batch_size=4")
        return
    composer = _Composer(where, lines=False)
    try:
        located = composer.read(value)
    except RecipeError as e:
        yield from e.problems
        return
    if composer.problems:
        yield from composer.problems
        return
    node = root
    for depth, key in enumerate(keys):
        if node.value is None or node.value is False:
            node.value, node.where = {}, where
        if not isinstance(node.value, dict):
            parent = ".".join(keys[:depth])
            yield Problem(where, dotted, f"{parent} is {node.value!r} at {node.where}, not a section with keys")
            return
        if depth == len(keys) - 1:
            node.value[key] = located
        else:
            node = node.value.setdefault(key, Located({}, where))
