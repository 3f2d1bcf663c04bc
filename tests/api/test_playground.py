"""The playground page in a real browser, where one is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest

from .conftest import Served

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")]


def dom(url: str, profile: Path) -> str:
    """The page's DOM after its scripts and requests have run."""
    assert BROWSER is not None
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={profile}", "--no-first-run", "--disable-background-networking"]
    command += ["--virtual-time-budget=8000", "--timeout=30000", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout


def test_streams_an_answer_coloured_by_source_with_statistics(shared: Served, tmp_path: Path) -> None:
    page = dom(f"{shared.url}/#ask={quote('hello <b>there</b>')}", tmp_path)
    assert '<span id="model">scripted, context 512</span>' in page
    answer = re.search(r'<div class="turn assistant"[^>]*data-done="true"[^>]*><pre>(.*?)</pre>', page, re.DOTALL)
    assert answer is not None
    assert re.sub(r"<[^>]+>", "", answer[1]) == "user:hello &lt;b&gt;there&lt;/b&gt;"
    assert '<mark class="history" data-source="history"' in answer[1]
    assert '<dd id="s-tpr">2.88</dd>' in page
    assert re.search(r'<output id="src-history">\d+ of \d+</output>', page)
    assert not shared.engine.num_running


def test_a_failure_is_shown_in_the_conversation(shared: Served, tmp_path: Path) -> None:
    page = dom(f"{shared.url}/#ask={quote('FAIL LATER')}", tmp_path)
    assert 'class="turn assistant error"' in page and "no finite logit" in page
