"""``target: tensorrt_llm``: TensorRT-LLM's executor. For 1.3 and later an engine is its arguments; for 1.2 it is what
TensorRT-LLM's builder makes, with verify rows for external drafts.

Drafts come from ours (``tensorrt_llm.copies: trtlookup``), from one of TensorRT-LLM's own for comparison (``ngram``,
``sa``), or, beside ``drafter: mtp`` or ``eagle3``, from its suffix-automaton enhancer.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from trtbuild.capacity import DTYPE_BYTES, Footprint
from trtbuild.errors import BuildError
from trtbuild.progress import Progress
from trtbuild.recipe import Recipe
from trtbuild.section import Section
from trtbuild.targets.base import BuildInput, BuildOutput, Target, undeployed
from trtserve import engine_dir
from trtserve.engine.tensorrt_llm.recorded import (
    ENGINE_NAME,
    LLM_ARGS_NAME,
    LOOKUP_NAME,
    CheckpointRecord,
    Drafting,
    TensorRTLLMInfo,
)
from trtserve.engine.tensorrt_llm.versions import LINES, WORKING, line_of
from trtserve.engine_dir import FileRecord
from trtserve.executor.base import ExecutorError
from trtserve.model_config import DecoderConfig
from trtserve.settings import Limits, Tier, plan_tiers

HYBRIDS = {"mtp": "MTP", "eagle3": "Eagle3"}


class KvCache(Section):
    """TensorRT-LLM's KV cache."""

    enable_block_reuse: bool = Field(default=True, description="reuse blocks of equal prefixes within a cache salt")
    enable_partial_reuse: bool = Field(default=True, description="reuse blocks that match in part")
    free_gpu_memory_fraction: float = Field(
        default=0.9, gt=0, lt=1, description="share of the free GPU memory it takes"
    )
    max_tokens: int | None = Field(default=None, ge=1, description="most tokens it holds; null: what the memory allows")
    host_cache_size: int | None = Field(default=None, ge=0, description="bytes of host memory for evicted blocks")
    dtype: Literal["auto", "fp8", "nvfp4"] = Field(default="auto", description="how keys and values are stored")
    tokens_per_block: int = Field(default=32, ge=8, le=128, description="tokens of one block, a power of two")


class CudaGraph(Section):
    """CUDA graphs of generation steps. Drafts are padded, so that one graph serves every round."""

    batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(), description="batch sizes that get a graph; empty: those TensorRT-LLM chooses up to max_batch_size"
    )
    enable_padding: bool = Field(default=True, description="round a batch up to the next size that has a graph")


class Lora(Section):
    """LoRA adapters, in Hugging Face's layout."""

    adapters: dict[str, str] = Field(
        default={}, description="name to directory (relative to where trtbuild runs); a request's scope names one"
    )
    max_lora_rank: int = Field(default=64, ge=1, le=1024, description="highest rank of an adapter")
    max_loras: int = Field(default=4, ge=1, le=1024, description="adapters kept on the GPU")
    max_cpu_loras: int = Field(default=16, ge=1, le=65536, description="adapters kept in host memory")


class TensorRTLLMOptions(Section):
    """What the ``tensorrt_llm`` target alone has."""

    version: Literal["1.2", "1.3"] = Field(
        default="1.3", description="TensorRT-LLM's line: 1.3 and later (PyTorch execution), or 1.2 (a built engine)"
    )
    copies: Literal["trtlookup", "ngram", "sa"] = Field(
        default="trtlookup",
        description="who copies: our drafter, or TensorRT-LLM's own n-gram pool or suffix automaton, for comparison",
    )
    tensor_parallel_size: int = Field(default=1, ge=1, le=64, description="GPUs that share one model")
    max_num_tokens: int | None = Field(
        default=None, ge=16, le=1 << 20, description="rows of one forward; null: what the limits and drafts need"
    )
    attn_backend: Literal["TRTLLM", "FLASHINFER"] = Field(default="TRTLLM", description="attention kernels")
    kv_cache: KvCache = KvCache()
    cuda_graph: CudaGraph | None = Field(default_factory=CudaGraph, description="null turns CUDA graphs off")
    chunked_prefill: bool = Field(default=True, description="split a prompt over forwards")
    lora: Lora | None = Field(default=None, description="LoRA adapters; null: none")
    guided_decoding: Literal["xgrammar", "llguidance"] | None = Field(
        default=None, description="the backend TensorRT-LLM loads for grammars"
    )
    quantization: Literal["w8a16", "w4a16"] | None = Field(
        default=None,
        description="1.2 only: weights quantised when the engine is built; null: as the checkpoint has them",
    )
    speculative_model: str | None = Field(default=None, description="the draft model of drafter eagle3: a directory")


