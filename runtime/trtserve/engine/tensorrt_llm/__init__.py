"""``target: tensorrt_llm``: TensorRT-LLM's executor behind the engine protocol, with our drafter and cache.

Two generations of TensorRT-LLM, one module each (``pytorch``, ``verify_requests``); ``open_engine`` chooses by what the
engine was built for and checks it against what is installed.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any

from trtserve.engine.door import Recorder
from trtserve.engine.drafting import TextTokenizer
from trtserve.engine.protocol import Engine
from trtserve.engine.tensorrt_llm import versions
from trtserve.engine.tensorrt_llm.batch_drafts import LookupPlan
from trtserve.engine.tensorrt_llm.carried import find_carrier
from trtserve.engine.tensorrt_llm.feed import FeedReader
from trtserve.engine.tensorrt_llm.recorded import ENGINE_NAME, TensorRTLLMInfo, read_args
from trtserve.engine.tensorrt_llm.scopes import Salts, find_hash
from trtserve.engine_dir import TOKENIZER_DIR, TOKENIZER_NAME, Manifest, TokenizerRecord
from trtserve.executor.base import ExecutorError
from trtserve.overrides import OverrideError, Overrides
from trtserve.settings import Speculative

__all__ = ["open_engine"]


def open_engine(
    path: Path,
    manifest: Manifest,
    overrides: Overrides,
    speculative: Speculative,
    tokenizer: TextTokenizer,
    recorder: Recorder | None = None,
) -> Engine:
    """A running engine. Raises ExecutorError when TensorRT-LLM cannot run it, EngineDirError when the checkpoint is not
    what it was built from, OverrideError for settings that cannot be changed here."""
    info = TensorRTLLMInfo.of(path, manifest)
    if info.drafting == "builtin" and speculative.prompt_lookup != manifest.speculative.prompt_lookup:
        raise OverrideError(
            "the drafts of this engine are TensorRT-LLM's own, whose settings are built in; build it again with "
            "--set speculative.prompt_lookup...=VALUE instead of overriding them"
        )
    package = versions.require(info.version)
    salts = Salts(find_hash(), manifest.model_key)
    if info.version == "1.2":
        return _open_verify_requests(path, manifest, overrides, speculative, tokenizer, salts, info, recorder)
    return _open_pytorch(path, manifest, overrides, speculative, tokenizer, salts, info, recorder, package)


def _open_pytorch(
    path: Path,
    manifest: Manifest,
    overrides: Overrides,
    speculative: Speculative,
    tokenizer: TextTokenizer,
    salts: Salts,
    info: TensorRTLLMInfo,
    recorder: Recorder | None,
    package: Any,
) -> Engine:
    from trtserve.engine.tensorrt_llm.pytorch import PyTorchEngine

    arguments = read_args(path)
    arguments["model"] = str(info.checkpoint.verify())
    if overrides.hermetic:
        arguments["kv_cache_config"] = {**arguments.get("kv_cache_config", {}), "enable_block_reuse": False}
    versions.require_parameters(
        "LLM.generate_async", package.LLM.generate_async, ("sampling_params", "lora_request", "streaming", "cache_salt")
    )
    feed: FeedReader | None = None
    lookup = speculative.prompt_lookup
    with contextlib.ExitStack() as opened:
        if info.drafting == "trtlookup" and lookup is not None:
            feed = FeedReader()
            opened.callback(feed.close)
            kept = lookup.shared_cache.mb and not overrides.hermetic
            plan = LookupPlan(
                lookup=lookup,
                max_draft_len=info.max_draft_len,
                max_batch_size=manifest.limits.max_batch_size,
                max_seq_len=manifest.limits.max_seq_len,
                feed_address=feed.address,
                hermetic=overrides.hermetic,
                tokenizer=_tokenizer_layout(path, manifest) if kept else None,
            )
            tensor_parallel_size = int(arguments["tensor_parallel_size"])
            arguments["speculative_config"] = _user_provided(package, plan, info, tensor_parallel_size)
        try:
            llm = package.LLM(**arguments)
        except Exception as e:
            raise ExecutorError(f"{path}: TensorRT-LLM {package.__version__} cannot run this engine: {e}") from e
        opened.callback(llm.shutdown)
        engine = PyTorchEngine(
            llm,
            package,
            tokenizer,
            manifest,
            salts,
            feed=feed,
            carrier=None if feed is None else find_carrier(llm),
            chain=info.chain,
            adapters={name: (number, where) for number, (name, where) in enumerate(info.adapters.items(), 1)},
            max_queue=overrides.max_queue,
            recorder=recorder,
        )
        opened.pop_all()  # the engine's own from here on
    return engine


def _tokenizer_layout(path: Path, manifest: Manifest) -> tuple[str, TokenizerRecord]:
    """What a worker needs to turn tokens into text, wherever it runs."""
    layout = (path / TOKENIZER_DIR / TOKENIZER_NAME).read_text(encoding="utf-8")
    return layout, manifest.tokenizer


def _user_provided(package: Any, plan: LookupPlan, info: TensorRTLLMInfo, tensor_parallel_size: int) -> Any:
    """The speculative configuration with our drafter in it, after a look at the classes it builds on."""
    base = importlib.import_module("tensorrt_llm._torch.speculative.drafter").Drafter
    versions.require_parameters(
        "Drafter", base.__init__, ("max_draft_len", "max_total_draft_tokens", "max_concurrency")
    )
    versions.require_parameters(
        "Drafter.prepare_draft_tokens", base.prepare_draft_tokens, ("scheduled_requests", "resource_manager")
    )
    from trtserve.engine.tensorrt_llm.drafter import LookupDrafter, LookupResources

    return package.llmapi.UserProvidedDecodingConfig(
        max_draft_len=plan.max_draft_len,
        max_concurrency=info.max_concurrency,
        drafter=LookupDrafter(plan.max_draft_len, info.max_concurrency),
        resource_manager=LookupResources(plan, tensor_parallel_size),
    )


def _open_verify_requests(
    path: Path,
    manifest: Manifest,
    overrides: Overrides,
    speculative: Speculative,
    tokenizer: TextTokenizer,
    salts: Salts,
    info: TensorRTLLMInfo,
    recorder: Recorder | None,
) -> Engine:
    from trtserve.engine.tensorrt_llm.verify_requests import VerifyRequestEngine, VerifyRequestExecutor
    from trtserve.lookup.drafter import Drafter
    from trtserve.lookup.shared import SharedCache

    lookup = speculative.prompt_lookup
    shared = SharedCache.from_settings(lookup) if lookup else None
    drafter = Drafter(lookup, shared=shared) if lookup else None
    arguments = read_args(path)
    executor = VerifyRequestExecutor.load(
        path / ENGINE_NAME, manifest, arguments["kv_cache_config"], info.max_num_tokens
    )
    try:
        return VerifyRequestEngine(
            executor,
            drafter,
            tokenizer,
            manifest,
            salts=salts,
            speculative=speculative,
            max_queue=overrides.max_queue,
            hermetic=overrides.hermetic,
            shared_cache=shared,
            recorder=recorder,
        )
    except BaseException:
        executor.close()
        raise
