"""Whatever JSON comes in, the answer is an answer or a client's error in the one shape: never a failure inside."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trtserve.api.fields import IGNORED, UNSUPPORTED
from trtserve.api.schema import ChatBody, CompletionBody, TokenizeBody

from .conftest import Served

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8"), max_size=12),
)
VALUES = st.recursive(
    SCALARS,
    lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text("abtrole_0", max_size=8), x, max_size=4),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.text("us", min_size=1, max_size=3)}, optional={"content": VALUES})
)


def bodies(schema: type[Any], **likely: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A sound request with up to five fields that hold anything."""
    names = sorted({*schema.model_fields, *IGNORED, *UNSUPPORTED})
    odd = st.dictionaries(st.sampled_from(names), VALUES, max_size=5)
    return st.tuples(st.fixed_dictionaries(likely), odd).map(lambda pair: {**pair[0], **pair[1]})


BODIES = {
    "/v1/chat/completions": bodies(ChatBody, messages=st.just([{"role": "user", "content": "x"}]) | MESSAGES),
    "/v1/completions": bodies(CompletionBody, prompt=st.just("x") | VALUES),
    "/tokenize": bodies(TokenizeBody, prompt=st.just("x") | VALUES),
}


@pytest.mark.parametrize("path", sorted(BODIES))
@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_json_is_answered(shared: Served, path: str, data: st.DataObject) -> None:
    body = data.draw(BODIES[path])
    response = shared.post(path, json=body)
    assert response.status_code in (200, 400, 404), (body, response.text)
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
