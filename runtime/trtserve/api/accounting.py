"""What a response says of its cost: OpenAI's ``usage`` and this project's ``prompt_lookup`` statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtserve.engine.protocol import SOURCES, Delta, Finish, GenerationStats, Source, SourceStats


def _source(stats: GenerationStats, source: Source) -> SourceStats:
    return stats.sources.get(source, SourceStats())


def account(finishes: Sequence[Finish], choices_per_prompt: int) -> dict[str, Any]:
    """What an answer's top level has of both."""
    return {"usage": usage(finishes, choices_per_prompt), "prompt_lookup": lookup_stats(finishes)}


def usage(finishes: Sequence[Finish], choices_per_prompt: int) -> dict[str, Any]:
    """OpenAI's usage object over all choices. A prompt counts once, however many choices it has.

    ``accepted_prediction_tokens`` are drafts taken from the request's prediction and accepted;
    ``rejected_prediction_tokens`` are those proposed and not accepted.
    """
    all_stats = [f.stats for f in finishes]
    prompts = all_stats[::choices_per_prompt]
    prediction = [_source(s, "prediction") for s in all_stats]
    prompt_tokens = sum(s.prompt_tokens for s in prompts)
    completion_tokens = sum(s.completion_tokens for s in all_stats)
    accepted = sum(s.accepted for s in prediction)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(s.cached_tokens for s in prompts)},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(s.proposed for s in prediction) - accepted,
        },
    }


def lookup_stats(finishes: Sequence[Finish]) -> dict[str, Any]:
    """``prompt_lookup``: draft statistics summed over all choices. ``window`` is that of a single choice, else null."""
    all_stats = [f.stats for f in finishes]
    rounds = sum(s.rounds for s in all_stats)
    tokens = sum(s.completion_tokens for s in all_stats)
    sources = {}
    for name in SOURCES:
        each = [_source(s, name) for s in all_stats]
        if any(s.proposed for s in each):
            sources[name] = {"proposed": sum(s.proposed for s in each), "accepted": sum(s.accepted for s in each)}
    return {
        "rounds": rounds,
        "tokens_per_round": round(tokens / rounds, 4) if rounds else 0.0,
        "rounds_skipped": sum(s.rounds_skipped for s in all_stats),
        "window": all_stats[0].window if len(all_stats) == 1 else None,
        "sources": sources,
        "queue_seconds": round(sum(s.queue_time for s in all_stats), 6),
        "prefill_seconds": round(sum(s.prefill_time for s in all_stats), 6),
        "decode_seconds": round(sum(s.decode_time for s in all_stats), 6),
    }


@dataclass
class RunningUsage:
    """A choice's usage before its ``Finish`` has the whole account: what can be counted from its output."""

    prompt_tokens: int
    completion_tokens: int = 0
    accepted_prediction_tokens: int = 0

    def add(self, delta: Delta) -> None:
        self.completion_tokens += len(delta.tokens)
        self.accepted_prediction_tokens += sum(token.source == "prediction" for token in delta.tokens)

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object, without the details that only the engine knows."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": self.accepted_prediction_tokens,
            },
        }
