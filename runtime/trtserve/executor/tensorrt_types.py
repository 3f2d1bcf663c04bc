"""The part of TensorRT's runtime API that the executor calls, as protocols: see ``trtbuild.network.trt_types``."""

from __future__ import annotations

from typing import Any, Protocol


class IHostMemory(Protocol):
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def nbytes(self) -> int: ...


class IRuntimeCache(Protocol):
    """TensorRT-RTX alone: the kernels it compiled."""

    def deserialize(self, blob: bytes) -> bool: ...
    def serialize(self) -> IHostMemory | None: ...


class IRuntimeConfig(Protocol):
    """TensorRT-RTX alone."""

    cuda_graph_strategy: Any

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None: ...
    def create_runtime_cache(self) -> IRuntimeCache | None: ...
    def set_runtime_cache(self, cache: IRuntimeCache) -> bool: ...


class IExecutionContext(Protocol):
    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool: ...
    def set_device_memory(self, memory: int, size: int) -> None: ...
    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool: ...
    def set_tensor_address(self, name: str, memory: int) -> bool: ...
    def execute_async_v3(self, stream_handle: int) -> bool: ...


class ICudaEngine(Protocol):
    @property
    def num_optimization_profiles(self) -> int: ...
    @property
    def num_io_tensors(self) -> int: ...
    @property
    def device_memory_size_v2(self) -> int: ...
    def get_tensor_name(self, index: int) -> str: ...
    def get_aliased_input_tensor(self, name: str) -> str | None: ...
    def get_tensor_location(self, name: str) -> Any: ...
    def create_runtime_config(self) -> IRuntimeConfig: ...
    def create_execution_context(self, runtime_config: Any) -> IExecutionContext | None: ...


class Runtime(Protocol):
    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None: ...


class RuntimeType(Protocol):
    def __call__(self, logger: Any) -> Runtime: ...


class ExecutionContextAllocationStrategy(Protocol):
    USER_MANAGED: Any


class TensorLocation(Protocol):
    DEVICE: Any


class CudaGraphStrategy(Protocol):
    """TensorRT-RTX alone."""

    WHOLE_GRAPH_CAPTURE: Any


class TensorRT(Protocol):
    """The module, ``tensorrt`` or ``tensorrt_rtx``, as the runtime sees it."""

    __version__: str
    ILogger: Any
    Runtime: RuntimeType
    ExecutionContextAllocationStrategy: ExecutionContextAllocationStrategy
    TensorLocation: TensorLocation
    CudaGraphStrategy: CudaGraphStrategy

    def __hash__(self) -> int: ...
