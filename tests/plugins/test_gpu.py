"""The kernels on a GPU: the host's results bit for bit, in graphs, under the memory checker, inside TensorRT."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from trtplugins.acceptance import AcceptResult, LookupRule, SamplingArrays, lookup_host
from trtplugins.launch import CudaStream, DeviceUnavailable, Launcher, require_device
from trtplugins.sampling_arrays import pack_sampling

from .sequences import Batch, random_batch
from .test_emulated_kernels import DTYPES, on_host, same

pytestmark = pytest.mark.gpu

ADDRESSES = ("counts", "bias_tokens", "bias_values", "ban_tokens", "mask")


@pytest.fixture(scope="module")
def launcher() -> Launcher:
    try:
        require_device()
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    return Launcher(CudaStream(torch.cuda.current_stream().cuda_stream))


class OnDevice:
    """A batch's arrays in device memory, what its sampling points to included."""

    def __init__(self, batch: Batch) -> None:
        pitch = batch.logits.strides[0] // batch.logits.itemsize
        whole = np.lib.stride_tricks.as_strided(
            batch.logits, (len(batch.logits), pitch), batch.logits.strides, writeable=False
        )
        self.logits = torch.from_numpy(whole.copy()).cuda()[:, : batch.logits.shape[1]]
        self.row_start, self.num_rows, self.tokens = (
            torch.from_numpy(a).cuda() for a in (batch.row_start, batch.num_rows, batch.tokens)
        )
        self.sampling, self.keep = None, []
        if batch.sampling is not None:
            copies = {a.ctypes.data: torch.from_numpy(a.view(np.int32)).cuda() for a in batch.keep}
            self.keep = list(copies.values())
            moved = {0: 0, **{address: copy.data_ptr() for address, copy in copies.items()}}
            addresses = {n: np.array([moved[int(p)] for p in getattr(batch.sampling, n)], np.uint64) for n in ADDRESSES}
            arrays = SamplingArrays(**{**batch.sampling._asdict(), **addresses})
            self.sampling = torch.from_numpy(pack_sampling(arrays, len(batch.row_start)).view(np.uint8)).cuda()
        self.targets = torch.full_like(self.tokens, -1)
        self.accepted, self.next = torch.zeros_like(self.num_rows), torch.zeros_like(self.num_rows)
        self.failed = torch.zeros(len(batch.row_start), dtype=torch.bool, device="cuda")
        self.max_rows = max(int(batch.num_rows.max()), 1)

    def accept(self, launcher: Launcher) -> None:
        launcher.accept(
            self.logits,
            self.row_start,
            self.num_rows,
            self.tokens,
            self.sampling,
            targets=self.targets,
            accepted=self.accepted,
            next_tokens=self.next,
            failed=self.failed,
            max_rows=self.max_rows,
        )

    def result(self) -> AcceptResult:
        return AcceptResult(*(t.cpu().numpy() for t in (self.targets, self.accepted, self.failed, self.next)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sampled", "processed"), [(False, False), (True, False), (True, True)])
def test_accept_equals_the_host_bit_for_bit(launcher: Launcher, dtype: Any, sampled: bool, processed: bool) -> None:
    rng = np.random.default_rng(31)
    for vocab, sequences in ((1, 4), (33, 256), (1000, 64), (32_000, 16), (151_936, 8)):
        batch = random_batch(rng, sequences, vocab, 9, dtype, sampled=sampled, processed=processed)
        device = OnDevice(batch)
        for _ in range(2):  # the second finds the workspace as the first left it
            device.accept(launcher)
            same(device.result(), on_host(batch, 2))


def test_accept_in_a_graph(launcher: Launcher) -> None:
    """Nothing but the stream orders the kernels: they can be captured, and replayed on new logits."""
    batch = random_batch(np.random.default_rng(32), 8, 5000, 9, np.float32, sampled=False, processed=False)
    device = OnDevice(batch)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        own = Launcher(CudaStream(stream.cuda_stream))
        device.accept(own)  # workspace is allocated outside the capture
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            device.accept(own)
    device.logits.neg_()
    graph.replay()
    torch.cuda.synchronize()
    batch.logits = -batch.logits
    same(device.result(), on_host(batch))


def test_lookup_equals_the_host(launcher: Launcher) -> None:
    rng = np.random.default_rng(33)
    for max_len, alphabet in ((50, 2), (5000, 4), (131_072, 30)):
        history = rng.integers(0, alphabet, (8, max_len)).astype(np.int32)
        lengths = rng.integers(0, max_len + 1, 8).astype(np.int32)
        allowed = rng.integers(0, 9, 8).astype(np.int32)
        for rule in (LookupRule(2, 3, 2), LookupRule(3, 4, 64)):
            rows = torch.zeros(8, 9, dtype=torch.int32, device="cuda")
            num_rows, start = (torch.zeros(8, dtype=torch.int32, device="cuda") for _ in range(2))
            device = [torch.from_numpy(a).cuda() for a in (history, lengths, allowed)]
            launcher.lookup(*device, rule, rows=rows, num_rows=num_rows, start=start)
            want = lookup_host(history, lengths, allowed, rule, 9)
            assert np.array_equal(num_rows.cpu().numpy(), want.num_rows)
            assert np.array_equal(start.cpu().numpy(), want.start)
            for b, count in enumerate(want.num_rows):
                assert rows[b, :count].tolist() == want.tokens[b, :count].tolist()


def test_commit(launcher: Launcher) -> None:
    ints = {"dtype": torch.int32, "device": "cuda"}
    history, lengths = torch.zeros(1, 8, **ints), torch.tensor([2], **ints)
    rows = torch.tensor([3], **ints)
    targets, accepted = torch.tensor([5, 6, -1], **ints), torch.tensor([1], **ints)
    launcher.commit(rows * 0, rows, targets, accepted, history=history, lengths=lengths)
    assert (history.tolist(), lengths.tolist()) == ([[0, 0, 5, 6, 0, 0, 0, 0]], [4])


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_the_memory_checker_finds_nothing(launcher: Launcher, tool: str) -> None:
    checker = shutil.which("compute-sanitizer")
    if checker is None:
        pytest.skip("needs compute-sanitizer")
    command = [checker, "--tool", tool, "--error-exitcode", "3"]
    tests = ["-m", "pytest", "-q", "-m", "gpu", __file__, "-k", "(accept_equals and float16) or lookup or commit"]
    done = subprocess.run([*command, sys.executable, *tests], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


def test_inside_a_tensorrt_engine(launcher: Launcher) -> None:
    trt = pytest.importorskip("tensorrt")
    trtp = pytest.importorskip("tensorrt.plugin")
    from trtplugins.tensorrt_plugin import add_acceptance, register_plugins

    register_plugins(trt, trtp)
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    logits = network.add_input("logits", trt.float32, (-1, -1, 1000))
    tokens = network.add_input("tokens", trt.int32, (-1, -1))
    num_rows = network.add_input("num_rows", trt.int32, (-1,))
    for name, tensor in add_acceptance(network, trtp, logits, tokens, num_rows, splits=3)._asdict().items():
        tensor.name = name
        network.mark_output(tensor)
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape("logits", (1, 1, 1000), (4, 5, 1000), (8, 9, 1000))
    profile.set_shape("tokens", (1, 1), (4, 5), (8, 9))
    profile.set_shape("num_rows", (1,), (4,), (8,))
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()

    rng = np.random.default_rng(34)
    x = rng.normal(size=(3, 6, 1000)).astype(np.float32)
    x[1, 0, 7] = np.nan
    best = x.argmax(-1).astype(np.int32)
    drafts = np.zeros((3, 6), np.int32)
    drafts[:, 1:] = best[:, :-1]
    drafts[2, 3] += 1
    rows = np.array([6, 4, 5], np.int32)
    batch = Batch(
        x.reshape(18, 1000), np.array([0, 6, 12], np.int32), rows, drafts.reshape(-1), None, *[np.zeros(1)] * 5
    )
    want = on_host(batch)
    given = {"logits": x, "tokens": drafts, "num_rows": rows}
    tensors = {name: torch.from_numpy(a).cuda() for name, a in given.items()}
    tensors |= {
        "targets": torch.zeros(3, 6, dtype=torch.int32, device="cuda"),
        "accepted": torch.zeros(3, dtype=torch.int32, device="cuda"),
        "next": torch.zeros(3, dtype=torch.int32, device="cuda"),
    }
    for name, tensor in tensors.items():
        if name in given:
            context.set_input_shape(name, tuple(tensor.shape))
        context.set_tensor_address(name, tensor.data_ptr())
    assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    assert tensors["accepted"].tolist() == want.accepted.tolist()
    assert tensors["next"].tolist() == want.next.tolist()
    assert np.array_equal(tensors["targets"].cpu().numpy().reshape(-1), want.targets)
