"""The streamed safetensors file: readable by the reference reader, and nothing wrong gets in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from trtbuild.errors import BuildError
from trtbuild.weights_file import WeightsFile

SHAPES = {"a": (3, 5), "b": (7,), "c": (2, 1)}
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(*shape, generator=generator) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("order", ["abc", "cba"])
def test_the_reference_reader_reads_what_was_written(tmp_path: Path, dtype: str, order: str) -> None:
    path, given = tmp_path / "w.safetensors", tensors()
    with WeightsFile(path, SHAPES, dtype) as file:  # type: ignore[arg-type]
        assert [file.write(name, given[name]) for name in order] == [given[name].numel() for name in order]
    found = load_file(path)
    assert found.keys() == given.keys()
    for name, tensor in given.items():
        assert found[name].dtype == DTYPES[dtype]
        assert torch.equal(found[name], tensor.to(DTYPES[dtype]))
    with safe_open(path, "pt") as f:
        assert f.metadata() == {"format": "pt"}


def test_tensors_are_aligned_and_their_layout_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    given = torch.arange(15.0).reshape(5, 3).t()
    with WeightsFile(path, {"a": (3, 5)}, "float32") as file:
        file.write("a", given)
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0
    assert torch.equal(load_file(path)["a"], given)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("x", torch.zeros(1), "x is not part of this model"),
        ("a", torch.zeros(5, 3), r"a has shape \(5, 3\); expected \(3, 5\)"),
        ("b", torch.zeros(7), "b comes twice"),
        ("a", torch.full((3, 5), 7e4), r"a has values beyond torch.float16 \(largest 70000\).*model.dtype"),
        ("a", torch.full((3, 5), float("nan")), "a has values that are not finite"),
        ("a", torch.full((3, 5), float("-inf")), "a has values that are not finite"),
    ],
)
def test_a_wrong_tensor_is_refused(tmp_path: Path, name: str, tensor: torch.Tensor, message: str) -> None:
    with pytest.raises(BuildError, match=message), WeightsFile(tmp_path / "w", SHAPES, "float16") as file:
        file.write("b", torch.zeros(7))
        file.write(name, tensor)


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    with (
        pytest.raises(BuildError, match=r"lacks tensors this model needs: a, c$"),
        WeightsFile(tmp_path / "w", SHAPES, "float32") as file,
    ):
        file.write("b", torch.zeros(7))
    with pytest.raises(BuildError, match=r"t0, t1, t2 and 2 more$"):
        WeightsFile(tmp_path / "w", {f"t{i}": (1,) for i in range(5)}, "float32").close()
