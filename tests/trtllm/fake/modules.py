"""A ``tensorrt_llm`` package made from a contract: its classes have the contract's names, arguments and attributes, and
refuse every other. What they do is looked up in ``behaviour`` by (class, method)."""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from .contract import ContractError, load

Behaviour = dict[tuple[str, str], Callable[..., Any]]
ADAPTERS = ("trtserve.engine.tensorrt_llm.drafter",)


def signature(text: str) -> inspect.Signature:
    """The signature that a contract writes as ``(self, a, b=None)``."""
    namespace: dict[str, Any] = {}
    exec(f"def f{text}: pass", {}, namespace)
    return inspect.signature(namespace["f"])


def bind(where: str, wanted: inspect.Signature, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, defaults filled in. Raises ContractError for a call that the contract does not have."""
    try:
        bound = wanted.bind(*arguments, **keywords)
    except TypeError as e:
        raise ContractError(f"{where}{wanted}: {e}") from e
    bound.apply_defaults()
    return dict(bound.arguments)


def method(name: str, owner: str, text: str, does: Callable[..., Any] | None, abstract: bool) -> Callable[..., Any]:
    wanted = signature(text)

    def call(*arguments: Any, **keywords: Any) -> Any:
        values = bind(f"{owner}.{name}", wanted, arguments, keywords)
        return None if does is None else does(**values)

    call.__name__ = name
    call.__signature__ = wanted  # type: ignore[attr-defined]
    call.__isabstractmethod__ = abstract  # type: ignore[attr-defined]
    return call


def make_class(module: str, name: str, described: dict[str, Any], behaviour: Behaviour) -> type:
    """A class of the contract. Its instances refuse attributes it does not list; a user's subclass may have its own."""
    wanted = signature(described["init"])
    attributes = set(described.get("attributes", ()))
    read_only = set(described.get("read_only", ()))
    final = set(described.get("final", ()))
    keywords = set(described.get("keywords", ()))
    keep = described.get("keep_arguments", False)
    if keep:
        attributes |= set(wanted.parameters) - {"self"}

    def init(self: Any, *given: Any, **named: Any) -> None:
        values = bind(name, wanted, (self, *given), named)
        values.pop("self")
        if unknown := set(values.get("kwargs", {})) - keywords:
            raise ContractError(f"{name} has no argument {', '.join(sorted(unknown))}")
        object.__setattr__(self, "_arguments", values)
        if keep:
            for key, value in values.items():
                object.__setattr__(self, key, value)
        if (does := behaviour.get((name, "__init__"))) is not None:
            does(self, **values)

    def set_attribute(self: Any, key: str, value: Any) -> None:
        if key in read_only:
            raise ContractError(f"{name}.{key} is read-only")
        if type(self) is cls and key not in attributes and not key.startswith("_"):
            raise ContractError(f"{name} has no attribute {key}")
        object.__setattr__(self, key, value)

    def missing(self: Any, key: str) -> Any:
        if key.startswith("_") or key in attributes or key in read_only:
            raise AttributeError(key)
        raise ContractError(f"{name} has no attribute {key}")

    def subclass(sub: type, **options: Any) -> None:
        if broken := final & set(vars(sub)):
            raise ContractError(f"{name}.{', '.join(sorted(broken))} is final")

    init.__signature__ = wanted  # type: ignore[attr-defined]
    body: dict[str, Any] = {
        "__module__": module,
        "__init__": init,
        "__setattr__": set_attribute,
        "__getattr__": missing,
        "__init_subclass__": classmethod(subclass),
        **described.get("class_attributes", {}),
    }
    abstract = set(described.get("abstract", ()))
    for key, text in described.get("methods", {}).items():
        body[key] = method(key, name, text, behaviour.get((name, key)), key in abstract)
    for key, text in described.get("static", {}).items():
        body[key] = staticmethod(method(key, name, text, behaviour[name, key], False))
    for key in read_only:
        if (does := behaviour.get((name, key))) is not None:
            body[key] = property(does)
    for (owner, key), does in behaviour.items():
        if owner == name and key.startswith("_") and not key.startswith("__"):
            body[key] = does
    from abc import ABCMeta

    cls = ABCMeta(name, (), body)
    return cls


def make_config(module: str, name: str, described: dict[str, Any], base: dict[str, Any]) -> type:
    """A configuration: fields with defaults, no others."""
    fields = dict(base if described.get("base") else {}) | described["fields"]
    if "tag" in described:
        fields["decoding_type"] = described["tag"]

    class Config:
        _fields = fields

        def __init__(self, **given: Any) -> None:
            if unknown := set(given) - set(fields):
                raise ContractError(f"{name} has no field {', '.join(sorted(unknown))}")
            values = fields | given
            if left := [k for k, v in values.items() if isinstance(v, str) and v == "required"]:
                raise ContractError(f"{name} needs {', '.join(left)}")
            for key in described.get("positive", ()):
                if not (isinstance(values[key], int) and (values[key] > 0 or values[key] == -1)):
                    raise ContractError(f"{name}.{key} must be > 0, not {values[key]!r}")
            for key in described.get("needed", ()):
                if values[key] is None:
                    raise ContractError(f"{name}.{key} must be given")
            if values.get("decoding_type") != described.get("tag"):
                raise ContractError(f"{name} is not of decoding_type {values['decoding_type']}")
            if described.get("total_is_len"):
                values["max_total_draft_tokens"] = values["max_draft_len"]
            for key, (home, kind) in described.get("made", {}).items():
                values[key] = values[key] if values[key] is not None else getattr(sys.modules[home], kind)()
            self.__dict__.update(values)

        def __setattr__(self, key: str, value: Any) -> None:
            raise ContractError(f"{name} is not to be changed")

    Config.__name__ = Config.__qualname__ = name
    Config.__module__ = module
    return Config


def build(line: str, behaviour: Behaviour) -> dict[str, ModuleType]:
    """Every module of a line, by name."""
    contract = load(line)
    modules: dict[str, ModuleType] = {}

    def module(name: str) -> ModuleType:
        if name not in modules:
            modules[name] = ModuleType(name)
            modules[name].__path__ = []
            parent, _, last = name.rpartition(".")
            if parent:
                setattr(module(parent), last, modules[name])
        return modules[name]

    for name, content in contract["modules"].items():
        made = module(name)
        for enum_name, members in content.get("enums", {}).items():
            setattr(made, enum_name, enum.Enum(enum_name, members, module=name))
        for function, described in content.get("functions", {}).items():
            text = described["signature"]
            setattr(made, function, method(function, name, text, behaviour["", function], False))
        for class_name, described in content.get("classes", {}).items():
            setattr(made, class_name, make_class(name, class_name, described, behaviour))
        for config_name, described in content.get("configs", {}).items():
            setattr(made, config_name, make_config(name, config_name, described, contract.get("decoding_base", {})))
    for name, content in contract["modules"].items():
        for symbol, home in content.get("reexports", {}).items():
            setattr(module(name), symbol, getattr(modules[home], symbol))
    module("tensorrt_llm").__version__ = contract["version"]
    module("tensorrt_llm")._contract = contract
    return modules


@contextmanager
def installed(line: str, behaviour: Behaviour, version: str | None = None) -> Iterator[ModuleType]:
    """The fake as ``tensorrt_llm``, and our modules that build on its classes imported anew."""
    made = build(line, behaviour)
    if version is not None:
        made["tensorrt_llm"].__version__ = version
    hidden = {n: m for n, m in sys.modules.items() if n.split(".")[0] == "tensorrt_llm" or n in ADAPTERS}
    for name in hidden:
        del sys.modules[name]
    sys.modules.update(made)
    try:
        yield made["tensorrt_llm"]
    finally:
        for name in (*made, *ADAPTERS):
            sys.modules.pop(name, None)
        sys.modules.update(hidden)
