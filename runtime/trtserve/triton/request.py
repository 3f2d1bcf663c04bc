"""What a request's tensors and parameters ask for. Whatever is wrong with them is a RequestError that names the tensor.

The server checks little of this: it counts the inputs, and a request with an optional input in place of ``text_input``
still arrives here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from pydantic import ValidationError

from trtserve.engine.protocol import RequestError, Scope
from trtserve.sampling import SamplingParams
from trtserve.triton.interface import INPUTS, SAMPLING_PREFIX, TensorSpec

Tensors = Mapping[str, NDArray[Any]]
Value = str | bool | int | float

#: Output tokens of a request that names no limit, as in TensorRT-LLM's LLM API.
DEFAULT_MAX_TOKENS = 32
MAX_SALT = 256

_SPECS = {spec.name: spec for spec in INPUTS}
#: Inputs of the sampling block that are no fields of SamplingParams.
_NOT_SAMPLING = frozenset({"best_of", "exclude_input_from_output", "return_perf_metrics"})
_SAMPLING = tuple(
    name.removeprefix(SAMPLING_PREFIX)
    for name in _SPECS
    if name.startswith(SAMPLING_PREFIX) and name.removeprefix(SAMPLING_PREFIX) not in _NOT_SAMPLING
)


@dataclass(frozen=True)
class ParameterPolicy:
    """Which request parameters say whose the request is. Clients may be able to set any: see docs/triton.md."""

    tenant: str = "tenant"
    """The parameter that names the tenant."""
    required: bool = False
    """Refuse a request without it."""


@dataclass(frozen=True)
class Call:
    """One request, checked as far as it can be without the engine."""

    request_id: str
    scope: Scope
    text: str
    params: SamplingParams
    max_tokens_asked: bool
    """False: ``params.max_tokens`` is the default, to be cut to what the context has room for."""
    prediction: str = ""
    lookup: bool = True
    streaming: bool = False
    accumulate: bool = False
    """Each piece of a stream holds all text so far."""
    echo: bool = False
    """The prompt's text comes before the output's."""
    return_finish_reason: bool = False
    return_stop_reason: bool = False
    return_cumulative_logprob: bool = False
    return_perf_metrics: bool = False
    return_lookup_stats: bool = False


@dataclass(frozen=True)
class Stop:
    """A request to cancel what runs under a request id, within the tenant."""

    request_id: str
    scope: Scope


def parse(
    tensors: Tensors, parameters: str, request_id: str, policy: ParameterPolicy, *, decoupled: bool
) -> Call | Stop:
    """A request's meaning. ``parameters``: the JSON object that Triton hands over. Raises RequestError."""
    scope = _scope(_parameters(parameters), policy)
    if _flag(tensors, "stop"):
        if not request_id:
            raise RequestError("stop: needs the id of the request to cancel as its own request id", "stop")
        return Stop(request_id, scope)
    streaming = _flag(tensors, "streaming")
    if streaming and not decoupled:
        raise RequestError(
            "streaming: this model answers each request once; streams need the decoupled transaction policy "
            "(trtbuild triton --decoupled)",
            "streaming",
        )
    if (best_of := _scalar(tensors, "sampling_param_best_of")) not in (None, 1):
        raise RequestError(f"sampling_param_best_of: given {best_of}; allowed: 1", "sampling_param_best_of")
    text = _scalar(tensors, "text_input")
    if text is None:
        raise RequestError("text_input: is missing; every request needs one string", "text_input")
    params = _sampling(tensors)
    return Call(
        request_id=request_id,
        scope=scope,
        text=str(text),
        params=params,
        max_tokens_asked="sampling_param_max_tokens" in tensors,
        prediction=str(_scalar(tensors, "prediction") or ""),
        lookup=_flag(tensors, "prompt_lookup", True),
        streaming=streaming,
        accumulate=_flag(tensors, "accumulate_text"),
        echo=not _flag(tensors, "sampling_param_exclude_input_from_output", True),
        return_finish_reason=_flag(tensors, "return_finish_reason"),
        return_stop_reason=_flag(tensors, "return_stop_reason"),
        return_cumulative_logprob=_flag(tensors, "return_cumulative_logprob"),
        return_perf_metrics=_flag(tensors, "sampling_param_return_perf_metrics"),
        return_lookup_stats=_flag(tensors, "return_lookup_stats"),
    )


