"""The commands, as a shell runs them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from tests.tiny.engine import write_tiny_engine
from trtserve.api.context import ServerContext
from trtserve.cli import main, serving
from trtserve.settings import PromptLookup


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine(tmp_path_factory.mktemp("engines") / "tiny")


def run(*args: object, stdin: str = "") -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of ``trtserve``."""
    result = CliRunner().invoke(main, [str(a) for a in args], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_help_shows_every_lookup_flag_with_default_and_range() -> None:
    code, out, _ = run("serve", "--help")
    text = " ".join(out.split())
    assert code == 0
    for flag, field in (("ngram", "ngram"), ("max-drafts", "max_drafts"), ("min-match", "min_match")):
        default = PromptLookup.model_fields[field].default
        assert re.search(rf"--prompt-lookup-{flag} INTEGER RANGE .*?a recipe's: {default}\); 1<=x<=64\]", text)
    for flag in ("decoding", "miss-backoff", "max-seqs", "shared-cache-mb", "shared-cache-scopes"):
        assert f"--prompt-lookup-{flag}" in text
    for flag in ("--exact-verify", "--hermetic", "--require-auth", "--auth-tokens-file", "TRTSERVE_PORT"):
        assert flag in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--temperature", "nan"], "temperature: Input should be a finite number"),
        (["--top-p", "nan"], "top_p: Input should be less than or equal to 1"),
        (["--seed", 1 << 64], "seed: Input should be less than"),
        (["--stop", ""], "stop.0: String should have at least 1 character"),
    ],
)
def test_sampling_options_out_of_range_are_one_line(engine: Path, options: list[object], says: str) -> None:
    code, _, error = run("generate", engine, "x", *options)
    assert code == 1
    assert next(line for line in error.splitlines() if line.startswith("Error: ")).startswith(f"Error: {says}")
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "options",
    [
        ["--served-model-name", ""],
        ["--served-model-name", "a\udcff"],
        ["--drain-timeout", "nan"],
        ["--stall-timeout", "nan"],
        ["--allowed-origins", "null"],
        ["--allowed-origins", "http://page.test", "--allowed-origins", "page.test"],
    ],
)
def test_serving_options_that_mean_nothing_are_refused(engine: Path, options: list[object]) -> None:
    code, _, error = run(engine, *options)
    assert code == 2 and str(options[0]) in error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirection", "code", "says"),
    [
        (">&-", 0, ""),
        (">/dev/full", 1, "Error: [Errno 28]"),
        (">&- 2>&- <&-", 0, ""),
    ],
)
def test_streams_that_are_closed_or_full(engine: Path, redirection: str, code: int, says: str) -> None:
    prompt = "-" if "<" in redirection else "hello"
    line = f"{sys.executable} -m trtserve generate {engine} {prompt} --max-tokens 3 --threads 1 {redirection}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_terminal_of_another_encoding_gets_question_marks(engine: Path) -> None:
    command = [sys.executable, "-m", "trtserve", "generate", engine, "x", "--max-tokens", "40", "--raw"]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0 and b"Traceback" not in done.stderr
    assert done.stdout.decode("latin-1").strip()


