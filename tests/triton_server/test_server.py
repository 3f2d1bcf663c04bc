"""The model in a real Triton server: every protocol, many clients, clients that leave, bad requests, reloads."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.grpc as grpcclient
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from benchmarks.triton_server import Bundle, TritonServer
from trtbuild.cli import run

from .client import Stream, error, generate_stream, grpc_client, grpc_inputs, infer, outputs, text
from .conftest import QUEUE, SETTINGS, STREAMING, TENANT_HEADER, UNARY, Trtserve, write_model
from .tiny import CONTEXT, SLOTS, write_tiny_engine

PROMPT = "the cat sat on the mat and the cat sat on the hat and the "
#: Goes on until somebody stops it.
ENDLESS = {"text_input": "again", "sampling_param_ignore_eos": True, "sampling_param_max_tokens": CONTEXT - 16}


@pytest.fixture
def grpc(triton: TritonServer) -> Iterator[grpcclient.InferenceServerClient]:
    with grpc_client(triton.grpc_url) as client:
        yield client


@pytest.fixture
def stream(grpc: grpcclient.InferenceServerClient) -> Stream:
    return Stream(grpc)


def samples(triton: TritonServer, model: str) -> dict[str, float]:
    """This project's metrics of one model by name, labels other than the model's appended."""
    found = {}
    for family in text_string_to_metric_families(triton.metrics()):
        for sample in family.samples:
            labels = dict(sample.labels)
            if sample.name.startswith("trtserve_") and labels.pop("model_name", None) == model:
                labels.pop("model_instance")
                found[sample.name + "".join(f",{v}" for v in labels.values())] = sample.value
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def idle(triton: TritonServer, model: str) -> bool:
    now = samples(triton, model)
    return now["trtserve_num_requests_running"] == now["trtserve_num_requests_waiting"] == 0


EMITTED = "trtserve_generation_tokens_total"


def aborted(triton: TritonServer, model: str) -> float:
    return samples(triton, model)["trtserve_request_success_total,abort"]


SAMPLINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0}, {"sampling_param_temperature": 0.0}),
    ({"temperature": 0.8, "seed": 7}, {"sampling_param_temperature": 0.8, "sampling_param_seed": 7}),
    (
        {"temperature": 1.3, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 1 << 63, "repetition_penalty": 1.1,
         "presence_penalty": 0.3, "frequency_penalty": 0.2},
        {"sampling_param_temperature": 1.3, "sampling_param_top_p": 0.9, "sampling_param_top_k": 40,
         "sampling_param_min_p": 0.05, "sampling_param_seed": 1 << 63, "sampling_param_repetition_penalty": 1.1,
         "sampling_param_presence_penalty": 0.3, "sampling_param_frequency_penalty": 0.2},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("body", "tensors"), SAMPLINGS)
def test_text_is_that_of_trtserve_over_every_protocol(
    triton: TritonServer, stream: Stream, trtserve: Trtserve, body: dict[str, Any], tensors: dict[str, Any]
) -> None:
    answer = trtserve.complete(PROMPT, max_tokens=40, ignore_eos=True, **body)
    expected = answer["choices"][0]["text"]
    ask = {"text_input": PROMPT, "sampling_param_max_tokens": 40, "sampling_param_ignore_eos": True, **tensors}
    told = outputs(infer(triton.url, UNARY, {**ask, "return_finish_reason": True, "return_lookup_stats": True}))
    assert told["text_output"] == expected
    assert told["finish_reason"] == "length"
    assert told["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert told["completion_tokens"] == 40
    for model in (UNARY, STREAMING):
        whole = httpx.post(f"{triton.url}/v2/models/{model}/generate", json=ask, timeout=60, verify=False).json()
        assert whole["text_output"] == expected
    events = list(generate_stream(triton.url, STREAMING, {**ask, "streaming": True}))
    assert len(events) > 3
    assert "".join(e["text_output"] for e in events) == expected
    stream.send(STREAMING, {**ask, "streaming": True, "return_finish_reason": True})
    pieces = stream.collect()
    assert len(pieces) > 3
    assert text(pieces) == expected
    assert [p.get("finish_reason") for p in pieces] == [None] * (len(pieces) - 1) + [b"length"]


def test_a_stop_string_ends_the_text_as_it_does_in_trtserve(triton: TritonServer, trtserve: Trtserve) -> None:
    whole = trtserve.complete(PROMPT, max_tokens=40, temperature=0, ignore_eos=True)["choices"][0]["text"]
    stop = whole[10:12]
    told = outputs(
        infer(
            triton.url,
            UNARY,
            {"text_input": PROMPT, "sampling_param_max_tokens": 40, "sampling_param_ignore_eos": True,
             "sampling_param_stop": ["not in there", stop], "return_finish_reason": True, "return_stop_reason": True},
        )
    )  # fmt: skip
    assert told == {
        "text_output": whole[: whole.index(stop)], "finish_reason": "stop", "stop_reason": stop,
    }  # fmt: skip


def test_without_sampling_inputs_it_is_greedy_and_short(triton: TritonServer, trtserve: Trtserve) -> None:
    expected = trtserve.complete("abc", max_tokens=32, temperature=0)["choices"][0]["text"]
    assert outputs(infer(triton.url, UNARY, {"text_input": "abc"})) == {"text_output": expected}


def test_the_prompt_comes_first_when_asked_for(triton: TritonServer, stream: Stream) -> None:
    plain = outputs(infer(triton.url, UNARY, {"text_input": "abc"}))["text_output"]
    ask = {"text_input": "abc", "sampling_param_exclude_input_from_output": False}
    assert outputs(infer(triton.url, UNARY, ask))["text_output"] == "abc" + plain
    stream.send(STREAMING, {**ask, "streaming": True})
    assert text(stream.collect()) == "abc" + plain


def test_pieces_of_a_stream_can_hold_all_text_so_far(stream: Stream) -> None:
    stream.send(STREAMING, {"text_input": "abc", "streaming": True})
    pieces = stream.collect()
    stream.send(STREAMING, {"text_input": "abc", "streaming": True, "accumulate_text": True})
    grown = [p["text_output"].decode() for p in stream.collect()]
    assert grown[-1] == text(pieces)
    assert all(later.startswith(earlier) for earlier, later in pairwise(grown))


def test_a_call_like_that_of_tensorrt_llms_own_client(grpc: grpcclient.InferenceServerClient) -> None:
    """Unary gRPC with a request parameter of the client's own, and the performance outputs."""
    ask = {
        "text_input": PROMPT, "sampling_param_max_tokens": 16, "sampling_param_return_perf_metrics": True,
        "return_cumulative_logprob": True, "sampling_param_best_of": 1, "sampling_param_ignore_eos": True,
    }  # fmt: skip
    result = grpc.infer(UNARY, grpc_inputs(ask), request_id="1", parameters={"Streaming": False})
    times = [
        int(result.as_numpy(f"{name}_time_ns")[0])
        for name in ("arrival", "first_scheduled", "first_token", "last_token")
    ]
    assert times == sorted(times) and times[0] > 0
    drafted, accepted = (int(result.as_numpy(f"total_{name}")[0]) for name in ("draft_tokens", "accepted_draft_tokens"))
    assert 0 < accepted <= drafted or accepted == 0
    assert float(result.as_numpy("acceptance_rate")[0]) == pytest.approx(accepted / max(drafted, 1))
    assert float(result.as_numpy("cumulative_logprob")[0]) < 0


