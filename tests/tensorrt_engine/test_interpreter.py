"""The interpreter itself: it refuses what it does not know, and says where a network cannot be evaluated."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trtbuild.network.interpreter import Interpreter, UnknownLayerError

from .models import build, config_of


class Net:
    """An empty network with an input ``x`` of float32 ``[2, -1]``."""

    def __init__(self, trt: Any) -> None:
        self.logger = trt.Logger(trt.Logger.ERROR)
        self.builder = trt.Builder(self.logger)
        self.network = self.builder.create_network(0)
        self.x = self.network.add_input("x", trt.float32, (2, -1))

    def ends_with(self, layer: Any) -> Any:
        layer.get_output(0).name = "y"
        self.network.mark_output(layer.get_output(0))
        return self.network


def run(trt: Any, network: Any, **inputs: torch.Tensor) -> torch.Tensor:
    return Interpreter(trt, network).run(inputs)["y"]


def test_a_layer_it_does_not_know_is_refused_by_name(trt: Any) -> None:
    net = Net(trt)
    network = net.ends_with(net.network.add_softmax(net.x))
    with pytest.raises(UnknownLayerError, match="does not evaluate SOFTMAX"):
        Interpreter(trt, network)


def test_a_mode_it_does_not_know_is_refused(trt: Any) -> None:
    net = Net(trt)
    network = net.ends_with(net.network.add_unary(net.x, trt.UnaryOperation.ERF))
    with pytest.raises(UnknownLayerError, match="does not evaluate unary ERF"):
        Interpreter(trt, network)


def test_attention_with_lengths_is_refused(trt: Any) -> None:
    """What a padded cache and key lengths mean together is not known here, so it is not guessed."""
    net = Net(trt)
    q = net.network.add_input("q", trt.float32, (-1, 2, 4, 8))
    k = net.network.add_input("k", trt.float32, (-1, 2, 16, 8))
    n = net.network.add_input("n", trt.int32, (-1,))
    attention = net.network.add_attention_v2(
        q, k, k, trt.AttentionNormalizationOp.SOFTMAX, trt.CausalMaskKind.LOWER_RIGHT
    )
    attention.key_value_lengths = n
    attention.get_output(0).name = "y"
    net.network.mark_output(attention.get_output(0))
    with pytest.raises(UnknownLayerError, match="key_value_lengths"):
        Interpreter(trt, net.network)


def test_unreadable_constants_must_be_given(trt: Any) -> None:
    network = build(trt, config_of("llama", dtype="bfloat16"))
    with pytest.raises(UnknownLayerError, match="cannot be read as an array"):
        Interpreter(trt, network.definition)
    Interpreter(trt, network.definition, network.graph.constants)


def test_readable_constants_come_from_the_network_and_not_from_the_graph(trt: Any) -> None:
    network = build(trt, config_of("llama"))
    lies = {name: torch.zeros_like(value) for name, value in network.graph.constants.items()}
    read = Interpreter(trt, network.definition, lies)._constants
    assert any(bool(value.any()) for value in read.values())


def test_a_network_can_be_read_twice(trt: Any) -> None:
    network = build(trt, config_of("llama"))
    first, second = (Interpreter(trt, network.definition) for _ in range(2))
    assert first.input_names == second.input_names


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "differ in x"),
        ({"x": torch.zeros(2, 3), "z": torch.zeros(1)}, "differ in z"),
        ({"x": torch.zeros(2, 3, dtype=torch.float16)}, r"x is torch\.float16, the network wants torch\.float32"),
    ],
)
def test_inputs_that_are_not_the_networks_are_refused(trt: Any, inputs: dict[str, torch.Tensor], message: str) -> None:
    net = Net(trt)
    network = net.ends_with(net.network.add_unary(net.x, trt.UnaryOperation.ABS))
    with pytest.raises(ValueError, match=message):
        run(trt, network, **inputs)


def test_an_index_outside_its_tensor_is_an_error_and_not_a_wrap(trt: Any) -> None:
    net = Net(trt)
    index = net.network.add_input("i", trt.int32, (1,))
    layer = net.network.add_gather_v2(net.x, index, trt.GatherMode.DEFAULT)
    layer.axis = 1
    network = net.ends_with(layer)
    x = torch.arange(6.0).reshape(2, 3)
    assert run(trt, network, x=x, i=torch.tensor([2], dtype=torch.int32)).tolist() == [[2.0], [5.0]]
    with pytest.raises(ValueError, match=r"gather index 3\.\.3 outside 0\.\.2"):
        run(trt, network, x=x, i=torch.tensor([3], dtype=torch.int32))
    with pytest.raises(ValueError, match=r"gather index -1"):
        run(trt, network, x=x, i=torch.tensor([-1], dtype=torch.int32))


def test_a_slice_with_run_time_sizes(trt: Any) -> None:
    net = Net(trt)
    size = net.network.add_input("size", trt.int32, (2,))
    layer = net.network.add_slice(net.x, (0, 1), (1, 1), (1, 2))
    layer.set_input(2, size)
    network = net.ends_with(layer)
    x = torch.arange(10.0).reshape(2, 5)
    got = run(trt, network, x=x, size=torch.tensor([2, 2], dtype=torch.int32))
    assert got.tolist() == [[1.0, 3.0], [6.0, 8.0]]


def test_the_lowest_index_wins_a_tie(trt: Any) -> None:
    net = Net(trt)
    layer = net.network.add_topk(net.x, trt.TopKOperation.MAX, 1, 1 << 1)
    layer.get_output(1).name = "y"
    net.network.mark_output(layer.get_output(1))
    x = torch.tensor([[1.0, 4.0, 4.0], [float("nan"), 2.0, 2.0]])
    assert run(trt, net.network, x=x).tolist() == [[1], [1]]


@pytest.mark.parametrize(("op", "wanted"), [("SUM", [7.0]), ("MAX", [5.0]), ("DIV", [2.5]), ("SUB", [3.0])])
def test_elementwise(trt: Any, op: str, wanted: list[float]) -> None:
    net = Net(trt)
    y = net.network.add_input("z", trt.float32, (2, -1))
    network = net.ends_with(net.network.add_elementwise(net.x, y, getattr(trt.ElementWiseOperation, op)))
    got = run(trt, network, x=torch.full((2, 1), 5.0), z=torch.full((2, 1), 2.0))
    assert got.tolist() == [wanted, wanted]


def test_a_layer_that_fails_is_named_with_its_shapes(trt: Any) -> None:
    net = Net(trt)
    y = net.network.add_input("z", trt.float32, (2, -1))
    network = net.ends_with(net.network.add_elementwise(net.x, y, trt.ElementWiseOperation.SUM))
    with pytest.raises(ValueError, match=r"layer .*ElementWise.* with inputs \[\[2, 3\], \[2, 2\]\]"):
        run(trt, network, x=torch.zeros(2, 3), z=torch.zeros(2, 2))
