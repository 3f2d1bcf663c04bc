"""What cannot run is refused with the reason, before anything is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from trtserve.engine_dir import Manifest, TokenizerRecord
from trtserve.executor import _cpu
from trtserve.executor.base import ExecutorError, StepInput
from trtserve.executor.decoder import Rows
from trtserve.executor.native import LEVEL_VARIABLE
from trtserve.executor.torch import TorchExecutor
from trtserve.sampling import SamplingParams, SamplingState
from trtserve.settings import Limits, Speculative, plan_tiers

from .tiny import LIMITS, TIERS, config, executor, ints, tokens, weights

C = config()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (Rows(ints(1), ints(8), ints(0), ints(1), ints()), "slot is 8; allowed: 0 to 7"),
        (Rows(ints(1, 1), ints(2, 2), ints(0, 0), ints(1, 1), ints()), "slot 2 is already"),
        (Rows(ints(1), ints(0), ints(400), ints(1), ints()), "length 400 . 1 rows; the slot holds 400"),
        (Rows(ints(1), ints(0), ints(-1), ints(1), ints()), "length -1"),
        (Rows(ints(307), ints(0), ints(0), ints(1), ints()), "token 307 in row 0; allowed: 0 to 306"),
        (Rows(ints(1, 1), ints(0), ints(0), ints(1), ints()), "num_rows add up to 1 but there are 2 tokens"),
        (Rows(ints(1), ints(0, 1), ints(0, 0), ints(1, 0), ints()), "sequence 1: has 0 rows"),
        (Rows(ints(1), ints(0), ints(0), ints(1), ints(1)), "logit row 1; allowed: 0 to 0"),
        (Rows(ints(1), ints(0, 1), ints(0), ints(1), ints()), "equally long"),
    ],
)
def test_a_forward_that_does_not_fit(rows: Rows, message: str) -> None:
    out = np.empty((len(rows.logit_rows), C.vocab_size), np.float32)
    with pytest.raises(ValueError, match=message):
        executor(C)._live().forward(rows, out)


def test_too_many_rows_in_one_forward() -> None:
    with pytest.raises(ValueError, match="rows in one forward; allowed: 256"):
        executor(C).logits(0, 0, tokens(C, 300))


def test_logits_of_another_shape() -> None:
    with pytest.raises(ValueError, match="out must be"):
        executor(C)._live().forward(Rows(ints(1), ints(0), ints(0), ints(1), ints(0)), np.empty((2, 307), np.float32))


@pytest.mark.parametrize("length", [-1, 401])
def test_copy_prefix_of_more_than_a_slot(length: int) -> None:
    with pytest.raises(ValueError, match="allowed: 0 to 400"):
        executor(C).copy_prefix(0, 1, length)


@pytest.mark.parametrize("n", [0, 257])
def test_a_prefill_longer_than_a_chunk(n: int) -> None:
    with pytest.raises(ValueError, match=f"prefill of {n} tokens; allowed: 1 to 256"):
        executor(C).prefill(0, 0, tokens(C, n))


def test_more_rows_than_the_tier_has() -> None:
    state = SamplingState.start(SamplingParams(temperature=0), ints(1), C.vocab_size, ())
    with pytest.raises(ValueError, match="allowed for so many: 25 each"):
        executor(C).step(StepInput(ints(0), ints(0), ints(26), tokens(C, 26), [state]))


def test_a_closed_executor() -> None:
    e = executor(C)
    e.close()
    e.close()
    with pytest.raises(ExecutorError, match="closed"):
        e.prefill(0, 0, ints(1))


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "mps"])
def test_an_unknown_device(device: str) -> None:
    with pytest.raises(ExecutorError, match="allowed: cpu, cuda"):
        executor(C, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_no_cuda_device() -> None:
    with pytest.raises(ExecutorError, match="no CUDA device"):
        executor(C, device="cuda")


def test_weights_that_are_not_the_models() -> None:
    tensors = weights(C)
    with pytest.raises(ExecutorError, match=r"layers\.1\.up missing"):
        executor(C, tensors={k: v for k, v in tensors.items() if k != "layers.1.up"})
    with pytest.raises(ExecutorError, match=r"final_norm has shape \(3,\); the model needs \(48,\)"):
        executor(C, tensors={**tensors, "final_norm": torch.ones(3)})
    with pytest.raises(ExecutorError, match="extra has shape"):
        executor(C, tensors={**tensors, "extra": torch.ones(3)})


@pytest.mark.parametrize("threads", [0, -1, 257])
def test_a_thread_count_that_makes_no_sense(threads: int) -> None:
    with pytest.raises(ExecutorError, match=f"threads is {threads}; allowed: 1 to 256"):
        executor(C, threads=threads)


def test_a_cache_larger_than_the_memory() -> None:
    limits = Limits(max_batch_size=256, max_seq_len=1 << 20)
    wide = config(num_layers=64, num_kv_heads=6, head_dim=128)
    with pytest.raises(ExecutorError, match=r"MiB of KV cache .256 slots of 1048576 positions.*smaller max_batch_size"):
        TorchExecutor(wide, weights(C).items(), limits, plan_tiers(limits, Speculative()))


def test_the_instruction_set_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "generic")
    assert executor(C)._live().native.level == "generic"  # type: ignore[attr-defined]
    monkeypatch.setenv(LEVEL_VARIABLE, "mmx")
    with pytest.raises(ExecutorError, match=f"{LEVEL_VARIABLE} is 'mmx'; this build has on this machine: generic"):
        executor(C)
    monkeypatch.delenv(LEVEL_VARIABLE)
    assert executor(C)._live().native.level == _cpu.levels()[-1]  # type: ignore[attr-defined]


def manifest() -> Manifest:
    return Manifest(
        name="tiny",
        target="torch",
        model=C,
        tokenizer=TokenizerRecord(vocab_size=C.vocab_size),
        limits=LIMITS,
        speculative=Speculative(),
        tiers=TIERS,
        inputs_digest="",
        weights_digest="",
        tokenizer_digest="",
        built_with={},
    )


def test_an_engine_directory_is_loaded(tmp_path: Path) -> None:
    save_file(weights(C), tmp_path / "weights.safetensors")
    e = TorchExecutor.load(tmp_path, manifest(), threads=1)
    text = tokens(C, 20)
    assert np.array_equal(e.logits(0, 0, text), executor(C).logits(0, 0, text))
    assert e.info.exact and e.info.device == "cpu" and e.info.max_rows(1) == 25
    assert not executor(C, native=False).info.exact


def test_an_engine_directory_without_readable_weights(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError, match=r"weights\.safetensors: cannot be read"):
        TorchExecutor.load(tmp_path, manifest())
    (tmp_path / "weights.safetensors").write_bytes(b"not weights")
    with pytest.raises(ExecutorError, match=r"weights\.safetensors: cannot be read"):
        TorchExecutor.load(tmp_path, manifest())