def test_only_the_outputs_asked_for_come_back(grpc: grpcclient.InferenceServerClient) -> None:
    asked = [grpcclient.InferRequestedOutput("text_output")]
    ask = {"text_input": "abc", "return_lookup_stats": True}
    response = grpc.infer(UNARY, grpc_inputs(ask), outputs=asked).get_response()
    assert [o.name for o in response.outputs] == ["text_output"]


def test_a_prediction_is_a_source_of_drafts(triton: TritonServer) -> None:
    ask = {"text_input": "abc", "sampling_param_max_tokens": 60, "sampling_param_ignore_eos": True}
    plain = outputs(infer(triton.url, UNARY, {**ask, "prompt_lookup": False, "return_lookup_stats": True}))
    assert plain["draft_tokens"] == [0, 0, 0, 0] and plain["rounds"] == 60
    told = outputs(infer(triton.url, UNARY, {**ask, "prediction": plain["text_output"], "return_lookup_stats": True}))
    assert told["text_output"] == plain["text_output"]
    assert told["draft_sources"] == ["history", "prediction", "shared", "model"]
    assert told["draft_tokens"][1] > 0


def test_many_requests_at_once_give_what_each_gives_alone(triton: TritonServer) -> None:
    prompts = [f"prompt number {i % 4}" for i in range(SLOTS + 4)]

    def streamed(prompt: str) -> str:
        events = generate_stream(triton.url, STREAMING, {"text_input": prompt, "streaming": True})
        return "".join(e["text_output"] for e in events)

    def plain(prompt: str) -> str:
        whole: str = outputs(infer(triton.url, UNARY, {"text_input": prompt}))["text_output"]
        return whole

    alone = {p: plain(p) for p in set(prompts)}
    with ThreadPoolExecutor(2 * len(prompts)) as pool:
        both = pool.map(streamed, prompts), pool.map(plain, prompts)
        for texts in both:
            assert list(texts) == [alone[p] for p in prompts]


