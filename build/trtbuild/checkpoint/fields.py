"""A checkpoint's config, read so that nothing that changes the mathematics goes unnoticed.

Every field an architecture understands is asked for by name. What was never asked for is judged by ``refuse_unread``.
Refusing *every* unknown field would break on each cosmetic one a new release adds; accepting every unknown field would
build a silently wrong model. So a field passes when its value means "off" (null, false, empty), when it is on the list
of fields known not to matter at inference, or when neither its name nor its value can be about the forward pass, by
the words that such fields have always used. The rest is an error that names the field and its value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar, overload

from trtbuild.checkpoint.base import CheckpointError

T = TypeVar("T", int, float, bool, str)

MAX_LAYERS = 4096
"""No decoder is this deep; a larger number is a corrupt field that would cost memory before anything notices."""

HARMLESS = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_flash_attn_2_enabled",
        "attention_dropout",
        "attention_probs_dropout_prob",
        "attn_implementation",
        "attn_pdrop",
        "chunk_size_feed_forward",
        "flash_attention",
        "layerdrop",
        "output_attentions",
        "rope_dropout",
        "temperature",
        "use_flash_attention",
        "use_flash_attention_2",
        "use_flash_attn",
    }
)
"""Training, bookkeeping and kernel choice: none of these changes what a forward pass computes.

Only names that ``ABOUT_THE_FORWARD`` would match need to be here."""

ABOUT_THE_FORWARD = re.compile(
    r"rope|rotary|attn|attention|norm|scal|bias|softcap|multiplier|window|alibi|act_fn|activation|hidden_act|moe|expert"
    r"|quant|position|residual|parallel|logit|embed|lora|adapter|shar|skip|mtp|nextn|temperature|layer|mup|clip|gate"
    r"|sink|mask|chunk|head|kv_|qk_|auto_map"
)


class Fields:
    """A mapping of config fields that remembers which were asked for. ``where`` names it in errors."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.where = where
        self._values = values
        self._read: set[str] = set()

    def given(self, name: str) -> bool:
        """Whether the field is there, null or not. Does not count as reading it."""
        return name in self._values

    def has(self, name: str) -> bool:
        """Whether the field is there and not null. Does not count as reading it."""
        return self._values.get(name) is not None

    def raw(self, name: str) -> Any:
        """The field as it is, or None. Counts as reading it."""
        self._read.add(name)
        return self._values.get(name)

    @overload
    def get(self, name: str, kind: type[T]) -> T: ...
    @overload
    def get(self, name: str, kind: type[T], default: T) -> T: ...
    @overload
    def get(self, name: str, kind: type[T], default: None) -> T | None: ...
    def get(self, name: str, kind: type[T], default: Any = ...) -> Any:
        """The field as ``kind``; null counts as absent. Raises CheckpointError when absent without a default."""
        value = self.raw(name)
        if value is None:
            if default is ...:
                raise self.error(name, "is missing")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if kind is int and isinstance(value, float) and value.is_integer():
            return int(value)
        if kind is float and isinstance(value, float) and not math.isfinite(value):
            raise self.error(name, f"is {value!r}, expected a finite number")
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise self.error(name, f"is {value!r}, expected {kind.__name__}")
        return value

    def count(self, name: str, default: int | None = None, *, most: int = 1 << 31) -> int:
        """A whole number from 1 to ``most``; ``default`` stands in where the field is absent or null."""
        value = self.get(name, int) if default is None else self.get(name, int, default)
        if not 1 <= value <= most:
            raise self.error(name, f"is {value!r}, expected 1 to {most}")
        return value

    def error(self, name: str, message: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {name} {message}")

    def require(self, name: str, value: object, allowed: object) -> None:
        """Raise CheckpointError unless ``value``, read from field ``name``, is ``allowed``."""
        if value != allowed:
            raise self.error(name, f"is {value!r}, and only {allowed!r} is supported")

    def unread(self) -> dict[str, Any]:
        """The fields nobody asked for whose value does not mean "off"."""
        return {
            name: value
            for name, value in self._values.items()
            if name not in self._read and value is not None and value is not False and value not in ("", [], {}, ())
        }

    def refuse_unread(self) -> None:
        """Raise CheckpointError for unread fields of a Hugging Face config that may change the forward pass."""
        for name, value in self.unread().items():
            if name not in HARMLESS and ABOUT_THE_FORWARD.search(name):
                raise self.error(
                    name, f"is {value!r}; this field is not understood and may change what the model computes"
                )
