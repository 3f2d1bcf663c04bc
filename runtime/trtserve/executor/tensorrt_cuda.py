"""The session on a GPU: a deserialized plan, one stream, memory that lives as long as the session.

Every check that can be made without a device is made before one is touched: the runtime is installed, its version is
the plan's, there is a driver and a GPU, the plan was built for that GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import logging
import threading
from collections import deque
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from trtserve.executor import tensorrt_io as io
from trtserve.executor.base import ExecutorError
from trtserve.executor.kernel_cache import Identity, KernelCache
from trtserve.executor.tensorrt_session import Call, Session, contiguous_bytes
from trtserve.executor.tensorrt_types import ICudaEngine, IExecutionContext, IRuntimeCache, IRuntimeConfig, TensorRT

_log = logging.getLogger(__name__)

_EXTRAS = {"tensorrt_rtx": "rtx", "tensorrt": "trt"}
#: What a TensorRT-RTX plan without a list of its own runs on; later ones than these too.
_RTX_DEFAULT = (80, 86, 89, 120, 121)
#: Not among them, but a plan that names it runs there.
_RTX_OLDEST = 75
#: Graphs kept at once: a captured enqueue holds device resources.
_MAX_GRAPHS = 64


def missing_gpu() -> str | None:
    """Why no GPU can be used here, in one line; None when one can. Touches no driver."""
    try:
        runtime = importlib.import_module("cuda.bindings.runtime")
    except ImportError as e:
        return f"cuda-python is not installed ({e}): pip install 'trtlookup[cuda]'"
    # Any other call may hang for ever on a machine without a driver.
    error, count = runtime.cudaGetDeviceCount()
    if error.name == "cudaErrorInsufficientDriver":
        return f"no NVIDIA driver found here, or one older than CUDA 13 needs (cudaGetDeviceCount: {error.name})"
    if int(error):
        return f"no NVIDIA GPU found here (cudaGetDeviceCount: {error.name})"
    return None if count else "no NVIDIA GPU found here (cudaGetDeviceCount: 0)"


def free_memory(device: int = 0) -> int | None:
    """Bytes free on a GPU, or None where there is none."""
    if missing_gpu() is not None:
        return None
    runtime = importlib.import_module("cuda.bindings.runtime")
    _checked(runtime.cudaSetDevice(device), "cudaSetDevice")
    free, _ = _checked(runtime.cudaMemGetInfo(), "cudaMemGetInfo")
    return int(free)


def capability_of(device: int = 0) -> int:
    """A GPU's compute capability as 10 * major + minor. There must be one: see ``missing_gpu``."""
    gpu = importlib.import_module("cuda.core").Device(device)
    gpu.set_current()
    major, minor = gpu.compute_capability
    return 10 * int(major) + int(minor)


def runtime_for(capability: int) -> io.RuntimeName:
    """The runtime for GPUs of this compute capability: TensorRT-RTX where its plans run, else full TensorRT."""
    rtx = capability in (_RTX_OLDEST, *_RTX_DEFAULT) or capability > max(_RTX_DEFAULT)
    return "tensorrt_rtx" if rtx else "tensorrt"


def open_session(
    path: Path, info: io.PlanInfo, device: int, *, kernels: Path | None = None, plan_digest: str = ""
) -> CudaSession:
    """Load the plan at ``path`` onto GPU ``device``. Raises ExecutorError, in one line, when it cannot run here.

    ``kernels``: the directory that keeps what TensorRT-RTX compiles; None: nothing is kept. ``plan_digest``: the plan's
    SHA-256; nothing is kept without it.
    """
    trt = _load_runtime(info)
    if (missing := missing_gpu()) is not None:
        raise ExecutorError(f"{path}: a {info.runtime} plan needs a GPU: {missing}")
    runtime = importlib.import_module("cuda.bindings.runtime")
    count = _checked(runtime.cudaGetDeviceCount(), "cudaGetDeviceCount")
    if not 0 <= device < count:
        raise ExecutorError(f"GPU {device} was asked for; this machine has 0 to {count - 1}")
    cuda = importlib.import_module("cuda.core")
    gpu = cuda.Device(device)
    capability = capability_of(device)
    require_target(info, capability, str(gpu.name))
    kept = None
    if kernels is not None and plan_digest and info.runtime == "tensorrt_rtx":
        driver = int(_checked(runtime.cudaDriverGetVersion(), "cudaDriverGetVersion"))
        version = f"{info.runtime} {info.runtime_version}"
        kept = KernelCache(kernels, Identity(version, plan_digest, str(gpu.name), capability, driver))
    return CudaSession(trt, info, path, gpu, kept)


