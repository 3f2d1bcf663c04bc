"""The comparison with the reference notices what it is there to notice: each sabotage of a network must show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trtbuild.network.decoder import _Decoder
from trtbuild.network.graph import Graph
from trtbuild.network.trt_types import ITensor

from .models import Runner, build, config_of
from .reference import reference_logits
from .test_network import sequence

Patch = Callable[[pytest.MonkeyPatch, Any], None]


def difference(trt: Any, architecture: str, fold_groups: bool = True) -> float:
    """The largest difference of logits over two ragged rounds, of two sequences."""
    config = config_of(architecture)
    network = build(trt, config, fold_groups=fold_groups)
    runner = Runner(trt, network, slots=2)
    texts = [sequence(10, 24), sequence(11, 24)]
    wanted = [reference_logits(config, network.weights, text)[0] for text in texts]
    worst = 0.0
    lengths = [0, 0]
    for num_rows in ([14, 9], [4, 8]):
        rows = max(num_rows)
        tokens = [[*text[at : at + n], *[0] * (rows - n)] for text, at, n in zip(texts, lengths, num_rows, strict=True)]
        _, logits = runner.run(tokens, lengths, num_rows)
        for b, (at, n) in enumerate(zip(lengths, num_rows, strict=True)):
            worst = max(worst, float((logits[b, :n] - wanted[b][at : at + n]).abs().max()))
        lengths = [at + n for at, n in zip(lengths, num_rows, strict=True)]
    return worst


def _mask_sees_one_more(patch: pytest.MonkeyPatch, trt: Any) -> None:
    mask = _Decoder._mask

    def wrong(self: _Decoder, window: int | None) -> ITensor:
        right = self.positions
        self.positions = self.g.add(right, self.g.int32(1, rank=2))
        try:
            return mask(self, window)
        finally:
            self.positions = right

    patch.setattr(_Decoder, "_mask", wrong)


def _mask_ignores_the_slot_length(patch: pytest.MonkeyPatch, trt: Any) -> None:
    mask = _Decoder._mask

    def wrong(self: _Decoder, window: int | None) -> ITensor:
        right = self.positions
        rows = self.g.arange(self.g.size(self.token_ids, 1))
        zero = self.g.sub(self.lengths, self.lengths)
        self.positions = self.g.add(self.g.reshape(zero, (-1, 1)), self.g.reshape(rows, (1, -1)))
        try:
            return mask(self, window)
        finally:
            self.positions = right

    patch.setattr(_Decoder, "_mask", wrong)


def _no_window(patch: pytest.MonkeyPatch, trt: Any) -> None:
    mask = _Decoder._mask
    patch.setattr(_Decoder, "_mask", lambda self, window: mask(self, None))


def _interleaved_rotation(patch: pytest.MonkeyPatch, trt: Any) -> None:
    def wrong(self: Graph, x: ITensor, cos: ITensor, sin: ITensor, positions: ITensor) -> ITensor:
        layer = self.network.add_rotary_embedding(x, cos, sin, True, int(x.shape[-1]))
        assert layer is not None
        layer.set_input(3, positions)
        return layer.get_output(0)

    patch.setattr(Graph, "rotate", wrong)


def _positions_from_zero(patch: pytest.MonkeyPatch, trt: Any) -> None:
    rotate = Graph.rotate

    def wrong(self: Graph, x: ITensor, cos: ITensor, sin: ITensor, positions: ITensor) -> ITensor:
        return rotate(self, x, cos, sin, self.sub(positions, self.take(positions, self.int32(0), 1)))

    patch.setattr(Graph, "rotate", wrong)


def _no_mlp(patch: pytest.MonkeyPatch, trt: Any) -> None:
    patch.setattr(_Decoder, "_mlp", lambda self, p, x: x)


def _no_key_norm(patch: pytest.MonkeyPatch, trt: Any) -> None:
    norm = _Decoder._norm
    patch.setattr(
        _Decoder, "_norm", lambda self, x, name, rank: x if name.endswith("k_norm") else norm(self, x, name, rank)
    )


def _no_bias(patch: pytest.MonkeyPatch, trt: Any) -> None:
    linear = _Decoder._linear
    patch.setattr(_Decoder, "_linear", lambda self, x, name, bias: linear(self, x, name, False))


def _layer_norm_centred(patch: pytest.MonkeyPatch, trt: Any) -> None:
    norm = _Decoder._norm

    def wrong(self: _Decoder, x: ITensor, name: str, rank: int) -> ITensor:
        return norm(self, self.g.sub(x, self.g.mean(x, axis=rank - 1)), name, rank)

    patch.setattr(_Decoder, "_norm", wrong)


def _groups_in_the_wrong_order(patch: pytest.MonkeyPatch, trt: Any) -> None:
    """Heads dealt to key heads in turn, instead of each key head's heads following each other."""
    attend = Graph.attend

    def wrong(self: Graph, q: ITensor, k: ITensor, v: ITensor, mask: ITensor) -> ITensor:
        return attend(self, q, self.concat((k, k, k), 1), self.concat((v, v, v), 1), mask)

    patch.setattr(Graph, "attend", wrong)


