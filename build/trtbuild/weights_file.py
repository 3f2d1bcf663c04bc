"""Writing a safetensors file one tensor at a time, so that a build never holds a whole model.

The format: eight bytes of little-endian header length, a JSON header that gives each tensor's type, shape and place,
then the tensors' bytes without gaps. Offsets follow from the shapes, so tensors may come in any order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import torch

from trtbuild.errors import BuildError
from trtserve.model_config import Dtype

_TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_FORMAT = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class WeightsFile:
    """A safetensors file being written: every tensor of ``shapes``, all stored as ``dtype``."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: Dtype) -> None:
        self._shapes, self._dtype = dict(shapes), _TORCH[dtype]
        self._places: dict[str, int] = {}
        self._written: set[str] = set()
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        place = 0
        for name, shape in self._shapes.items():
            end = place + math.prod(shape) * self._dtype.itemsize
            header[name] = {"dtype": _FORMAT[dtype], "shape": list(shape), "data_offsets": [place, end]}
            self._places[name] = place
            place = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # tensors start aligned, for readers that map the file
        self._start = 8 + len(text)
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)

    def write(self, name: str, tensor: torch.Tensor) -> int:
        """Store one tensor, converted to the file's type. Returns the elements written.

        Raises BuildError for a tensor that is unknown, of another shape, given twice, or has a value that is not
        finite in the file's type.
        """
        if name not in self._shapes:
            raise BuildError(f"checkpoint tensor {name} is not part of this model")
        if name in self._written:
            raise BuildError(f"checkpoint tensor {name} comes twice")
        if tuple(tensor.shape) != self._shapes[name]:
            raise BuildError(f"checkpoint tensor {name} has shape {tuple(tensor.shape)}; expected {self._shapes[name]}")
        stored = tensor.detach().to(self._dtype).contiguous()
        if not bool(torch.isfinite(stored).all()):
            if bool(torch.isfinite(tensor).all()):
                raise BuildError(
                    f"checkpoint tensor {name} has values beyond {self._dtype} (largest {tensor.abs().max():.6g}); "
                    "set model.dtype to bfloat16 or float32"
                )
            raise BuildError(f"checkpoint tensor {name} has values that are not finite; the checkpoint is damaged")
        self._file.seek(self._start + self._places[name])
        self._file.write(stored.reshape(-1).view(torch.uint8).numpy().data)
        self._written.add(name)
        return stored.numel()

    def close(self) -> None:
        """Finish the file. Raises BuildError naming the tensors that never came."""
        self._file.close()
        if missing := [name for name in self._shapes if name not in self._written]:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise BuildError(f"the checkpoint lacks tensors this model needs: {', '.join(missing[:3])}{more}")

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()
