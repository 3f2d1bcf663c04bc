"""Bearer tokens, tenants and the tokens file."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import httpx
import openai
import pytest

from trtserve.api import auth as auth_module
from trtserve.api.auth import AuthConfigError, TokenAuth, read_tokens

from .conftest import Serve

ALICE, BOB, BOB_TOO = "alice-token-0123456789", "bob-token-0123456789", "bob-token-9876543210"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    path.write_text(f"alice: {ALICE}\nbob: [{BOB}, {BOB_TOO}]\n")
    path.chmod(0o600)
    return path


def test_a_token_is_its_owners_tenant(serve: Serve, tokens: Path) -> None:
    served = serve(auth=TokenAuth(tokens))
    for token, tenant in ((ALICE, "alice"), (BOB, "bob"), (BOB_TOO, "bob")):
        with served.client(token) as client:
            client.completions.create(model="scripted", prompt="x", extra_body={"cache_salt": "bob"})
        scope = served.engine.requests[-1].scope
        # What a request says of itself narrows its scope and never names another tenant.
        assert (scope.tenant, scope.salt) == (tenant, "bob")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
def test_without_a_valid_token_nothing_is_served(serve: Serve, tokens: Path, path: str) -> None:
    served = serve(auth=TokenAuth(tokens))
    for header in (None, "", "Bearer", "Basic x", "Bearer wrong", f"Bearer {ALICE}x", ALICE, "Bearer \xe9"):
        headers = {} if header is None else {"authorization": header.encode("latin-1")}
        response = served.post(path, content=b"not even json", headers=headers)
        assert response.status_code == 401, header
        assert response.headers["www-authenticate"].startswith("Bearer")
        error = response.json()["error"]
        assert error["type"] == "authentication_error"
        assert ALICE not in response.text
    assert served.engine.requests == []


def test_the_client_raises_its_authentication_error(serve: Serve, tokens: Path) -> None:
    served = serve(auth=TokenAuth(tokens))
    with served.client("wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    with served.client(ALICE) as client:
        assert [m.id for m in client.models.list()] == ["scripted"]


def test_health_stays_open_and_metrics_can_be_closed(serve: Serve, tokens: Path) -> None:
    served = serve(auth=TokenAuth(tokens))
    assert served.get("/health").status_code == 200
    assert served.get("/metrics").status_code == 200
    closed = serve(auth=TokenAuth(tokens), metrics_need_auth=True)
    assert closed.get("/metrics").status_code == 401
    assert closed.get("/metrics", headers={"authorization": f"bearer {ALICE}"}).status_code == 200


def test_a_changed_file_is_read_again(serve: Serve, tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth_module, "RELOAD_INTERVAL", 0.0)
    served = serve(auth=TokenAuth(tokens))

    def status(token: str) -> int:
        return httpx.get(f"{served.url}/v1/models", headers={"authorization": f"Bearer {token}"}).status_code

    assert (status(ALICE), status("carol-token-0123456789")) == (200, 401)
    tokens.write_text("carol: carol-token-0123456789\n")
    assert (status(ALICE), status("carol-token-0123456789")) == (401, 200)
    # A file that became unusable locks nobody out and lets nobody in.
    tokens.write_text("carol: [")
    assert (status(ALICE), status("carol-token-0123456789")) == (401, 200)
    tokens.unlink()
    assert status("carol-token-0123456789") == 200


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "map each tenant"),
        ("just text", "map each tenant"),
        ("- a\n- b\n", "map each tenant"),
        ("a: [", "neither YAML nor JSON"),
        ("a:\n", "line 1"),
        ("a: {b: c}\n", "line 1"),
        ("a: []\n", "no token"),
        (f"a: {ALICE}\nb: {ALICE}\n", "line 2"),
        (f'"": {ALICE}\n', "name"),
        (f'"\\ud800": {ALICE}\n', "printable"),
        (f"a: {ALICE}\na: {BOB}\n", "named twice"),
        ("a: null\n", "needs a token"),
        ("a: [~]\n", "needs a token"),
        ('{"a": null}', "needs a token"),
        ("a: !!binary YWxpY2UtdG9rZW4tMDEyMw==\n", "needs a token"),
        (f'a: "{ALICE} "\n', "no header can carry"),
        (f"a: {ALICE}\u00e9\n", "no header can carry"),
        ("a: " + "[" * 5000, "nested"),
    ],
)
def test_an_unusable_file_is_refused_without_showing_tokens(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(AuthConfigError) as caught:
        read_tokens(path)
    assert says in str(caught.value) and str(path) in str(caught.value)
    assert ALICE not in str(caught.value)


def test_json_and_numbers_are_tokens_as_written(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({"alice": [ALICE]}))
    assert set(read_tokens(path).values()) == {"alice"}
    path.write_text("alice: 00123456789012345678\n")
    assert TokenAuth(path).authenticate("Bearer 00123456789012345678") == "alice"
    path.write_text('alice: "null"\n')
    assert TokenAuth(path).authenticate("Bearer null") == "alice"


def test_loose_permissions_and_short_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens"
    path.write_text("alice: hunter2\n")
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING, "trtserve.auth"):
        read_tokens(path)
    assert "chmod 600" in caplog.text and "easy to guess" in caplog.text and "hunter2" not in caplog.text
    path.chmod(0o666)
    with pytest.raises(AuthConfigError, match="anyone may write"):
        read_tokens(path)
    with pytest.raises(AuthConfigError, match="cannot be read"):
        read_tokens(Path(os.devnull) / "x")
