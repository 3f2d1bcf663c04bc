"""Loading a plan, and the GPU session's own decisions, on a fake GPU; and what a machine without one is told."""

from __future__ import annotations

import gc
import importlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtbuild.network.interpreter import Interpreter
from trtserve.engine_dir import Manifest, TokenizerRecord
from trtserve.executor import tensorrt_cuda
from trtserve.executor import tensorrt_io as io
from trtserve.executor.base import ExecutorError
from trtserve.executor.tensorrt import TensorRTExecutor, plan_info
from trtserve.executor.tensorrt_session import Binding, Call, Session
from trtserve.settings import Limits, Speculative, plan_tiers

from .fake_gpu import FakeGpu
from .models import CACHE_POSITIONS, VOCAB, build, config_of

Open = Callable[..., Session]
VERSION = "1.7.1.116"


def info_of(**changes: Any) -> io.PlanInfo:
    fields: dict[str, Any] = {
        "runtime": "tensorrt_rtx",
        "runtime_version": VERSION,
        "plan": "decoder.plan",
        "weights": "plan",
        "compute_capability": (),
        "cache_positions": CACHE_POSITIONS,
        "fold_groups": True,
        "profiles": (io.Profile(tiers=("full",), batch=2, rows=3, head_rows=3, logits=False),),
    }
    return io.PlanInfo.model_validate({**fields, **changes})


def gpu_of(trt: Any, info: io.PlanInfo, **changes: Any) -> FakeGpu:
    network = build(trt, config_of("llama"))
    interpreter = Interpreter(trt, network.definition, network.graph.constants)
    return FakeGpu(interpreter, info.profiles, **{"runtime": info.runtime, "version": VERSION, **changes})


def call_of(session: Session, slots: int, rows: int) -> Call:
    """Everything bound to memory of its own."""
    cache = (slots, 2, CACHE_POSITIONS, 8)
    shapes = {
        io.TOKEN_IDS: (slots, rows),
        io.LENGTHS: (slots,),
        io.NUM_ROWS: (slots,),
        io.HEAD_ROWS: (rows,),
        io.LOGIT_ROWS: (0,),
        io.VERDICT: (slots, 3),
        io.LOGITS: (slots, 0, VOCAB),
    }
    bindings = {name: Binding(session.allocate(4 * slots * 3), shape) for name, shape in shapes.items()}
    for layer in range(2):
        for kind in "kv":
            held = Binding(session.allocate(4 * int(np.prod(cache))), cache)
            bindings[io.cache_input(kind, layer)] = bindings[io.cache_output(kind, layer)] = held
    return Call(0, bindings)


def test_full_tensorrt_replays_a_graph_from_a_calls_third_enqueue(trt: Any, open_fake: Open) -> None:
    info = info_of(runtime="tensorrt")
    gpu = gpu_of(trt, info)
    session = open_fake(gpu, info)
    first, second = call_of(session, 1, 2), call_of(session, 2, 3)
    for call in (first, second, first, first, second, first):
        session.enqueue(call)
    # Ran: first, second, first (then captured), second (then captured). Replayed: the other two.
    assert len(gpu.launches) == 4
    assert gpu.replays == 2
    session.close()
    assert not gpu.blocks


def test_graphs_and_calls_that_are_gone_are_not_kept(trt: Any, open_fake: Open) -> None:
    """Prompts end anywhere, so their last chunks are of every length: what is kept for each must end too."""
    info = info_of(runtime="tensorrt")
    session = open_fake(gpu_of(trt, info), info)
    assert isinstance(session, tensorrt_cuda.CudaSession)
    call = call_of(session, 1, 2)
    for _ in range(100):
        again = Call(0, dict(call.bindings))
        session.enqueue(again)
        session.enqueue(again)
    del again
    gc.collect()
    assert len(session._graphs) == 64
    assert len(session._seen) <= 65


def test_rtx_is_left_to_capture_its_own_graphs(trt: Any, open_fake: Open) -> None:
    gpu = gpu_of(trt, info_of())
    session = open_fake(gpu, info_of())
    call = call_of(session, 1, 2)
    for _ in range(4):
        session.enqueue(call)
    assert (len(gpu.launches), gpu.replays) == (4, 0)


def test_a_runtime_that_cannot_capture_goes_on_without(trt: Any, open_fake: Open) -> None:
    info = info_of(runtime="tensorrt")
    gpu = gpu_of(trt, info)
    session = open_fake(gpu, info)
    gpu.refuse.add("capture")
    call = call_of(session, 1, 2)
    for _ in range(5):
        session.enqueue(call)
    assert (len(gpu.launches), gpu.replays) == (5, 0)


def test_only_what_changed_is_bound_again(trt: Any, open_fake: Open) -> None:
    gpu = gpu_of(trt, info_of())
    session = open_fake(gpu, info_of())
    call = call_of(session, 1, 2)
    session.enqueue(call)
    before = gpu.shapes_set
    session.enqueue(call)
    assert gpu.shapes_set == before
    moved = Call(0, {**call.bindings, io.LENGTHS: Binding(session.allocate(16), (1,))})
    session.enqueue(moved)
    assert gpu.shapes_set == before