@dataclass(frozen=True)
class PaddedFootprint(Footprint):
    """Bytes per GPU. Drafts are padded: a speculative round has 1 + max_draft_len rows for each sequence, whatever it
    drafts, and the KV cache is shared out in blocks instead of slots."""

    draft_rows: int = 1
    parallel: int = 1

    def weights(self) -> int:
        return -(-super().weights() // self.parallel)

    def kv_per_token(self) -> int:
        return -(-super().kv_per_token() // self.parallel)

    def activations(self, tier: Tier, limits: Limits) -> int:
        return super().activations(self._padded(tier), limits)

    def logits(self, tier: Tier) -> int:
        return super().logits(self._padded(tier))

    def _padded(self, tier: Tier) -> Tier:
        if tier.name not in ("lone", "copy"):
            return tier
        return tier.model_copy(update={"rows": max(tier.rows, self.draft_rows)})


class TensorRTLLMTarget(Target):
    name = "tensorrt_llm"
    options = TensorRTLLMOptions

    def check(self, recipe: Recipe) -> Iterator[tuple[str, str]]:
        options, speculative = recipe.options(TensorRTLLMOptions), recipe.speculative
        if recipe.model.checkpoint.lower().endswith(".gguf"):
            yield (
                "model.checkpoint",
                f"given {recipe.model.checkpoint}; allowed with target tensorrt_llm: a Hugging Face directory or "
                "hf:ORG/REPO@REVISION, which TensorRT-LLM loads itself",
            )
        if speculative.drafter not in ("none", *HYBRIDS):
            yield (
                "speculative.drafter",
                f"given {speculative.drafter}; allowed with target tensorrt_llm: none, {', '.join(HYBRIDS)}",
            )
        if speculative.exact_verify:
            yield (
                "speculative.exact_verify",
                "given true; allowed with target tensorrt_llm: false, because its kernels differ by batch shape and "
                "nothing is promised about their rounding",
            )
        block = options.kv_cache.tokens_per_block
        if block & (block - 1):
            yield "tensorrt_llm.kv_cache.tokens_per_block", f"given {block}; allowed: 8, 16, 32, 64 or 128"
        yield from _check_own_drafts(recipe, options)
        yield from _check_line(recipe, options)
        rows = recipe.limits.max_batch_size * (1 + draft_len(recipe))
        needed = rows if options.chunked_prefill else max(rows, recipe.limits.max_seq_len)
        if options.max_num_tokens is not None and options.max_num_tokens < needed:
            why = (
                f"limits.max_batch_size {recipe.limits.max_batch_size} times 1 + {draft_len(recipe)} drafts"
                if needed == rows
                else f"limits.max_seq_len {recipe.limits.max_seq_len}, since chunked_prefill is off"
            )
            yield "tensorrt_llm.max_num_tokens", f"given {options.max_num_tokens}; allowed: at least {needed}, {why}"

    def footprint(self, recipe: Recipe, config: DecoderConfig) -> Footprint:
        options = recipe.options(TensorRTLLMOptions)
        item = DTYPE_BYTES[config.dtype]
        return PaddedFootprint(
            config,
            work_bytes=item,
            kv_bytes=1 if options.kv_cache.dtype != "auto" else item,
            draft_rows=1 + draft_len(recipe),
            parallel=options.tensor_parallel_size,
        )

    def available_memory(self) -> int | None:
        """A GPU's free memory; the engine usually runs on another machine, so without a GPU nothing is known."""
        from trtserve.executor.tensorrt_cuda import free_memory

        return free_memory()

    def decisive(self, recipe: Recipe) -> dict[str, Any]:
        """All that its files hold: the checkpoint's path and every setting of prompt lookup are in them."""
        return undeployed(recipe)

    def build(self, inputs: BuildInput, out: Path, progress: Progress) -> BuildOutput:
        recipe, options = inputs.recipe, inputs.recipe.options(TensorRTLLMOptions)
        checkpoint = _record_checkpoint(inputs, progress)
        built_with: dict[str, str] = {}
        if options.version == "1.2":
            built_with["tensorrt_llm"] = _build_engine(recipe, Path(checkpoint.path), out / ENGINE_NAME, progress)
        drafts = draft_len(recipe)
        lookup = recipe.speculative.prompt_lookup
        concurrency = min(lookup.max_seqs, recipe.limits.max_batch_size) if lookup else 0
        info = TensorRTLLMInfo(
            version=options.version,
            drafting=drafting(recipe),
            chain=drafts if drafting(recipe) == "builtin" else 0,
            max_draft_len=drafts,
            max_concurrency=concurrency,
            max_num_tokens=max_num_tokens(recipe),
            adapters=_adapters(options),
            checkpoint=checkpoint,
        )
        _write_yaml(out / LLM_ARGS_NAME, llm_args(recipe, checkpoint.path))
        _write_yaml(
            out / LOOKUP_NAME,
            {
                "prompt_lookup": None if lookup is None else lookup.model_dump(mode="json"),
                "max_draft_len": drafts,
                "max_concurrency": concurrency,
                "max_num_tokens": info.max_num_tokens,
            },
        )
        if recipe.speculative.drafter in HYBRIDS and lookup is not None:
            progress.note(
                "of prompt_lookup, TensorRT-LLM's enhancer takes min_match (its threshold) and max_seqs; when and how "
                "much it copies is its own choice"
            )
        tokenizer = out / engine_dir.TOKENIZER_DIR
        tokenizer.mkdir()
        return BuildOutput(
            tokenizer=inputs.checkpoint.save_tokenizer(tokenizer),
            weights_digest=hashlib.sha256(f"{checkpoint.digest}\n{recipe.model.dtype}".encode()).hexdigest(),
            built_with=built_with,
            target_info=info.model_dump(mode="json"),
        )


def draft_len(recipe: Recipe) -> int:
    """Drafts that one verify holds for a sequence: the widest tier's. Rounds are padded to it."""
    tiers = plan_tiers(recipe.limits, recipe.speculative)
    return max(tier.rows for tier in tiers if tier.name != "prefill") - 1


def max_num_tokens(recipe: Recipe) -> int:
    """The token budget of one forward: every sequence's verify rows and, beside them, a chunk of a prompt."""
    options = recipe.options(TensorRTLLMOptions)
    if options.max_num_tokens is not None:
        return options.max_num_tokens
    prompt = recipe.limits.prefill_chunk if options.chunked_prefill else recipe.limits.max_seq_len
    return recipe.limits.max_batch_size * (1 + draft_len(recipe)) + prompt


def drafting(recipe: Recipe) -> Drafting:
    """Who drafts."""
    options, speculative = recipe.options(TensorRTLLMOptions), recipe.speculative
    if speculative.drafter in HYBRIDS:
        return "builtin"
    if speculative.prompt_lookup is None:
        return "none"
    return "trtlookup" if options.copies == "trtlookup" else "builtin"


def llm_args(recipe: Recipe, model: str) -> dict[str, Any]:
    """The arguments of ``tensorrt_llm.LLM``, or of 1.2's executor, as plain values; our drafter is none of them."""
    options, limits = recipe.options(TensorRTLLMOptions), recipe.limits
    kv_cache = {k: v for k, v in options.kv_cache.model_dump().items() if v is not None}
    if options.version == "1.2":
        # How the cache is laid out was decided when the engine was built.
        return {"kv_cache_config": {k: v for k, v in kv_cache.items() if k not in ("dtype", "tokens_per_block")}}
    arguments: dict[str, Any] = {
        "model": model,
        "skip_tokenizer_init": True,
        "dtype": recipe.model.dtype,
        "tensor_parallel_size": options.tensor_parallel_size,
        "max_batch_size": limits.max_batch_size,
        "max_seq_len": limits.max_seq_len,
        "max_num_tokens": max_num_tokens(recipe),
        "enable_chunked_prefill": options.chunked_prefill,
        "attn_backend": options.attn_backend,
        "kv_cache_config": kv_cache,
        "cuda_graph_config": _cuda_graph(options, limits),
        # A drafter on the host needs the last round's tokens before the next forward.
        "disable_overlap_scheduler": drafting(recipe) == "trtlookup" or options.copies == "ngram",
    }
    if options.guided_decoding is not None:
        arguments["guided_decoding_backend"] = options.guided_decoding
    if options.lora is not None:
        arguments["enable_lora"] = True
        arguments["lora_config"] = {
            "lora_dir": list(_adapters(options).values()),
            "max_lora_rank": options.lora.max_lora_rank,
            "max_loras": options.lora.max_loras,
            "max_cpu_loras": options.lora.max_cpu_loras,
        }
    if (config := speculative_config(recipe)) is not None:
        arguments["speculative_config"] = config
    return arguments


def speculative_config(recipe: Recipe) -> dict[str, Any] | None:
    """TensorRT-LLM's own drafting, where the recipe asks for it; ours is an object and made when the engine loads."""
    options, speculative = recipe.options(TensorRTLLMOptions), recipe.speculative
    lookup = speculative.prompt_lookup
    if speculative.drafter in HYBRIDS:
        config: dict[str, Any] = {
            "decoding_type": HYBRIDS[speculative.drafter],
            "max_draft_len": speculative.num_drafts,
        }
        if options.speculative_model is not None:
            config["speculative_model"] = options.speculative_model
        if lookup is not None:
            config["sa_config"] = {"threshold": lookup.effective_min_match}
        return config
    if lookup is None or options.copies == "trtlookup":
        return None
    common = {"max_draft_len": draft_len(recipe), "max_concurrency": lookup.max_seqs}
    if options.copies == "ngram":
        # A public pool is one for all tenants.
        return {
            "decoding_type": "NGram",
            "max_matching_ngram_size": lookup.ngram,
            "is_public_pool": False,
            **common,
        }
    return {"decoding_type": "SA", "max_matching_ngram_size": -1, "enable_global_pool": False, **common}


def _check_own_drafts(recipe: Recipe, options: TensorRTLLMOptions) -> Iterator[tuple[str, str]]:
    """Where TensorRT-LLM drafts: what its drafters cannot honour."""
    speculative, lookup = recipe.speculative, recipe.speculative.prompt_lookup
    hybrid = speculative.drafter in HYBRIDS
    if hybrid and options.copies != "trtlookup":
        yield (
            "tensorrt_llm.copies",
            f"given {options.copies} beside drafter {speculative.drafter}; allowed: with drafter none",
        )
    if speculative.drafter == "eagle3" and options.speculative_model is None:
        yield "tensorrt_llm.speculative_model", "is missing; allowed: a directory, since speculative.drafter is eagle3"
    if speculative.drafter != "eagle3" and options.speculative_model is not None:
        yield (
            "tensorrt_llm.speculative_model",
            f"is given but speculative.drafter is {speculative.drafter}; allowed: none, or drafter eagle3",
        )
    if lookup is None or not (hybrid or options.copies != "trtlookup"):
        return
    own = "enhancer" if hybrid else "drafter"
    if lookup.shared_cache.mb:
        yield (
            "speculative.prompt_lookup.shared_cache.mb",
            f"given {lookup.shared_cache.mb}; allowed: 0, because TensorRT-LLM's own {own} shares text between "
            "requests, if at all, without regard to tenant, adapter or salt",
        )
    if hybrid:
        for name in ("max_drafts", "batch_max_drafts"):
            if (given := getattr(lookup, name)) > speculative.num_drafts:
                yield (
                    f"speculative.prompt_lookup.{name}",
                    f"given {given}; allowed beside drafter {speculative.drafter}: up to its num_drafts "
                    f"{speculative.num_drafts}, because the enhancer replaces the drafter's chain and is no longer",
                )


def _check_line(recipe: Recipe, options: TensorRTLLMOptions) -> Iterator[tuple[str, str]]:
    """What one line of TensorRT-LLM has and the other has not."""
    if options.version == "1.3":
        if options.quantization is not None:
            yield (
                "tensorrt_llm.quantization",
                f"given {options.quantization}; allowed with version 1.3: null, because it reads quantised weights "
                "from a quantised checkpoint; quantise the KV cache with kv_cache.dtype",
            )
        return
    if recipe.speculative.drafter != "none":
        yield "speculative.drafter", f"given {recipe.speculative.drafter}; allowed with version 1.2: none"
    refused: tuple[tuple[str, object, object], ...] = (
        ("copies", options.copies, "trtlookup"),
        ("tensor_parallel_size", options.tensor_parallel_size, 1),
        ("attn_backend", options.attn_backend, "TRTLLM"),
        ("lora", options.lora, None),
        ("guided_decoding", options.guided_decoding, None),
        ("chunked_prefill", options.chunked_prefill, True),
        ("kv_cache.enable_block_reuse", options.kv_cache.enable_block_reuse, True),
        ("kv_cache.dtype", options.kv_cache.dtype, "auto"),
    )
    for key, given, allowed in refused:
        if given != allowed:
            shown = "a section" if isinstance(given, Section) else str(given).lower()
            yield (
                f"tensorrt_llm.{key}",
                f"given {shown}; allowed with version 1.2: {'null' if allowed is None else str(allowed)}",
            )


def _cuda_graph(options: TensorRTLLMOptions, limits: Limits) -> dict[str, Any] | None:
    graph = options.cuda_graph
    if graph is None:
        return None
    sizes: dict[str, Any] = (
        {"batch_sizes": list(graph.batch_sizes)} if graph.batch_sizes else {"max_batch_size": limits.max_batch_size}
    )
    return {**sizes, "enable_padding": graph.enable_padding}


def _adapters(options: TensorRTLLMOptions) -> dict[str, str]:
    if options.lora is None:
        return {}
    return {name: str(Path(path).expanduser().resolve()) for name, path in options.lora.adapters.items()}


def _record_checkpoint(inputs: BuildInput, progress: Progress) -> CheckpointRecord:
    """Where the checkpoint is and what it is, file by file."""
    files = inputs.checkpoint.files
    roots = {path.parent for path in files}
    if len(roots) != 1 or not (root := roots.pop()).joinpath("config.json").is_file():
        raise BuildError(
            f"model.checkpoint {inputs.recipe.model.checkpoint}: TensorRT-LLM loads a directory with config.json and "
            "safetensors, which this is not"
        )
    records = {}
    with progress.bar("checkpoint digests", len(files)) as advance:
        for path in files:
            records[path.name] = FileRecord(sha256=engine_dir.sha256_file(path), bytes=path.stat().st_size)
            advance(1)
    digest = hashlib.sha256("".join(f"{n} {r.sha256}\n" for n, r in sorted(records.items())).encode()).hexdigest()
    return CheckpointRecord(
        reference=inputs.recipe.model.checkpoint, path=str(root.resolve()), digest=digest, files=records
    )


def _build_engine(recipe: Recipe, model: Path, out: Path, progress: Progress) -> str:
    """An engine by TensorRT-LLM 1.2's builder, whose verify takes external drafts. Returns the builder's version."""
    try:
        package: Any = importlib.import_module("tensorrt_llm")
        line = line_of(str(package.__version__))
    except ImportError as e:
        first = next(x for x in LINES if x.recipe == "1.2")
        raise BuildError(
            f"tensorrt_llm.version 1.2 builds an engine, which needs tensorrt_llm {first.first} or a later 1.2 and a "
            f"GPU on this machine: {e}"
        ) from e
    except ExecutorError as e:
        raise BuildError(str(e)) from e
    if line.recipe != "1.2":
        raise BuildError(f"tensorrt_llm {package.__version__} has no engine builder; versions that work: {WORKING}")
    options, limits = recipe.options(TensorRTLLMOptions), recipe.limits
    builder: Any = importlib.import_module("tensorrt_llm.builder")
    models: Any = importlib.import_module("tensorrt_llm.models.automodel")
    modeling: Any = importlib.import_module("tensorrt_llm.models.modeling_utils")
    quantized = None
    if options.quantization is not None:
        algorithms: Any = importlib.import_module("tensorrt_llm.quantization").QuantAlgo
        quantized = modeling.QuantConfig(quant_algo=algorithms[options.quantization.upper()])
    drafts = draft_len(recipe)
    mode = modeling.SpeculativeDecodingMode
    try:
        with progress.bar("TensorRT-LLM engine", 2) as advance:
            loaded = models.AutoModelForCausalLM.from_hugging_face(
                str(model), dtype=recipe.model.dtype, quant_config=quantized
            )
            advance(1)
            config = builder.BuildConfig(
                max_input_len=limits.max_seq_len,
                max_seq_len=limits.max_seq_len,
                max_batch_size=limits.max_batch_size,
                max_num_tokens=max_num_tokens(recipe),
                max_draft_len=drafts,
                speculative_decoding_mode=mode.DRAFT_TOKENS_EXTERNAL if drafts else mode.NONE,
            )
            # Block reuse, which every verify counts on, reads keys and values of earlier blocks.
            config.plugin_config.use_paged_context_fmha = True
            config.plugin_config.tokens_per_block = options.kv_cache.tokens_per_block
            engine = builder.build(loaded, config)
            engine.save(str(out))
            advance(1)
    except Exception as e:
        raise BuildError(
            f"TensorRT-LLM {package.__version__} could not build the engine: {type(e).__name__}: {e}"
        ) from e
    return str(package.__version__)


def _write_yaml(path: Path, value: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120), encoding="utf-8")


TARGET = TensorRTLLMTarget()