def leave_generate_stream(triton: TritonServer) -> None:
    events = generate_stream(triton.url, STREAMING, {**ENDLESS, "streaming": True})
    assert next(events)["text_output"]
    events.close()  # type: ignore[attr-defined]


def leave_grpc_stream(triton: TritonServer) -> None:
    with grpc_client(triton.grpc_url) as client:
        stream = Stream(client)
        stream.send(STREAMING, {**ENDLESS, "streaming": True})
        stream.next()
        stream.close(cancel=True)


def stop_by_request_id(triton: TritonServer) -> None:
    with grpc_client(triton.grpc_url) as client:
        stream = Stream(client)
        stream.send(STREAMING, {**ENDLESS, "streaming": True}, request_id="one")
        stream.next()
        stream.send(STREAMING, {"text_input": "", "stop": True}, request_id="one")
        # One error answers the stop request, one ends the generation.
        for _ in range(2):
            with pytest.raises(InferenceServerException, match="Request cancelled by client"):
                stream.collect()


@pytest.mark.parametrize("leave", [leave_generate_stream, leave_grpc_stream, stop_by_request_id])
def test_cancelling_a_stream_frees_its_slot(triton: TritonServer, leave: Callable[[TritonServer], None]) -> None:
    before = samples(triton, STREAMING)
    leave(triton)
    wait_for(lambda: aborted(triton, STREAMING) == before["trtserve_request_success_total,abort"] + 1)
    wait_for(lambda: idle(triton, STREAMING))
    emitted = (
        samples(triton, STREAMING)["trtserve_generation_tokens_total"] - before["trtserve_generation_tokens_total"]
    )
    assert emitted < ENDLESS["sampling_param_max_tokens"]  # type: ignore[operator]


def test_cancelling_a_plain_request_frees_its_slot(triton: TritonServer) -> None:
    before = aborted(triton, UNARY)
    with grpc_client(triton.grpc_url) as client:
        pending = client.async_infer(UNARY, grpc_inputs(ENDLESS), lambda result, error: None)
        wait_for(
            lambda: samples(triton, UNARY)["trtserve_num_requests_running"] >= 1 or aborted(triton, UNARY) > before
        )
        pending.cancel()
        wait_for(lambda: aborted(triton, UNARY) == before + 1)
    wait_for(lambda: idle(triton, UNARY))


