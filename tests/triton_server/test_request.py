"""What tensors and parameters ask for, and what is refused, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtserve.engine.protocol import RequestError, Scope
from trtserve.triton.request import DEFAULT_MAX_TOKENS, Call, ParameterPolicy, Stop, parse

from .client import arrays


def call(tensors: dict[str, Any], parameters: dict[str, Any] | None = None, **policy: Any) -> Call:
    found = parse(arrays(tensors), json.dumps(parameters or {}), "id", ParameterPolicy(**policy), decoupled=True)
    assert isinstance(found, Call)
    return found


def refusal(tensors: dict[str, Any], parameters: dict[str, Any] | None = None, **policy: Any) -> str:
    with pytest.raises(RequestError) as e:
        call(tensors, parameters, **policy)
    return str(e.value)


def test_defaults_are_those_of_tensorrt_llm() -> None:
    params = call({"text_input": "a"}).params
    assert params.greedy and params.max_tokens == DEFAULT_MAX_TOKENS == 32
    for name, value in (("temperature", 0.5), ("top_p", 0.5), ("top_k", 5)):
        assert not call({"text_input": "a", f"sampling_param_{name}": value}).params.greedy
    assert call({"text_input": "a", "sampling_param_top_p": 0.0, "sampling_param_temperature": 0.7}).params.greedy


@given(st.integers(0, 10_000))
def test_decimals_arrive_as_they_were_written(hundredths: int) -> None:
    """A client's 0.8 is 0.800000011920929 as FP32; a seeded text must not depend on the protocol."""
    value = hundredths / 100
    assert call({"text_input": "a", "sampling_param_temperature": value}).params.temperature == value


def test_seeds_have_64_bits() -> None:
    assert call({"text_input": "a", "sampling_param_seed": (1 << 64) - 1}).params.seed == (1 << 64) - 1


def test_stop_strings_and_tokens_are_lists() -> None:
    params = call(
        {"text_input": "a", "sampling_param_stop": ["x", "é"], "sampling_param_stop_token_ids": [3, 4]}
    ).params
    assert params.stop == ("x", "é") and params.stop_token_ids == (3, 4)


def test_the_scope_is_the_parameters() -> None:
    assert call({"text_input": "a"}, {"tenant": "t", "cache_salt": "s"}).scope == Scope("t", "", "s")
    assert call({"text_input": "a"}, {"tenant": "t", "x-user": "u"}, tenant="x-user").scope == Scope("u")
    assert call({"text_input": "a"}).scope == Scope()


@pytest.mark.parametrize("parameters", [{}, {"tenant": ""}])
def test_a_tenant_can_be_required(parameters: dict[str, Any]) -> None:
    assert refusal({"text_input": "a"}, parameters, required=True).startswith("tenant: ")


@pytest.mark.parametrize("value", [5, True, None, ["a"], "x" * 257])
def test_a_tenant_is_a_short_string(value: object) -> None:
    if value is None:
        assert call({"text_input": "a"}, {"tenant": None}).scope == Scope()
    else:
        assert "allowed: a string of up to 256 characters" in refusal({"text_input": "a"}, {"tenant": value})


def test_misspelt_inputs_are_refused_and_other_parameters_pass() -> None:
    assert "the input is sampling_param_top_p" in refusal({"text_input": "a"}, {"top_p": 0.5})
    assert "no such input" in refusal({"text_input": "a"}, {"sampling_param_beam_width": 2})
    assert "no such input" in refusal({"text_input": "a"}, {"logit_bias": "{}"})
    assert call({"text_input": "a"}, {"Streaming": True, "id": "7", "priority": 1})


def test_a_stop_request_needs_an_id_and_nothing_else() -> None:
    stop = arrays({"text_input": "", "stop": True})
    assert parse(stop, "", "7", ParameterPolicy(), decoupled=False) == Stop("7", Scope())
    with pytest.raises(RequestError, match="id of the request"):
        parse(stop, "", "", ParameterPolicy(), decoupled=False)
    running = parse(arrays({"text_input": "a", "stop": False}), "", "7", ParameterPolicy(), decoupled=False)
    assert isinstance(running, Call)


@given(
    st.dictionaries(
        st.sampled_from(["sampling_param_top_k", "sampling_param_max_tokens", "sampling_param_min_tokens"]),
        st.integers(-(2**31), 2**31 - 1),
    ),
    st.floats(width=32),
)
def test_whatever_comes_is_a_call_or_a_refusal(tensors: dict[str, int], temperature: float) -> None:
    try:
        found = call({"text_input": "a", "sampling_param_temperature": temperature, **tensors})
    except RequestError as e:
        assert "sampling_param_" in str(e)
    else:
        assert 0 <= found.params.temperature <= 100
