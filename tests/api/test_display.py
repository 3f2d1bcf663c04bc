"""Streaming to a terminal: interrupts and control characters."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from trtserve.cli.display import Screen, summary
from trtserve.engine.protocol import GenerationRequest, Source

from .scripted import ScriptedEngine


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What a program in the foreground has. One started in the background of a script has interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_cancels_the_answer_and_not_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    engine = ScriptedEngine()

    class Interrupted(Screen):
        def write(self, text: str, source: Source | None = None) -> None:
            super().write(text, source)
            signal.raise_signal(signal.SIGINT)

    asked = GenerationRequest(prompt=list(b"SLOW and long enough"))
    text, finish = Interrupted(color=False).stream(engine.submit(asked))
    assert finish.reason == "cancelled"
    assert text and "SLOW and long enough".startswith(text)
    assert capsys.readouterr().out == text
    assert engine.wait_idle()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # The next answer is as good as any.
    _, finish = Screen(color=False).stream(engine.submit(GenerationRequest(prompt=list(b"fine"))))
    assert finish.reason == "stop" and "4 tokens in 2 rounds, 2.00 a round" in summary(finish.stats)


def test_a_model_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    Screen(color=False).write("a\x1b[2J\x9b1m\r\tb\n")
    assert capsys.readouterr().out == "a\ufffd[2J\ufffd1m\ufffd\tb\n"
