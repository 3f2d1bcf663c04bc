"""A network under construction: the few verbs a decoder is written in, over TensorRT's ``add_*`` calls.

TensorRT's builders report a refused layer by returning None; here that is a :class:`NetworkError` naming the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from trtbuild.network.trt_types import DataType, ILayer, INetworkDefinition, ITensor, TensorRT

_T = TypeVar("_T")


class NetworkError(Exception):
    """TensorRT refused a layer. The message names the call; the logger has its reason."""


class Graph:
    """Wraps an ``INetworkDefinition`` of either module. Holds every constant's memory, so it must outlive the build."""

    def __init__(self, trt: TensorRT, network: INetworkDefinition) -> None:
        self.trt = trt
        self.network = network
        self.constants: dict[str, torch.Tensor] = {}
        """Every constant's value by its tensor's name: the memory that the network refers to."""
        self._dtypes: dict[torch.dtype, DataType] = {
            torch.float32: trt.float32,
            torch.float16: trt.float16,
            torch.bfloat16: trt.bfloat16,
            torch.int32: trt.int32,
            torch.int64: trt.int64,
        }

    def dtype(self, dtype: torch.dtype) -> DataType:
        return self._dtypes[dtype]

    def input(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> ITensor:
        return _made(self.network.add_input(name, self._dtypes[dtype], tuple(shape)), f"input {name}")

    def output(self, tensor: ITensor, name: str, dtype: torch.dtype) -> None:
        tensor.name = name
        self.network.mark_output(tensor)
        if tensor.dtype != self._dtypes[dtype]:
            raise NetworkError(f"output {name} is {tensor.dtype}, wanted {self._dtypes[dtype]}")

    def constant(self, value: torch.Tensor, shape: Sequence[int] | None = None) -> ITensor:
        """A constant of the tensor's own dtype. The memory is shared, not copied, and kept alive by this graph."""
        value = value.contiguous()
        weights = self.trt.Weights(self._dtypes[value.dtype], value.data_ptr(), value.numel())
        dims = tuple(value.shape if shape is None else shape)
        constant = _out(self.network.add_constant(dims, weights), f"constant {dims}")
        self.constants[constant.name] = value
        return constant

    def int32(self, *values: int, rank: int = 1) -> ITensor:
        """Integers as an int32 constant whose shape is ``[len(values)]`` behind ``rank - 1`` dimensions of 1."""
        shape = (1,) * (rank - 1) + ((len(values),) if rank else ())
        return self.constant(torch.tensor(values, dtype=torch.int32).reshape(shape), shape)

    def float32(self, value: float, rank: int) -> ITensor:
        return self.constant(torch.full((1,) * rank, value, dtype=torch.float32))

    def cast(self, x: ITensor, dtype: torch.dtype) -> ITensor:
        if x.dtype == self._dtypes[dtype]:
            return x
        return _out(self.network.add_cast(x, self._dtypes[dtype]), f"cast to {dtype}")

    # Elementwise. Both sides have the same rank; a dimension of 1 is broadcast.
    def _elementwise(self, a: ITensor, b: ITensor, op: object) -> ITensor:
        return _out(self.network.add_elementwise(a, b, op), f"elementwise {op}")

    def add(self, a: ITensor, b: ITensor) -> ITensor:
        return self._elementwise(a, b, self.trt.ElementWiseOperation.SUM)

    def sub(self, a: ITensor, b: ITensor) -> ITensor:
        return self._elementwise(a, b, self.trt.ElementWiseOperation.SUB)

    def mul(self, a: ITensor, b: ITensor) -> ITensor:
        return self._elementwise(a, b, self.trt.ElementWiseOperation.PROD)

    def div(self, a: ITensor, b: ITensor) -> ITensor:
        return self._elementwise(a, b, self.trt.ElementWiseOperation.DIV)

    def minimum(self, a: ITensor, b: ITensor) -> ITensor:
        return self._elementwise(a, b, self.trt.ElementWiseOperation.MIN)

    def equal(self, a: ITensor, b: ITensor) -> ITensor:
        return self._elementwise(a, b, self.trt.ElementWiseOperation.EQUAL)

    def less(self, a: ITensor, b: ITensor) -> ITensor:
        return self._elementwise(a, b, self.trt.ElementWiseOperation.LESS)

    def greater(self, a: ITensor, b: ITensor) -> ITensor:
        return self._elementwise(a, b, self.trt.ElementWiseOperation.GREATER)

    def both(self, a: ITensor, b: ITensor) -> ITensor:
        return self._elementwise(a, b, self.trt.ElementWiseOperation.AND)

    def negate(self, x: ITensor) -> ITensor:
        """Logical not."""
        return _out(self.network.add_unary(x, self.trt.UnaryOperation.NOT), "unary NOT")

    def sqrt(self, x: ITensor) -> ITensor:
        return _out(self.network.add_unary(x, self.trt.UnaryOperation.SQRT), "unary SQRT")

    def abs(self, x: ITensor) -> ITensor:
        return _out(self.network.add_unary(x, self.trt.UnaryOperation.ABS), "unary ABS")

    def silu(self, x: ITensor) -> ITensor:
        sigmoid = _out(self.network.add_activation(x, self.trt.ActivationType.SIGMOID), "activation SIGMOID")
        return self.mul(x, sigmoid)

    def matmul_transposed(self, x: ITensor, weight: ITensor) -> ITensor:
        """``x @ weight.T`` over the last two dimensions."""
        op = self.trt.MatrixOperation
        return _out(self.network.add_matrix_multiply(x, op.NONE, weight, op.TRANSPOSE), "matrix_multiply")

    def mean(self, x: ITensor, axis: int) -> ITensor:
        """The mean along ``axis``, which stays with size 1."""
        return _out(self.network.add_reduce(x, self.trt.ReduceOperation.AVG, 1 << axis, True), "reduce AVG")

    def sum(self, x: ITensor, axis: int) -> ITensor:
        """The sum along ``axis``, which stays with size 1."""
        return _out(self.network.add_reduce(x, self.trt.ReduceOperation.SUM, 1 << axis, True), "reduce SUM")

    def running_sum(self, x: ITensor, axis: int) -> ITensor:
        """The inclusive running sum of an int32 tensor along ``axis``."""
        op = self.trt.CumulativeOperation.SUM
        return _out(self.network.add_cumulative(x, self.int32(axis, rank=0), op, False, False), "cumulative SUM")

    def highest(self, x: ITensor, axis: int) -> tuple[ITensor, ITensor]:
        """The highest value along ``axis`` and its int32 index, both with that axis of size 1."""
        layer = _made(self.network.add_topk(x, self.trt.TopKOperation.MAX, 1, 1 << axis), "topk")
        return layer.get_output(0), layer.get_output(1)

    def take(self, x: ITensor, indices: ITensor, axis: int) -> ITensor:
        """``x`` with ``axis`` replaced by the dimensions of ``indices``: whole entries picked by index."""
        layer = _made(self.network.add_gather_v2(x, indices, self.trt.GatherMode.DEFAULT), "gather")
        layer.axis = axis
        return layer.get_output(0)

    def take_elements(self, x: ITensor, indices: ITensor, axis: int) -> ITensor:
        """``torch.gather``: one element of ``x`` along ``axis`` for each element of ``indices``, of the same rank."""
        layer = _made(self.network.add_gather_v2(x, indices, self.trt.GatherMode.ELEMENT), "gather elements")
        layer.axis = axis
        return layer.get_output(0)

    def reshape(
        self,
        x: ITensor,
        dims: Sequence[int],
        *,
        before: Sequence[int] | None = None,
        after: Sequence[int] | None = None,
    ) -> ITensor:
        """Transpose by ``before``, reshape to ``dims`` (0: as it was, -1: inferred), transpose by ``after``."""
        layer = _made(self.network.add_shuffle(x), "shuffle")
        if before is not None:
            layer.first_transpose = tuple(before)
        layer.reshape_dims = tuple(dims)
        if after is not None:
            layer.second_transpose = tuple(after)
        return layer.get_output(0)

    def concat(self, parts: Sequence[ITensor], axis: int) -> ITensor:
        layer = _made(self.network.add_concatenation(list(parts)), "concatenation")
        layer.axis = axis
        return layer.get_output(0)

    def size(self, x: ITensor, axis: int) -> ITensor:
        """The run-time size of ``axis``, int64 ``[1]``."""
        shape = _out(self.network.add_shape(x), "shape")
        return self.take(shape, self.int32(axis), 0)

    def arange(self, size: ITensor) -> ITensor:
        """0, 1, ... as int32 ``[size]``; ``size`` is int64 ``[1]``."""
        layer = _made(self.network.add_fill((1,), self.trt.FillOperation.LINSPACE, self.trt.int32), "fill")
        layer.set_input(0, size)
        layer.set_input(1, self.int32(0, rank=0))
        layer.set_input(2, self.int32(1))
        return layer.get_output(0)

    def rotate(self, x: ITensor, cos: ITensor, sin: ITensor, positions: ITensor) -> ITensor:
        """RoPE in rotate-half order on ``x [B, N, R, D]``; tables ``[S, D / 2]`` of x's dtype, positions ``[B, R]``."""
        layer = _made(self.network.add_rotary_embedding(x, cos, sin, False, int(x.shape[-1])), "rotary_embedding")
        layer.set_input(3, positions)
        return layer.get_output(0)

    def update_cache(self, cache: ITensor, update: ITensor, lengths: ITensor) -> ITensor:
        """``cache [B, KH, S, D]`` with ``update [B, KH, R, D]`` written at ``lengths [B]``, in place. An output."""
        mode = self.trt.KVCacheMode.LINEAR
        return _out(self.network.add_kv_cache_update(cache, update, lengths, mode), "kv_cache_update")

    def attend(self, q: ITensor, k: ITensor, v: ITensor, mask: ITensor) -> ITensor:
        """Softmax attention of already scaled ``q [B, N, R, D]`` over ``k, v [B, KH, S, D]`` where ``mask`` is true."""
        attention = _made(
            self.network.add_attention_v2(
                q, k, v, self.trt.AttentionNormalizationOp.SOFTMAX, self.trt.CausalMaskKind.NONE
            ),
            "attention",
        )
        # Without a fused kernel for the shape (float32, small heads) it may be built from parts instead of failing.
        attention.decomposable = True
        attention.mask = mask
        # The setter of a refused mask only logs, and the build would go on without one.
        if attention.mask is None:
            raise NetworkError("attention: the mask was refused")
        return attention.get_output(0)


def _made(made: _T | None, call: str) -> _T:
    if made is None:
        raise NetworkError(f"TensorRT refused to add {call}")
    return made


def _out(layer: ILayer | None, call: str) -> ITensor:
    return _made(layer, call).get_output(0)