def test_help_and_version_of_the_group() -> None:
    text = run("--help")[1]
    assert {"serve", "generate", "chat"} <= set(text.split())
    # The default command's flags are what most people look for.
    assert "--prompt-lookup-max-drafts" in text and "--drain-timeout" in text
    assert run("--version")[1].startswith("trtserve")


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("no-such-dir",), 3, "no such directory"),
        (("generate", "no-such-dir", "x"), 3, "no such directory"),
        (("chat", "no-such-dir"), 3, "no such directory"),
        (("no-such-dir", "--port", "70000"), 2, "0<=x<=65535"),
        (("no-such-dir", "--prompt-lookup-ngram", "65"), 2, "1<=x<=64"),
        (("no-such-dir", "--require-auth"), 2, "--auth-tokens-file"),
        (("no-such-dir", "--auth-tokens-file", "x"), 2, "--require-auth"),
        (("no-such-dir", "--require-auth", "--auth-tokens-file", "no-such-file"), 2, "cannot be read"),
        (("no-such-dir", "--bogus"), 2, "--bogus"),
        (("no-such-dir", "--host", "256.1.1.1"), 5, "cannot listen on 256.1.1.1"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(args: tuple[str, ...], code: int, says: str) -> None:
    got, _, err = run(*args)
    assert got == code, err
    assert says in err and "Traceback" not in err


def test_more_drafts_than_rows_and_a_cache_without_lookup_are_refused(engine: Path) -> None:
    code, _, err = run(engine, "--port", 0, "--prompt-lookup-max-drafts", 12)
    assert code == 2 and "12" in err and "8 drafts" in err
    code, _, err = run(engine, "--port", 0, "--no-prompt-lookup-decoding", "--prompt-lookup-shared-cache-mb", 8)
    assert code == 2 and "shared_cache_mb" in err


def test_an_altered_engine_is_refused(engine: Path, tmp_path: Path) -> None:
    copy = tmp_path / "engine"
    subprocess.run(["cp", "-r", engine, copy], check=True)
    (copy / "weights.safetensors").write_bytes(b"other")
    code, _, err = run("generate", copy, "x")
    assert code == 3 and "weights.safetensors" in err


def test_a_port_in_use_is_said_before_the_model_is_loaded(engine: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = run(engine, "--port", taken.getsockname()[1])
    assert code == 5 and "in use" in err and "Loading" not in err


def test_generates_alike_from_argument_and_standard_input_lookup_on_and_off(engine: Path) -> None:
    options = ("--max-tokens", 24, "--temperature", 0.9, "--seed", 5)
    code, out, err = run("generate", engine, "abcabc", *options)
    assert code == 0 and out.endswith("\n") and err == ""
    assert run("generate", engine, "-", *options, stdin="abcabc")[1] == out
    assert run("generate", engine, "abcabc", *options, "--no-prompt-lookup-decoding")[1] == out
    assert run("generate", engine, "abcabc", "--raw", *options)[1] != out


def test_statistics_go_to_standard_error_and_colour_is_a_choice(engine: Path, tmp_path: Path) -> None:
    # Nothing to copy in the prompt, so that the prediction is the only source.
    ask = ("generate", engine, "abcdefgh", "--max-tokens", 24, "--raw", "--stats")
    code, plain, err = run(*ask)
    assert code == 0 and "a round" in err and "tokens/s" in err and "\x1b[" not in plain
    (tmp_path / "expected").write_text(plain)
    coloured = run(*ask, "--prediction", tmp_path / "expected", "--color")[1]
    assert "\x1b[36m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain


def test_a_prediction_that_nothing_reads_is_refused(engine: Path, tmp_path: Path) -> None:
    (tmp_path / "expected").write_text("text")
    ask = ("generate", engine, "x", "--prediction", tmp_path / "expected", "--no-prompt-lookup-decoding")
    code, _, err = run(*ask)
    assert code == 2 and "--prediction does nothing without prompt lookup" in err


def test_a_prediction_comes_from_a_file(engine: Path, tmp_path: Path) -> None:
    ask = ("generate", engine, "abc", "--max-tokens", 24, "--stats")
    _, out, _ = run(*ask)
    (tmp_path / "expected").write_text(out)
    (tmp_path / "latin1").write_bytes(b"caf\xe9")
    code, _, err = run(*ask, "--prediction", tmp_path / "latin1")
    assert code == 1 and "latin1: is not UTF-8" in err and "Traceback" not in err
    code, again, err = run(*ask, "--prediction", tmp_path / "expected")
    assert (code, again) == (0, out) and "prediction" in err


def test_a_prompt_that_does_not_fit_is_an_error(engine: Path) -> None:
    code, _, err = run("generate", engine, "x" * 300)
    assert code == 1 and "256" in err and "Traceback" not in err


def test_options_come_from_the_environment(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTSERVE_MAX_TOKENS", "0")
    code, _, err = run("generate", engine, "x")
    assert code == 2 and "TRTSERVE_MAX_TOKENS" in err


def test_a_conversation_is_remembered_until_it_is_reset(engine: Path) -> None:
    lines = "one\ntwo\n/stats\nthree\\\nfour\n/nonsense\n/reset\none\n/exit\nnever\n"
    code, out, err = run("chat", engine, "--max-tokens", 8, stdin=lines)
    assert code == 0
    # The first answer, the second one with the first in its prompt, and, after the reset, the first again.
    prompts = [int(n) for n in re.findall(r"prompt (\d+) ", err)]
    assert len(prompts) == 2 and prompts[1] > prompts[0] + 10
    answers = [a for a in out.replace("... ", ">>> ").split(">>> ") if a.strip()]
    assert answers[0] == answers[-1]
    assert "/reset forgets" in err and "never" not in out


def test_a_conversation_that_outgrows_the_context_says_so_and_goes_on(engine: Path) -> None:
    code, _, err = run("chat", engine, "--max-tokens", 4, stdin="x" * 300 + "\nshort\n")
    assert code == 0 and "/reset starts anew" in err and "tokens in" in err


@pytest.mark.parametrize(
    ("options", "origins", "warns"),
    [
        ((), (), None),
        (("--host", "0.0.0.0"), (), "anyone who reaches this address"),
        (("--allowed-origins", "http://a.test", "--allowed-origins", "app://b"), ("http://a.test", "app://b"), None),
        (("--allowed-origins", "*"), ("*",), "any web page may use this server"),
    ],
)
def test_who_may_use_the_server_is_said(
    engine: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    origins: tuple[str, ...],
    warns: str | None,
) -> None:
    contexts = []

    class Ready:
        """A server that stops as soon as it is ready."""

        def __init__(self, context: ServerContext, *, drain_timeout: float, on_ready: Callable[[], None]) -> None:
            contexts.append(context)
            self._on_ready = on_ready

        def run_on(self, sock: socket.socket) -> None:
            sock.close()
            self._on_ready()

    monkeypatch.setattr(serving, "ApiServer", Ready)
    code, _, err = run(engine, "--port", 0, "--threads", 1, *options)
    assert code == 0, err
    assert contexts[0].config.allowed_origins == origins
    warnings = [line for line in err.splitlines() if line.startswith("Warning:")]
    assert len(warnings) == (warns is not None) and (warns or "") in "".join(warnings)


class Process:
    """``trtserve`` in a process of its own."""

    def __init__(self, *args: object) -> None:
        command = [sys.executable, "-m", "trtserve", *map(str, args)]
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.lines: list[str] = []
        self.ready = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"playground\s+(http://\S+)/", line):
                self.url = found[1]
            if line.startswith("  try"):
                self.ready.set()

    def wait(self) -> int:
        code = self.process.wait(30)
        self._reader.join(10)
        return code

    @property
    def said(self) -> str:
        return "".join(self.lines)


@pytest.fixture
def process(engine: Path, tmp_path: Path) -> Iterator[Process]:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("alice: alice-token-0123456789\n")
    tokens.chmod(0o600)
    server = Process(
        engine, "--port", 0, "--threads", 1, "--require-auth", "--auth-tokens-file", tokens, "--drain-timeout", 20
    )
    try:
        assert server.ready.wait(60), server.said
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.wait()


HEADERS = {"authorization": "Bearer alice-token-0123456789"}


@pytest.mark.slow
def test_sigterm_drains_and_exits_with_zero(process: Process) -> None:
    body = {"prompt": "a secret phrase", "max_tokens": 200, "ignore_eos": True, "stream": True}
    url = process.url + "/v1/completions"
    assert httpx.post(url, json={"prompt": "x"}).status_code == 401
    with httpx.stream("POST", url, json=body, headers=HEADERS, timeout=30) as response:
        pieces = response.iter_text()
        first = next(pieces)
        process.process.send_signal(signal.SIGTERM)
        text = first + "".join(pieces)
    assert text.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in text
    assert process.wait() == 0
    assert "finishing running requests" in process.said and "stopped" in process.said
    assert "POST /v1/completions 200" in process.said
    # Neither prompts nor tokens are ever logged.
    assert "secret" not in process.said and "alice" not in process.said


@pytest.mark.slow
def test_a_second_signal_quits_at_once_and_sighup_reads_tokens(process: Process, tmp_path: Path) -> None:
    (tmp_path / "tokens.yaml").write_text("bob: bob-token-0123456789\n")
    process.process.send_signal(signal.SIGHUP)
    headers = {"authorization": "Bearer bob-token-0123456789"}
    for _ in range(200):
        if httpx.get(process.url + "/v1/models", headers=headers).status_code == 200:
            break
    else:
        pytest.fail("the tokens were not read again")
    body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "n": 100, "stream": True}
    with httpx.stream("POST", process.url + "/v1/completions", json=body, headers=headers, timeout=30) as response:
        chunks = response.iter_raw()
        next(chunks)
        process.process.send_signal(signal.SIGINT)
        while "finishing" not in process.said:
            pass
        process.process.send_signal(signal.SIGINT)
        assert process.wait() == 128 + signal.SIGINT
