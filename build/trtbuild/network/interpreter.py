"""Evaluates a TensorRT network on the CPU, layer by layer, with torch: what the network *says*, without a GPU.

A debugging tool: it walks the real ``INetworkDefinition``, whatever built it, so a wrong mask, a wrong rotary order or
a dropped layer shows in the numbers. Each layer rounds to its output's dtype; inside a layer float16 and bfloat16 are
computed in float32. It refuses a layer, or a mode of one, that it does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from trtbuild.network.trt_types import ILayer, INetworkDefinition, ITensor, TensorRT

Operation = Callable[..., tuple[torch.Tensor, ...]]

_DTYPES = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "BOOL": torch.bool,
}


class UnknownLayerError(Exception):
    """The network has a layer, or a mode of one, that the interpreter does not evaluate. Names the layer."""


class _Step:
    """One layer: its operation and the names of its tensors; a missing optional input is None."""

    __slots__ = ("dtypes", "frees", "inputs", "name", "operation", "outputs")

    def __init__(
        self, name: str, operation: Operation, inputs: list[str | None], outputs: list[str], dtypes: list[torch.dtype]
    ) -> None:
        self.name = name
        self.operation = operation
        self.inputs = inputs
        self.outputs = outputs
        self.dtypes = dtypes
        self.frees: list[str] = []


class Interpreter:
    """A network, read once, run many times.

    ``unreadable``: constants by tensor name, for those that the bindings cannot hand back as an array (bfloat16);
    ``Graph.constants`` has them. Every other constant is read from the network itself.
    """

    def __init__(
        self, trt: TensorRT, network: INetworkDefinition, unreadable: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        self._unreadable = unreadable or {}
        self.output_names = [network.get_output(i).name for i in range(network.num_outputs)]
        inputs = [network.get_input(i) for i in range(network.num_inputs)]
        self.input_names = [t.name for t in inputs]
        self.input_dtypes = {t.name: torch_dtype(t) for t in inputs}
        self._constants: dict[str, torch.Tensor] = {}
        self._steps: list[_Step] = []
        for i in range(network.num_layers):
            self._read(trt, network.get_layer(i))
        self._plan_frees()

    def run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The outputs by name for these inputs. Cache inputs are updated in place, and their outputs are them.

        Raises ValueError for a missing, unknown or wrongly typed input.
        """
        if inputs.keys() != self.input_dtypes.keys():
            odd = sorted(inputs.keys() ^ self.input_dtypes.keys())
            raise ValueError(f"inputs given and inputs of the network differ in {', '.join(odd)}")
        for name, dtype in self.input_dtypes.items():
            if inputs[name].dtype != dtype:
                raise ValueError(f"input {name} is {inputs[name].dtype}, the network wants {dtype}")
        values: dict[str, torch.Tensor] = {**self._constants, **inputs}
        with torch.inference_mode():
            for step in self._steps:
                arguments = [None if name is None else values[name] for name in step.inputs]
                try:
                    results = step.operation(*arguments)
                except (RuntimeError, IndexError, ValueError) as e:
                    shapes = [None if a is None else list(a.shape) for a in arguments]
                    raise ValueError(f"layer {step.name} with inputs {shapes}: {e}") from e
                for name, dtype, value in zip(step.outputs, step.dtypes, results, strict=True):
                    values[name] = value.to(dtype)
                for name in step.frees:
                    del values[name]
        return {name: values[name] for name in self.output_names}

    def _read(self, trt: TensorRT, layer: ILayer) -> None:
        layer.__class__ = trt.ILayer  # an activation layer's own `type` hides which kind of layer it is
        kind = layer.type.name
        # The bindings hand out the base class; the subclass, assigned, gives a layer its own attributes.
        if (subclass := _SUBCLASSES.get(kind)) is None:
            raise UnknownLayerError(f"layer {layer.name}: the interpreter does not evaluate {kind}")
        layer.__class__ = getattr(trt, subclass)
        inputs = [_name(layer.get_input(i)) for i in range(layer.num_inputs)]
        outputs = [layer.get_output(i) for i in range(layer.num_outputs)]
        if kind == "CONSTANT":
            self._constants[outputs[0].name] = self._constant(layer)
            return
        operation = _OPERATIONS[kind](layer)
        self._steps.append(
            _Step(layer.name, operation, inputs, [t.name for t in outputs], [torch_dtype(t) for t in outputs])
        )

    def _constant(self, layer: Any) -> torch.Tensor:
        output, weights = layer.get_output(0), layer.weights
        if isinstance(weights, np.ndarray):
            value = torch.from_numpy(np.array(weights, copy=True))
        elif output.name in self._unreadable:
            value = self._unreadable[output.name]
        else:
            raise UnknownLayerError(f"layer {layer.name}: its weights cannot be read as an array, and none were given")
        if value.dtype != torch_dtype(output):
            raise UnknownLayerError(f"layer {layer.name}: weights are {value.dtype}, its output {torch_dtype(output)}")
        return value.reshape(tuple(layer.shape))

    def _plan_frees(self) -> None:
        """Let go of each intermediate value after its last use, so a deep network needs one layer's memory."""
        last: dict[str, _Step] = {}
        for step in self._steps:
            for name in (*step.inputs, *step.outputs):
                if name is not None:
                    last[name] = step
        for name, step in last.items():
            if name not in self._constants and name not in self.input_dtypes and name not in self.output_names:
                step.frees.append(name)