def _parameters(text: str) -> dict[str, Any]:
    parameters = json.loads(text) if text else {}
    if not isinstance(parameters, dict):
        raise RequestError("the request parameters are no JSON object", "parameters")
    # The generate endpoint makes a parameter of any key that is no input, so a misspelt input would pass unnoticed.
    for name in parameters:
        if name in SamplingParams.model_fields and SAMPLING_PREFIX + name in _SPECS:
            raise RequestError(f"{name}: is no parameter of this model; the input is {SAMPLING_PREFIX}{name}", name)
        if name in SamplingParams.model_fields or name.startswith(SAMPLING_PREFIX):
            raise RequestError(f"{name}: this model has no such input", name)
    return parameters


def _scope(parameters: Mapping[str, Any], policy: ParameterPolicy) -> Scope:
    tenant = parameters.get(policy.tenant)
    if tenant is None and policy.required:
        raise RequestError(f"{policy.tenant}: this request parameter is missing; it names the tenant", policy.tenant)
    salt = parameters.get("cache_salt", "")
    for name, value in ((policy.tenant, "" if tenant is None else tenant), ("cache_salt", salt)):
        if not isinstance(value, str) or len(value) > MAX_SALT:
            raise RequestError(f"{name}: allowed: a string of up to {MAX_SALT} characters", name)
    if tenant == "" and policy.required:
        raise RequestError(f"{policy.tenant}: is empty; it names the tenant", policy.tenant)
    return Scope(tenant=tenant or "", salt=salt)


def _sampling(tensors: Tensors) -> SamplingParams:
    fields: dict[str, Any] = {}
    for name in _SAMPLING:
        spec = _SPECS[SAMPLING_PREFIX + name]
        if spec.name in tensors:
            fields[name] = tuple(_values(tensors, spec)) if spec.size < 0 else _scalar(tensors, spec.name)
    fields.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
    if fields.get("top_p") == 0:
        # TensorRT-LLM's clients write greedy like this.
        fields.update(top_p=1.0, temperature=0.0)
    if not fields.keys() & {"temperature", "top_p", "top_k"}:
        fields["temperature"] = 0.0
    if _flag(tensors, "return_cumulative_logprob"):
        fields["logprobs"] = 0
    try:
        return SamplingParams.model_validate(fields)
    except ValidationError as e:
        problems = [
            f"{SAMPLING_PREFIX}{'.'.join(map(str, p['loc']))}: {p['msg']}, not {str(p['input'])[:40]!r}"
            for p in e.errors()
        ]
        raise RequestError("; ".join(problems), SAMPLING_PREFIX + str(e.errors()[0]["loc"][0])) from e


def _flag(tensors: Tensors, name: str, default: bool = False) -> bool:
    value = _scalar(tensors, name)
    return default if value is None else bool(value)


def _scalar(tensors: Tensors, name: str) -> Value | None:
    """The one value of an input, None where it is not given."""
    if name not in tensors:
        return None
    values = _values(tensors, _SPECS[name])
    if len(values) != 1:
        raise RequestError(f"{name}: has {len(values)} values; allowed: one (requests are batched by the engine)", name)
    return values[0]


def _values(tensors: Tensors, spec: TensorSpec) -> list[Value]:
    array = tensors[spec.name]
    if spec.type == "STRING":
        return [_text(value, spec.name) for value in array.ravel().tolist()]
    if spec.type == "FP32":
        # 0.8 as a client meant it, not the binary float nearest to it: an HTTP request has the former.
        return [float(str(value)) for value in array.ravel()]
    values: list[Value] = array.ravel().tolist()
    return values


def _text(value: object, name: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise RequestError(f"{name}: is no string", name)
    try:
        return value.decode()
    except UnicodeDecodeError as e:
        raise RequestError(f"{name}: is not UTF-8 at byte {e.start}", name) from e
