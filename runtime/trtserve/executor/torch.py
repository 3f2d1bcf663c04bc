"""The ``torch`` target's executor: native kernels on a CPU, torch operators on a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trtplugins.acceptance import accept_host
from trtserve.engine_dir import WEIGHTS_NAME, Manifest
from trtserve.executor.base import (
    MAX_THREADS,
    Executor,
    ExecutorError,
    ExecutorInfo,
    StepInput,
    StepOutput,
    TokenLogprobs,
)
from trtserve.executor.decoder import Decoder, NamedTensors, Rows, TorchDecoder
from trtserve.executor.logprobs import token_logprobs
from trtserve.executor.native import NativeDecoder
from trtserve.executor.sampling_arrays import sampling_arrays
from trtserve.model_config import DecoderConfig
from trtserve.settings import Limits, Tier

_NO_ROWS = np.empty(0, np.int32)


class TorchExecutor(Executor):
    """Runs a decoder on the device torch names.

    On a CPU every forward is exact (``info.exact``), whether ``exact_verify`` asks for it or not: it costs nothing
    there. On CUDA the libraries choose kernels by shape, so nothing is promised and ``info.exact`` is False.
    """

    def __init__(
        self,
        config: DecoderConfig,
        tensors: NamedTensors,
        limits: Limits,
        tiers: Sequence[Tier],
        *,
        device: str = "cpu",
        threads: int | None = None,
        native: bool | None = None,
        cpu_level: str | None = None,
    ) -> None:
        """``tensors``: canonical names and tensors. ``threads``: None takes ``torch.get_num_threads()``.

        ``native`` and ``cpu_level`` are for comparisons: torch operators on a CPU, another instruction set.
        Raises ExecutorError when the device, the memory or a tensor is missing.
        """
        _check_device(device)
        threads = _thread_count(threads)
        native = torch.device(device).type == "cpu" if native is None else native
        tensors = _checked(config, tensors)
        self._max_rows = max(limits.prefill_chunk, *(t.batch * t.rows for t in tiers if t.name != "prefill"))
        if native:
            self._decoder: Decoder | None = NativeDecoder(
                config,
                tensors,
                slots=limits.max_batch_size,
                positions=limits.max_seq_len,
                max_rows=self._max_rows,
                threads=threads,
                level=cpu_level,
            )
        else:
            self._decoder = TorchDecoder(
                config, tensors, slots=limits.max_batch_size, positions=limits.max_seq_len, device=device
            )
        self._threads = threads
        step_rows = max(t.batch * t.rows for t in tiers if t.name != "prefill")
        self._logits = np.empty((step_rows, config.vocab_size), np.float32)
        self.info = ExecutorInfo(
            max_batch_size=limits.max_batch_size,
            max_seq_len=limits.max_seq_len,
            prefill_chunk=limits.prefill_chunk,
            vocab_size=config.vocab_size,
            tiers=tuple(tiers),
            exact=self._decoder.exact,
            device=device,
        )

    @classmethod
    def load(
        cls, engine_dir: Path, manifest: Manifest, *, device: str = "cpu", threads: int | None = None
    ) -> TorchExecutor:
        """The executor of an engine directory. Raises ExecutorError when it cannot run here."""
        return cls.load_weights(
            engine_dir, manifest.model, manifest.limits, manifest.tiers, device=device, threads=threads
        )

    @classmethod
    def load_weights(
        cls,
        directory: Path,
        config: DecoderConfig,
        limits: Limits,
        tiers: Sequence[Tier],
        *,
        device: str = "cpu",
        threads: int | None = None,
    ) -> TorchExecutor:
        """The executor of the weights in ``directory``. Raises ExecutorError when it cannot run here."""
        return cls(config, _read_weights(directory / WEIGHTS_NAME), limits, tiers, device=device, threads=threads)

    def prefill(self, slot: int, start: int, tokens: NDArray[np.int32]) -> None:
        if not 1 <= len(tokens) <= self.info.prefill_chunk:
            raise ValueError(f"prefill of {len(tokens)} tokens; allowed: 1 to {self.info.prefill_chunk}")
        self._forward(_one(slot, start, tokens, _NO_ROWS), self._logits[:0])

    def step(self, batch: StepInput) -> StepOutput:
        most = self.info.max_rows(len(batch.slots))
        if not len(batch.slots) or batch.num_rows.max() > most:
            rows = batch.num_rows.tolist()
            raise ValueError(f"step of {len(rows)} sequences with rows {rows}; allowed for so many: {most} each")
        total = int(batch.num_rows.sum())
        logits = self._logits[:total]
        every_row = np.arange(total, dtype=np.int32)
        self._forward(Rows(batch.tokens, batch.slots, batch.lengths, batch.num_rows, every_row), logits)
        starts = batch.offsets[:-1].astype(np.int32)
        accepting = accept_host(
            logits, starts, batch.num_rows, batch.tokens, sampling_arrays(batch.sampling), self._threads
        )
        targets, accepted, failed = accepting.targets, accepting.accepted, accepting.failed
        logprobs: list[list[TokenLogprobs] | None] = []
        for state, start, count in zip(batch.sampling, starts, accepted, strict=True):
            emitted = slice(start, start + count + 1)
            top = state.params.logprobs
            logprobs.append(None if top is None else token_logprobs(logits[emitted], targets[emitted], top))
        return StepOutput(targets, accepted, failed, logprobs)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self._live().copy_prefix(source, target, length)

    @property
    def threads(self) -> int:
        """CPU threads that compute a verify."""
        return self._threads

    @property
    def vocab_size(self) -> int:
        return self.info.vocab_size

    @property
    def max_packed_rows(self) -> int:
        """Most rows of one ``predict``, over all sequences."""
        return self._max_rows

    def predict(
        self,
        slots: NDArray[np.int32],
        lengths: NDArray[np.int32],
        num_rows: NDArray[np.int32],
        tokens: NDArray[np.int32],
    ) -> NDArray[np.int32]:
        """The most likely token after each sequence's last row, int32 ``[B]``; -1 where a logit is NaN or none is
        finite. The lowest of equals. Arguments as in ``StepInput``; writes K/V for every row, accepts nothing.

        At most ``max_packed_rows`` rows over all sequences, any number for one.
        """
        if len(tokens) > self._max_rows or len(slots) > len(self._logits):
            raise ValueError(f"{len(tokens)} rows; allowed in one forward: {self._max_rows}")
        logits = self._logits[: len(slots)]
        last = np.cumsum(num_rows, dtype=np.int32) - np.int32(1)
        self._forward(Rows(tokens, slots, lengths, num_rows, last), logits)
        best = logits.argmax(axis=1)
        finite = np.isfinite(np.take_along_axis(logits, best[:, None], axis=1)[:, 0])
        return np.where(finite, best, -1).astype(np.int32)

    def logits(self, slot: int, start: int, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """The logits of every token of a run, float32 ``[n, vocab_size]``; writes its K/V like ``prefill``.

        At most ``prefill_chunk`` tokens. For comparisons; a round needs only ``step``.
        """
        out = np.empty((len(tokens), self.info.vocab_size), np.float32)
        self._forward(_one(slot, start, tokens, np.arange(len(tokens), dtype=np.int32)), out)
        return out

    def close(self) -> None:
        self._decoder = None

    def _forward(self, rows: Rows, out: NDArray[np.float32]) -> None:
        self._live().forward(rows, out)

    def _live(self) -> Decoder:
        if self._decoder is None:
            raise ExecutorError("the executor is closed")
        return self._decoder


def _one(slot: int, start: int, tokens: NDArray[np.int32], logit_rows: NDArray[np.int32]) -> Rows:
    def one(value: int) -> NDArray[np.int32]:
        return np.array([value], np.int32)

    return Rows(tokens, one(slot), one(start), one(len(tokens)), logit_rows)


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError as e:
        raise ExecutorError(f"device is {device!r}; allowed: cpu, cuda, cuda:N") from e
    if kind not in ("cpu", "cuda"):
        raise ExecutorError(f"device is {device!r}; allowed: cpu, cuda, cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ExecutorError(f"device is {device!r}, but torch finds no CUDA device here; use --device cpu")


def _thread_count(threads: int | None) -> int:
    if threads is None:
        return min(torch.get_num_threads(), MAX_THREADS)
    if not 1 <= threads <= MAX_THREADS:
        raise ExecutorError(f"threads is {threads}; allowed: 1 to {MAX_THREADS}")
    return threads


def _read_weights(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Tensor by tensor, so that the file never lies in memory whole."""
    try:
        with safe_open(path, framework="pt") as f:
            for name in f.keys():  # noqa: SIM118 (not a mapping)
                yield name, f.get_tensor(name)
    except (OSError, SafetensorError) as e:
        raise ExecutorError(f"{path}: cannot be read: {e}") from e


def _checked(config: DecoderConfig, tensors: NamedTensors) -> Iterator[tuple[str, Tensor]]:
    """The tensors, refusing one that is unknown, misshapen or absent."""
    shapes = config.tensor_shapes()
    for name, tensor in tensors:
        shape = shapes.pop(name, None)
        if tuple(tensor.shape) != shape:
            raise ExecutorError(f"weights: {name} has shape {tuple(tensor.shape)}; the model needs {shape or 'none'}")
        yield name, tensor
    if shapes:
        raise ExecutorError(f"weights: {', '.join(shapes)} missing")
