"""From a model to a plan: the network, one optimization profile for each tier, and what the log says about them."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from trtbuild.errors import BuildError
from trtbuild.network.build_log import BuildLog, logger_for, progress_monitor
from trtbuild.network.decoder import NetworkShape, build_decoder
from trtbuild.network.graph import NetworkError
from trtbuild.network.trt_types import (
    Builder,
    IBuilderConfig,
    IBuilderConfigRTX,
    IHostMemory,
    INetworkDefinition,
    IOptimizationProfile,
    TensorRT,
    TensorRTRTX,
)
from trtserve.executor import tensorrt_io as io
from trtserve.model_config import DecoderConfig

_PACKAGES = {
    "tensorrt_rtx": "pip install 'trtlookup[rtx]'",
    "tensorrt": "pip install 'trtlookup[trt]'",
}


@dataclass(frozen=True)
class Plan:
    """A built plan and what its build said."""

    data: IHostMemory
    activation_bytes: tuple[int, ...]
    """Each profile's, in order; empty where the runtime does not log them."""
    seconds: float


def load_runtime(name: io.RuntimeName) -> TensorRT:
    """The module of a runtime. Raises BuildError with the package to install, where there is none or it is too old."""
    try:
        trt: Any = importlib.import_module(name)
    except ImportError as e:
        raise BuildError(f"runtime {name} is not installed ({e}): {_PACKAGES[name]}") from e
    wanted = [call for call in vars(INetworkDefinition) if call.startswith("add_")]
    if missing := [call for call in wanted if not hasattr(trt.INetworkDefinition, call)]:
        raise BuildError(
            f"{name} {trt.__version__} has no {', '.join(sorted(missing))}, of which the network is built; "
            f"install a later one: {_PACKAGES[name]}"
        )
    return cast(TensorRT, trt)


def build_plan(
    trt: TensorRT,
    config: DecoderConfig,
    weights: Mapping[str, torch.Tensor],
    shape: NetworkShape,
    profiles: Sequence[io.Profile],
    *,
    compute_capability: Sequence[int] = (),
    report: Callable[[float], None] = lambda share: None,
) -> Plan:
    """Build a plan of these profiles. ``compute_capability`` (RTX alone; empty: its default set) as 10 * major + minor.

    ``report`` gets the share of the build that is done. Raises BuildError with the log's errors: an error line fails
    the build even where the API returned a plan.
    """
    log = BuildLog()
    begin = time.monotonic()
    try:
        builder = trt.Builder(logger_for(trt, log.take))
    except TypeError as e:  # what the bindings raise when the library returned no builder
        raise _failed(trt, log, f"no builder was made: {e}") from e
    network = builder.create_network(0)
    try:
        graph = build_decoder(trt, network, config, weights, shape)
    except (NetworkError, RuntimeError) as e:
        # The bindings raise RuntimeError where a tensor of a layer that was refused is asked for its shape.
        raise _failed(trt, log, str(e)) from e
    builder_config = builder.create_builder_config()
    # Acceptance decides by comparisons that a NaN must fail.
    builder_config.set_flag(trt.BuilderFlag.STRICT_NANS)
    builder_config.progress_monitor = progress_monitor(trt, report)
    for profile in profiles:
        _add_profile(builder, builder_config, config, profile, shape.cache_positions)
    if compute_capability:
        _set_targets(cast(TensorRTRTX, trt), cast(IBuilderConfigRTX, builder_config), compute_capability)
    data = None if log.errors else builder.build_serialized_network(network, builder_config)
    del graph  # held the constants until here
    if log.errors or data is None:
        raise _failed(trt, log)
    return Plan(data, tuple(log.activation_bytes), time.monotonic() - begin)


def _failed(trt: TensorRT, log: BuildLog, what: str = "") -> BuildError:
    """With what the runtime logged, which is where its reasons are."""
    reasons = [*([what] if what else []), *dict.fromkeys(log.errors[:3])]
    if any("bad_alloc" in reason for reason in reasons):
        reasons.insert(0, "this machine's memory was not enough for the build")
    said = "; ".join(reasons) or "no plan was returned and the log has no reason"
    return BuildError(f"{trt.__name__} {trt.__version__}: {said}")


def _add_profile(
    builder: Builder, builder_config: IBuilderConfig, config: DecoderConfig, profile: io.Profile, positions: int
) -> None:
    """Shapes from the smallest to the largest; the largest is also what the kernels are chosen for."""
    made: IOptimizationProfile = builder.create_optimization_profile()
    head = profile.head_rows
    logits = ((1,), (head,)) if profile.logits else ((0,), (0,))
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        io.TOKEN_IDS: ((1, 1), (profile.batch, profile.rows)),
        io.LENGTHS: ((1,), (profile.batch,)),
        io.NUM_ROWS: ((1,), (profile.batch,)),
        io.HEAD_ROWS: ((1,), (head,)),
        io.LOGIT_ROWS: logits,
    }
    rest = (config.num_kv_heads, positions, config.head_dim)
    for layer in range(config.num_layers):
        for kind in "kv":
            shapes[io.cache_input(kind, layer)] = ((1, *rest), (profile.batch, *rest))
    for name, (least, most) in shapes.items():
        made.set_shape(name, least, most, most)
    if builder_config.add_optimization_profile(made) < 0:
        raise BuildError(f"TensorRT refused the profile {profile.label}: batch {profile.batch}, rows {profile.rows}")


def _set_targets(trt: TensorRTRTX, builder_config: IBuilderConfigRTX, capabilities: Sequence[int]) -> None:
    builder_config.num_compute_capabilities = len(capabilities)
    for i, capability in enumerate(capabilities):
        member: Any = getattr(trt.ComputeCapability, f"SM{capability}", None)
        if member is None or not builder_config.set_compute_capability(member, i):
            raise BuildError(f"{trt.__name__} {trt.__version__} does not build for compute capability {capability}")
