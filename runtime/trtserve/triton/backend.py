"""The model as Triton's Python backend loads it. The only module that imports Triton's Python API."""

from __future__ import annotations

import gc
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

from trtserve.triton import guard
from trtserve.triton.interface import ENGINE_NAME, INPUTS, OUTPUTS
from trtserve.triton.placement import Placement

if TYPE_CHECKING:
    from trtserve.loading import Loaded
    from trtserve.triton.metrics import TritonMetrics
    from trtserve.triton.response import Outputs
    from trtserve.triton.serving import Failure, Serving

#: Names in pb_utils.TritonError, which Triton adds to its module only after this one is loaded.
_ERROR_CODES: dict[Failure, str] = {
    "invalid": "INVALID_ARG",
    "unavailable": "UNAVAILABLE",
    "cancelled": "CANCELLED",
    "internal": "INTERNAL",
}
_INPUT_NAMES = tuple(spec.name for spec in INPUTS)
_OUTPUT_NAMES = frozenset(spec.name for spec in OUTPUTS)


class TritonReply:
    """``serving.Reply`` over a request's response sender."""

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()
        self._wanted = _OUTPUT_NAMES & set(request.requested_output_names())

    def send(self, outputs: Outputs, *, last: bool) -> None:
        tensors = [pb_utils.Tensor(name, array) for name, array in outputs.items() if name in self._wanted]
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
        self._sender.send(pb_utils.InferenceResponse(tensors), flags=flags)

    def fail(self, kind: Failure, message: str) -> None:
        error = pb_utils.TritonError(message, getattr(pb_utils.TritonError, _ERROR_CODES[kind]))
        self._sender.send(pb_utils.InferenceResponse(error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def cancelled(self) -> bool:
        gone: bool = self._sender.is_cancelled()
        return gone


class TritonPythonModel:
    """One instance: an engine of its own, in a process of its own."""

    _loaded: Loaded | None = None
    _serving: Serving | None = None
    _metrics: TritonMetrics | None = None

    def initialize(self, args: dict[str, str]) -> None:
        guard.end_with(os.getppid())
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config.get("parameters", {}).items()}
        placement = Placement.of(parameters, args["model_instance_name"])
        # Before anything that looks for GPUs is imported.
        os.environ.update(placement.environment)
        from trtserve.loading import load_engine
        from trtserve.overrides import Overrides
        from trtserve.triton.metrics import TritonMetrics
        from trtserve.triton.request import ParameterPolicy
        from trtserve.triton.serving import Serving

        logging.basicConfig(level="INFO", format="%(levelname)s %(name)s: %(message)s")
        self._decoupled = bool(pb_utils.using_decoupled_model_transaction_policy(config))
        self._policy = ParameterPolicy(
            parameters.get("tenant_parameter", ParameterPolicy.tenant), parameters.get("require_tenant") == "true"
        )
        overrides = Overrides.parse(json.loads(parameters.get("overrides", "{}")))
        directory = Path(args["model_repository"]) / args["model_version"] / ENGINE_NAME
        self._loaded = load_engine(directory, overrides)
        engine, tokenizer = self._loaded
        self._metrics = TritonMetrics(pb_utils.MetricFamily, engine, args["model_name"], args["model_instance_name"])
        self._serving = Serving(engine, tokenizer, self._metrics)
        pb_utils.Logger.log_info(f"{args['model_instance_name']}: {engine.manifest.name} is ready, {placement}")

    def execute(self, requests: list[Any]) -> None:
        """Hand every request over. Its tensors are read here, since their memory is released afterwards."""
        from trtserve.engine.protocol import RequestError
        from trtserve.triton.request import parse

        assert self._serving is not None
        for request in requests:
            reply = TritonReply(request)
            try:
                call = parse(
                    _tensors(request),
                    request.parameters(),
                    request.request_id(),
                    self._policy,
                    decoupled=self._decoupled,
                )
            except RequestError as e:
                reply.fail("invalid", str(e))
            except Exception as e:
                pb_utils.Logger.log_error(f"a request could not be read: {e!r}")
                reply.fail("internal", "the request could not be read; the server's log has the reason")
            else:
                self._serving.accept(call, reply)

    def finalize(self) -> None:
        """Answer what still runs, and free everything, also after an initialization that failed halfway."""
        if self._serving is not None:
            self._serving.close()
        if self._metrics is not None:
            self._metrics.close()
        if self._loaded is not None:
            self._loaded.engine.close()
        self._serving = self._metrics = self._loaded = None
        # Metrics and senders that only a cycle keeps alive would be freed after Triton has gone: a crash on exit.
        gc.collect()


def _tensors(request: Any) -> dict[str, Any]:
    """The inputs that the request has, as arrays of host memory, copied."""
    found = {name: pb_utils.get_input_tensor_by_name(request, name) for name in _INPUT_NAMES}
    return {name: tensor.as_numpy().copy() for name, tensor in found.items() if tensor is not None}
