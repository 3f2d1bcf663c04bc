"""Web pages of other origins: what a browser is told, over real connections, and in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from trtserve.api.auth import TokenAuth
from trtserve.api.cross_origin import check_origin

from .browser import BROWSER, Browser
from .conftest import Serve, Served

PAGE = "http://page.test:3000"
SAY = {"messages": [{"role": "user", "content": "hello"}]}
CHAT = "/v1/chat/completions"
TOKEN = "alice-token-0123456789"


@pytest.fixture
def tokens(tmp_path: Path) -> TokenAuth:
    path = tmp_path / "tokens"
    path.write_text(f"alice: {TOKEN}\n")
    path.chmod(0o600)
    return TokenAuth(path)


def preflight(served: Served, origin: str = PAGE, method: str = "POST", headers: str = "") -> httpx.Response:
    """What a browser asks before it sends a page's request. It never sends a token along."""
    asked = {"Origin": origin, "Access-Control-Request-Method": method}
    if headers:
        asked["Access-Control-Request-Headers"] = headers
    return served.http.options(CHAT, headers=asked)


def allows(response: httpx.Response) -> str | None:
    return response.headers.get("access-control-allow-origin")


@pytest.mark.parametrize("origin", ["http://page.test", "https://a-b.example.com:8443", "http://[::1]:8000", "*"])
def test_origins_as_browsers_send_them(origin: str) -> None:
    check_origin(origin)
    check_origin("chrome-extension://abcdefghijklmnop")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "page.test",
        "http://",
        "http://page.test/",
        "http://page.test/path",
        "HTTP://page.test",
        "http://Page.test",
        "http://page.test:80",
        "https://page.test:443",
        "http://user@page.test",
        "http://*.page.test",
        '["http://page.test"]',
        "http://page.test http://other.test",
        "http://page.test\n",
        "http://p\u00e4ge.test",
    ],
)
def test_what_no_browser_sends_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"browsers send|every page"):
        check_origin(text)


def test_no_other_origin_may_call_unless_one_is_named(serve: Serve) -> None:
    served = serve()
    assert preflight(served).status_code == 405
    for response in (preflight(served), served.post(CHAT, json=SAY, headers={"Origin": PAGE})):
        assert not any(name.startswith("access-control") for name in response.headers)
    # Without a preflight a page can send text/plain only, which is not taken.
    plain = {"Origin": PAGE, "Content-Type": "text/plain"}
    assert served.post(CHAT, content=json.dumps(SAY), headers=plain).status_code == 415


def test_a_preflight_needs_no_token(serve: Serve, tokens: TokenAuth) -> None:
    served = serve(auth=tokens, allowed_origins=(PAGE, "app://local"))
    asked = "authorization,content-type,x-stainless-lang"
    for origin in (PAGE, "app://local"):
        response = preflight(served, origin, headers=asked)
        assert response.status_code == 200 and allows(response) == origin
        assert "POST" in response.headers["access-control-allow-methods"]
        assert set(response.headers["access-control-allow-headers"].split(",")) == set(asked.split(","))
        assert "access-control-allow-credentials" not in response.headers
    assert served.engine.requests == []
    assert preflight(served, method="DELETE").status_code == 400
    for other in ("http://other.test", "http://page.test", "https://page.test:3000", "null"):
        response = preflight(served, other)
        assert response.status_code == 400 and allows(response) is None
    assert 'method="OPTIONS"' in served.get("/metrics").text


