"""The part of the TensorRT Python API that this project calls, as protocols.

Neither ``tensorrt`` nor ``tensorrt_rtx`` ships type stubs, and both are wanted behind one parameter, so the module
itself is a protocol here (:class:`TensorRT`). A test compares every method and parameter below with the signatures
that the installed bindings print, so a call that type-checks is a call the bindings have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

Dims = Sequence[int]


class DataType(Protocol):
    """A member of ``trt.DataType``."""

    @property
    def name(self) -> str: ...


class Weights(Protocol):
    @property
    def dtype(self) -> DataType: ...
    @property
    def size(self) -> int: ...
    def numpy(self) -> NDArray[Any]: ...


class WeightsType(Protocol):
    def __call__(self, type: DataType, ptr: int, count: int) -> Weights: ...


class ITensor(Protocol):
    name: str
    dtype: DataType

    @property
    def shape(self) -> Dims: ...


class ILayer(Protocol):
    name: str

    @property
    def type(self) -> Any: ...
    @property
    def num_inputs(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    def get_input(self, index: int) -> ITensor: ...
    def get_output(self, index: int) -> ITensor: ...
    def set_input(self, index: int, tensor: ITensor) -> None: ...


class IShuffleLayer(ILayer, Protocol):
    first_transpose: Sequence[int]
    second_transpose: Sequence[int]
    reshape_dims: Dims


class IGatherLayer(ILayer, Protocol):
    mode: Any
    axis: int


class IConcatenationLayer(ILayer, Protocol):
    axis: int


class IAttention(Protocol):
    mask: ITensor
    decomposable: bool

    def get_output(self, index: int) -> ITensor: ...


class INetworkDefinition(Protocol):
    """``trt.INetworkDefinition``: the ``add_*`` calls used here. Each may return None, so callers check."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_inputs(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    def get_layer(self, index: int) -> ILayer: ...
    def get_input(self, index: int) -> ITensor: ...
    def get_output(self, index: int) -> ITensor: ...
    def add_input(self, name: str, dtype: DataType, shape: Dims) -> ITensor | None: ...
    def mark_output(self, tensor: ITensor) -> None: ...
    def add_constant(self, shape: Dims, weights: Weights) -> ILayer | None: ...
    def add_cast(self, input: ITensor, to_type: DataType) -> ILayer | None: ...
    def add_unary(self, input: ITensor, op: Any) -> ILayer | None: ...
    def add_activation(self, input: ITensor, type: Any) -> ILayer | None: ...
    def add_elementwise(self, input1: ITensor, input2: ITensor, op: Any) -> ILayer | None: ...
    def add_matrix_multiply(self, input0: ITensor, op0: Any, input1: ITensor, op1: Any) -> ILayer | None: ...
    def add_reduce(self, input: ITensor, op: Any, axes: int, keep_dims: bool) -> ILayer | None: ...
    def add_topk(self, input: ITensor, op: Any, k: int, axes: int) -> ILayer | None: ...
    def add_gather_v2(self, input: ITensor, indices: ITensor, mode: Any) -> IGatherLayer | None: ...
    def add_shuffle(self, input: ITensor) -> IShuffleLayer | None: ...
    def add_concatenation(self, inputs: Sequence[ITensor]) -> IConcatenationLayer | None: ...
    def add_shape(self, input: ITensor) -> ILayer | None: ...
    def add_fill(self, shape: Dims, op: Any, output_type: DataType) -> ILayer | None: ...
    def add_cumulative(
        self, input: ITensor, axis: ITensor, op: Any, exclusive: bool, reverse: bool
    ) -> ILayer | None: ...
    def add_rotary_embedding(
        self, input: ITensor, cos_cache: ITensor, sin_cache: ITensor, interleaved: bool, rotary_embedding_dim: int
    ) -> ILayer | None: ...
    def add_kv_cache_update(
        self, cache: ITensor, update: ITensor, write_indices: ITensor, cache_mode: Any
    ) -> ILayer | None: ...
    def add_attention_v2(
        self, query: ITensor, key: ITensor, value: ITensor, norm_op: Any, causal_kind: Any
    ) -> IAttention | None: ...


class IOptimizationProfile(Protocol):
    def set_shape(self, input: str, min: Dims, opt: Dims, max: Dims) -> None: ...


class IBuilderConfig(Protocol):
    progress_monitor: Any

    def set_flag(self, flag: Any) -> None: ...
    def add_optimization_profile(self, profile: IOptimizationProfile) -> int: ...


class IBuilderConfigRTX(IBuilderConfig, Protocol):
    """What only TensorRT-RTX's builder config has."""

    num_compute_capabilities: int

    def set_compute_capability(self, compute_capability: Any, index: int) -> bool: ...


class IHostMemory(Protocol):
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def nbytes(self) -> int: ...


class Builder(Protocol):
    def create_network(self, flags: int) -> INetworkDefinition: ...
    def create_builder_config(self) -> IBuilderConfig: ...
    def create_optimization_profile(self) -> IOptimizationProfile: ...
    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> IHostMemory | None: ...


class BuilderType(Protocol):
    def __call__(self, logger: Any) -> Builder: ...


class BuilderFlag(Protocol):
    STRICT_NANS: Any


class UnaryOperation(Protocol):
    ABS: Any
    NOT: Any
    SQRT: Any


class ElementWiseOperation(Protocol):
    SUM: Any
    SUB: Any
    PROD: Any
    DIV: Any
    MIN: Any
    MAX: Any
    EQUAL: Any
    LESS: Any
    GREATER: Any
    AND: Any
    OR: Any


class ActivationType(Protocol):
    SIGMOID: Any


class MatrixOperation(Protocol):
    NONE: Any
    TRANSPOSE: Any


class ReduceOperation(Protocol):
    SUM: Any
    AVG: Any


class TopKOperation(Protocol):
    MAX: Any


class GatherMode(Protocol):
    DEFAULT: Any
    ELEMENT: Any


class FillOperation(Protocol):
    LINSPACE: Any


class CumulativeOperation(Protocol):
    SUM: Any


class KVCacheMode(Protocol):
    LINEAR: Any


class AttentionNormalizationOp(Protocol):
    SOFTMAX: Any


class CausalMaskKind(Protocol):
    NONE: Any


class TensorRT(Protocol):
    """The module, ``tensorrt`` or ``tensorrt_rtx``."""

    __name__: str
    __version__: str
    float32: DataType
    float16: DataType
    bfloat16: DataType
    int32: DataType
    int64: DataType
    bool: DataType
    Weights: WeightsType
    Builder: BuilderType
    ILogger: Any
    ILayer: Any
    IProgressMonitor: Any
    BuilderFlag: BuilderFlag
    UnaryOperation: UnaryOperation
    ElementWiseOperation: ElementWiseOperation
    ActivationType: ActivationType
    MatrixOperation: MatrixOperation
    ReduceOperation: ReduceOperation
    TopKOperation: TopKOperation
    GatherMode: GatherMode
    FillOperation: FillOperation
    CumulativeOperation: CumulativeOperation
    KVCacheMode: KVCacheMode
    AttentionNormalizationOp: AttentionNormalizationOp
    CausalMaskKind: CausalMaskKind

    def __hash__(self) -> int: ...


class TensorRTRTX(TensorRT, Protocol):
    """What only ``tensorrt_rtx`` has."""

    ComputeCapability: Any