def torch_dtype(tensor: ITensor) -> torch.dtype:
    """The torch dtype of a network tensor."""
    try:
        return _DTYPES[tensor.dtype.name]
    except KeyError:
        raise UnknownLayerError(f"tensor {tensor.name}: the interpreter has no dtype {tensor.dtype.name}") from None


def _name(tensor: ITensor | None) -> str | None:
    return None if tensor is None else tensor.name


def _one(value: torch.Tensor) -> tuple[torch.Tensor]:
    return (value,)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _unknown(layer: ILayer, what: str, mode: object) -> UnknownLayerError:
    return UnknownLayerError(f"layer {layer.name}: the interpreter does not evaluate {what} {mode}")


def _table(what: str, mode: Callable[[Any], Any], table: Mapping[str, Callable[..., torch.Tensor]]) -> Any:
    """Layers that are one torch function, chosen by a mode attribute."""

    def read(layer: ILayer) -> Operation:
        chosen = mode(layer)
        if chosen.name not in table:
            raise _unknown(layer, what, chosen.name)
        function = table[chosen.name]
        return lambda *x: _one(function(*(_wide(a) for a in x)))

    return read


def _divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


_ELEMENTWISE: dict[str, Callable[..., torch.Tensor]] = {
    "SUM": torch.add,
    "SUB": torch.sub,
    "PROD": torch.mul,
    "DIV": _divide,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "EQUAL": torch.eq,
    "LESS": torch.lt,
    "GREATER": torch.gt,
    "AND": torch.logical_and,
    "OR": torch.logical_or,
}
_ACTIVATION: dict[str, Callable[..., torch.Tensor]] = {"SIGMOID": torch.sigmoid, "RELU": torch.relu}
_UNARY: dict[str, Callable[..., torch.Tensor]] = {"ABS": torch.abs, "NOT": torch.logical_not, "SQRT": torch.sqrt}


def _axes(bits: int) -> list[int]:
    return [i for i in range(bits.bit_length()) if bits >> i & 1]


def _reduce(layer: Any) -> Operation:
    functions = {"SUM": torch.sum, "AVG": torch.mean}
    if layer.op.name not in functions:
        raise _unknown(layer, "reduce", layer.op.name)
    function, axes, keep = functions[layer.op.name], _axes(layer.axes), layer.keep_dims
    return lambda x: _one(function(_wide(x), dim=axes, keepdim=keep))


def _shuffle(layer: Any) -> Operation:
    first, second = list(layer.first_transpose), list(layer.second_transpose)
    dims = list(layer.reshape_dims) if len(layer.reshape_dims) >= 0 else None
    if layer.num_inputs > 1:
        raise _unknown(layer, "shuffle", "with a run-time shape")

    def run(x: torch.Tensor) -> tuple[torch.Tensor]:
        x = x.permute(first[: x.dim()])
        if dims is not None:
            x = x.reshape([x.shape[i] if d == 0 else d for i, d in enumerate(dims)])
        return _one(x.permute(second[: x.dim()]))

    return run


