"""SuffixDecoding by its authors' own package, ``arctic-inference``, where it is installed.

Its suffix tree alone is needed. It compiles in a minute, without CUDA and without vLLM, in an environment that has
torch, nanobind, ninja and setuptools::

    CMAKE_ARGS=-DPython_EXECUTABLE=$(which python) pip install --no-deps --no-build-isolation arctic-inference
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from benchmarks.policies.base import OneByOne, PlainSequence, Sequencer
from trtserve.replay.policies import NO_DRAFT, Draft
from trtserve.replay.traces import Trace

#: The package's own defaults. vLLM's depth is 24 unless told otherwise.
DEPTH, FACTOR, LEAST = 64, 1.0, 0.1


def installed() -> str | None:
    """The package's version; None where it, or its compiled tree, is missing."""
    try:
        import_module("arctic_inference.suffix_decoding")
        return version("arctic-inference")
    except (ImportError, PackageNotFoundError):
        return None


def new_cache(*, depth: int = DEPTH, shared: bool) -> Any:
    """A ``SuffixDecodingCache``: with ``shared`` outputs of earlier requests are searched too."""
    module: Any = import_module("arctic_inference.suffix_decoding")
    return module.SuffixDecodingCache(max_tree_depth=depth, max_cached_requests=-1 if shared else 0)


class _Request(PlainSequence):
    def __init__(self, trace: Trace, cache: Any, name: int, depth: int) -> None:
        super().__init__(trace)
        self.cache, self.name, self.depth = cache, name, depth
        cache.start_request(name, np.array(trace.prompt, np.int32))

    def propose(self, limit: int) -> Draft:
        found = self.cache.speculate(
            self.name,
            np.array(self.tokens[-self.depth :], np.int32),
            max_spec_tokens=min(limit, self.depth),
            max_spec_factor=FACTOR,
            min_token_prob=LEAST,
        )
        return Draft(list(found.token_ids), match=found.match_len) if found.token_ids else NO_DRAFT

    def observe(self, tokens: Sequence[int]) -> None:
        super().observe(tokens)
        self.cache.add_active_response(self.name, np.array(tokens, np.int32))

    def finish(self) -> None:
        self.cache.stop_request(self.name)


class ArcticRule(OneByOne):
    """``suffix.FrequentRule``, as the package computes it."""

    def __init__(self, name: str, *, depth: int = DEPTH, shared: bool = False) -> None:
        self.name, self.depth = name, depth
        self._cache = new_cache(depth=depth, shared=shared)
        self._started = 0

    def start(self, trace: Trace) -> Sequencer:
        self._started += 1
        return _Request(trace, self._cache, self._started, self.depth)
