"""The playground page in a real browser, where one is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from trtserve.api.auth import TokenAuth

from .browser import BROWSER, Browser
from .conftest import Serve, Served

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def open_page(browser: Browser, url: str) -> None:
    # Away first: only the fragment differing would not load the page again.
    browser.open("about:blank")
    browser.wait_for("location.href === 'about:blank'")
    browser.open(url)
    browser.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")


def say(browser: Browser, text: str) -> None:
    """Type a message and send it, then wait for its answer's end."""
    done = browser.evaluate("document.querySelectorAll('[data-done]').length")
    browser.evaluate(f"$('prompt').value = {text!r}; $('form').requestSubmit()")
    browser.wait_for(f"document.querySelectorAll('[data-done]').length > {done}")


ANSWER = "[...document.querySelectorAll('.turn.assistant')].pop()"


def test_streams_an_answer_coloured_by_source_with_statistics(browser: Browser, shared: Served) -> None:
    open_page(browser, f"{shared.url}/")
    browser.wait_for("$('model').textContent === 'scripted, context 512'")
    say(browser, "hello <b>there</b>")
    assert browser.evaluate(f"{ANSWER}.querySelector('pre').textContent") == "user:hello <b>there</b>"
    marked = browser.evaluate(f"[...{ANSWER}.querySelectorAll('mark.history')].map(m => m.textContent)")
    assert marked and len("".join(marked)) < len("user:hello <b>there</b>")
    assert browser.evaluate("$('s-tpr').textContent") == "2.88"
    assert browser.evaluate("$('s-rounds').textContent") == "23 / 8"
    assert browser.evaluate("$('src-history').textContent") == "15 of 16"
    # The conversation goes on: the next prompt holds this one and its answer.
    say(browser, "more")
    assert bytes(shared.engine.requests[-1].prompt).decode() == (
        "user:hello <b>there</b>\nassistant:user:hello <b>there</b>\nuser:more"
    )


def test_settings_reach_the_request(browser: Browser, shared: Served) -> None:
    open_page(browser, f"{shared.url}/")
    browser.evaluate(
        "$('lookup').checked = false; $('temperature').value = '0.5'; $('max').value = '7'; $('seed').value = '3';"
        "$('system').value = 'be brief'; $('prediction').value = 'abc'"
    )
    say(browser, "hello")
    request = shared.engine.requests[-1]
    assert (request.params.temperature, request.params.max_tokens, request.params.seed) == (0.5, 7, 3)
    assert request.lookup is False and list(request.prediction) == list(b"abc")
    assert bytes(request.prompt).decode() == "system:be brief\nuser:hello"
    assert browser.evaluate(f"{ANSWER}.querySelectorAll('mark').length") == 0
    assert "lookup off" in browser.evaluate(f"{ANSWER}.querySelector('footer').textContent")


def test_a_failure_is_shown_in_the_conversation(browser: Browser, shared: Served) -> None:
    open_page(browser, f"{shared.url}/#ask={quote('FAIL LATER')}")
    browser.wait_for("document.querySelectorAll('.turn.assistant.error footer').length")
    assert browser.evaluate(f"{ANSWER}.querySelector('footer').textContent") == "no finite logit"


def test_stop_frees_the_slot(browser: Browser, shared: Served) -> None:
    open_page(browser, f"{shared.url}/#ask={quote('SLOW and long enough')}")
    browser.wait_for(f"{ANSWER} && {ANSWER}.querySelector('pre').textContent")
    browser.evaluate("$('stop').click()")
    browser.wait_for(f"{ANSWER}.querySelector('footer') && true")
    assert browser.evaluate(f"{ANSWER}.querySelector('footer').textContent") == "stopped"
    assert shared.engine.wait_idle()


def test_a_key_is_asked_for_and_used(browser: Browser, serve: Serve, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("alice: alice-token-0123456789\n")
    served = serve(auth=TokenAuth(tokens))
    open_page(browser, f"{served.url}/")
    browser.wait_for("$('model').textContent === 'enter an API key'")
    browser.evaluate("$('key').value = 'alice-token-0123456789'; $('key').dispatchEvent(new Event('change'))")
    browser.wait_for("$('model').textContent.startsWith('scripted')")
    say(browser, "hello")
    assert served.engine.requests[-1].scope.tenant == "alice"


def test_every_control_has_a_name_and_nothing_breaks_the_policy(browser: Browser, shared: Served) -> None:
    open_page(browser, f"{shared.url}/")
    unnamed = browser.evaluate(
        "[...document.querySelectorAll('button, input, textarea')].filter(e => "
        "!e.textContent.trim() && !e.getAttribute('aria-label') && !(e.labels && e.labels.length)).length"
    )
    assert unnamed == 0
    # A style that the policy had blocked would not be there.
    assert browser.evaluate("getComputedStyle(document.body).display") == "grid"
