"""The HTML page of a replay: what it shows of each round, and that long traces stay small."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from trtserve.replay import page as pages
from trtserve.replay.core import Replay, Result, Round, replay
from trtserve.replay.curves import CostModel
from trtserve.replay.places import Place, Places
from trtserve.replay.policies import Draft, NativePolicy
from trtserve.replay.report import summarize
from trtserve.replay.traces import Trace
from trtserve.settings import PromptLookup

PROMPT = (1, 2, 3, 4, 5, 6, 2, 3, 9)


def places(trace: Trace, *rounds: Round) -> list[Place | None]:
    finder = Places(Result(trace))
    return [finder.find(part) for part in rounds]


def test_drafts_are_found_where_they_stand() -> None:
    trace = Trace(PROMPT, (7, 2, 3, 4, 8, 2, 3, 4), prediction=(4, 4, 8, 8))
    assert places(
        trace,
        Round(0, Draft(), 0, 1),
        Round(1, Draft((2, 3, 4), source="history"), 3, 4),
        Round(5, Draft((2, 3, 4, 8), source="history"), 3, 3),
        Round(5, Draft((8, 8), source="prediction"), 0, 1),
        Round(5, Draft((8, 8), source="shared"), 0, 1),
        Round(5, Draft((77,), source="history"), 0, 1),
    ) == [None, Place("prompt", 1), Place("output", 1), Place("prediction", 2), None, None]


def test_a_copy_may_run_on_into_itself() -> None:
    trace = Trace((1, 5, 6), (5, 6, 5, 6, 5, 6))
    assert places(trace, Round(0, Draft((5, 6, 5, 6), source="history"), 4, 5)) == [Place("prompt", 1)]


def text(ids: Sequence[int]) -> str:
    return "".join(chr(96 + i) for i in ids)


def made(trace: Trace) -> str:
    model = CostModel(None)
    run: Replay = replay([trace], NativePolicy(PromptLookup()), keep_rounds=True)
    return pages.page([(summarize("some", run, model), run)], model, "none", text)


def test_copies_lead_to_where_they_stand() -> None:
    source = tuple(range(1, 27))
    html = made(Trace((*source, 40), source))
    links = re.findall(r'<a class="history" href="#([^"]+)">', html)
    assert links, "the output is in the prompt"
    for link in links:
        assert html.count(f'id="{link}"') == 1
    output = re.findall(r"<pre>(.*?)</pre>", html, re.DOTALL)[-1]
    assert re.sub(r"<[^>]+>", "", output) == text(source), "every token is there, once"


def test_each_round_has_its_row_with_its_cost() -> None:
    source = tuple(range(1, 27))
    html = made(Trace((*source, 40), source))
    rounds = int(re.search(r"in (\d+) rounds", html).group(1))  # type: ignore[union-attr]
    assert f"{rounds} rounds, one by one" in html
    assert html.count('<td class="text">') == rounds
    assert "<td>1<td>1<td>1.00<td>1.00<td>" in html, "the first has nothing to go by"


def test_what_is_in_a_text_cannot_be_markup() -> None:
    html = made(Trace((1, 2), (1, 2), name="<x>"))
    assert "&lt;x&gt;" in html
    assert "<x>" not in html


def test_long_traces_are_cut_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_OF_TRACE", 10)
    html = made(Trace((1,), tuple(range(2, 26))))
    assert "10 rounds, one by one" in html
    assert "14 later rounds are not shown" in html