def _gather(layer: Any) -> Operation:
    mode, axis = layer.mode.name, layer.axis
    if mode == "ELEMENT":
        return lambda x, index: _one(torch.gather(x, axis, index.long()))
    if mode != "DEFAULT" or layer.num_elementwise_dims:
        raise _unknown(layer, "gather", mode)

    def run(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor]:
        if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < x.shape[axis]):
            raise IndexError(f"gather index {int(index.min())}..{int(index.max())} outside 0..{x.shape[axis] - 1}")
        picked = x.index_select(axis, index.reshape(-1).long())
        return _one(picked.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))

    return run


def _slice(layer: Any) -> Operation:
    if layer.mode.name != "STRICT_BOUNDS":
        raise _unknown(layer, "slice", layer.mode.name)
    # What comes at run time has no static value.
    static = [None if given is None else list(given) for given in (layer.start, layer.shape, layer.stride)]

    def run(x: torch.Tensor, *dynamic: torch.Tensor | None) -> tuple[torch.Tensor]:
        start, size, stride = (
            static[i] if i >= len(dynamic) or (d := dynamic[i]) is None else d.tolist() for i in range(3)
        )
        if start is None or size is None or stride is None:
            raise ValueError("slice without a start, a size or a stride")
        for axis, (s, n, step) in enumerate(zip(start, size, stride, strict=True)):
            x = x.index_select(axis, torch.arange(n) * step + s)
        return _one(x)

    return run


