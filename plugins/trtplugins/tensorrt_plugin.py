"""Greedy acceptance as TensorRT plugins, compiled ahead of time: the engine needs no Python at run time.

Two plugins, because one kernel is all a plugin may have and a row wants more than one block: ``row_candidates`` finds
the best token of every part of every row, ``accept`` decides from those. Rows are padded; ``num_rows`` says how many
of them are each sequence's own. Sampling needs what a plugin cannot be given at run time without copies (addresses):
in a sampled round the host build, or ``trtplugins.launch``, decides from the engine's logits instead.

Annotations here are objects that TensorRT inspects, so this module must not postpone their evaluation.
"""

from typing import Any, NamedTuple, Tuple, Union  # noqa: UP035 - TensorRT checks for typing's own

from trtplugins.compile import compile_kernels

NAMESPACE = "trtlookup"

#: Parts a row is cut into: 8 sequences of 9 rows then give a block or more to every multiprocessor.
DEFAULT_SPLITS = 8


class AcceptanceTensors(NamedTuple):
    """A network's acceptance outputs: ``ITensor`` of int32."""

    targets: Any  # [B, R] rows 0 to accepted; -1 after
    accepted: Any  # [B]
    next: Any  # [B] -1: the deciding row has a NaN or nothing above -inf


def register_plugins(trt: Any, trtp: Any, architecture: str = "compute_80") -> None:
    """Register both plugins with TensorRT, once a process; a second call does nothing.

    ``trt``: the ``tensorrt`` module, ``trtp``: ``tensorrt.plugin``. ``architecture`` of the PTX: the oldest GPU the
    engine is to run on. Raises CompileError during the build if the kernels do not compile.
    """
    if hasattr(trtp.op, NAMESPACE):
        return
    suffixes = {trt.float32: "f32", trt.float16: "f16", trt.bfloat16: "bf16"}

    def row_candidates(logits: trtp.TensorDesc, splits: int) -> trtp.TensorDesc:
        batch, rows, _ = logits.shape_expr
        # 64-bit candidates as pairs: every version of TensorRT has int32.
        return trtp.from_shape_expr((batch, rows, splits, 2), trt.int32)

    def row_candidates_kernel(
        logits: trtp.TensorDesc,
        splits: int,
        outputs: Tuple[trtp.TensorDesc],  # noqa: UP006
        tactic: int,
    ) -> Tuple[Union[str, bytes], Union[str, bytes], trtp.KernelLaunchParams, trtp.SymIntExprs]:  # noqa: UP006, UP007
        batch, rows, vocab = logits.shape_expr
        launch = trtp.KernelLaunchParams(grid_x=splits, grid_y=batch * rows, block_x=256)
        scalars = trtp.SymIntExprs.from_tuple((vocab,))
        return f"tl_row_candidates_{suffixes[logits.dtype]}", compile_kernels(architecture), launch, scalars

    def row_candidates_formats(
        logits: trtp.TensorDesc,
        splits: int,
        outputs: Tuple[trtp.TensorDesc],  # noqa: UP006
    ) -> list[trtp.AutoTuneCombination]:
        return [trtp.AutoTuneCombination("FP32*FP16*BF16, INT32", "LINEAR")]

    def accept(
        candidates: trtp.TensorDesc, tokens: trtp.TensorDesc, num_rows: trtp.TensorDesc
    ) -> Tuple[trtp.TensorDesc, trtp.TensorDesc, trtp.TensorDesc]:  # noqa: UP006
        return tokens.like(), num_rows.like(), num_rows.like()

    def accept_kernel(
        candidates: trtp.TensorDesc,
        tokens: trtp.TensorDesc,
        num_rows: trtp.TensorDesc,
        outputs: Tuple[trtp.TensorDesc, trtp.TensorDesc, trtp.TensorDesc],  # noqa: UP006
        tactic: int,
    ) -> Tuple[Union[str, bytes], Union[str, bytes], trtp.KernelLaunchParams, trtp.SymIntExprs]:  # noqa: UP006, UP007
        batch, rows = tokens.shape_expr
        launch = trtp.KernelLaunchParams(grid_x=batch, block_x=128)
        scalars = trtp.SymIntExprs.from_tuple((rows, candidates.shape_expr[2]))
        return "tl_accept_candidates", compile_kernels(architecture), launch, scalars

    # Lazily: the registry itself is touched only when a plugin is put into a network.
    trtp.register(f"{NAMESPACE}::row_candidates", lazy_register=True)(row_candidates)
    trtp.autotune(f"{NAMESPACE}::row_candidates")(row_candidates_formats)
    trtp.aot_impl(f"{NAMESPACE}::row_candidates")(row_candidates_kernel)
    trtp.register(f"{NAMESPACE}::accept", lazy_register=True)(accept)
    trtp.aot_impl(f"{NAMESPACE}::accept")(accept_kernel)


def add_acceptance(
    network: Any, trtp: Any, logits: Any, tokens: Any, num_rows: Any, splits: int = DEFAULT_SPLITS
) -> AcceptanceTensors:
    """Put acceptance into ``network`` (``INetworkDefinition``), after ``register_plugins``.

    ``logits``: ``[B, R, V]`` float32, float16 or bfloat16. ``tokens``: int32 ``[B, R]``, a sequence's last committed
    token, then its drafts. ``num_rows``: int32 ``[B]``, 1 to R; a sequence of 0 rows accepts nothing.
    """
    ops = getattr(trtp.op, NAMESPACE)
    candidates = network.add_plugin(ops.row_candidates(logits, splits=splits), aot=True).get_output(0)
    layer = network.add_plugin(ops.accept(candidates, tokens, num_rows), aot=True)
    return AcceptanceTensors(*(layer.get_output(i) for i in range(3)))


class AcceptanceChoice(NamedTuple):
    """How an engine accepts, and why: what ``trtbuild --plan`` says."""

    kind: str  # plugin | layers
    reason: str


def choose_acceptance(builder: str, wanted: str) -> AcceptanceChoice:
    """``wanted`` (``plugin`` or ``layers``, the recipe's ``acceptance``) where ``builder`` (``tensorrt`` or
    ``tensorrt_rtx``) can have it. Raises ValueError for other words.
    """
    if wanted not in ("plugin", "layers") or builder not in ("tensorrt", "tensorrt_rtx"):
        raise ValueError(
            f"acceptance {wanted!r} for {builder!r} given; allowed: plugin or layers, for tensorrt or tensorrt_rtx"
        )
    if wanted == "layers":
        return AcceptanceChoice("layers", "the recipe asks for native layers")
    if builder == "tensorrt":
        return AcceptanceChoice("plugin", "PTX compiled into the engine; no Python at run time")
    return AcceptanceChoice(
        "layers",
        "TensorRT-RTX has no plugin compiled ahead of time. A Python plugin through its ONNX parser builds only at one "
        "fixed batch beside a KV cache, must be registered again by every process that loads the engine, and ends the "
        "process on an error; native layers build at any batch for about 0.7 MB of engine.",
    )
