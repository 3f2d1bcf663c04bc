"""The TensorRT executor: the step contract over a plan's optimization profiles.

This module is the host logic: which profile, which slots, what is bound where. The device is a ``Session``
(``tensorrt_cuda`` on a GPU), so all of this runs in tests over a session that evaluates the network on the CPU.

A greedy round reads back three integers for each sequence. A round that needs more (sampling, penalties, bias, bans,
log-probabilities) runs in a profile that outputs logits; those come to the host and the acceptance rule's host build
decides, for the sequences that asked.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtplugins.acceptance import accept_host
from trtserve.engine_dir import Manifest
from trtserve.executor import tensorrt_io as io
from trtserve.executor.base import Executor, ExecutorError, ExecutorInfo, StepInput, StepOutput, TokenLogprobs
from trtserve.executor.logprobs import token_logprobs
from trtserve.executor.sampling_arrays import sampling_arrays
from trtserve.executor.tensorrt_cache import CacheLayout
from trtserve.executor.tensorrt_launch import Launch, plan_launches
from trtserve.executor.tensorrt_session import Binding, Call, Session
from trtserve.model_config import DecoderConfig
from trtserve.settings import Limits, Tier

#: Calls kept with their bindings; a step's shapes recur, so this is far more than a running engine meets.
_MAX_CALLS = 512
#: Host copies of a step's inputs that may be on their way to the device at once.
_STAGING = 16
_ALIGN = 256


class TensorRTExecutor(Executor):
    """Runs a plan through a session, which it owns and closes."""

    @staticmethod
    def compiles(manifest: Manifest) -> bool:
        """Whether kernels are compiled where the plan runs, and can be kept: by TensorRT-RTX."""
        return plan_info(manifest).runtime == "tensorrt_rtx"

    @classmethod
    def load(
        cls,
        directory: Path,
        manifest: Manifest,
        device: int = 0,
        *,
        threads: int | None = None,
        kernel_cache: Path | None = None,
    ) -> TensorRTExecutor:
        """The executor of an engine directory on GPU ``device``.

        ``threads``: see the constructor.
        ``kernel_cache``: the directory where TensorRT-RTX's compiled kernels are kept between starts; None: nowhere.

        Raises ExecutorError, in one line, when the plan's runtime is not installed or of another version, there is no
        GPU, or the GPU is none the plan was built for.
        """
        from trtserve.executor.tensorrt_cuda import open_session

        info = plan_info(manifest)
        plan = manifest.files.get(info.plan)  # a manifest that is not written yet records no files
        digest = "" if plan is None else plan.sha256
        session = open_session(directory / info.plan, info, device, kernels=kernel_cache, plan_digest=digest)
        try:
            return cls(manifest.model, manifest.limits, manifest.tiers, info, session, threads)
        except BaseException:
            session.close()
            raise

    def __init__(
        self,
        config: DecoderConfig,
        limits: Limits,
        tiers: Sequence[Tier],
        plan: io.PlanInfo,
        session: Session,
        threads: int | None = None,
    ) -> None:
        """``threads``: for acceptance on the host; None: the processors this process may use."""
        self.info = ExecutorInfo(
            max_batch_size=limits.max_batch_size,
            max_seq_len=limits.max_seq_len,
            prefill_chunk=limits.prefill_chunk,
            vocab_size=config.vocab_size,
            tiers=tuple(tiers),
            exact=False,  # kernels are chosen for each shape, so a row's rounding may depend on the batch around it
            device=session.device,
        )
        self._config = config
        self._profiles = plan.profiles
        self._session = session
        self._threads = threads or len(os.sched_getaffinity(0))
        self._prefill_profile = next(i for i, p in enumerate(plan.profiles) if "prefill" in p.tiers)
        self._cache = CacheLayout(config, limits.max_batch_size, plan.cache_positions)
        self._cache_address = session.allocate(self._cache.nbytes)
        self._tainted: set[int] = set()
        """Slots of failed sequences: what is not finite in them would reach others through masked positions."""

        verify = [p for p in plan.profiles if "prefill" not in p.tiers]
        most_slots = max(p.batch for p in verify)
        most_rows = max(p.rows for p in verify)
        most_tokens = max(p.batch * p.rows for p in plan.profiles)
        sizes = {io.LENGTHS: most_slots, io.NUM_ROWS: most_slots, io.HEAD_ROWS: most_rows, io.TOKEN_IDS: most_tokens}
        self._fields = _packed(sizes)
        words = max(end for _, end in self._fields.values())
        self._inputs = session.allocate(words * 4)
        self._staging = [session.host_array((words,), np.int32) for _ in range(_STAGING)]
        self._next_staging = 0

        self._verdict = session.allocate(most_slots * 3 * 4)
        self._verdicts = session.host_array((limits.max_batch_size, most_slots, 3), np.int32)
        row_bytes = config.vocab_size * 4
        self._logits = session.allocate(max(p.batch * p.rows for p in verify) * row_bytes)
        self._host_logits: NDArray[np.float32] = session.host_array((0, config.vocab_size), np.float32)
        self._calls: dict[tuple[int, int, int, int], Call] = {}
        self._closed = False

    def prefill(self, slot: int, start: int, tokens: NDArray[np.int32]) -> None:
        n = len(tokens)
        self._require_open()
        self._require_slot(slot)
        if not 1 <= n <= self.info.prefill_chunk:
            raise ValueError(f"prefill of {n} tokens; allowed: 1 to {self.info.prefill_chunk}")
        self._require_room(slot, start, n)
        self._clear(slot, start)
        # The network gives every enqueue a verdict; a prefill's is of its last row, and nobody reads it.
        self._enqueue(self._prefill_profile, slot, tokens.reshape(1, n), [start], [n], [n - 1])

    def step(self, batch: StepInput) -> StepOutput:
        self._require_open()
        self._check(batch)
        offsets = batch.offsets
        needs_logits = [not s.plain or s.params.logprobs is not None for s in batch.sampling]
        slots, num_rows = batch.slots.tolist(), batch.num_rows.tolist()
        launches = plan_launches(self._profiles, slots, num_rows, needs_logits)
        for slot, length in zip(slots, batch.lengths.tolist(), strict=True):
            self._clear(slot, length)

        wanting = [b for b, needs in enumerate(needs_logits) if needs]
        logits = self._logits_for(sum(num_rows[b] for b in wanting))
        begins = dict(zip(wanting, np.cumsum([0, *(num_rows[b] for b in wanting)]).tolist(), strict=False))
        for i, launch in enumerate(launches):
            self._enqueue_step(launch, batch, offsets)
            self._session.download(self._verdicts[i, : launch.batch], self._verdict)
            for b in launch.members:
                if needs_logits[b]:
                    place = (slots[b] - launch.first_slot) * launch.rows
                    address = self._logits + place * self.info.vocab_size * 4
                    self._session.download(logits[begins[b] : begins[b] + num_rows[b]], address)
        self._session.synchronize()
        return self._decide(batch, launches, wanting, logits)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self._require_open()
        self._require_slot(source)
        self._require_slot(target)
        if not 0 <= length <= self.info.max_seq_len:
            raise ValueError(f"copy_prefix of {length} positions; allowed: 0 to {self.info.max_seq_len}")
        if source == target or not length:
            return
        self._clear(target, 0)
        c = self._cache
        for part in c.parts():
            self._session.copy_rows(
                self._cache_address + part + target * c.slot_bytes,
                self._cache_address + part + source * c.slot_bytes,
                c.head_bytes,
                length * c.position_bytes,
                c.heads,
            )

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._session.close()

    def _enqueue_step(self, launch: Launch, batch: StepInput, offsets: NDArray[np.int64]) -> None:
        """Every slot of the launch's span gets a row block; those that take no part write into the scratch."""
        tokens = np.zeros((launch.batch, launch.rows), np.int32)
        lengths = [self._cache.positions - launch.rows] * launch.batch
        num_rows = [0] * launch.batch
        for b in launch.members:
            place, n = int(batch.slots[b]) - launch.first_slot, int(batch.num_rows[b])
            tokens[place, :n] = batch.tokens[offsets[b] : offsets[b] + n]
            lengths[place], num_rows[place] = int(batch.lengths[b]), n
        self._enqueue(launch.profile, launch.first_slot, tokens, lengths, num_rows, range(launch.rows))

    def _enqueue(
        self,
        profile: int,
        first_slot: int,
        tokens: NDArray[np.int32],
        lengths: Sequence[int],
        num_rows: Sequence[int],
        head_rows: Sequence[int],
    ) -> None:
        """Upload one enqueue's integers in one copy, and run it. ``tokens``: int32 ``[slots, rows]``."""
        staging = self._staging[self._next_staging]
        self._next_staging = (self._next_staging + 1) % len(self._staging)
        if self._next_staging == 0:
            self._session.synchronize()  # the oldest staging buffer may still be on its way
        values = {io.TOKEN_IDS: tokens.reshape(-1), io.LENGTHS: lengths, io.NUM_ROWS: num_rows, io.HEAD_ROWS: head_rows}
        for name, value in values.items():
            begin = self._fields[name][0]
            staging[begin : begin + len(value)] = value
        # Tokens come last in the array, so a short enqueue copies little.
        self._session.upload(self._inputs, staging[: self._fields[io.TOKEN_IDS][0] + tokens.size])
        key = (profile, first_slot, *tokens.shape)
        call = self._calls.get(key)
        if call is None:
            if len(self._calls) >= _MAX_CALLS:
                self._calls.pop(next(iter(self._calls)))
            call = self._calls[key] = self._bind(profile, first_slot, tokens.shape[0], tokens.shape[1])
        self._session.enqueue(call)

    def _bind(self, profile: int, first_slot: int, slots: int, rows: int) -> Call:
        """Where every tensor of the plan is for these slots: caches at the first slot's place, their outputs too."""
        p, c = self._profiles[profile], self._cache
        head_rows = min(rows, p.head_rows)
        logit_rows = head_rows if p.logits else 0
        shapes = {
            io.TOKEN_IDS: (slots, rows),
            io.LENGTHS: (slots,),
            io.NUM_ROWS: (slots,),
            io.HEAD_ROWS: (head_rows,),
        }
        bindings = {name: Binding(self._inputs + self._fields[name][0] * 4, shape) for name, shape in shapes.items()}
        # All head rows in order, or none of them: the same numbers serve both.
        bindings[io.LOGIT_ROWS] = Binding(bindings[io.HEAD_ROWS].address, (logit_rows,))
        bindings[io.VERDICT] = Binding(self._verdict, (slots, 3))
        bindings[io.LOGITS] = Binding(self._logits, (slots, logit_rows, self.info.vocab_size))
        for layer in range(self._config.num_layers):
            for kind in "kv":
                address = self._cache_address + c.part(kind, layer) + first_slot * c.slot_bytes
                cache = Binding(address, (slots, c.heads, c.positions, c.head_dim))
                bindings[io.cache_input(kind, layer)] = bindings[io.cache_output(kind, layer)] = cache
        return Call(profile, bindings)

    def _decide(
        self, batch: StepInput, launches: Sequence[Launch], wanting: Sequence[int], logits: NDArray[np.float32]
    ) -> StepOutput:
        offsets = batch.offsets
        targets = np.full(len(batch.tokens), -1, np.int32)
        accepted = np.zeros(len(batch.slots), np.int32)
        failed = np.zeros(len(batch.slots), np.bool_)
        logprobs: list[Sequence[TokenLogprobs] | None] = [None] * len(batch.slots)
        for i, launch in enumerate(launches):
            for b in launch.members:
                count, token, bad = self._verdicts[i, int(batch.slots[b]) - launch.first_slot].tolist()
                begin = int(offsets[b])
                accepted[b], failed[b] = count, bool(bad)
                targets[begin : begin + count] = batch.tokens[begin + 1 : begin + 1 + count]
                targets[begin + count] = -1 if bad else token
        if wanting:
            num_rows = batch.num_rows[wanting]
            starts = (np.cumsum(num_rows) - num_rows).astype(np.int32)
            rows = np.concatenate([np.arange(offsets[b], offsets[b + 1]) for b in wanting])
            states = [batch.sampling[b] for b in wanting]
            decided = accept_host(logits, starts, num_rows, batch.tokens[rows], sampling_arrays(states), self._threads)
            targets[rows] = decided.targets
            accepted[wanting], failed[wanting] = decided.accepted, decided.failed
            for b, state, start, count in zip(wanting, states, starts, decided.accepted, strict=True):
                if (top := state.params.logprobs) is not None:
                    emitted = slice(start, start + count + 1)
                    logprobs[b] = token_logprobs(logits[emitted], decided.targets[emitted], top)
        self._tainted.update(int(batch.slots[b]) for b in np.flatnonzero(failed))
        return StepOutput(targets, accepted, failed, logprobs)

    def _clear(self, slot: int, start: int) -> None:
        """Zero a tainted slot from position ``start`` on, before it is written there again."""
        if slot not in self._tainted:
            return
        self._tainted.discard(slot)
        c = self._cache
        for part in c.parts():
            address = self._cache_address + part + slot * c.slot_bytes + start * c.position_bytes
            self._session.zero_rows(address, c.head_bytes, (c.positions - start) * c.position_bytes, c.heads)

    def _logits_for(self, rows: int) -> NDArray[np.float32]:
        """Host memory for this many rows' logits, at least doubled when a step first needs more: none is given back."""
        held = len(self._host_logits)
        if rows > held:
            self._host_logits = self._session.host_array((max(rows, 2 * held), self.info.vocab_size), np.float32)
        return self._host_logits[:rows]

    def _check(self, batch: StepInput) -> None:
        most = self.info.max_rows(len(batch.slots))
        if not len(batch.slots):
            raise ValueError("step of no sequences")
        if len({*batch.slots.tolist()}) != len(batch.slots):
            raise ValueError(f"step names a slot twice: {batch.slots.tolist()}")
        for slot, length, rows in zip(batch.slots, batch.lengths, batch.num_rows, strict=True):
            self._require_slot(int(slot))
            if not 1 <= rows <= most:
                raise ValueError(f"{rows} rows for each of {len(batch.slots)} sequences; allowed: 1 to {most}")
            self._require_room(int(slot), int(length), int(rows))

    def _require_slot(self, slot: int) -> None:
        if not 0 <= slot < self.info.max_batch_size:
            raise ValueError(f"slot {slot}; allowed: 0 to {self.info.max_batch_size - 1}")

    def _require_room(self, slot: int, start: int, count: int) -> None:
        if start < 0 or start + count > self.info.max_seq_len:
            raise ValueError(f"slot {slot}: {count} rows from position {start}; it holds {self.info.max_seq_len}")

    def _require_open(self) -> None:
        if self._closed:
            raise ExecutorError("the executor is closed")


def plan_info(manifest: Manifest) -> io.PlanInfo:
    """The plan's facts in a manifest. Raises ExecutorError for a manifest of another target."""
    if manifest.target != "tensorrt":
        raise ExecutorError(f"engine {manifest.name} is for target {manifest.target}, not tensorrt")
    try:
        return io.PlanInfo.model_validate(manifest.target_info)
    except ValueError as e:
        raise ExecutorError(f"engine {manifest.name}: target_info is not a tensorrt plan's: {e}") from e


def _packed(sizes: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Begin and end of each field in one array of int32, each field aligned like a binding."""
    fields: dict[str, tuple[int, int]] = {}
    begin = 0
    for name, size in sizes.items():
        fields[name] = (begin, begin + size)
        begin = -(-(begin + size) * 4 // _ALIGN) * _ALIGN // 4
    return fields


__all__ = ["TensorRTExecutor", "plan_info"]
