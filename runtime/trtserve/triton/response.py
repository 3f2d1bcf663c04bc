"""A generation's events as output tensors."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtserve.engine.protocol import SOURCES, Delta, Finish, GenerationStats, SourceStats
from trtserve.triton.interface import OUTPUTS
from trtserve.triton.request import Call

Outputs = dict[str, NDArray[Any]]

_TYPES: dict[str, Any] = {"STRING": np.object_, "INT32": np.int32, "INT64": np.int64, "FP32": np.float32}
_DTYPES = {spec.name: np.dtype(_TYPES[spec.type]) for spec in OUTPUTS}


def _outputs(**values: Any) -> Outputs:
    """Each value as its output's type, shape [1] or, for a list, [n]. Strings become UTF-8."""
    made = {}
    for name, value in values.items():
        items = value if isinstance(value, list) else [value]
        made[name] = np.array([x.encode() if isinstance(x, str) else x for x in items], dtype=_DTYPES[name])
    return made


@dataclass
class Answer:
    """Builds one call's responses, in order."""

    call: Call
    arrived_ns: int = field(default_factory=time.monotonic_ns)
    _text: list[str] = field(default_factory=list)
    _echoed: bool = False
    _logprob: float = 0.0
    _first_ns: int = 0
    _last_ns: int = 0

    def piece(self, delta: Delta) -> Outputs | None:
        """The response of a stream for new output; None when there is nothing to send yet."""
        if delta.tokens:
            self._last_ns = time.monotonic_ns()
            self._first_ns = self._first_ns or self._last_ns
        self._logprob += sum(token.logprob or 0.0 for token in delta.tokens)
        new = delta.text
        if self.call.echo and not self._echoed:
            new = self.call.text + new
            self._echoed = True
        if self.call.accumulate or not self.call.streaming:
            self._text.append(new)
        if not self.call.streaming or not new:
            return None
        return _outputs(text_output="".join(self._text) if self.call.accumulate else new)

    def last(self, finish: Finish) -> Outputs:
        """The last response. Of a stream of pieces it has no text left to say."""
        call, stats = self.call, finish.stats
        text = "".join(self._text)
        if call.echo and not self._echoed:
            text = call.text + text
        outputs = _outputs(text_output=text)
        if call.return_finish_reason:
            outputs |= _outputs(finish_reason=finish.reason)
        if call.return_stop_reason:
            outputs |= _outputs(stop_reason="" if finish.stop is None else str(finish.stop))
        if call.return_cumulative_logprob:
            outputs |= _outputs(cumulative_logprob=self._logprob)
        if call.return_perf_metrics:
            outputs |= self._perf_metrics(stats)
        if call.return_lookup_stats:
            outputs |= lookup_stats(stats)
        return outputs

    def _perf_metrics(self, stats: GenerationStats) -> Outputs:
        proposed = sum(s.proposed for s in stats.sources.values())
        accepted = sum(s.accepted for s in stats.sources.values())
        return _outputs(
            kv_cache_hit_rate=stats.cached_tokens / max(stats.prompt_tokens, 1),
            arrival_time_ns=self.arrived_ns,
            first_scheduled_time_ns=self.arrived_ns + round(stats.queue_time * 1e9),
            first_token_time_ns=self._first_ns,
            last_token_time_ns=self._last_ns,
            acceptance_rate=accepted / max(proposed, 1),
            total_accepted_draft_tokens=accepted,
            total_draft_tokens=proposed,
        )


def lookup_stats(stats: GenerationStats) -> Outputs:
    """A request's account. The three arrays by source have shape [4], in the order of ``SOURCES``."""
    sources = [stats.sources.get(name, SourceStats()) for name in SOURCES]
    return _outputs(
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached_tokens,
        completion_tokens=stats.completion_tokens,
        rounds=stats.rounds,
        rounds_skipped=stats.rounds_skipped,
        draft_window=stats.window,
        draft_sources=list(SOURCES),
        draft_tokens=[s.proposed for s in sources],
        accepted_tokens=[s.accepted for s in sources],
    )