def _load_runtime(info: io.PlanInfo) -> TensorRT:
    """The runtime's module, of exactly the plan's version: plans are not portable between versions."""
    try:
        trt = cast(TensorRT, importlib.import_module(info.runtime))
    except ImportError as e:
        extra = _EXTRAS[info.runtime]
        raise ExecutorError(
            f"the plan needs {info.runtime} {info.runtime_version}, which is not installed ({e}): "
            f"pip install 'trtlookup[cuda,{extra}]'"
        ) from e
    if trt.__version__ != info.runtime_version:
        raise ExecutorError(
            f"the plan was built with {info.runtime} {info.runtime_version}, installed is {trt.__version__}: "
            f"rebuild the engine, or install {info.runtime_version}"
        )
    return trt


def require_target(info: io.PlanInfo, capability: int, name: str) -> None:
    """Raise ExecutorError unless the plan was built for this compute capability (10 * major + minor)."""
    if info.runtime != "tensorrt_rtx":
        return  # full TensorRT checks the GPU it was built for when it deserializes
    allowed = info.compute_capability or _RTX_DEFAULT
    if capability in allowed or (not info.compute_capability and capability > max(_RTX_DEFAULT)):
        return
    raise ExecutorError(
        f"the plan does not run on {name} (compute capability {capability}); it was built with tensorrt_rtx for "
        f"{', '.join(map(str, allowed))}"
    )