def test_a_stop_request_reaches_its_own_tenant_alone(triton: TritonServer) -> None:
    with grpc_client(triton.grpc_url) as client:
        stream = Stream(client)
        ask = {"text_input": "abc", "sampling_param_max_tokens": 600, "sampling_param_ignore_eos": True}
        stream.send(STREAMING, {**ask, "streaming": True}, parameters={"tenant": "alice"}, request_id="same")
        stream.next()
        with grpc_client(triton.grpc_url) as other:
            theirs = Stream(other)
            theirs.send(STREAMING, {"text_input": "", "stop": True}, parameters={"tenant": "bob"}, request_id="same")
            with pytest.raises(InferenceServerException, match="cancelled"):
                theirs.next()
        assert stream.collect()  # to its end, without an error


BAD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"streaming": True}, {}, "text_input: is missing"),
    ({"text_input": ["a", "b"]}, {}, "text_input: has 2 values"),
    ({"text_input": "a", "sampling_param_temperature": -1.0}, {}, "sampling_param_temperature: .* not '-1.0'"),
    ({"text_input": "a", "sampling_param_max_tokens": 0}, {}, "sampling_param_max_tokens: "),
    ({"text_input": "a", "sampling_param_max_tokens": 99999}, {}, "max_tokens may be at most"),
    ({"text_input": "a" * (CONTEXT + 1)}, {}, f"this engine's context holds {CONTEXT}"),
    ({"text_input": "a", "sampling_param_best_of": 2}, {}, "sampling_param_best_of: given 2; allowed: 1"),
    ({"text_input": "a", "sampling_param_stop_token_ids": [99999]}, {}, "outside the vocabulary"),
    ({"text_input": "a", "sampling_param_stop": [""]}, {}, "sampling_param_stop"),
    ({"text_input": "a"}, {"temperature": 0.5}, "the input is sampling_param_temperature"),
    ({"text_input": "a"}, {"cache_salt": 5}, "cache_salt: allowed: a string"),
    ({"text_input": "", "stop": True}, {}, "needs the id of the request"),
    ({"text_input": "a", "lora_name": "x"}, {}, "lora_name"),
]


@pytest.mark.parametrize(("tensors", "parameters", "message"), BAD)
def test_bad_requests_are_refused_by_name_and_the_server_lives(
    triton: TritonServer, tensors: dict[str, Any], parameters: dict[str, Any], message: str
) -> None:
    ask = {name: value for name, value in tensors.items() if name != "streaming"} or {"prediction": "x"}
    refused = infer(triton.url, UNARY, ask, parameters=parameters)
    assert refused.status_code == 400
    assert re.search(message, error(refused)), error(refused)
    assert outputs(infer(triton.url, UNARY, {"text_input": "still there"}))["text_output"]


def test_bytes_that_are_no_text_are_refused(grpc: grpcclient.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="text_input: is not UTF-8 at byte 1"):
        grpc.infer(UNARY, grpc_inputs({"text_input": b"a\xff"}))


def test_streaming_from_a_model_that_answers_once_is_refused(triton: TritonServer) -> None:
    assert "--decoupled" in error(infer(triton.url, UNARY, {"text_input": "a", "streaming": True}))


def test_an_error_in_a_stream_ends_it(stream: Stream) -> None:
    stream.send(STREAMING, {"text_input": "a", "streaming": True, "sampling_param_top_k": -2})
    with pytest.raises(InferenceServerException, match="sampling_param_top_k"):
        stream.next()
    stream.send(STREAMING, {"text_input": "a", "streaming": True})
    assert stream.collect()


def test_a_full_queue_is_refused_as_unavailable(triton: TritonServer) -> None:
    with grpc_client(triton.grpc_url) as client:
        running = [
            client.async_infer(UNARY, grpc_inputs(ENDLESS), lambda result, error: None) for _ in range(SLOTS + QUEUE)
        ]
        wait_for(lambda: samples(triton, UNARY)["trtserve_num_requests_waiting"] == QUEUE)
        refused = infer(triton.url, UNARY, {"text_input": "abc"})
        assert refused.status_code == 503 and "the queue is full" in error(refused)
        for pending in running:
            pending.cancel()
        wait_for(lambda: idle(triton, UNARY))
    assert outputs(infer(triton.url, UNARY, {"text_input": "abc"}))["text_output"]


