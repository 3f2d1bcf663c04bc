"""The HTTP API over TensorRT-LLM: the same answers, tenants and metrics as over every target."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from trtserve import Engine
from trtserve.api.auth import TokenAuth
from trtserve.api.context import ApiConfig, ServerContext
from trtserve.api.server import ApiServer, listen

from .conftest import Open

PROMPT = "A quick brown fox jumps over (the) lazy dog: 1 2 3."


@contextmanager
def serving(context: ServerContext) -> Iterator[str]:
    sock = listen("127.0.0.1", 0)
    server = ApiServer(context, drain_timeout=10)
    thread = threading.Thread(target=server.run_on, args=(sock,), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        context.engine.close()
        server.should_exit = True
        thread.join(15)


@pytest.mark.parametrize("line", ["1.2", "1.3"])
def test_completions_tenants_and_metrics(line: str, open_engine: Open, reference: Engine, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("alice: alice-token-0123456789\nbob: bob-token-0123456789\n")
    tokens.chmod(0o600)
    engine = open_engine(line, speculative={"prompt_lookup": {"shared_cache": {"mb": 1, "scopes": 4}}})
    wanted = reference.generate(PROMPT, temperature=0, max_tokens=30).text
    context = ServerContext(engine.engine, engine.tokenizer, ApiConfig(), TokenAuth(tokens))
    with serving(context) as url:

        def complete(tenant: str, **extra: object) -> str:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=f"{tenant}-token-0123456789", max_retries=0)
            with client:
                stream = client.completions.create(
                    model="tiny", prompt=PROMPT, temperature=0, max_tokens=30, stream=True, extra_body=extra
                )
                return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)

        def shared_drafts() -> int:
            return engine.metrics()["draft_tokens_total"]["shared"]

        assert complete("alice") == wanted
        assert complete("bob") == wanted
        assert complete("alice", cache_salt="mine") == wanted
        assert shared_drafts() == 0
        assert complete("alice") == wanted
        assert shared_drafts() > 0
        page = httpx.get(f"{url}/metrics").text
        assert 'source="shared"' in page
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="alice-token-0123456789", max_retries=0)
        with client, pytest.raises(openai.BadRequestError, match="presence_penalty is not offered"):
            client.completions.create(model="tiny", prompt=PROMPT, presence_penalty=1.0)