class CudaSession(Session):
    """One plan on one GPU. All contexts share one scratch allocation: on one stream only one of them runs at a time.

    ``kernels``: where what TensorRT-RTX compiles is kept, if anywhere. It is written when the contexts are made, which
    is when most is compiled, and on ``close``, never between rounds.
    """

    def __init__(
        self, trt: TensorRT, info: io.PlanInfo, path: Path, gpu: Any, kernels: KernelCache | None = None
    ) -> None:
        self._cudart = importlib.import_module("cuda.bindings.runtime")
        self._gpu = gpu
        self._thread = threading.get_ident()
        self._kernels = kernels
        self._compiled: IRuntimeCache | None = None
        self._settings: list[IRuntimeConfig] = []
        """Contexts need what they were configured with for as long as they live, the compiled kernels too."""
        self.device = f"cuda:{gpu.device_id} ({gpu.name})"
        self._device_memory: list[int] = []
        self._host_memory: list[int] = []
        self._graphs: dict[Call, Any] = {}
        self._seen: WeakSet[Call] = WeakSet()
        self._bound: dict[int, Call] = {}
        self._contexts: list[IExecutionContext] = []
        self._engine: ICudaEngine | None = None
        self._closed = False
        self._stream = gpu.create_stream()
        self._handle = int(self._stream.handle)
        self._errors: deque[str] = deque(maxlen=3)
        self._logger = _logger_class(trt)(self._errors)
        try:
            self._runtime = trt.Runtime(self._logger)
            engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
            if engine is None:
                raise self._refused(f"{path}: the plan was not accepted")
            self._engine = engine
            _check_engine(trt, engine, info)
            # RTX captures graphs itself, once its kernels for a shape are compiled; with full TensorRT this class does.
            self._captures = info.runtime == "tensorrt"
            self._contexts = self._make_contexts(trt, engine, info)
        except BaseException:
            self.close()
            raise

    def allocate(self, nbytes: int) -> int:
        self._use_gpu()
        result = self._cudart.cudaMalloc(max(nbytes, 1))
        if int(result[0]):
            raise ExecutorError(f"{nbytes:,} bytes of GPU memory cannot be had on {self.device}: {result[0].name}")
        address = int(result[1])
        self._device_memory.append(address)
        _checked(self._cudart.cudaMemsetAsync(address, 0, max(nbytes, 1), self._handle), "cudaMemsetAsync")
        return address

    def host_array(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape)) * kind.itemsize
        if not nbytes:
            return np.empty(shape, kind)
        self._use_gpu()
        address = int(_checked(self._cudart.cudaMallocHost(nbytes), "cudaMallocHost"))
        self._host_memory.append(address)
        buffer = (ctypes.c_uint8 * nbytes).from_address(address)
        return np.frombuffer(buffer, kind).reshape(shape)

    def upload(self, address: int, source: NDArray[Any]) -> None:
        host, nbytes = contiguous_bytes(source)
        self._copy(address, host, nbytes, "cudaMemcpyHostToDevice")

    def download(self, target: NDArray[Any], address: int) -> None:
        host, nbytes = contiguous_bytes(target)
        self._copy(host, address, nbytes, "cudaMemcpyDeviceToHost")

    def copy_rows(self, target: int, source: int, pitch: int, width: int, rows: int) -> None:
        self._use_gpu()
        kind = self._cudart.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        _checked(
            self._cudart.cudaMemcpy2DAsync(target, pitch, source, pitch, width, rows, kind, self._handle),
            "cudaMemcpy2DAsync",
        )

    def zero_rows(self, target: int, pitch: int, width: int, rows: int) -> None:
        self._use_gpu()
        _checked(self._cudart.cudaMemset2DAsync(target, pitch, 0, width, rows, self._handle), "cudaMemset2DAsync")

    def enqueue(self, call: Call) -> None:
        self._use_gpu()
        if (graph := self._graphs.get(call)) is not None:
            graph.launch(self._stream)
            return
        self._bind(call)
        context = self._contexts[call.profile]
        if not context.execute_async_v3(self._handle):
            raise self._refused("the enqueue failed")
        # Captured at a call's second enqueue, right after it: TensorRT has by then done what a new shape makes it do.
        if self._captures and call in self._seen:
            self._capture(call, context)
        self._seen.add(call)

    def synchronize(self) -> None:
        self._use_gpu()
        self._stream.sync()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Exception):  # a device that failed is still let go of
            self._use_gpu()
            self._stream.sync()
            self._keep_kernels()
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()
        self._bound.clear()
        self._contexts = []
        self._settings = []
        self._compiled = None
        self._engine = None
        for address in self._device_memory:
            self._cudart.cudaFree(address)
        for address in self._host_memory:
            self._cudart.cudaFreeHost(address)
        self._stream.close()

    def _make_contexts(self, trt: TensorRT, engine: ICudaEngine, info: io.PlanInfo) -> list[IExecutionContext]:
        """One context for each profile, so that no round waits for a switch."""
        strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        size = max(int(engine.device_memory_size_v2), 1)  # what the largest profile needs
        scratch = self.allocate(size)
        contexts = []
        for i, profile in enumerate(info.profiles):
            if info.runtime == "tensorrt_rtx":
                settings = engine.create_runtime_config()
                settings.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
                settings.set_execution_context_allocation_strategy(strategy)
                self._settings.append(settings)
                self._reuse_kernels(settings)
                context = engine.create_execution_context(settings)
            else:
                context = engine.create_execution_context(strategy)
            if context is None:
                raise self._refused(f"no context for the profile {profile.label}")
            if not context.set_optimization_profile_async(i, self._handle):
                raise self._refused(f"the profile {profile.label} was refused")
            context.set_device_memory(scratch, size)
            contexts.append(context)
        self.synchronize()
        self._keep_kernels()
        return contexts

    def _use_gpu(self) -> None:
        """CUDA's current device is the thread's own, and whoever loads an engine need not be who runs it."""
        if (thread := threading.get_ident()) != self._thread:
            self._gpu.set_current()
            self._thread = thread

    def _reuse_kernels(self, settings: IRuntimeConfig) -> None:
        """Give a context's settings what was compiled before, and what all contexts compile from now on."""
        if self._kernels is None:
            return
        if self._compiled is None:
            self._compiled = settings.create_runtime_cache()
            if self._compiled is None:
                self._kernels = None
                _log.warning("the runtime keeps no compiled kernels: %s", self._reasons())
                return
            kept = self._kernels.read()
            # The runtime says no to another GPU, an older driver, another version of itself, or what it cannot read.
            if kept and not self._compiled.deserialize(kept):
                self._kernels.ignored(f"the runtime rejected it: {self._reasons()}")
        if not settings.set_runtime_cache(self._compiled):
            self._kernels = None
            _log.warning("the runtime keeps no compiled kernels: %s", self._reasons())

    def _keep_kernels(self) -> None:
        if self._kernels is None or self._compiled is None:
            return
        if (compiled := self._compiled.serialize()) is not None and (content := bytes(memoryview(compiled))):
            self._kernels.write(content)

    def _bind(self, call: Call) -> None:
        """Tell the context what differs from the call it ran last."""
        context, last = self._contexts[call.profile], self._bound.get(call.profile)
        if last is call:
            return
        self._bound.pop(call.profile, None)
        for name, binding in call.bindings.items():
            before = None if last is None else last.bindings[name]
            is_input = name not in (io.VERDICT, io.LOGITS) and "_out_" not in name
            reshaped = is_input and (before is None or before.shape != binding.shape)
            if reshaped and not context.set_input_shape(name, binding.shape):
                raise self._refused(f"{name} of shape {list(binding.shape)} was refused")
            moved = before is None or before.address != binding.address
            if moved and not context.set_tensor_address(name, binding.address):
                raise self._refused(f"{name} at {binding.address:#x} was refused")
        self._bound[call.profile] = call

    def _capture(self, call: Call, context: IExecutionContext) -> None:
        """Keep an enqueue of this call as a graph. Where the runtime cannot, enqueues go on without."""
        builder = self._stream.create_graph_builder()
        try:
            builder.begin_building("thread_local")
            enqueued = context.execute_async_v3(self._handle)
            builder.end_building()
            if not enqueued:
                raise self._refused("the enqueue cannot be captured")
            graph = builder.complete()
        except Exception as e:
            self._captures = False
            _log.warning("CUDA graphs are off: %s", e)
            return
        while len(self._graphs) >= _MAX_GRAPHS:
            oldest = next(iter(self._graphs))
            self.synchronize()
            self._graphs.pop(oldest).close()
            self._seen.discard(oldest)
        self._graphs[call] = graph

    def _copy(self, target: int, source: int, nbytes: int, kind: str) -> None:
        self._use_gpu()
        direction = getattr(self._cudart.cudaMemcpyKind, kind)
        _checked(self._cudart.cudaMemcpyAsync(target, source, nbytes, direction, self._handle), "cudaMemcpyAsync")

    def _refused(self, what: str) -> ExecutorError:
        """With what the runtime logged, which is where its reasons are."""
        return ExecutorError(f"{what}: {self._reasons()}")

    def _reasons(self) -> str:
        reasons = "; ".join(self._errors)
        self._errors.clear()
        return reasons or "the runtime gave no reason"