def test_shapes_the_runtime_refuses_are_named(trt: Any, open_fake: Open) -> None:
    gpu = gpu_of(trt, info_of())
    session = open_fake(gpu, info_of())
    with pytest.raises(ExecutorError, match=r"token_ids of shape \[3, 3\] was refused"):
        session.enqueue(call_of(session, 3, 3))


def test_an_enqueue_that_fails_is_an_error(trt: Any, open_fake: Open) -> None:
    gpu = gpu_of(trt, info_of())
    session = open_fake(gpu, info_of())
    gpu.refuse.add("enqueue")
    with pytest.raises(ExecutorError, match="the enqueue failed: the runtime gave no reason"):
        session.enqueue(call_of(session, 1, 1))


def test_memory_that_cannot_be_had_is_named(trt: Any, open_fake: Open) -> None:
    gpu = gpu_of(trt, info_of(), memory=100_000)
    session = open_fake(gpu, info_of())
    with pytest.raises(ExecutorError, match=r"200,000 bytes of GPU memory cannot be had on cuda:0 \(Fake GPU\)"):
        session.allocate(200_000)


@pytest.mark.parametrize(
    ("changes", "given", "message"),
    [
        ({}, {"version": "1.6.1.120"}, r"built with tensorrt_rtx 1\.7\.1\.116, installed is 1\.6\.1\.120: rebuild"),
        ({}, {"capability": (9, 0)}, r"does not run on Fake GPU \(compute capability 90\).*80, 86, 89, 120, 121"),
        ({}, {"capability": (7, 5)}, r"compute capability 75"),
        ({"compute_capability": (86, 120)}, {"capability": (8, 9)}, r"compute capability 89\).* for 86, 120"),
        ({"profiles": ()}, {}, r"the plan has 1 profiles, its manifest 0"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(
    trt: Any, open_fake: Open, changes: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    gpu = gpu_of(trt, info_of(), **given)
    with pytest.raises(ExecutorError, match=message):
        open_fake(gpu, info_of(**changes))
    assert not gpu.blocks


def test_later_gpus_than_the_default_set_are_tried(trt: Any, open_fake: Open) -> None:
    gpu = gpu_of(trt, info_of(), capability=(13, 0))
    assert open_fake(gpu, info_of()).device == "cuda:0 (Fake GPU)"


def test_a_version_is_checked_before_anything_is_deserialized(trt: Any, open_fake: Open) -> None:
    gpu = gpu_of(trt, info_of(), version="2.0")
    del gpu.modules["cuda.bindings.runtime"]  # not even asked whether there is a GPU
    with pytest.raises(ExecutorError, match=r"installed is 2\.0"):
        open_fake(gpu, info_of())


@pytest.mark.parametrize(
    ("capability", "runtime"),
    [*((c, "tensorrt_rtx") for c in (75, 80, 86, 89, 120, 121, 130)), *((c, "tensorrt") for c in (70, 90, 100, 103))],
)
def test_each_gpu_has_its_runtime(capability: int, runtime: str) -> None:
    assert tensorrt_cuda.runtime_for(capability) == runtime


def test_whichever_thread_runs_it_uses_its_gpu(trt: Any, open_fake: Open) -> None:
    """An engine is loaded by one thread and run by another; CUDA's current device is each thread's own."""
    gpu = gpu_of(trt, info_of())
    session = open_fake(gpu, info_of())
    call = call_of(session, 1, 2)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            host = session.host_array((3,), np.int32)
            host[:] = 1
            session.upload(call.bindings[io.TOKEN_IDS].address, host)
            session.enqueue(call)
            session.synchronize()
            session.close()
        except BaseException as e:
            failures.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failures
    assert thread.ident in gpu.current
    assert not gpu.blocks


def test_a_plan_that_wants_host_memory_is_refused(trt: Any, open_fake: Open) -> None:
    gpu = gpu_of(trt, info_of())
    gpu.refuse.add("location")
    with pytest.raises(ExecutorError, match="the plan wants lengths in host memory; it is bound on the device"):
        open_fake(gpu, info_of())


def test_a_plan_that_copies_its_cache_is_refused(trt: Any, open_fake: Open) -> None:
    gpu = gpu_of(trt, info_of())
    gpu.refuse.add("alias")
    with pytest.raises(ExecutorError, match="does not update k_cache_0 in place"):
        open_fake(gpu, info_of())


def test_a_damaged_plan_is_refused_with_the_runtimes_reason(
    trt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = gpu_of(trt, info_of())
    monkeypatch.setattr(tensorrt_cuda.importlib, "import_module", gpu.import_module)
    (tmp_path / "bad.plan").write_bytes(b"junk")
    with pytest.raises(ExecutorError, match=r"bad\.plan: the plan was not accepted: not a plan"):
        tensorrt_cuda.open_session(tmp_path / "bad.plan", info_of(), 0)


def test_a_gpu_that_is_not_there_is_named(trt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = gpu_of(trt, info_of())
    monkeypatch.setattr(tensorrt_cuda.importlib, "import_module", gpu.import_module)
    with pytest.raises(ExecutorError, match="GPU 3 was asked for; this machine has 0 to 0"):
        tensorrt_cuda.open_session(tmp_path / "decoder.plan", info_of(), 3)
    assert tensorrt_cuda.free_memory() == 1000


def manifest_of(**changes: Any) -> Manifest:
    limits, speculative = Limits(max_batch_size=2, max_seq_len=32, prefill_chunk=16), Speculative()
    fields: dict[str, Any] = {
        "name": "tiny",
        "target": "tensorrt",
        "model": config_of("llama"),
        "tokenizer": TokenizerRecord(vocab_size=VOCAB),
        "limits": limits,
        "speculative": speculative,
        "tiers": plan_tiers(limits, speculative),
        "inputs_digest": "",
        "weights_digest": "",
        "tokenizer_digest": "",
        "built_with": {},
        "target_info": info_of().model_dump(mode="json"),
    }
    return Manifest(**{**fields, **changes})


@pytest.mark.skipif(tensorrt_cuda.missing_gpu() is None, reason="this machine has a GPU")
def test_a_machine_without_a_gpu_is_told_so_in_one_line(trt: Any, tmp_path: Path) -> None:
    """The real libraries, no fake: the check comes before any call that a missing driver would hang."""
    changed = info_of(runtime_version=trt.__version__).model_dump(mode="json")
    with pytest.raises(ExecutorError, match=r"decoder\.plan: a tensorrt_rtx plan needs a GPU: ") as raised:
        TensorRTExecutor.load(tmp_path, manifest_of(target_info=changed))
    assert "\n" not in str(raised.value)
    assert tensorrt_cuda.free_memory() is None


def test_a_runtime_that_is_not_installed_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(tensorrt_cuda.importlib, "import_module", missing)
    with pytest.raises(ExecutorError, match=r"needs tensorrt 11\.4, which is not installed.*trtlookup\[cuda,trt\]"):
        tensorrt_cuda.open_session(tmp_path, info_of(runtime="tensorrt", runtime_version="11.4"), 0)
    assert "pip install 'trtlookup[cuda]'" in str(tensorrt_cuda.missing_gpu())


def test_manifests_of_other_targets_are_refused() -> None:
    with pytest.raises(ExecutorError, match="engine tiny is for target torch, not tensorrt"):
        plan_info(manifest_of(target="torch"))
    with pytest.raises(ExecutorError, match="target_info is not a tensorrt plan's"):
        plan_info(manifest_of(target_info={"plan": "x"}))


def test_what_the_session_calls_exists_in_the_real_libraries(trt: Any) -> None:
    cudart = pytest.importorskip("cuda.bindings.runtime")
    core = pytest.importorskip("cuda.core")
    gpu = gpu_of(trt, info_of())
    for name in vars(gpu.modules["cuda.bindings.runtime"]):
        assert hasattr(cudart, name)
    for name in ("cudaMemcpyHostToDevice", "cudaMemcpyDeviceToHost", "cudaMemcpyDeviceToDevice"):
        assert hasattr(cudart.cudaMemcpyKind, name)
    for name in ("device_id", "name", "compute_capability", "set_current", "create_stream"):
        assert hasattr(core.Device, name)
    for name in ("handle", "sync", "close", "create_graph_builder"):
        assert hasattr(core.Stream, name)
    graph = importlib.import_module("cuda.core.graph")
    for name in ("begin_building", "end_building", "complete"):
        assert hasattr(graph.GraphBuilder, name)
    assert hasattr(graph.Graph, "launch")
    for owner, names in {
        "Runtime": ["deserialize_cuda_engine"],
        "ICudaEngine": [
            "num_optimization_profiles",
            "num_io_tensors",
            "get_tensor_name",
            "get_aliased_input_tensor",
            "get_tensor_location",
            "device_memory_size_v2",
            "create_runtime_config",
            "create_execution_context",
        ],
        "IExecutionContext": [
            "set_optimization_profile_async",
            "set_device_memory",
            "set_input_shape",
            "set_tensor_address",
            "execute_async_v3",
        ],
        "IRuntimeConfig": [
            "cuda_graph_strategy",
            "set_execution_context_allocation_strategy",
            "create_runtime_cache",
            "set_runtime_cache",
        ],
        "IRuntimeCache": ["deserialize", "serialize"],
    }.items():
        for name in names:
            assert hasattr(getattr(trt, owner), name)
    assert hasattr(trt.ExecutionContextAllocationStrategy, "USER_MANAGED")
    assert hasattr(trt.CudaGraphStrategy, "WHOLE_GRAPH_CAPTURE")
    assert hasattr(trt.TensorLocation, "DEVICE")
