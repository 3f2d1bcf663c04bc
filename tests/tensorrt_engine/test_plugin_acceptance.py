"""How the plugin's tensors are made: evaluated over a stand-in for the plugin that follows its documented rule."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from trtbuild.network import acceptance, plugin_acceptance
from trtbuild.network.graph import Graph

from .models import Runner, build, config_of
from .test_network import sequence


def test_the_plugins_inputs_give_the_layers_verdict(trt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verify with a slot of fewer rows, and a prefill: the stand-in computes on exactly what the plugin would get."""

    def stand_in(network: Any, trtp: Any, logits: Any, tokens: Any, num_rows: Any) -> Any:
        g = Graph(trt, network)
        rows = g.arange(g.size(tokens, 1))
        verdict = acceptance.add_acceptance(g, logits, logits, tokens, rows, num_rows)
        kept.append(g)
        accepted, token, failed = (g.take(verdict, g.int32(i), 1) for i in range(3))
        token = g.sub(g.mul(token, g.sub(g.int32(1, rank=2), failed)), failed)  # -1 where the deciding row failed
        return SimpleNamespace(accepted=g.reshape(accepted, (-1,)), next=g.reshape(token, (-1,)))

    kept: list[Graph] = []
    monkeypatch.setitem(sys.modules, "tensorrt_rtx.plugin", SimpleNamespace())
    monkeypatch.setattr(plugin_acceptance, "register_plugins", lambda *a: None)
    monkeypatch.setattr(plugin_acceptance, "add_acceptance", stand_in)
    config = config_of("llama")
    layers = build(trt, config)
    plugin = build(trt, config, acceptance=plugin_acceptance.add_plugin_acceptance)
    text = sequence(20, 9)
    for head_rows, num_rows in (([0, 1, 2], [3, 2]), ([2], [3, 3])):
        runners = [Runner(trt, network, slots=2) for network in (layers, plugin)]
        verdicts = [r.run([text[:3], text[3:6]], [0, 0], num_rows, head_rows)[0] for r in runners]
        assert verdicts[0].tolist() == verdicts[1].tolist()
