"""Where a round's drafts stand in the text before them: drafts say which source they are from, not from where in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from trtserve.replay.core import Result, Round

#: Places looked at for one round, the latest ones. A token that is everywhere need not be looked for everywhere.
_MOST = 256


class Place(NamedTuple):
    """``text`` is ``prompt``, ``output`` or ``prediction``; ``token`` counts from 0 in it."""

    text: str
    token: int


class Places:
    """Finds each round's drafts, round by round in their order, in one trace's texts."""

    def __init__(self, result: Result) -> None:
        trace = result.trace
        self._prompt_length = len(trace.prompt)
        self._output = trace.output
        self._history: list[int] = []
        self._seen: dict[int, list[int]] = defaultdict(list)
        self._prediction = list(trace.prediction)
        self._predicted: dict[int, list[int]] = defaultdict(list)
        for i, token in enumerate(self._prediction):
            self._predicted[token].append(i)
        self._append(trace.prompt)

    def find(self, part: Round) -> Place | None:
        """The latest place that holds most of the drafts; None for rounds without, and for other requests' text."""
        self._append(self._output[len(self._history) - self._prompt_length : part.start])
        drafts = part.draft.tokens
        if not drafts:
            return None
        if part.draft.source == "prediction":
            at = _longest(self._prediction, self._predicted.get(drafts[0], ()), drafts)
            return None if at is None else Place("prediction", at)
        if part.draft.source != "history":
            return None
        at = _longest(self._history, self._seen.get(drafts[0], ()), drafts, runs_on=True)
        if at is None:
            return None
        output = at - self._prompt_length
        return Place("prompt", at) if output < 0 else Place("output", output)

    def _append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._seen[token].append(len(self._history))
            self._history.append(token)


def _longest(text: Sequence[int], starts: Sequence[int], drafts: Sequence[int], *, runs_on: bool = False) -> int | None:
    """Of the latest starts the one from which ``text`` agrees with the drafts longest; a copy of the history
    ``runs_on`` past its end into itself."""
    best, longest = None, 0
    for start in reversed(starts[-_MOST:]):
        length = 0
        for i, draft in enumerate(drafts):
            at = start + i
            if at >= len(text) and not runs_on:
                break
            if (text[at] if at < len(text) else drafts[at - len(text)]) != draft:
                break
            length += 1
        if length > longest:
            best, longest = start, length
    return best