def test_every_answer_may_be_read_by_the_page(serve: Serve, tokens: TokenAuth) -> None:
    served = serve(auth=tokens, allowed_origins=(PAGE,), max_body_bytes=2000)
    served.engine.submit_error = ZeroDivisionError("a bug")
    bug = {"messages": [{"role": "user", "content": "RAISE"}]}
    key = {"Authorization": f"Bearer {TOKEN}"}
    as_json, as_text = ({**key, "Content-Type": kind} for kind in ("application/json", "text/plain"))
    statuses = []
    for request in (
        served.http.build_request("GET", "/v1/models", headers=key),
        served.http.build_request("POST", CHAT, json=SAY, headers=key),
        served.http.build_request("POST", CHAT, json=SAY),
        served.http.build_request("GET", "/v1/nothing", headers=key),
        served.http.build_request("PUT", CHAT, json=SAY, headers=key),
        served.http.build_request("POST", CHAT, json={**SAY, "n": 0}, headers=key),
        served.http.build_request("POST", CHAT, content=b" " * 3000, headers=as_json),
        served.http.build_request("POST", CHAT, content=b"{}", headers=as_text),
        served.http.build_request("POST", CHAT, json=bug, headers=key),
    ):
        request.headers["Origin"] = PAGE
        response = served.http.send(request)
        statuses.append(response.status_code)
        assert allows(response) == PAGE, response
        assert "Origin" in response.headers["vary"], "a cache must keep the answers to two origins apart"
        assert "x-request-id" in response.headers["access-control-expose-headers"].lower()
        request.headers["Origin"] = "http://other.test"
        assert allows(served.http.send(request)) is None
    assert statuses == [200, 200, 401, 404, 405, 400, 413, 415, 500]


def test_any_page_may_be_allowed(serve: Serve) -> None:
    served = serve(allowed_origins=("*",))
    assert allows(preflight(served, "null")) == "*"
    response = served.post(CHAT, json=SAY, headers={"Origin": "http://anywhere.test"})
    assert response.status_code == 200 and allows(response) == "*"


def test_a_stream_comes_as_it_is_made_and_hanging_up_ends_it(serve: Serve) -> None:
    served = serve(allowed_origins=(PAGE,))
    slow = {"messages": [{"role": "user", "content": "SLOW and long enough"}], "stream": True}
    with served.http.stream("POST", CHAT, json=slow, headers={"Origin": PAGE}) as response:
        assert allows(response) == PAGE and response.headers["content-type"].startswith("text/event-stream")
        got = response.iter_lines()
        text = ""
        # The engine waits after two rounds of three tokens, until it is let go or cancelled.
        while len(text) < 6:
            line = next(got)
            if line:
                text += json.loads(line.removeprefix("data: "))["choices"][0]["delta"]["content"]
        assert served.engine.num_running == 1
    assert served.engine.wait_idle()
    assert served.engine.finished["cancelled"] == 1


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


ASK = """
window.result = null;
(async () => {
  const response = await fetch(%s, {
    method: 'POST', body: JSON.stringify(%s),
    headers: {'Content-Type': 'application/json', 'Authorization': 'Bearer %s', 'X-Stainless-Lang': 'js'},
  });
  return [response.status, response.headers.get('x-request-id'), await response.text()];
})().then(r => { window.result = r; }, e => { window.result = [0, String(e), '']; });
"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_page_of_another_origin_in_a_browser(browser: Browser, serve: Serve, tokens: TokenAuth) -> None:
    # Another port is another origin. This page's server has no policy of its own that would forbid the calls.
    page = serve()
    browser.open(f"{page.url}/version")
    browser.wait_for(f"document.readyState === 'complete' && location.origin === '{page.url}'")
    allowed = serve(auth=tokens, allowed_origins=(page.url,))
    closed = serve(auth=tokens)

    def ask(served: Served, body: object, token: str = TOKEN) -> tuple[int, str | None, str]:
        browser.evaluate(ASK % (json.dumps(served.url + CHAT), json.dumps(body), token))
        status, note, text = browser.wait_for("window.result")
        return status, note, text

    status, request_id, text = ask(allowed, SAY)
    assert status == 200 and json.loads(text)["choices"][0]["message"]["content"] == "user:hello"
    assert request_id == json.loads(text)["id"]
    status, _, text = ask(allowed, {**SAY, "stream": True})
    assert status == 200 and text.endswith("data: [DONE]\n\n")
    # A page can tell what went wrong.
    status, _, text = ask(allowed, SAY, token="x" * 20)
    assert status == 401 and json.loads(text)["error"]["code"] == "invalid_api_key"
    asked = len(allowed.engine.requests)
    status, note, _ = ask(closed, SAY)
    assert status == 0 and note is not None and "TypeError" in note
    assert asked == 2 and closed.engine.requests == []
