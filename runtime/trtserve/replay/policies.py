"""What replay asks of a drafting policy, and this project's policies through the real drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, get_args

from trtserve.engine_dir import CostCurve
from trtserve.lookup.drafter import Drafter, SequenceDrafter
from trtserve.lookup.shared import SharedCache
from trtserve.replay.traces import Trace
from trtserve.settings import PolicyName, PromptLookup


@dataclass(frozen=True)
class Draft:
    """One sequence's drafts of one round: a chain, or with ``parents`` a tree (the index of each one's parent, or -1).

    ``rows`` is what the verify computes beside the committed token, where that is more than the drafts (padding).
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] | None = None
    rows: int = 0
    source: str = ""
    match: int = 0

    @property
    def extra_rows(self) -> int:
        return max(self.rows, len(self.tokens))

    def accepted(self, future: Sequence[int]) -> int:
        """Tokens of ``future`` that the drafts hold, from its first on."""
        count = 0
        if self.parents is None:
            for token, target in zip(self.tokens, future, strict=False):
                if token != target:
                    break
                count += 1
            return count
        at = -1
        for target in future:
            children = (i for i, p in enumerate(self.parents) if p == at and self.tokens[i] == target)
            at = next(children, -2)
            if at == -2:
                break
            count += 1
        return count


NO_DRAFT = Draft()


class Policy(Protocol):
    """A drafting policy. What ``start`` returns stands for one sequence in every other call."""

    name: str

    def start(self, trace: Trace) -> Any:
        """A new sequence. Only an oracle looks at the trace's output."""
        ...

    def propose(self, sequences: Sequence[Any], limits: Sequence[int]) -> list[Draft]: ...

    def settle(self, sequence: Any, draft: Draft, accepted: int) -> None:
        """The draft, which was not empty, was verified."""
        ...

    def observe(self, sequence: Any, tokens: Sequence[int]) -> None: ...

    def finish(self, sequence: Any) -> None: ...


class NativePolicy:
    """This project's drafter. ``shared`` is given to all its sequences under one scope."""

    def __init__(
        self,
        settings: PromptLookup,
        *,
        cost: CostCurve | None = None,
        shared: SharedCache | None = None,
        priors: list[int] | None = None,
    ) -> None:
        self.name: str = settings.policy
        self._drafter = Drafter(settings, shared=shared, cost=cost, priors=priors)
        self._scope = "replay" if shared else None

    def start(self, trace: Trace) -> SequenceDrafter:
        return self._drafter.start(trace.prompt, prediction=trace.prediction, scope=self._scope)

    def propose(self, sequences: Sequence[SequenceDrafter], limits: Sequence[int]) -> list[Draft]:
        return [
            Draft(p.tokens.tolist(), source=p.source, match=p.match) if p.source else NO_DRAFT
            for p in self._drafter.propose(sequences, list(limits))
        ]

    def settle(self, sequence: SequenceDrafter, draft: Draft, accepted: int) -> None:
        sequence.settle(accepted)

    def observe(self, sequence: SequenceDrafter, tokens: Sequence[int]) -> None:
        sequence.observe(list(tokens))

    def finish(self, sequence: SequenceDrafter) -> None:
        self._drafter.finish(sequence, store=True)


POLICIES: tuple[str, ...] = get_args(PolicyName)
