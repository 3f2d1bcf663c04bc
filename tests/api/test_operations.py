"""Health, metrics, version, the page, and draining."""

from __future__ import annotations

import base64
import hashlib
import re
import threading

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from .conftest import Serve, Served


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "model_name"}
            found[sample.name, tuple(sorted(labels.items()))] = sample.value
    return found


def test_metrics_parse_and_carry_the_engines_numbers(serve: Serve) -> None:
    served = serve()
    served.post("/v1/completions", json={"prompt": "hello"})
    served.get("/v1/nothing")
    response = served.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    m = samples(response.text)
    expected = {
        "num_requests_running": 0,
        "num_requests_waiting": 0,
        "kv_cache_usage_perc": 0.25,
        "prompt_tokens_total": 100,
        "prompt_tokens_cached_total": 25,
        "generation_tokens_total": 60,
        "prefix_cache_queries_total": 100,
        "prefix_cache_hits_total": 25,
        "spec_decode_rounds_total": 20,
        "spec_decode_round_sequences_total": 30,
        "spec_decode_rounds_skipped_total": 2,
        "spec_decode_window_mean": 3.5,
        "spec_decode_sequences_backing_off": 1,
        "shared_cache_bytes": 1024,
        "shared_cache_budget_bytes": 4096,
        "shared_cache_scopes": 2,
        "shared_cache_evictions_total": 1,
        "shared_cache_saves_total": 3,
        "shared_cache_save_failures_total": 1,
        "shared_cache_save_seconds": 0.25,
        "shared_cache_save_bytes": 700,
        "time_to_first_token_seconds_count": 1,
        "inter_token_latency_seconds_count": 2,
        "e2e_request_latency_seconds_count": 1,
        "request_queue_time_seconds_count": 1,
        "request_prefill_time_seconds_count": 1,
        "request_decode_time_seconds_count": 1,
        "request_prompt_tokens_sum": 5,
        "request_generation_tokens_sum": 5,
        "spec_decode_tokens_per_round_sum": 2.5,
    }
    for name, value in expected.items():
        assert m["trtserve_" + name, ()] == value, name
    for name, value in (("drafts", 9), ("draft_tokens", 40), ("accepted_tokens", 30)):
        assert m[f"trtserve_spec_decode_num_{name}_total", (("source", "history"),)] == value
        assert m[f"trtserve_spec_decode_num_{name}_total", (("source", "shared"),)] == 0
    assert m["trtserve_request_success_total", (("finished_reason", "stop"),)] == 1
    assert m["trtserve_request_success_total", (("finished_reason", "abort"),)] == 0
    requests = "trtserve_http_requests_total"
    assert m[requests, (("handler", "/v1/completions"), ("method", "POST"), ("status", "200"))] == 1
    assert m[requests, (("handler", "other"), ("method", "GET"), ("status", "404"))] == 1
    assert "process_resident_memory_bytes" in response.text


def test_what_a_client_invents_is_no_series(serve: Serve) -> None:
    served = serve()
    for name in ("A", "B" * 1000, "C"):
        assert served.http.request(name, f"/{name}").status_code == 404
        assert served.http.request(name, "/health").status_code == 405
    m = samples(served.get("/metrics").text)
    for handler, status in (("other", "404"), ("/health", "405")):
        labels = (("handler", handler), ("method", "other"), ("status", status))
        assert m["trtserve_http_requests_total", labels] == 3
    methods = {dict(labels).get("method") for name, labels in m if name.startswith("trtserve_http")}
    assert methods <= {"GET", "other"}


def test_two_servers_in_one_process_share_no_metric(serve: Serve) -> None:
    first, second = serve(), serve()
    first.post("/v1/completions", json={"prompt": "hello"})
    name = ("trtserve_e2e_request_latency_seconds_count", ())
    assert samples(first.get("/metrics").text)[name] == 1
    assert samples(second.get("/metrics").text)[name] == 0


def test_openmetrics_is_served_when_asked_for(shared: Served) -> None:
    response = shared.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


def test_health_tells_a_broken_engine(serve: Serve) -> None:
    served = serve()
    assert served.get("/health").json() == {"status": "ok"}
    served.engine.healthy = False
    response = served.get("/health")
    assert (response.status_code, response.json()) == (503, {"status": "unhealthy"})
    assert served.get("/health/live").status_code == 200
    assert served.http.head("/health").status_code == 503 and served.http.head("/health/live").status_code == 200


def test_version_and_schema(shared: Served) -> None:
    version = shared.get("/version").json()
    assert (version["model"], version["target"]) == ("scripted", "torch") and version["version"]
    paths = shared.get("/openapi.json").json()["paths"]
    body = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "prompt_lookup" in body["properties"]
    # These pages would load scripts from elsewhere.
    assert shared.get("/docs").status_code == 404


def test_the_playground_runs_its_own_script_only(shared: Served) -> None:
    response = shared.get("/")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for tag in ("script", "style"):
        blocks = re.findall(rf"<{tag}>(.*?)</{tag}>", response.text, re.DOTALL)
        assert blocks
        for block in blocks:
            digest = base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy
    # Nothing is loaded from anywhere else, and no attribute that the policy would block is relied on.
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!#)|\bon[a-z]+=|\bstyle=""", response.text)
    assert not re.search(r"https?://(?!www\.w3\.org)", response.text)


def test_draining_finishes_what_runs_and_refuses_what_comes(serve: Serve) -> None:
    served = serve()
    answers: list[httpx.Response] = []
    body = {"prompt": "SLOW and long enough", "max_tokens": 100}
    running = threading.Thread(target=lambda: answers.append(served.post("/v1/completions", json=body)))
    running.start()
    assert served.engine.stuck.acquire(timeout=10)
    served.server.begin_drain()
    refused = served.post("/v1/completions", json={"prompt": "late"})
    assert refused.status_code == 503 and refused.headers["retry-after"] == "5"
    assert refused.json()["error"]["code"] == "draining"
    assert served.get("/health").status_code == 503
    served.engine.release()
    running.join(20)
    assert answers[0].status_code == 200
    assert answers[0].json()["choices"][0]["text"] == "SLOW and long enough"


@pytest.mark.parametrize("stream", [False, True])
def test_what_outlasts_the_drain_is_told_so(serve: Serve, stream: bool) -> None:
    served = serve()
    answers: list[httpx.Response] = []
    body = {"prompt": "SLOW and long enough", "stream": stream}
    running = threading.Thread(target=lambda: answers.append(served.post("/v1/completions", json=body)))
    running.start()
    assert served.engine.stuck.acquire(timeout=10)
    served.engine.drain(0.01)
    running.join(20)
    assert answers[0].status_code == (200 if stream else 503)
    assert '"code":"draining"' in answers[0].text
