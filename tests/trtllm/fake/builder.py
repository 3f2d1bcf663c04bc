"""The 1.2 line: a builder that writes an engine directory, and an executor whose every request is computed whole.

An engine here is the checkpoint's path and the build's settings. A request with drafts is one verify: it completes with
the accepted drafts and one token more. KV block reuse is accounted in blocks, kept apart by cache salt.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from .contract import ContractError
from .decoding import Model, sampling_state
from .modules import Behaviour
from .pytorch import get_cache_salt_id


def from_hugging_face(hf_model_or_dir: Any, dtype: str, mapping: Any, quant_config: Any, kwargs: dict[str, Any]) -> Any:
    if kwargs:
        raise ContractError(f"from_hugging_face has no argument {', '.join(kwargs)}")
    return SimpleNamespace(path=str(hf_model_or_dir), dtype=dtype, quant_config=quant_config)


def build(model: Any, build_config: Any) -> Any:
    import tensorrt_llm  # type: ignore[import-not-found]

    modes = tensorrt_llm.models.modeling_utils.SpeculativeDecodingMode
    if build_config.plugin_config.use_paged_context_fmha is not True:
        raise ContractError("block reuse needs use_paged_context_fmha")
    if build_config.speculative_decoding_mode == modes.DRAFT_TOKENS_EXTERNAL and build_config.max_draft_len < 1:
        raise ContractError("draft_tokens_external needs max_draft_len")
    return tensorrt_llm.builder.Engine(build_config, model)


def engine_init(self: Any, config: Any, engine: Any, managed_weights: Any) -> None:
    self.config, self.engine, self.managed_weights = config, engine, managed_weights


def save(self: Any, engine_dir: str) -> None:
    out = Path(engine_dir)
    out.mkdir(parents=True, exist_ok=True)
    config, model = self.config, self.engine
    kept = ("max_batch_size", "max_seq_len", "max_num_tokens", "max_draft_len")
    quantized = None if model.quant_config is None else model.quant_config.quant_algo.name
    (out / "config.json").write_text(
        json.dumps(
            {k: getattr(config, k) for k in kept}
            | {"mode": config.speculative_decoding_mode.name, "quant_algo": quantized}
            | {"tokens_per_block": config.plugin_config.tokens_per_block}
        )
    )
    (out / "rank0.engine").write_text(json.dumps({"model": model.path, "dtype": model.dtype}))


class FakeExecutor:
    """``bindings.executor.Executor``. ``requests`` keeps every request, ``reused`` how many tokens each found."""

    def __init__(self, model_path: Any, model_type: Any, executor_config: Any) -> None:
        built = json.loads((Path(model_path) / "config.json").read_text())
        engine = json.loads((Path(model_path) / "rank0.engine").read_text())
        self.built = built
        if executor_config.max_batch_size > built["max_batch_size"]:
            raise RuntimeError("max_batch_size is larger than the engine's")
        if not executor_config.kv_cache_config.enable_block_reuse:
            raise RuntimeError("block reuse is off")
        rows = built["max_draft_len"] + 1
        self.model = Model(engine["model"], engine["dtype"], 1, built["max_seq_len"], rows)
        self.requests: list[Any] = []
        self.reused: list[int] = []
        self.canceled: list[int] = []
        self.fail_at: set[int] = set()
        self._blocks: set[tuple[int | None, tuple[int, ...]]] = set()
        self._answers: dict[int, list[Any]] = {}
        self._next = 1

    def enqueue_requests(self, requests: list[Any]) -> list[int]:
        if len(requests) > self.built["max_batch_size"]:
            raise RuntimeError("more requests than the engine's batch")
        numbers = []
        for request in requests:
            number, self._next = self._next, self._next + 1
            self._answers[number] = [self._answer(number, request)]
            numbers.append(number)
        return numbers

    def await_responses(self, ids: list[int], timeout: Any) -> list[list[Any]]:
        if not isinstance(ids, list) or not (timeout is None or isinstance(timeout, timedelta)):
            raise ContractError("await_responses takes a list of ids and a timedelta")
        return [self._answers.pop(number) for number in ids]

    def cancel_request(self, id: Any) -> None:
        self.canceled.append(id)

    def shutdown(self) -> None:
        self.model.close()

    def _answer(self, number: int, request: Any) -> Any:
        self.requests.append(request)
        drafts = [] if request.external_draft_tokens_config is None else request.external_draft_tokens_config.tokens
        tokens = list(request.input_token_ids)
        problem = None
        if number in self.fail_at:
            problem = "the forward failed"
        elif len(drafts) > self.built["max_draft_len"]:
            problem = f"Number of draft tokens ({len(drafts)}) is larger than maximum ({self.built['max_draft_len']})"
        elif len(tokens) + request.max_tokens > self.built["max_seq_len"] + 1:
            problem = "the request is longer than max_seq_len"
        elif not drafts and request.max_tokens != 1:
            problem = "a request without drafts goes on to its max_tokens, which this fake does not do"
        if problem is not None:
            return SimpleNamespace(request_id=number, has_error=lambda: True, error_msg=problem, result=None)
        self._reuse(tokens, request.cache_salt_id)
        state = sampling_state(
            request.sampling_config._arguments, np.asarray(tokens, np.int32), self.model.vocab_size, ()
        )
        bias = np.zeros(self.model.vocab_size, np.float32)
        if request.embedding_bias is not None:
            bias += request.embedding_bias.numpy()
        bias[[word[0] for word in request.bad_words or ()]] = -np.inf
        (where,) = bias.nonzero()
        state.bias_tokens, state.bias_values = where.astype(np.int32), bias[where]
        if len(tokens) > 1:
            self.model.prefill(0, 0, tokens[:-1])
        out = self.model.forward([(0, len(tokens) - 1, [tokens[-1], *drafts], state)])
        emitted = out.targets[: int(out.accepted[0]) + 1].tolist()
        if not request.output_config.exclude_input_from_output:
            emitted = tokens + emitted
        result = SimpleNamespace(is_final=True, output_token_ids=[emitted], finish_reasons=[])
        return SimpleNamespace(request_id=number, has_error=lambda: False, error_msg=None, result=result)

    def _reuse(self, tokens: list[int], salt: int | None) -> None:
        size = self.built["tokens_per_block"]
        keys = [(salt, tuple(tokens[:end])) for end in range(size, len(tokens), size)]
        self.reused.append(size * sum(key in self._blocks for key in keys))
        self._blocks.update(keys)


BEHAVIOUR: Behaviour = {
    ("", "get_cache_salt_id"): get_cache_salt_id,
    ("", "build"): build,
    ("AutoModelForCausalLM", "from_hugging_face"): from_hugging_face,
    ("Engine", "__init__"): engine_init,
    ("Engine", "save"): save,
    ("Executor", "__init__"): lambda self, **values: object.__setattr__(self, "_fake", FakeExecutor(**values)),
    ("Executor", "enqueue_requests"): lambda self, requests: self._fake.enqueue_requests(requests),
    ("Executor", "await_responses"): lambda self, ids, timeout: self._fake.await_responses(ids, timeout),
    ("Executor", "cancel_request"): lambda self, id: self._fake.cancel_request(id),
    ("Executor", "shutdown"): lambda self: self._fake.shutdown(),
}
