"""The GPU section script itself, over the fake: what will run on a GPU does not run there for the first time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_tensorrt_llm
from tests.tiny.checkpoint import write_checkpoint

from . import fake


@pytest.mark.slow
@pytest.mark.parametrize("line", ["1.2", "1.3"])
def test_section_script(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_tensorrt_llm, "OUTPUT", 40)
    checkpoint = write_checkpoint(tmp_path / "model", positions=2048)
    failures = gpu_tensorrt_llm.Failures()
    with fake.installed(line):
        results: dict[str, Any] = gpu_tensorrt_llm.run(checkpoint, failures)
    assert failures == []
    ways = {"none", "trtlookup"} | ({"ngram", "sa"} if line == "1.3" else set())
    assert set(results["tokens_per_second"]) == ways
    assert 0 < results["drafts"]["accepted"] < results["drafts"]["proposed"]


def test_nothing_to_run_on() -> None:
    with pytest.raises(Exception, match="needs the package tensorrt_llm"):
        gpu_tensorrt_llm.run(None, gpu_tensorrt_llm.Failures())
