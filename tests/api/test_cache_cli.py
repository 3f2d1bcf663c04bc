"""``trtserve cache`` and the flags of the shared cache's file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.tiny.engine import write_tiny_engine
from trtserve import Engine, Scope
from trtserve.lookup.scope_names import KeyFile

from .test_cli import run

TEXTS = [
    "It was the best of times, it was the worst of times.",
    "Call me Ishmael. Some years ago, never mind how long.",
]
CACHE = {"prompt_lookup_shared_cache_mb": 1, "threads": 1}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine(tmp_path_factory.mktemp("engines") / "tiny")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(TEXTS) + "\n")
    return path


def listed(path: Path) -> dict[str, dict[str, int]]:
    code, out, err = run("cache", "list", path, "--json")
    assert code == 0, err
    return {scope["scope"]: scope for scope in json.loads(out)["scopes"]}


def warm(engine: Path, texts: Path, path: Path, *options: object) -> str:
    code, out, err = run("cache", "warm", engine, texts, "--path", path, *options)
    assert code == 0, err
    return out


def shared_drafts(engine: Path, path: Path, scope: Scope) -> int:
    """Drafts that a prompt takes from the shared cache in the file."""
    with Engine.load(engine, shared_cache_path=path, **CACHE) as loaded:
        done = loaded.generate(TEXTS[0][:20], max_tokens=2, temperature=0, ignore_eos=True, scope=scope)
        stats = done.finish.stats.sources.get("shared")
        return 0 if stats is None else stats.proposed


def test_help_of_the_flags() -> None:
    text = " ".join(run("serve", "--help")[1].split())
    assert "--shared-cache-path FILE a file that keeps the shared cache" in text
    assert re.search(r"--shared-cache-save-interval INTEGER RANGE .*?default: \(?300\)?; 0<=x<=86400", text)
    assert {"list", "clear", "warm"} <= set(run("cache", "--help")[1].split())


def test_warm_then_list_then_serve(engine: Path, texts: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    assert re.match(
        r"2 texts of \d+ tokens, \d+ of them new, in scope [0-9a-f]{12}-[0-9a-f]{12} of", warm(engine, texts, path)
    )
    (scope,) = listed(path).values()
    assert scope["documents"] == 2 and scope["tokens"] == sum(map(len, TEXTS)) and scope["stored_at"] > 0
    _, out, _ = run("cache", "list", path)
    head, titles, row = out.splitlines()
    assert str(path.stat().st_size) in head and "scope" in titles and re.match(r"[0-9a-f]{12}-[0-9a-f]{12} +2 ", row)
    assert shared_drafts(engine, path, Scope()) > 0
    assert shared_drafts(engine, path, Scope("other")) == 0


def test_warming_again_adds_what_is_new_and_keeps_other_scopes(engine: Path, texts: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    warm(engine, texts, path, "--tenant", "a", "--key-length", 8)
    before = listed(path)
    warm(engine, texts, path, "--tenant", "b", "--salt", "s", "--adapter", "x")
    more = tmp_path / "more.jsonl"
    lines = [
        TEXTS[1],
        {"text": "Something else altogether."},
        {"messages": [{"role": "user", "content": "Hello there"}]},
    ]
    more.write_text("\n".join(map(json.dumps, lines)))
    assert re.match("3 texts of ", warm(engine, more, path, "--tenant", "a"))
    after = listed(path)
    (a,) = before
    assert len(after) == 2 and next(iter(after)) == a
    assert after[a]["documents"] == 5
    added = after[a]["tokens"] - before[a]["tokens"]
    assert 20 < added < 60  # not the text that was there


def test_clear_one_scope_a_tenant_or_all(engine: Path, texts: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    for tenant, salt in (("a", ""), ("a", "s"), ("a", "t"), ("b", ""), ("", "")):
        warm(engine, texts, path, "--tenant", tenant, "--salt", salt)
    assert len(listed(path)) == 5
    for options, removed, left in (
        (("--tenant", "a", "--salt", "s"), 1, 4),
        (("--tenant", "a", "--salt", "s"), 0, 4),
        (("--tenant", "nobody"), 0, 4),
        (("--tenant", "a"), 2, 2),
        (("--tenant", ""), 1, 1),
        (("--all",), 1, 0),
    ):
        code, out, err = run("cache", "clear", path, *options)
        assert code == 0 and out.startswith(f"{removed} scopes"), err
        assert len(listed(path)) == left
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("list", "FILE"), 1, "no such file"),
        (("clear", "FILE", "--all"), 1, "no such file"),
        (("clear", "FILE"), 2, "give --tenant or --all"),
        (("clear", "FILE", "--all", "--tenant", "a"), 2, "give --tenant or --all"),
        (("clear", "FILE", "--all", "--salt", "a"), 2, "narrow --tenant"),
        (("warm", "no-such-dir", "TEXTS", "--path", "FILE"), 3, "no such directory"),
        (("warm", "ENGINE", "no-such-file", "--path", "FILE"), 1, "no-such-file: No such file"),
        (("warm", "ENGINE", "TEXTS", "--path", "none/FILE"), 1, "there is no directory"),
        (("warm", "ENGINE", "TEXTS", "--path", "FILE", "--mb", "0"), 2, "1<=x<=65536"),
        (("warm", "ENGINE", "BAD.jsonl", "--path", "FILE"), 1, "BAD.jsonl, line 2: "),
        (
            ("warm", "ENGINE", "WRONG.jsonl", "--path", "FILE"),
            1,
            'line 1: is neither a string nor an object with "text"',
        ),
        (("warm", "ENGINE", "DEEP.jsonl", "--path", "FILE"), 1, "line 1: is nested too deeply"),
        (("warm", "ENGINE", "SHORT", "--path", "FILE"), 1, "no text of more than 2 tokens"),
        (("warm", "ENGINE", "LATIN1", "--path", "FILE"), 1, "is not UTF-8"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    engine: Path, texts: Path, tmp_path: Path, args: tuple[str, ...], code: int, says: str
) -> None:
    (tmp_path / "BAD.jsonl").write_text('"fine"\n{')
    (tmp_path / "WRONG.jsonl").write_text('{"texts": "x"}')
    (tmp_path / "DEEP.jsonl").write_text("[" * 100_000)
    (tmp_path / "SHORT").write_text("x\n")
    (tmp_path / "LATIN1").write_bytes(b"caf\xe9 au lait\n")
    known = {"ENGINE": engine, "TEXTS": texts}
    names = ("FILE", "none/FILE", "BAD.jsonl", "WRONG.jsonl", "DEEP.jsonl", "SHORT", "LATIN1")
    known.update({name: tmp_path / name for name in names})
    got, _, err = run("cache", *(known.get(arg, arg) for arg in args))
    assert got == code, err
    assert says in err and "Traceback" not in err
    assert not (tmp_path / "FILE").exists()


def test_files_that_cannot_be_used_are_left_alone(engine: Path, texts: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    warm(engine, texts, path)
    whole = path.read_bytes()
    damaged = whole[:200] + bytes([whole[200] ^ 1]) + whole[201:]
    path.write_bytes(damaged)
    for args in (("list", path), ("clear", path, "--all"), ("warm", engine, texts, "--path", path)):
        code, _, err = run("cache", *args)
        assert code == 1 and "is damaged" in err
    assert path.read_bytes() == damaged
    path.write_bytes(whole)
    with KeyFile(path):
        assert len(listed(path)) == 1
        code, _, err = run("cache", "clear", path, "--all")
        assert code == 1 and "another process holds this snapshot; stop that server first" in err
    (tmp_path / "cache.key").unlink()
    code, _, err = run("cache", "list", path)
    assert code == 1 and "cache.key: the snapshot's key cannot be opened" in err


@pytest.mark.slow
def test_a_server_stopped_by_a_signal_saves(engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    command = [sys.executable, "-m", "trtserve", engine, "--port", "0", "--threads", "1", "--shared-cache-path", path]
    command += ["--prompt-lookup-shared-cache-mb", "1"]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stderr is not None
        url = None
        for line in server.stderr:
            if "in 4 scopes" in line:
                assert f"kept in {path}" in line
            if match := re.search(r"API +(http://\S+)/v1", line):
                url = match[1]
            if "try" in line:
                break
        assert url is not None
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": TEXTS[0], "max_tokens": 20}, timeout=60)
        assert answer.status_code == 200
        server.send_signal(signal.SIGTERM)
        server.stderr.read()
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
    (scope,) = listed(path).values()
    assert scope["documents"] == 1 and scope["tokens"] > len(TEXTS[0])
