"""TensorRT-LLM 1.2: an executor whose verify is a request.

Its engines verify drafts that come with a request, once: the request gets the accepted drafts and one token more, and
is complete. So each step sends, for every sequence, a request with all its tokens and this round's drafts; the keys and
values of the tokens before are found again by block reuse, which is why the engine is built and run with it. A
sequence without drafts asks for one token.

Our own scheduler runs on top, exactly as on every executor: slots, drafts, acceptance, endings, the shared cache.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr

from trtserve.engine.generation import LocalGeneration
from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import GenerationRequest
from trtserve.engine.tensorrt_llm import sampling
from trtserve.engine.tensorrt_llm.scopes import Salts
from trtserve.engine_dir import Manifest
from trtserve.executor.base import Executor, ExecutorError, ExecutorInfo, StepInput, StepOutput
from trtserve.sampling import SamplingParams, SamplingState

_log = logging.getLogger(__name__)

_NO_TOKENS: NDArray[np.int32] = np.empty(0, np.int32)


class SaltedParams(SamplingParams):
    """A request's parameters with the salt of its scope, which an executor has no other way to learn."""

    _cache_salt_id: int | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, params: SamplingParams, salt_id: int) -> SaltedParams:
        salted = cls.model_construct(**dict(params))
        salted._cache_salt_id = salt_id
        return salted


