"""Where a request ends: the first end token, stop token, stop string, budget or context end of a round, and nothing
after it. Each case runs with every token drafted (so the end lies inside a draft) and without drafts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trtserve.engine.local import LocalEngine
from trtserve.engine.protocol import Completion, GenerationRequest
from trtserve.sampling import SamplingParams

from .toy import EOS, EOT, ToyDrafter, collect, ids, text_engine, token_ids

Make = Callable[..., LocalEngine]
PROMPT = ids("the foo(")
END, ST, OP = ids("END")[0], ids("ST")[0], ids("OP")[0]


@pytest.fixture(params=[True, False], ids=["drafted", "plain"])
def run(request: pytest.FixtureRequest, make_engine: Make) -> Callable[..., Completion]:
    def run(
        text: list[int], prompt: list[int] = PROMPT, limits: dict[str, int] | None = None, **params: object
    ) -> Completion:
        # What follows the text's own end tempts the engine to run on.
        engine = text_engine(
            make_engine, prompt, [*text, *ids("zzzzzzzzzzzzzzzzzzzz")], drafts=request.param, limits=limits
        )
        done = collect(engine.submit(GenerationRequest(prompt, SamplingParams(temperature=0, **params))))
        stats = engine.metrics()
        assert stats["generation_tokens_total"] == len(done.tokens)
        kept = engine._slots._slots[0].tokens.tolist()
        whole = [*prompt, *token_ids(done)]
        assert kept == whole[:-1], "the slot keeps exactly what was committed"
        if request.param and isinstance(drafter := engine._copies.drafter, ToyDrafter):
            assert drafter.started[0].tokens == whole
            assert drafter.stored == [(drafter.started[0].scope, whole)]
            sources = done.finish.stats.sources["history"]
            assert sources.accepted <= sum(t.source == "history" for t in done.tokens)
            assert stats["accepted_tokens_total"]["history"] == sources.accepted
        return done

    return run


Run = Callable[..., Completion]


def ended(done: Completion) -> tuple[str, str | int | None]:
    return done.finish.reason, done.finish.stop


def test_end_token_inside_a_draft(run: Run) -> None:
    done = run([*ids("abc"), EOS])
    assert ended(done) == ("stop", EOS) and done.text == "abc" and token_ids(done) == [*ids("abc"), EOS]


def test_second_end_token(run: Run) -> None:
    assert ended(run([*ids("a"), EOT, EOS])) == ("stop", EOT)


def test_end_token_first(run: Run) -> None:
    done = run([EOS])
    assert ended(done) == ("stop", EOS) and done.text == "" and len(done.tokens) == 1


def test_ignored_end_token_goes_on(run: Run) -> None:
    done = run([*ids("ab"), EOS, *ids("cd")], ignore_eos=True, max_tokens=5)
    assert ended(done) == ("length", None) and done.text == "abcd" and len(done.tokens) == 5


def test_ignored_end_token_can_still_be_a_stop_token(run: Run) -> None:
    assert ended(run([*ids("ab"), EOS], ignore_eos=True, stop_token_ids=(EOS,))) == ("stop", EOS)


@pytest.mark.parametrize("include", [False, True])
def test_stop_token(run: Run, include: bool) -> None:
    done = run(ids("ab)c"), stop_token_ids=tuple(ids(")")), include_stop_str_in_output=include)
    assert ended(done) == ("stop", ids(")")[0]) and done.text == ("ab)" if include else "ab")
    assert token_ids(done) == ids("ab)")


@pytest.mark.parametrize("include", [False, True])
def test_stop_string_over_two_tokens(run: Run, include: bool) -> None:
    done = run(ids("abSTOPcd"), stop=("STOP",), include_stop_str_in_output=include)
    assert ended(done) == ("stop", "STOP") and done.text == ("abSTOP" if include else "ab")
    assert token_ids(done) == ids("abSTOP")


def test_stop_string_inside_one_token(run: Run) -> None:
    done = run(ids("abEND"), stop=("N",))
    assert ended(done) == ("stop", "N") and done.text == "abE"


@pytest.mark.parametrize("text", [[ST, OP, EOS], [ST, OP, *ids("a"), EOS]])
def test_stop_string_and_end_token_in_one_round_the_earlier_wins(run: Run, text: list[int]) -> None:
    done = run(text, stop=("STOP",))
    assert ended(done) == ("stop", "STOP") and done.text == "" and len(done.tokens) == 2


def test_end_token_before_a_stop_string_in_one_round(run: Run) -> None:
    done = run([*ids("a"), EOS, ST, OP], stop=("STOP",))
    assert ended(done) == ("stop", EOS) and done.text == "a"


def test_end_token_in_the_middle_of_a_stop_string_frees_the_held_text(run: Run) -> None:
    done = run([*ids("a"), ST, EOS, OP], stop=("STOP",))
    assert ended(done) == ("stop", EOS) and done.text == "aST"


def test_earliest_of_two_stop_strings(run: Run) -> None:
    assert ended(run(ids("abcd"), stop=("cd", "bc"))) == ("stop", "bc")


def test_stop_string_completed_by_the_prompt_does_not_count(run: Run) -> None:
    done = run(ids("OPaSTOP"), prompt=ids("xST"), stop=("STOP",))
    assert done.text == "OPa" and ended(done) == ("stop", "STOP")


def test_stop_string_in_characters_of_several_bytes(run: Run) -> None:
    done = run(ids("é😀é€a"), stop=("é€",))
    assert done.text == "é😀" and ended(done) == ("stop", "é€")


@pytest.mark.parametrize("budget", [1, 2, 3, 9, 10, 11])
def test_budget(run: Run, budget: int) -> None:
    done = run(ids("abcdefghijklmno"), max_tokens=budget)
    assert ended(done) == ("length", None) and done.text == "abcdefghijklmno"[:budget]


def test_budget_and_end_token_on_the_same_token(run: Run) -> None:
    assert ended(run([*ids("ab"), EOS], max_tokens=3)) == ("stop", EOS)


def test_budget_and_stop_string_on_the_same_token(run: Run) -> None:
    done = run(ids("abSTOP"), stop=("STOP",), max_tokens=4)
    assert ended(done) == ("stop", "STOP") and done.text == "ab"


def test_budget_inside_a_character(run: Run) -> None:
    done = run(ids("a😀"), max_tokens=2)
    assert ended(done) == ("length", None) and done.text == "a\ufffd"


def test_budget_inside_a_stop_string_frees_the_held_text(run: Run) -> None:
    done = run(ids("aSTOP"), stop=("STOP",), max_tokens=2)
    assert ended(done) == ("length", None) and done.text == "aST"


@pytest.mark.parametrize("prompt_len", [1, 8, 15])
def test_context_end(run: Run, prompt_len: int) -> None:
    done = run(ids("bcdefghijklmnopqrstu"), prompt=ids("a") * prompt_len, limits={"max_seq_len": 16})
    assert ended(done) == ("length", None) and len(done.tokens) == 16 - prompt_len


@pytest.mark.parametrize("stop", [(), ("zz",)])
def test_min_tokens_holds_back_end_tokens_per_row(run: Run, stop: tuple[str, ...]) -> None:
    """The model wants EOS from the first token on; the fourth row of a round may choose it, the third may not."""
    done = run([*ids("abc"), EOS], min_tokens=3, logit_bias={EOS: 60.0}, stop=stop)
    assert ended(done) == ("stop", EOS) and token_ids(done) == [*ids("abc"), EOS]


def test_min_tokens_passes_over_stop_strings(run: Run) -> None:
    done = run(ids("abSTOPabab"), stop=("ab",), min_tokens=4)
    assert done.text == "abSTOP" and ended(done) == ("stop", "ab") and len(done.tokens) == 6


def test_no_end_tokens_at_all(make_engine: Make) -> None:
    engine = text_engine(make_engine, PROMPT, [*ids("ab"), EOS, *ids("c")])
    record = engine.manifest.tokenizer.model_copy(update={"eos_token_ids": ()})
    engine.manifest = engine.manifest.model_copy(update={"tokenizer": record})
    done = collect(engine.submit(GenerationRequest(PROMPT, SamplingParams(temperature=0, max_tokens=4))))
    assert ended(done) == ("length", None) and done.text == "abc"


def test_every_prefix_of_the_stream_is_safe_to_show(make_engine: Make) -> None:
    text = "a€b😀STéSTOP"
    for drafts in (True, False):
        engine = text_engine(make_engine, PROMPT, ids(text), drafts=drafts)
        shown = ""
        for event in engine.submit(GenerationRequest(PROMPT, SamplingParams(temperature=0, stop=("STOP",)))):
            shown += getattr(event, "text", "")
            assert text.removesuffix("STOP").startswith(shown)
        assert shown == text.removesuffix("STOP")


def test_draft_lengths_stay_within_the_tier_the_budget_and_the_context(make_engine: Make) -> None:
    text = ids("abcdefghijklmnopqrstuvwxyz")
    engine = text_engine(make_engine, PROMPT, text)
    collect(engine.submit(GenerationRequest(PROMPT, SamplingParams(temperature=0, max_tokens=20))))
    drafter = engine._copies.drafter
    assert isinstance(drafter, ToyDrafter)
    assert drafter.limits == [[8], [8], [1]]
    assert engine._executor.rows_seen == [[9], [9], [2]]  # type: ignore[attr-defined]


def test_one_token_left_is_a_plain_step(make_engine: Make) -> None:
    engine = text_engine(make_engine, PROMPT, ids("abcdefghijklmnop"))
    collect(engine.submit(GenerationRequest(PROMPT, SamplingParams(temperature=0, max_tokens=10))))
    assert engine._executor.rows_seen == [[9], [1]]  # type: ignore[attr-defined]