@pytest.mark.parametrize(
    ("sabotage", "architecture", "fold_groups"),
    [
        (_mask_sees_one_more, "llama", True),
        (_mask_sees_one_more, "mistral", False),
        (_mask_ignores_the_slot_length, "llama", True),
        (_no_window, "mistral", True),
        (_no_window, "mixed_windows", True),
        (_interleaved_rotation, "llama", True),
        (_positions_from_zero, "qwen3", True),
        (_no_mlp, "llama", True),
        (_no_key_norm, "qwen3", True),
        (_no_bias, "qwen2", True),
        (_layer_norm_centred, "llama", True),
        (_groups_in_the_wrong_order, "llama", False),
    ],
)
def test_a_wrong_network_is_noticed(
    trt: Any, monkeypatch: pytest.MonkeyPatch, sabotage: Patch, architecture: str, fold_groups: bool
) -> None:
    assert difference(trt, architecture, fold_groups) < 1e-4
    sabotage(monkeypatch, trt)
    assert difference(trt, architecture, fold_groups) > 0.05


def test_a_dropped_layer_is_noticed(trt: Any) -> None:
    """A network of one layer, given a model of two."""
    config = config_of("llama")
    network = build(trt, config)
    one_layer = config.model_copy(update={"num_layers": 1})
    weights = {name: value for name, value in network.weights.items() if not name.startswith("layers.1.")}
    runner = Runner(trt, build(trt, one_layer, weights), slots=1)
    text = sequence(12, 8)
    _, logits = runner.run([text], [0])
    wanted, _, _ = reference_logits(config, network.weights, text)
    assert (logits[0] - wanted).abs().max() > 0.05


def test_a_cache_written_at_the_wrong_place_is_noticed(trt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Graph.update_cache
    monkeypatch.setattr(
        Graph,
        "update_cache",
        lambda self, cache, new, lengths: update(self, cache, new, self.add(lengths, self.int32(1))),
    )
    assert difference(trt, "llama") > 0.05


def test_acceptance_that_ignores_num_rows_is_noticed(trt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The right draft in a row that does not count must not be accepted; without the count it would be."""
    config = config_of("llama")

    def accepted() -> int:
        network = build(trt, config)
        runner = Runner(trt, network, slots=1)
        text = sequence(4, 6)
        wanted, _, _ = reference_logits(config, network.weights, text)
        runner.run([text[:5]], [0])
        verdict, _ = runner.run([[text[5], int(wanted[-1].argmax())]], [5], [1])
        return int(verdict[0, 0])

    assert accepted() == 0
    less = Graph.less
    monkeypatch.setattr(
        Graph,
        "less",
        lambda self, a, b: less(self, a, b) if a.dtype == trt.float32 else less(self, a, self.int32(2, rank=2)),
    )
    assert accepted() == 1