class VerifyRequestExecutor(Executor):
    """The step contract over ``tensorrt_llm.bindings.executor``. ``timeout``: seconds a verify may take."""

    def __init__(self, executor: Any, bindings: Any, manifest: Manifest, *, timeout: float = 600.0) -> None:
        self._executor: Any | None = executor
        self._bindings = bindings
        self._timeout = timedelta(seconds=timeout)
        self._tokens: list[NDArray[np.int32]] = [_NO_TOKENS] * manifest.limits.max_batch_size
        self.info = ExecutorInfo(
            max_batch_size=manifest.limits.max_batch_size,
            max_seq_len=manifest.limits.max_seq_len,
            prefill_chunk=manifest.limits.prefill_chunk,
            vocab_size=manifest.model.vocab_size,
            tiers=manifest.tiers,
            exact=False,
            device="cuda",
        )

    @classmethod
    def load(
        cls, engine: Path, manifest: Manifest, kv_cache: dict[str, Any], max_num_tokens: int
    ) -> VerifyRequestExecutor:
        """The executor of an engine that the 1.2 builder wrote. Raises ExecutorError when it cannot run."""
        bindings = importlib.import_module("tensorrt_llm.bindings.executor")
        config = bindings.ExecutorConfig(
            kv_cache_config=bindings.KvCacheConfig(**{**kv_cache, "enable_block_reuse": True}),
            enable_chunked_context=True,
            max_batch_size=manifest.limits.max_batch_size,
            max_num_tokens=max_num_tokens,
        )
        try:
            executor = bindings.Executor(
                model_path=engine, model_type=bindings.ModelType.DECODER_ONLY, executor_config=config
            )
        except Exception as e:
            raise ExecutorError(f"{engine}: TensorRT-LLM cannot load this engine: {e}") from e
        return cls(executor, bindings, manifest)

    def prefill(self, slot: int, start: int, tokens: NDArray[np.int32]) -> None:
        """Remember the tokens; the first verify computes what is not in a reused block."""
        self._tokens[slot] = np.concatenate([self._tokens[slot][:start], tokens])

    def step(self, batch: StepInput) -> StepOutput:
        executor = self._live()
        requests, offsets = [], batch.offsets
        for b, (slot, length, state) in enumerate(zip(batch.slots, batch.lengths, batch.sampling, strict=True)):
            rows = batch.tokens[offsets[b] : offsets[b + 1]]
            known = np.concatenate([self._tokens[slot][:length], rows[:1]])
            if len(known) != length + 1:
                raise ValueError(f"slot {slot} has {len(known) - 1} tokens of the {length} that the step counts on")
            self._tokens[slot] = np.concatenate([known, rows[1:]])
            requests.append(self._request(known, rows[1:], state))
        ids = executor.enqueue_requests(requests)
        try:
            answers = executor.await_responses(ids=ids, timeout=self._timeout)
            return self._outcome(batch, ids, answers)
        except BaseException:
            for number in ids:
                executor.cancel_request(number)
            raise

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self._tokens[target] = self._tokens[source][:length].copy()

    def close(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()

    def _request(self, known: NDArray[np.int32], drafts: NDArray[np.int32], state: SamplingState) -> Any:
        bindings = self._bindings
        banned = None
        if state.bans_left:
            # Words are banned for a whole request, so one verify goes no further than the ban does.
            banned = [[int(token)] for token in state.ban_tokens]
            drafts = drafts[: state.bans_left - 1]
        drafted = bindings.ExternalDraftTokensConfig(tokens=drafts.tolist()) if len(drafts) else None
        return bindings.Request(
            known.tolist(),
            len(drafts) + 1,
            sampling_config=bindings.SamplingConfig(**_choice(state)),
            output_config=bindings.OutputConfig(exclude_input_from_output=True),
            bad_words=banned,
            embedding_bias=sampling.embedding_bias(state, self.info.vocab_size),
            external_draft_tokens_config=drafted,
            cache_salt_id=getattr(state.params, "_cache_salt_id", None),
        )

    def _outcome(self, batch: StepInput, ids: list[int], answers: list[list[Any]]) -> StepOutput:
        targets = np.full(len(batch.tokens), -1, np.int32)
        accepted = np.zeros(len(ids), np.int32)
        failed = np.zeros(len(ids), np.bool_)
        offsets = batch.offsets
        problems: dict[int, str] = {}
        for b, responses in enumerate(answers):
            rows = int(batch.num_rows[b])
            if (problem := self._problem(responses)) is not None:
                problems[ids[b]] = problem
                failed[b] = True
                continue
            tokens = [token for r in responses for token in r.result.output_token_ids[0]]
            failed[b] = not tokens
            if tokens:
                # The accepted drafts and one token more; what a plain request has is that one token.
                start = offsets[b]
                emitted = tokens[:rows]
                targets[start : start + len(emitted)] = emitted
                accepted[b] = len(emitted) - 1
        if problems and len(problems) == len(ids):
            raise ExecutorError(f"TensorRT-LLM: {next(iter(problems.values()))}")
        # Each verify is a request of its own, so what went wrong with some does not concern the others.
        for number, problem in problems.items():
            _log.error("a verify failed, and its sequence with it: TensorRT-LLM: %s", problem)
            self._live().cancel_request(number)
        return StepOutput(targets, accepted, failed, [None] * len(ids))

    def _problem(self, responses: list[Any]) -> str | None:
        """Why a verify has no outcome."""
        if error := next((r.error_msg for r in responses if r.has_error()), None):
            return str(error)
        if not responses or not responses[-1].result.is_final:
            return f"no answer within {self._timeout.total_seconds():.0f} s"
        return None

    def _live(self) -> Any:
        if self._executor is None:
            raise ExecutorError("the executor is closed")
        return self._executor


class VerifyRequestEngine(LocalEngine):
    """Our scheduler over verify requests. Refuses what they cannot do and salts every request."""

    def __init__(self, executor: VerifyRequestExecutor, *arguments: Any, salts: Salts, **options: Any) -> None:
        self._salts = salts
        super().__init__(executor, *arguments, **options)

    def submit(self, request: GenerationRequest) -> LocalGeneration:
        sampling.check(request, "engine")
        _, salt_id = self._salts.salt(request.scope, lookup=request.lookup)
        salted = GenerationRequest(
            request.prompt,
            SaltedParams.of(request.params, salt_id),
            request.scope,
            request.prediction,
            request.lookup,
            request.request_id,
        )
        return super().submit(salted)


def _choice(state: SamplingState) -> dict[str, Any]:
    # Every verify is a new request, whose random numbers start anew: the position makes them different ones.
    seed = hashlib.blake2b(f"{state.seed} {state.position}".encode(), digest_size=8).digest()
    return sampling.choice(state, int.from_bytes(seed, "little"))
