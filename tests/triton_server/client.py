"""Requests to a Triton server over each of its protocols, with tensors given by name as Python values."""

from __future__ import annotations

import contextlib
import json
import queue
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from trtserve.triton.interface import INPUTS

_SPECS = {spec.name: spec for spec in INPUTS}
_WIRE = {"STRING": "BYTES"}
_DTYPES: dict[str, Any] = {
    "STRING": np.object_, "BOOL": np.bool_, "INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32,
}  # fmt: skip
TIMEOUT = 60.0
# verify=False, here and in the tests: no certificate is in play, and reading those of the system takes longer than a
# request.


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def arrays(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Python values as the arrays that arrive in ``execute``."""
    return {
        name: np.array([x.encode() if isinstance(x, str) else x for x in listed(v)], dtype=_DTYPES[_SPECS[name].type])
        for name, v in tensors.items()
    }


def infer(
    url: str,
    model: str,
    tensors: Mapping[str, Any],
    *,
    parameters: Mapping[str, Any] | None = None,
    request_id: str = "",
    headers: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> httpx.Response:
    """``POST /v2/models/MODEL/infer``."""
    body: dict[str, Any] = {
        "inputs": [
            {
                "name": name,
                "shape": [len(listed(value))],
                "datatype": _WIRE.get(_SPECS[name].type, _SPECS[name].type) if name in _SPECS else "BYTES",
                "data": listed(value),
            }
            for name, value in tensors.items()
        ]
    }
    if parameters:
        body["parameters"] = dict(parameters)
    if request_id:
        body["id"] = request_id
    return httpx.post(
        f"{url}/v2/models/{model}/infer", json=body, headers=dict(headers or {}), timeout=timeout, verify=False
    )


def outputs(response: httpx.Response) -> dict[str, Any]:
    """The outputs of a good answer: a value, or a list where there are several."""
    assert response.status_code == 200, response.text
    found = {o["name"]: o["data"] for o in response.json()["outputs"]}
    return {name: data[0] if len(data) == 1 else data for name, data in found.items()}


def error(response: httpx.Response) -> str:
    """The message of a refusal."""
    assert response.status_code >= 400, response.text
    message: str = response.json()["error"]
    return message


def generate_stream(url: str, model: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """``POST /v2/models/MODEL/generate_stream``: the events, as they come. Leaving the loop hangs up."""
    with httpx.stream(
        "POST", f"{url}/v2/models/{model}/generate_stream", json=body, timeout=TIMEOUT, verify=False
    ) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


class Stream:
    """One bidirectional gRPC stream. ``next`` gives the responses of its requests in the order they come."""

    def __init__(self, client: grpcclient.InferenceServerClient) -> None:
        self._client = client
        self._events: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: self._events.put(error or result))

    def send(
        self,
        model: str,
        tensors: Mapping[str, Any],
        *,
        parameters: Mapping[str, Any] | None = None,
        request_id: str = "",
    ) -> None:
        self._client.async_stream_infer(
            model,
            grpc_inputs(tensors),
            request_id=request_id,
            parameters=dict(parameters or {}),
            enable_empty_final_response=True,
        )

    def next(self) -> tuple[dict[str, Any], bool]:
        """(outputs, whether it was the last). Raises InferenceServerException for an error."""
        event = self._events.get(timeout=TIMEOUT)
        if isinstance(event, InferenceServerException):
            raise event
        response = event.get_response()
        found = {o.name: event.as_numpy(o.name) for o in response.outputs}
        values = {name: array.tolist() for name, array in found.items() if array is not None}
        return (
            {name: v[0] if len(v) == 1 else v for name, v in values.items()},
            response.parameters["triton_final_response"].bool_param,
        )

    def collect(self) -> list[dict[str, Any]]:
        """Every response of one request."""
        found = []
        while True:
            values, last = self.next()
            found.append(values)
            if last:
                return found

    def close(self, *, cancel: bool = False) -> None:
        self._client.stop_stream(cancel_requests=cancel)


@contextlib.contextmanager
def grpc_client(address: str) -> Iterator[grpcclient.InferenceServerClient]:
    """A client whose threads end with the block, whatever happens in it."""
    client = grpcclient.InferenceServerClient(address)
    try:
        yield client
    finally:
        client.stop_stream(cancel_requests=True)
        client.close()


def grpc_inputs(tensors: Mapping[str, Any]) -> list[grpcclient.InferInput]:
    made = []
    for name, array in arrays(tensors).items():
        kind = _SPECS[name].type
        tensor = grpcclient.InferInput(name, list(array.shape), _WIRE.get(kind, kind))
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def text(pieces: list[dict[str, Any]]) -> str:
    """The text of a stream's responses."""
    return b"".join(p["text_output"] for p in pieces if "text_output" in p).decode()