def copied_from_others(triton: TritonServer, model: str, ask: dict[str, Any], **who: Any) -> int:
    return int(outputs(infer(triton.url, model, {**ask, "return_lookup_stats": True}, **who))["draft_tokens"][2])


def test_copies_do_not_cross_tenants_or_salts(triton: TritonServer) -> None:
    ask = {"text_input": "xyzzy", "sampling_param_max_tokens": 60, "sampling_param_ignore_eos": True}
    alice, bob = ({"headers": {TENANT_HEADER: name}} for name in ("alice", "bob"))
    assert copied_from_others(triton, UNARY, ask, **alice) == 0
    assert copied_from_others(triton, UNARY, ask, **bob) == 0
    assert copied_from_others(triton, UNARY, ask, **alice, parameters={"cache_salt": "s"}) == 0
    assert copied_from_others(triton, UNARY, ask, **alice) > 0


def test_a_forwarded_header_overrules_what_the_body_says(triton: TritonServer) -> None:
    """What the documentation tells gateways to rely on, for infer over HTTP and gRPC."""
    ask = {"text_input": "plugh", "sampling_param_max_tokens": 60, "sampling_param_ignore_eos": True}
    carol = {TENANT_HEADER: "carol"}
    assert copied_from_others(triton, UNARY, ask, headers=carol) == 0
    assert copied_from_others(triton, UNARY, ask, headers={TENANT_HEADER: "mallory"}, parameters=carol) == 0
    assert copied_from_others(triton, UNARY, ask, headers=carol, parameters={TENANT_HEADER: "mallory"}) > 0


def test_metrics_have_trtserves_names(triton: TritonServer, trtserve: Trtserve) -> None:
    ask = {"text_input": "metrics", "sampling_param_max_tokens": 20, "sampling_param_ignore_eos": True}
    before = samples(triton, UNARY)
    infer(triton.url, UNARY, ask)
    wait_for(lambda: samples(triton, UNARY)[EMITTED] >= before[EMITTED] + 20)
    for name in ("trtserve_e2e_request_latency_seconds", "trtserve_time_to_first_token_seconds"):
        wait_for(lambda name=name: samples(triton, UNARY)[f"{name}_count"] > before[f"{name}_count"])
    gaps = "trtserve_inter_token_latency_seconds_count"
    # The tokens that came with the first have no gap: with eight drafts up to nine.
    wait_for(lambda: samples(triton, UNARY)[gaps] >= before[gaps] + 11)
    trtserve.complete("x", max_tokens=2)
    page = httpx.get(f"{trtserve.url}/metrics", verify=False).text
    theirs = {s.name for f in text_string_to_metric_families(page) for s in f.samples if s.name.startswith("trtserve_")}
    ours = {s.name for f in text_string_to_metric_families(triton.metrics()) for s in f.samples}
    theirs = {n for n in theirs if not n.endswith("_created")}
    missing = {n for n in theirs - ours if not n.startswith("trtserve_http_")}
    assert not missing


def resident(pid: int) -> int:
    """Resident memory in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_requests_leave_nothing_behind_in_the_models_process(triton: TritonServer) -> None:
    def serve(count: int) -> None:
        for _ in range(count):
            assert infer(triton.url, UNARY, {"text_input": "a", "sampling_param_max_tokens": 4}).status_code == 200
            assert infer(triton.url, UNARY, {"text_input": "a", "sampling_param_top_k": -2}).status_code == 400

    serve(20)
    before = {pid: (threads(pid), resident(pid)) for pid in triton.stubs()}
    serve(100)
    for pid, (count, size) in before.items():
        assert threads(pid) <= count
        assert resident(pid) < size + (8 << 20)


def control(triton: TritonServer, model: str, verb: str) -> None:
    answer = httpx.post(f"{triton.url}/v2/repository/models/{model}/{verb}", timeout=60, verify=False)
    assert answer.status_code == 200, answer.text


def state(triton: TritonServer, model: str) -> tuple[str, str]:
    """(state, reason) in the server's index."""
    index = httpx.post(f"{triton.url}/v2/repository/index", json={}, timeout=60, verify=False).json()
    return next((m.get("state", ""), m.get("reason", "")) for m in index if m["name"] == model)


