"""RoPE settings, from a Hugging Face config or from GGUF metadata: understood in full, or refused by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from trtbuild.checkpoint.fields import Fields
from trtserve.model_config import RopeConfig
from trtserve.rope import inverse_frequencies

_KINDS = ("default", "linear", "llama3", "yarn")
_OPTIONS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}


def rope_from_hf(fields: Fields, max_position: int) -> RopeConfig:
    """RoPE from ``rope_parameters`` (transformers 5) or ``rope_scaling`` and ``rope_theta`` (before).

    The order of precedence is transformers': ``rope_scaling`` replaces ``rope_parameters``, a theta inside either wins
    over ``rope_theta``, and a top-level ``original_max_position_embeddings`` wins over one inside.
    """
    scaling, parameters = fields.raw("rope_scaling"), fields.raw("rope_parameters")
    name = "rope_scaling" if scaling else "rope_parameters"
    given = scaling or parameters or {}
    if not isinstance(given, dict):
        raise fields.error(name, f"is {given!r}, expected an object")
    inner = Fields(given, f"{fields.where}: {name}")
    kind = inner.get("rope_type", str, None) or "default"
    if inner.has("type") and not inner.has("rope_type"):
        kind = inner.get("type", str)
    inner.raw("type")
    if kind not in _KINDS:
        raise inner.error("rope_type", f"is {kind!r}; supported are {', '.join(_KINDS)}")
    theta = inner.get("rope_theta", float, None) or fields.get("rope_theta", float, 10000.0)
    fields.raw("rope_theta")
    for owner in (inner, fields):
        owner.require("partial_rotary_factor", owner.get("partial_rotary_factor", float, 1.0), 1.0)
    inner.raw("finetuned")  # says how the model was trained, not how it runs
    outer_original = fields.get("original_max_position_embeddings", int, None)

    options: dict[str, Any] = {}
    if kind in ("llama3", "yarn"):
        inner_original = inner.get("original_max_position_embeddings", int, None)
        options["original_max_position"] = outer_original or inner_original or max_position
        if options["original_max_position"] < 1:
            raise inner.error("original_max_position_embeddings", f"is {inner_original!r}, expected at least 1")
    if kind in ("linear", "llama3"):
        options["factor"] = inner.get("factor", float)
    if kind == "llama3":
        options["low_freq_factor"] = inner.get("low_freq_factor", float)
        options["high_freq_factor"] = inner.get("high_freq_factor", float)
        if options["low_freq_factor"] == options["high_freq_factor"]:
            raise inner.error("high_freq_factor", "equals low_freq_factor, so there is no band to blend over")
    if kind == "yarn":
        stretched = max_position / options["original_max_position"]
        options["factor"] = inner.get("factor", float, stretched)
        options["attention_factor"] = inner.get("attention_factor", float, None)
        options["beta_fast"] = inner.get("beta_fast", float, None) or 32.0
        options["beta_slow"] = inner.get("beta_slow", float, None) or 1.0
        options["mscale"] = inner.get("mscale", float, None)
        options["mscale_all_dim"] = inner.get("mscale_all_dim", float, None)
        options["truncate"] = inner.get("truncate", bool, True)
    for leftover, value in inner.unread().items():
        allowed = ", ".join(("rope_type", "rope_theta", *_OPTIONS[kind]))
        raise inner.error(leftover, f"is {value!r}; a {kind!r} RoPE takes {allowed}")
    return _rope(inner, kind=kind, theta=theta, **options)


def rope_from_gguf(
    fields: Fields, head_dim: int, max_position: int, divisors: NDArray[np.float32] | None
) -> RopeConfig:
    """RoPE from ``rope.*`` metadata and the file's ``rope_freqs`` tensor (``divisors``, ``[head_dim / 2]``).

    GGUF keeps Llama 3.1's rule as that tensor alone. It is honoured when it is exactly what the rule yields for the
    constants all published Llama 3 models use, and refused otherwise.
    """
    theta = fields.get("rope.freq_base", float, 10000.0)
    dimensions = fields.get("rope.dimension_count", int, head_dim)
    fields.require("rope.dimension_count", dimensions, head_dim)
    kind = fields.get("rope.scaling.type", str, "none")
    fields.raw("rope.scaling.finetuned")
    for name in ("attn_factor", "yarn_ext_factor", "yarn_attn_factor"):
        fields.require(f"rope.scaling.{name}", fields.get(f"rope.scaling.{name}", float, 1.0), 1.0)
    factor = fields.get("rope.scaling.factor", float, 1.0)
    original = fields.get("rope.scaling.original_context_length", int, max_position)
    fast = fields.get("rope.scaling.yarn_beta_fast", float, 32.0)
    slow = fields.get("rope.scaling.yarn_beta_slow", float, 1.0)
    if divisors is not None:
        if kind != "none":
            raise fields.error("rope_freqs.weight", f"comes with rope.scaling.type {kind!r}; only one is supported")
        return _llama3_from_divisors(fields, theta, head_dim, divisors)
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return _rope(fields, theta=theta)
    if kind == "linear":
        return _rope(fields, kind="linear", theta=theta, factor=factor)
    if kind == "yarn":
        return _rope(
            fields,
            kind="yarn",
            theta=theta,
            factor=factor,
            original_max_position=original,
            beta_fast=fast,
            beta_slow=slow,
        )
    raise fields.error("rope.scaling.type", f"is {kind!r}; supported are none, linear, yarn")


def _rope(fields: Fields, **values: Any) -> RopeConfig:
    try:
        return RopeConfig(**values)
    except ValidationError as e:
        problems = "; ".join(f"{'.'.join(map(str, x['loc']))} {x['input']!r}: {x['msg']}" for x in e.errors())
        raise fields.error("RoPE", f"cannot be built: {problems}") from e


def _llama3_from_divisors(fields: Fields, theta: float, head_dim: int, divisors: NDArray[np.float32]) -> RopeConfig:
    if divisors.shape != (head_dim // 2,):
        raise fields.error("rope_freqs.weight", f"has shape {list(divisors.shape)}, expected [{head_dim // 2}]")
    factor = float(divisors.max())
    rule = _rope(
        fields,
        kind="llama3",
        theta=theta,
        factor=factor if factor > 0 and math.isfinite(factor) else 1.0,
        original_max_position=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    plain, _ = inverse_frequencies(RopeConfig(theta=theta), head_dim)
    scaled, _ = inverse_frequencies(rule, head_dim)
    if not np.allclose(plain / divisors, scaled, rtol=2e-6, atol=0):
        raise fields.error(
            "rope_freqs.weight",
            f"(largest {factor:g}) is not Llama 3's rule with low_freq_factor 1, high_freq_factor 4 and 8192 original "
            "positions, the only one supported in GGUF",
        )
    return rule
