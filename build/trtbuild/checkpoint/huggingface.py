"""A Hugging Face model directory: ``config.json``, safetensors (one file or sharded by an index), a tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from trtbuild.checkpoint import architectures
from trtbuild.checkpoint.base import LISTED, Checkpoint, CheckpointError, check_tensors
from trtbuild.checkpoint.fields import Fields
from trtbuild.checkpoint.hf_files import CONFIG, INDEX, SINGLE, TOKENIZER_INPUTS
from trtbuild.checkpoint.hf_tokenizer import tokenizer_from_hf
from trtbuild.checkpoint.json_file import read_json
from trtserve.engine_dir import TokenizerRecord
from trtserve.model_config import DecoderConfig, Dtype

_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class HuggingFaceCheckpoint(Checkpoint):
    """A directory as ``save_pretrained`` writes it. Tensors keep the floating-point type they are stored in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config = read_json(path / CONFIG)
        self._refuse_quantised()
        self._architecture = architectures.find(self._model_type(), str(path / CONFIG))
        classes = self._config.get("architectures") or [self._architecture.hf_class]
        if classes != [self._architecture.hf_class]:
            raise CheckpointError(
                f"{path / CONFIG}: architectures is {classes!r}; of model type "
                f"{self._architecture.name!r} only [{self._architecture.hf_class!r}] is supported"
            )
        self._shards = self._find_shards()

    @property
    def files(self) -> tuple[Path, ...]:
        extras = (CONFIG, INDEX, *TOKENIZER_INPUTS)
        return (*(self.path / name for name in extras if (self.path / name).is_file()), *self._shards)

    def config(self, dtype: Dtype) -> DecoderConfig:
        fields = Fields(self._config, str(self.path / CONFIG))
        config = self._architecture.from_hf(fields, dtype)
        fields.refuse_unread()
        return config

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        config = self.config("float32")
        names = {canonical: self._architecture.hf_name(canonical) for canonical in config.tensor_shapes()}
        homes, shapes = self._stored
        embed, head = self._architecture.hf_name("embed"), self._architecture.hf_name("lm_head")
        if config.tie_word_embeddings and head in shapes:
            shapes = {name: shape for name, shape in shapes.items() if name != head}
            self._require_tied(embed, head)
        check_tensors(str(self.path), names, config, shapes)
        for canonical, name in names.items():
            yield canonical, _read(homes[name], name).contiguous()

    def save_tokenizer(self, directory: Path) -> TokenizerRecord:
        rows = self.config("float32").vocab_size
        return tokenizer_from_hf(self.path, self._config).save(directory, rows)

    def describe(self) -> dict[str, Any]:
        return {
            "format": "safetensors",
            "architecture": self._architecture.name,
            "source": str(self.path),
            "name": self._config.get("_name_or_path") or self.path.name,
            "shards": len(self._shards),
            "stored_dtype": self._config.get("dtype") or self._config.get("torch_dtype"),
        }

    def _model_type(self) -> str:
        if isinstance(kind := self._config.get("model_type"), str):
            return kind
        classes = self._config.get("architectures") or []
        where = str(self.path / CONFIG)
        for known in architectures.names():
            if classes == [architectures.find(known, where).hf_class]:
                return known
        raise CheckpointError(f"{where}: model_type is missing and architectures is {classes!r}")

    def _refuse_quantised(self) -> None:
        for name in ("quantization_config", "compression_config"):
            if quantised := self._config.get(name):
                method = quantised.get("quant_method", "unnamed") if isinstance(quantised, dict) else quantised
                raise CheckpointError(
                    f"{self.path / CONFIG}: {name} says the weights are quantised ({method}); give the "
                    "unquantised checkpoint, or a GGUF file"
                )
        if "text_config" in self._config:
            raise CheckpointError(f"{self.path / CONFIG}: text_config: multimodal checkpoints are not supported")

    def _find_shards(self) -> tuple[Path, ...]:
        index, single = self.path / INDEX, self.path / SINGLE
        if index.is_file():
            weight_map = read_json(index).get("weight_map")
            if not isinstance(weight_map, dict) or not weight_map:
                raise CheckpointError(f"{index}: weight_map is missing or empty")
            names = sorted(set(weight_map.values()))
            bad = [n for n in names if not isinstance(n, str) or Path(n).name != n]
            if bad:
                raise CheckpointError(f"{index}: weight_map names {bad[0]!r}; shards must lie beside the index")
            missing = [name for name in names if not (self.path / name).is_file()]
            if missing:
                more = f" and {len(missing) - LISTED} more" if len(missing) > LISTED else ""
                raise CheckpointError(f"{self.path}: shards are missing: {', '.join(missing[:LISTED])}{more}")
            return tuple(self.path / name for name in names)
        if single.is_file():
            return (single,)
        pickled = sorted(p.name for p in self.path.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
        if pickled:
            raise CheckpointError(
                f"{self.path}: has only pickled weights ({pickled[0]}), which run code when loaded; convert them to "
                "safetensors first"
            )
        raise CheckpointError(f"{self.path}: has neither {SINGLE} nor {INDEX}")

    @cached_property
    def _stored(self) -> tuple[dict[str, Path], dict[str, tuple[int, ...]]]:
        """Every tensor's file and shape. Buffers that old exports saved beside the weights are left out."""
        homes: dict[str, Path] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for shard in self._shards:
            with _open(shard) as f:
                for name in sorted(f.keys()):
                    if name.endswith("rotary_emb.inv_freq"):
                        continue
                    if name in homes:
                        raise CheckpointError(f"{shard}: {name} is also in {homes[name].name}")
                    view = f.get_slice(name)
                    if view.get_dtype() not in _FLOATS:
                        raise CheckpointError(
                            f"{shard}: {name} is stored as {view.get_dtype()}; supported are {', '.join(_FLOATS)}"
                        )
                    homes[name], shapes[name] = shard, tuple(view.get_shape())
        return homes, shapes

    def _require_tied(self, embed: str, head: str) -> None:
        """A head stored although the config ties it must equal the embedding, or one of the two is not meant."""
        homes, _ = self._stored
        if embed in homes and not torch.equal(_read(homes[embed], embed), _read(homes[head], head)):
            raise CheckpointError(
                f"{self.path}: tie_word_embeddings is true, but {head} differs from {embed}; set it to false if the "
                "stored head is meant"
            )


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as e:
        raise CheckpointError(f"{path}: is truncated or not valid safetensors: {e}") from e


def _read(path: Path, name: str) -> torch.Tensor:
    with _open(path) as f:
        tensor: torch.Tensor = f.get_tensor(name)
    return tensor