def _matrix_multiply(layer: Any) -> Operation:
    ops = layer.op0.name, layer.op1.name
    if not {*ops} <= {"NONE", "TRANSPOSE"}:
        raise _unknown(layer, "matrix multiply", ops)
    turn = [op == "TRANSPOSE" for op in ops]

    def run(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
        a, b = (_wide(x).transpose(-1, -2) if t else _wide(x) for x, t in zip((a, b), turn, strict=True))
        return _one(a @ b)

    return run


def _top_k(layer: Any) -> Operation:
    if layer.op.name != "MAX" or layer.k != 1:
        raise _unknown(layer, "top-k", f"{layer.op.name} {layer.k}")
    (axis,) = _axes(layer.axes)

    def run(x: torch.Tensor, k: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        # The lowest index wins a tie. NaN is passed over; a row of nothing else has NaN as its highest.
        index = torch.nan_to_num(x, nan=-math.inf, posinf=math.inf, neginf=-math.inf).argmax(axis, keepdim=True)
        return torch.gather(x, axis, index), index.int()

    return run


def _cumulative(layer: Any) -> Operation:
    if layer.op.name != "SUM" or layer.exclusive or layer.reverse:
        raise _unknown(layer, "cumulative", layer.op.name)
    return lambda x, axis: _one(torch.cumsum(x, int(axis)))


def _fill(layer: Any) -> Operation:
    if layer.operation.name != "LINSPACE":
        raise _unknown(layer, "fill", layer.operation.name)

    def run(size: torch.Tensor, start: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor]:
        if size.numel() != 1:
            raise ValueError(f"fill LINSPACE is evaluated for one dimension, given {size.numel()}")
        return _one(start + torch.arange(int(size)) * step)

    return run


def _concatenation(layer: Any) -> Operation:
    axis = layer.axis
    return lambda *x: _one(torch.cat(x, axis))


def _rotary_embedding(layer: Any) -> Operation:
    interleaved, turned = layer.interleaved, layer.rotary_embedding_dim

    def run(
        x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor]:
        if positions is None:
            raise ValueError("rotary embedding is evaluated with position ids only")
        c, s = (_wide(table)[positions.long()].unsqueeze(1) for table in (cos, sin))  # [B, 1, R, D / 2]
        width = turned or x.shape[-1]
        part, rest = _wide(x)[..., :width], x[..., width:]
        if interleaved:
            a, b = part[..., 0::2], part[..., 1::2]
            rotated = torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)
        else:
            a, b = part[..., : width // 2], part[..., width // 2 :]
            rotated = torch.cat((a * c - b * s, b * c + a * s), -1)
        return _one(torch.cat((rotated, rest), -1))

    return run


def _kv_cache_update(layer: Any) -> Operation:
    if layer.cache_mode.name != "LINEAR":
        raise _unknown(layer, "cache update", layer.cache_mode.name)

    def run(cache: torch.Tensor, update: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor]:
        rows = update.shape[2]
        for b, start in enumerate(indices.tolist()):
            if not 0 <= start <= cache.shape[2] - rows:
                raise ValueError(f"{rows} rows at {start} do not fit {cache.shape[2]} positions")
            cache[b, :, start : start + rows] = update[b]
        return _one(cache)

    return run


def _attention_input(layer: Any) -> Operation:
    attention = layer.attention
    for what in ("key_value_lengths", "query_lengths", "normalization_quantize_scale"):
        if getattr(attention, what) is not None:
            raise _unknown(layer, "attention with", what)
    if attention.norm_op.name != "SOFTMAX" or attention.causal_kind.name != "NONE":
        raise _unknown(layer, "attention", f"{attention.norm_op.name} {attention.causal_kind.name}")

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> tuple[torch.Tensor]:
        # Grouped: query heads that share a key head follow each other. No scale: the query brings its own.
        group = q.shape[1] // k.shape[1]
        k, v = (_wide(x).repeat_interleave(group, dim=1) for x in (k, v))
        scores = _wide(q) @ k.transpose(-1, -2)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + _wide(mask)
        return _one(torch.softmax(scores, -1) @ v)

    return run


def _identity(layer: ILayer) -> Operation:
    return lambda x: _one(x)


def _shape(layer: ILayer) -> Operation:
    return lambda x: _one(torch.tensor(x.shape, dtype=torch.int64))


_SUBCLASSES = {
    "ACTIVATION": "IActivationLayer",
    "ATTENTION_INPUT": "IAttentionInputLayer",
    "ATTENTION_OUTPUT": "IAttentionOutputLayer",
    "CAST": "ICastLayer",
    "CONCATENATION": "IConcatenationLayer",
    "CONSTANT": "IConstantLayer",
    "CUMULATIVE": "ICumulativeLayer",
    "ELEMENTWISE": "IElementWiseLayer",
    "FILL": "IFillLayer",
    "GATHER": "IGatherLayer",
    "KV_CACHE_UPDATE": "IKVCacheUpdateLayer",
    "MATRIX_MULTIPLY": "IMatrixMultiplyLayer",
    "REDUCE": "IReduceLayer",
    "ROTARY_EMBEDDING": "IRotaryEmbeddingLayer",
    "SHAPE": "IShapeLayer",
    "SHUFFLE": "IShuffleLayer",
    "SLICE": "ISliceLayer",
    "TOPK": "ITopKLayer",
    "UNARY": "IUnaryLayer",
}
_OPERATIONS: dict[str, Callable[[Any], Operation]] = {
    "ACTIVATION": _table("activation", lambda layer: layer.type, _ACTIVATION),
    "ATTENTION_INPUT": _attention_input,
    "ATTENTION_OUTPUT": _identity,
    "CAST": _identity,
    "CONCATENATION": _concatenation,
    "CUMULATIVE": _cumulative,
    "ELEMENTWISE": _table("elementwise", lambda layer: layer.op, _ELEMENTWISE),
    "FILL": _fill,
    "GATHER": _gather,
    "KV_CACHE_UPDATE": _kv_cache_update,
    "MATRIX_MULTIPLY": _matrix_multiply,
    "REDUCE": _reduce,
    "ROTARY_EMBEDDING": _rotary_embedding,
    "SHAPE": _shape,
    "SHUFFLE": _shuffle,
    "SLICE": _slice,
    "TOPK": _top_k,
    "UNARY": _table("unary", lambda layer: layer.op, _UNARY),
}