@functools.cache
def _logger_class(trt: TensorRT) -> Any:
    """Made once a module and kept: the bindings do not expect a subclass to be collected with its instances."""

    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self, errors: deque[str]) -> None:
            super().__init__()
            self._errors = errors

        def log(self, severity: Any, msg: str) -> None:
            if severity.name in ("ERROR", "INTERNAL_ERROR"):
                self._errors.append(msg)
                _log.error("%s", msg)

    return Logger


def _checked(result: Any, call: str) -> Any:
    """The values of a CUDA call's result, alone when there is one. Raises ExecutorError naming the call."""
    error, *values = result
    if int(error):
        raise ExecutorError(f"{call}: {error.name}")
    return values[0] if len(values) == 1 else tuple(values)


def _check_engine(trt: TensorRT, engine: ICudaEngine, info: io.PlanInfo) -> None:
    """The plan is what the manifest says: its profiles, every tensor on the device, each cache output on its input."""
    if engine.num_optimization_profiles != len(info.profiles):
        raise ExecutorError(
            f"the plan has {engine.num_optimization_profiles} profiles, its manifest {len(info.profiles)}"
        )
    for i in range(engine.num_io_tensors):
        name = engine.get_tensor_name(i)
        if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
            raise ExecutorError(f"the plan wants {name} in host memory; it is bound on the device")
        if "_out_" in name:
            kind, layer = name[0], int(name.rsplit("_", 1)[1])
            aliased = engine.get_aliased_input_tensor(name)
            if aliased != io.cache_input(kind, layer):
                raise ExecutorError(f"the plan does not update {io.cache_input(kind, layer)} in place: {aliased}")
