"""Who may share with whom, carried to TensorRT-LLM's workers by what arrives there of a request's scope: its salt.

A worker sees of a request's cache salt only an 8-byte hash (``cache_salt_id``), which keeps apart the KV blocks that
are reused, and our shared cache. So each scope gets a salt of its own. What else a worker must know of a request, that
it takes no copies, is the hash's lowest bit: salts are numbered, and the first whose hash has the wanted bit is taken.
Every rank of a tensor-parallel group receives the same request and so knows the same.

The texts are prefixed by a secret of this process: nobody can choose a salt whose hash meets another tenant's.
"""

from __future__ import annotations

import importlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from trtserve.engine.protocol import Scope
from trtserve.executor.base import ExecutorError
from trtserve.lookup.shared import scope_name

_REMEMBERED = 4096


def takes_copies(salt_id: int | None) -> bool:
    """Whether a request with this salt takes copies and leaves some. Without a salt it shares with nobody."""
    return salt_id is not None and not salt_id & 1


class Salts:
    """Cache salts for scopes. ``hash_salt`` is TensorRT-LLM's own function from a salt to its id."""

    def __init__(self, hash_salt: Callable[[str], int], model_key: str, secret: str | None = None) -> None:
        self._hash = hash_salt
        self._model_key = model_key
        self._secret = secrets.token_hex(16) if secret is None else secret
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Scope, bool], tuple[str, int]] = OrderedDict()

    def salt(self, scope: Scope, *, lookup: bool) -> tuple[str, int]:
        """(the salt, its id) for requests of ``scope``. From any thread.

        Equal arguments give equal salts as long as this lives.
        """
        key = (scope, lookup)
        with self._lock:
            found = self._known.get(key) or self._find(scope, lookup)
            self._known[key] = found
            self._known.move_to_end(key)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
            return found

    def _find(self, scope: Scope, lookup: bool) -> tuple[str, int]:
        name = scope_name(self._secret, self._model_key, scope.adapter, scope.tenant, scope.salt)
        return next(
            (text, number)
            for text, number in ((t, self._hash(t)) for t in (f"{n}:{name}" for n in count()))
            if takes_copies(number) == lookup
        )


def find_hash() -> Callable[[str], int]:
    """TensorRT-LLM's function from a cache salt to its id, where the installed version keeps it."""
    for module in ("tensorrt_llm.inputs", "tensorrt_llm.runtime.kv_cache_hash"):
        try:
            function: Callable[[str], int] = importlib.import_module(module).get_cache_salt_id
        except (ImportError, AttributeError):
            continue
        return function
    raise ExecutorError(
        "TensorRT-LLM has no get_cache_salt_id where it was looked for; tenants could not be kept apart"
    )