def reload(triton: TritonServer, model: str) -> None:
    control(triton, model, "unload")
    wait_for(lambda: state(triton, model) == ("UNAVAILABLE", "unloaded"), 60)
    control(triton, model, "load")
    assert state(triton, model) == ("READY", "")


def test_unloading_and_loading_again_leaks_nothing(triton: TritonServer) -> None:
    assert triton.process is not None
    server = triton.process.pid

    def turn() -> None:
        assert outputs(infer(triton.url, UNARY, {"text_input": "abc"}))["text_output"]
        reload(triton, UNARY)

    turn()
    before = len(triton.stubs()), len(triton.regions()), threads(server), resident(server)
    for _ in range(2):
        turn()
    assert outputs(infer(triton.url, UNARY, {"text_input": "abc"}))["text_output"]
    wait_for(lambda: len(triton.stubs()) == before[0])
    assert len(triton.regions()) == before[1]
    assert threads(server) <= before[2] + 2
    assert resident(server) < before[3] + (16 << 20)
    wait_for(lambda: idle(triton, UNARY))


def test_unloading_answers_what_still_runs(triton: TritonServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(infer, triton.url, UNARY, ENDLESS)
        wait_for(lambda: samples(triton, UNARY)["trtserve_num_requests_running"] == 1 or running.done())
        reload(triton, UNARY)
        assert running.result(60).status_code in (200, 503)
    assert outputs(infer(triton.url, UNARY, {"text_input": "abc"}))["text_output"]


def test_instances_of_the_recipe_serve_side_by_side(triton: TritonServer, tmp_path: Path) -> None:
    engine = write_tiny_engine(tmp_path / "engine", triton={"model_name": "pair", "instances": 2, "threads": 1})
    assert run(["triton", str(engine), "-o", str(triton.repository)]) == 0
    alone = len(triton.stubs())
    control(triton, "pair", "load")
    assert len(triton.stubs()) == alone + 2

    def served() -> dict[str, float]:
        pages = text_string_to_metric_families(triton.metrics())
        found = (s for family in pages for s in family.samples if s.name == "trtserve_generation_tokens_total")
        return {s.labels["model_instance"]: s.value for s in found if s.labels["model_name"] == "pair"}

    ask = {"text_input": "abc", "sampling_param_max_tokens": 40, "sampling_param_ignore_eos": True}

    def streamed(_: int) -> str:
        return "".join(e["text_output"] for e in generate_stream(triton.url, "pair", {**ask, "streaming": True}))

    expected = outputs(infer(triton.url, UNARY, ask))["text_output"]

    def both_serve() -> bool:
        # Triton hands a request to whichever instance is free.
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(streamed, range(16))) == {expected}
        return sorted(served()) == ["pair_0_0", "pair_0_1"] and all(served().values())

    wait_for(both_serve)
    control(triton, "pair", "unload")
    wait_for(lambda: len(triton.stubs()) == alone)


def test_an_altered_engine_does_not_load_and_says_why(triton: TritonServer, tiny_engine: Path, tmp_path: Path) -> None:
    write_model(tiny_engine, triton.repository, "altered", "--copy")
    weights = triton.repository / "altered" / "1" / "engine" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    answer = httpx.post(f"{triton.url}/v2/repository/models/altered/load", timeout=60, verify=False)
    assert answer.status_code == 400
    assert "weights.safetensors has other content than was built" in answer.json()["error"]
    assert triton.alive


def test_models_end_with_a_server_that_was_killed(triton_python: Path, tiny_engine: Path, tmp_path: Path) -> None:
    write_model(tiny_engine, tmp_path / "models", STREAMING, *SETTINGS)
    with TritonServer(Bundle.of(triton_python), tmp_path / "models", tmp_path) as server:
        models = list(server.stubs())
        assert models and server.process is not None
        server.process.kill()
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in models))
