"""A GPU, CUDA and TensorRT's runtime in memory: what ``CudaSession`` calls, evaluated by the network interpreter.

Addresses are real host addresses, so a copy to the wrong place or an enqueue bound to the wrong slot computes the
wrong thing. Calls that the real libraries would refuse are refused here.
"""

from __future__ import annotations

import ctypes
import enum
import json
import math
import threading
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from trtbuild.network.interpreter import Interpreter
from trtserve.executor import tensorrt_io as io


class Error(enum.IntEnum):
    cudaSuccess = 0  # noqa: N815
    cudaErrorMemoryAllocation = 2  # noqa: N815
    cudaErrorInsufficientDriver = 35  # noqa: N815


class Kind(enum.IntEnum):
    cudaMemcpyHostToDevice = 1  # noqa: N815
    cudaMemcpyDeviceToHost = 2  # noqa: N815
    cudaMemcpyDeviceToDevice = 3  # noqa: N815


class FakeGpu:
    """Everything the session imports, and what happened. ``modules`` stands in for ``importlib.import_module``."""

    def __init__(
        self,
        interpreter: Interpreter,
        profiles: Sequence[io.Profile],
        *,
        runtime: io.RuntimeName,
        version: str,
        capability: tuple[int, int] = (8, 9),
        memory: int = 1 << 40,
    ) -> None:
        self.interpreter = interpreter
        self.profiles = profiles
        self.memory = memory
        self.blocks: dict[int, np.ndarray[Any, Any]] = {}
        self.launches: list[int] = []
        self.synchronizations = 0
        self.replays = 0
        self.capturing: list[Callable[[], None]] | None = None
        self.shapes_set = 0
        self.refuse: set[str] = set()
        self.compiled: list[str] = []
        """Every kernel that had to be compiled, in order: what a kernel cache spares."""
        self.driver = 13000
        self.current = {threading.get_ident()}
        """Threads that made this GPU theirs. CUDA's others would run on GPU 0."""
        cudart = SimpleNamespace(
            cudaMemcpyKind=Kind,
            cudaGetDeviceCount=lambda: (Error.cudaSuccess, 1),
            cudaSetDevice=lambda device: (Error.cudaSuccess,),
            cudaMemGetInfo=lambda: (Error.cudaSuccess, 1000, 2000),
            cudaDriverGetVersion=lambda: (Error.cudaSuccess, self.driver),
            cudaMalloc=self._malloc,
            cudaMallocHost=self._malloc,
            cudaFree=self._free,
            cudaFreeHost=self._free,
            cudaMemsetAsync=lambda at, value, n, stream: self._memset(at, value, n),
            cudaMemcpyAsync=lambda to, at, n, kind, stream: self._memcpy(to, at, n),
            cudaMemcpy2DAsync=self._memcpy_2d,
            cudaMemset2DAsync=self._memset_2d,
        )
        device = SimpleNamespace(
            device_id=0,
            name="Fake GPU",
            compute_capability=capability,
            set_current=lambda: self.current.add(threading.get_ident()),
            create_stream=lambda: Stream(self),
        )
        trt = ModuleType(runtime)
        vars(trt).update(
            __version__=version,
            ILogger=Logger,
            Runtime=lambda logger: SimpleNamespace(
                deserialize_cuda_engine=lambda data: self._deserialize(data, logger)
            ),
            ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED="user"),
            TensorLocation=SimpleNamespace(DEVICE="device"),
            CudaGraphStrategy=SimpleNamespace(WHOLE_GRAPH_CAPTURE="whole"),
        )
        self.modules: dict[str, Any] = {
            "cuda.bindings.runtime": cudart,
            "cuda.core": SimpleNamespace(Device=lambda index: device),
            runtime: trt,
        }

    def import_module(self, name: str) -> Any:
        if name not in self.modules:
            raise ImportError(f"No module named {name!r}")
        return self.modules[name]

    def tensor(self, address: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        self.inside(address, nbytes)
        return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=dtype).reshape(shape)

    def inside(self, address: int, nbytes: int) -> None:
        for begin, block in self.blocks.items():
            if begin <= address and address + nbytes <= begin + block.nbytes:
                return
        raise AssertionError(f"{nbytes} bytes at {address:#x} are outside every allocation")

    def require_current(self) -> None:
        if threading.get_ident() not in self.current:
            raise AssertionError("this thread has not made the GPU current")

    def _malloc(self, nbytes: int) -> tuple[Any, ...]:
        self.require_current()
        self.memory -= nbytes
        if self.memory < 0:
            return (Error.cudaErrorMemoryAllocation, 0)
        block = np.full(nbytes + 256, 0x7F, np.uint8)  # not zero: nobody promises that
        begin = -(-int(block.ctypes.data) // 256) * 256
        self.blocks[begin] = block[begin - int(block.ctypes.data) :][:nbytes]
        return (Error.cudaSuccess, begin)

    def _free(self, address: int) -> tuple[Any, ...]:
        del self.blocks[address]
        return (Error.cudaSuccess,)

    def _memset(self, at: int, value: int, nbytes: int) -> tuple[Any, ...]:
        self.require_current()
        self.inside(at, nbytes)
        ctypes.memset(at, value, nbytes)
        return (Error.cudaSuccess,)

    def _memcpy(self, to: int, at: int, nbytes: int) -> tuple[Any, ...]:
        self.require_current()
        self.inside(to, nbytes)
        self.inside(at, nbytes)
        ctypes.memmove(to, at, nbytes)
        return (Error.cudaSuccess,)

    def _memcpy_2d(
        self, to: int, to_pitch: int, at: int, at_pitch: int, width: int, height: int, kind: Kind, stream: int
    ) -> tuple[Any, ...]:
        for i in range(height):
            self._memcpy(to + i * to_pitch, at + i * at_pitch, width)
        return (Error.cudaSuccess,)

    def _memset_2d(self, at: int, pitch: int, value: int, width: int, height: int, stream: int) -> tuple[Any, ...]:
        for i in range(height):
            self._memset(at + i * pitch, value, width)
        return (Error.cudaSuccess,)

    def _deserialize(self, data: bytes, logger: Any) -> Any:
        if not data.startswith(b"plan"):
            logger.log(SimpleNamespace(name="ERROR"), "not a plan")
            return None
        return Engine(self)


class Logger:
    def __init__(self) -> None: ...


class Engine:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.names = [*gpu.interpreter.input_names, *gpu.interpreter.output_names]
        self.num_optimization_profiles = len(gpu.profiles)
        self.num_io_tensors = len(self.names)
        self.device_memory_size_v2 = 1000

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return name.replace("_out_", "_cache_") if "_out_" in name and "alias" not in self.gpu.refuse else None

    def get_tensor_location(self, name: str) -> str:
        return "host" if "location" in self.gpu.refuse and name == io.LENGTHS else "device"

    def create_runtime_config(self) -> Any:
        return RuntimeConfig(self.gpu)

    def create_execution_context(self, settings: Any) -> Any:
        return Context(self.gpu, settings)


class RuntimeCache:
    """Compiled kernels by name, as JSON. Refuses what was compiled for another GPU or by a newer driver."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.kernels: set[str] = set()

    def deserialize(self, blob: bytes) -> bool:
        self.gpu.require_current()
        try:
            kept = json.loads(blob)
        except ValueError:
            return False
        if kept["driver"] > self.gpu.driver or "kernels" in self.gpu.refuse:
            return False
        self.kernels |= set(kept["kernels"])
        return True

    def serialize(self) -> bytes | None:
        self.gpu.require_current()
        if "serialize" in self.gpu.refuse:
            return None
        return json.dumps({"driver": self.gpu.driver, "kernels": sorted(self.kernels)}).encode()


class RuntimeConfig:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.cuda_graph_strategy: Any = None
        self.cache: RuntimeCache | None = None

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None: ...

    def create_runtime_cache(self) -> RuntimeCache | None:
        return None if "cache" in self.gpu.refuse else RuntimeCache(self.gpu)

    def set_runtime_cache(self, cache: RuntimeCache) -> bool:
        self.cache = cache
        return "attach" not in self.gpu.refuse


class Context:
    def __init__(self, gpu: FakeGpu, settings: Any) -> None:
        self.gpu = gpu
        self.settings = settings
        self.profile = -1
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.scratch = (0, 0)

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self.profile = index
        self._compile(f"profile {index}")
        return True

    def _compile(self, kernel: str) -> None:
        """Kernels are compiled where no cache has them, and put into the one there is."""
        cache = self.settings.cache if isinstance(self.settings, RuntimeConfig) else None
        if cache is None or kernel not in cache.kernels:
            self.gpu.compiled.append(kernel)
        if cache is not None:
            cache.kernels.add(kernel)

    def set_device_memory(self, address: int, size: int) -> None:
        self.gpu.inside(address, size)
        self.scratch = (address, size)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.gpu.shapes_set += 1
        profile = self.gpu.profiles[self.profile]
        if name == io.TOKEN_IDS and (shape[0] > profile.batch or shape[1] > profile.rows):
            return False
        self.shapes[name] = shape
        return name in self.gpu.interpreter.input_names

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        self.gpu.require_current()
        if "enqueue" in self.gpu.refuse or not self.scratch[1]:
            return False
        self._compile(f"shape {self.shapes[io.TOKEN_IDS]}")
        shapes, addresses = dict(self.shapes), dict(self.addresses)
        work = lambda: self._run(shapes, addresses)  # noqa: E731
        if self.gpu.capturing is not None:
            self.gpu.capturing.append(work)
            return True
        self.gpu.launches.append(self.profile)
        work()
        return True

    def _run(self, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int]) -> None:
        gpu, interpreter = self.gpu, self.gpu.interpreter
        inputs = {
            name: gpu.tensor(addresses[name], shapes[name], interpreter.input_dtypes[name])
            for name in interpreter.input_names
        }
        for name, value in interpreter.run(inputs).items():
            target = gpu.tensor(addresses[name], tuple(value.shape), value.dtype)
            if value.numel() and target.data_ptr() != value.data_ptr():
                target.copy_(value)


class Stream:
    handle = 7

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu

    def sync(self) -> None:
        self.gpu.require_current()
        self.gpu.synchronizations += 1

    def close(self) -> None: ...

    def create_graph_builder(self) -> Any:
        return GraphBuilder(self.gpu)


class GraphBuilder:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.work: list[Callable[[], None]] = []

    def begin_building(self, mode: str) -> None:
        assert mode in ("global", "thread_local", "relaxed")
        if "capture" in self.gpu.refuse:
            raise RuntimeError("cannot capture")
        self.gpu.capturing = self.work

    def end_building(self) -> None:
        self.gpu.capturing = None

    def complete(self) -> Any:
        work, gpu = self.work, self.gpu

        def launch(stream: Stream) -> None:
            gpu.replays += 1
            for run in work:
                run()

        return SimpleNamespace(launch=launch, close=lambda: None)
