"""The Python API: ``from trtserve import Engine``."""

from __future__ import annotations

import os
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from trtserve.engine.protocol import (
    Completion,
    Delta,
    EngineClosedError,
    EngineError,
    EngineMetrics,
    Finish,
    Generation,
    GenerationRequest,
    RequestError,
    Scope,
)
from trtserve.engine.protocol import Engine as EngineProtocol
from trtserve.engine.requests import prompt_too_long
from trtserve.engine_dir import Manifest
from trtserve.loading import load_engine
from trtserve.overrides import Overrides
from trtserve.sampling import SamplingParams
from trtserve.tokenizer import ChatTemplateError, Tokenizer, TooManyTokensError

Message = Mapping[str, Any]
LoopT = TypeVar("LoopT", Iterator[Delta | Finish], AsyncIterator[Delta | Finish])
Prompt = str | Sequence[int] | Sequence[Message]


class Engine:
    """A model, ready to generate. Threads and coroutines may share one; requests are batched.

    Every method that generates takes the same arguments:

    ``prompt``
        A text; a list of token ids; or a conversation, a list of ``{"role": ..., "content": ...}``, which goes through
        the model's chat template.
    ``prediction``
        Text or tokens that the output is expected to repeat in part. It makes generation faster, never different.
    ``lookup``
        False: take no copies, and leave none for later requests.
    ``scope``
        Whose text may be shared: requests of unequal scopes never see each other's.
    ``**sampling``
        The fields of ``trtserve.sampling.SamplingParams``: ``max_tokens``, ``temperature``, ``seed``, ``stop``, ...

    They raise RequestError for a request that cannot be served, QueueFullError when too many wait, EngineClosedError
    once the engine is closed, and EngineError when generation fails.

    >>> engine = Engine.load(directory)
    >>> done = engine.generate("x = foo(a); y = foo(a);", max_tokens=20, temperature=0, ignore_eos=True)
    >>> len(done.tokens), done.finish.reason
    (20, 'length')
    >>> "".join(event.text for event in engine.stream("x = foo(", max_tokens=9, seed=1) if isinstance(event, Delta)) \\
    ...     == engine.generate("x = foo(", max_tokens=9, seed=1, lookup=False).text
    True
    >>> chat = [{"role": "user", "content": "Say foo(a) again: foo(a)"}]
    >>> engine.chat(chat, max_tokens=5, prediction="foo(a)").finish.stats.completion_tokens <= 5
    True
    >>> engine.generate("x", temperature=-1)
    Traceback (most recent call last):
    trtserve.engine.protocol.RequestError: temperature: Input should be greater than or equal to 0, not -1
    >>> engine.close()
    """

    def __init__(self, engine: EngineProtocol, tokenizer: Tokenizer) -> None:
        """Over a running engine, which this object then owns. Most callers want ``Engine.load``."""
        self.engine = engine
        self.tokenizer = tokenizer

    @classmethod
    def load(cls, engine_dir: str | os.PathLike[str], **overrides: Any) -> Engine:
        """Load what ``trtbuild`` wrote. ``overrides``: the fields of ``trtserve.overrides.Overrides``, for example
        ``threads=4``, ``prompt_lookup_decoding=False`` or ``prompt_lookup_shared_cache_mb=64``.

        Raises EngineDirError, OverrideError or ExecutorError; each says what is allowed.
        """
        loaded = load_engine(engine_dir, Overrides.parse(overrides))
        return cls(loaded.engine, loaded.tokenizer)

    @property
    def manifest(self) -> Manifest:
        return self.engine.manifest

    def generate(self, prompt: Prompt, **arguments: Any) -> Completion:
        """Generate to the end. The completion has the text, the tokens with their sources, and the statistics."""
        return Completion.collect(self.stream(prompt, **arguments))

    def stream(self, prompt: Prompt, **arguments: Any) -> Iterator[Delta | Finish]:
        """Generate piece by piece: ``Delta`` after ``Delta``, then one ``Finish``. Leaving the loop cancels.

        The request is queued by this call, not by the first step of the loop.
        """
        generation = self.submit(prompt, **arguments)
        return _cancelling(_followed(generation), generation)

    async def agenerate(self, prompt: Prompt, **arguments: Any) -> Completion:
        """``generate`` for coroutines."""
        return Completion.collect([event async for event in self.astream(prompt, **arguments)])

    def astream(self, prompt: Prompt, **arguments: Any) -> AsyncIterator[Delta | Finish]:
        """``stream`` for coroutines."""
        generation = self.submit(prompt, **arguments)
        return _cancelling(_afollowed(generation), generation)

    def chat(self, messages: Sequence[Message], **arguments: Any) -> Completion:
        """``generate`` for a conversation."""
        return self.generate(messages, **arguments)

    def submit(
        self,
        prompt: Prompt,
        *,
        prediction: str | Sequence[int] = (),
        lookup: bool = True,
        scope: Scope | None = None,
        params: SamplingParams | None = None,
        **sampling: Any,
    ) -> Generation:
        """Queue a request and return its handle, which can be iterated, in either way, and cancelled.

        ``params`` in place of ``**sampling`` saves building them again for every request.
        """
        if params is None:
            params = sampling_params(sampling)
        elif sampling:
            raise RequestError(f"give params or {', '.join(sampling)}, not both", "params")
        return self.engine.submit(
            GenerationRequest(
                prompt=self.tokens(prompt),
                params=params,
                scope=scope or Scope(),
                prediction=self.prediction_tokens(prediction) if isinstance(prediction, str) else prediction,
                lookup=lookup,
            )
        )

    def tokens(self, prompt: Prompt) -> Sequence[int]:
        """The token ids that ``generate`` makes of a prompt."""
        if isinstance(prompt, str):
            return self._text_tokens(prompt, add_bos=self.manifest.tokenizer.add_bos)
        if not isinstance(prompt, Sequence | np.ndarray) or isinstance(prompt, bytes):
            raise RequestError(
                f"the prompt is of type {type(prompt).__name__}; allowed: a text, a list of token ids or of messages",
                "prompt",
            )
        if not len(prompt) or not isinstance(prompt[0], Mapping):
            return prompt  # type: ignore[return-value]
        try:
            text = self.tokenizer.apply_chat_template(prompt)  # type: ignore[arg-type]
        except ChatTemplateError as e:
            raise RequestError(str(e), "prompt") from e
        return self._text_tokens(text)  # The template writes its own BOS.

    def prediction_tokens(self, text: str) -> list[int]:
        """The token ids that ``generate`` makes of a prediction: plain text, as far as an output could reach."""
        try:
            ids: list[int] = self.tokenizer.encode_head(text, self.manifest.limits.max_seq_len).tolist()
        except ValueError as e:
            raise RequestError(str(e), "prediction") from e
        return ids

    def _text_tokens(self, text: str, add_bos: bool = False) -> list[int]:
        context = self.manifest.limits.max_seq_len
        try:
            ids: list[int] = self.tokenizer.encode(text, add_bos=add_bos, most=context - 1).tolist()
        except TooManyTokensError as e:
            raise prompt_too_long(f"at least {e.at_least}", context) from None
        except ValueError as e:
            raise RequestError(str(e), "prompt") from e
        return ids

    def metrics(self) -> EngineMetrics:
        """Counters and gauges of all requests so far."""
        return self.engine.metrics()

    def close(self) -> None:
        """Cancel what runs and free the model. A second call does nothing."""
        self.engine.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def sampling_params(sampling: Mapping[str, Any]) -> SamplingParams:
    """The fields of SamplingParams as one. Raises RequestError naming the first that is wrong."""
    try:
        return SamplingParams.model_validate(dict(sampling))
    except ValidationError as e:
        first = e.errors()[0]
        param = ".".join(map(str, first["loc"])) or None
        if first["type"] == "extra_forbidden":
            allowed = ", ".join(SamplingParams.model_fields)
            raise RequestError(f"{param} is not a sampling parameter; allowed: {allowed}", param) from e
        raise RequestError(f"{param}: {first['msg']}, not {first['input']!r}", param) from e


def _followed(generation: Generation) -> Iterator[Delta | Finish]:
    try:
        for event in generation:
            yield _checked(event)
    finally:
        generation.cancel()


async def _afollowed(generation: Generation) -> AsyncIterator[Delta | Finish]:
    try:
        async for event in generation:
            yield _checked(event)
    finally:
        generation.cancel()


def _cancelling(loop: LoopT, generation: Generation) -> LoopT:
    """Cancel with the loop that is never begun, too: a generator's own ``finally`` only runs once it has started."""
    weakref.finalize(loop, generation.cancel).atexit = False
    return loop


def _checked(event: Delta | Finish) -> Delta | Finish:
    if isinstance(event, Finish):
        if event.reason == "error":
            raise EngineError(event.error or "generation failed")
        if event.reason == "cancelled":
            raise EngineClosedError("the generation was cancelled: the engine is closing")
    return event
