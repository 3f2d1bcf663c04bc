"""What the adaptive policy loses to the oracle by stopping, by choosing and to luck, and what a tree would add.

``python -m benchmarks.bounds [--out FILE]``

At each position of an output the policy looks ahead as it does to draft: any token that a candidate names may be taken
as accepted, and what follows it is decided anew. What it has learned up to there is what rounds of one token teach, so
no bound depends on another's rounds. Each is decode time over that without drafts, one request at a time:

- *as it is*: the likeliest tokens, as many as pay by their chances;
- *tree*: rows may go to the other tokens named too; what is emitted is the path that is right;
- *perfect cut*: the likeliest tokens, as long as they are right and pay;
- *perfect choice*: the right tokens, as long as a candidate names them and they pay;
- *oracle, match m*: the oracle held to copies whose source the last m tokens stand before: the rest of it is luck;
- *joined, match m*: any tokens that were each seen behind the m before them, so that a draft may join copies.

A tree is priced by its rows alone, as if attention along its branches and moving what is accepted cost nothing.
"""

from __future__ import annotations

import argparse
import heapq
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.policies.adaptive import CHANCES, EDGE, LEAST, Adaptive, State, Step, advance, worths
from benchmarks.policies.fit import fit
from benchmarks.policies.oracle import best_lengths, longest_copies
from benchmarks.replay import DRAFTS, RESULTS, workloads
from benchmarks.traces.read import half, shipped
from trtserve.replay.curves import CostModel, load_curve, shipped_curves
from trtserve.replay.traces import Trace

Tokens = tuple[int, ...]

OUT = RESULTS / "bounds.json"
#: Rows that a chain or a tree may have.
ROWS = (DRAFTS, 2 * DRAFTS)
#: Tokens before a copy's source that the text seen so far must end with.
MATCHES = (0, 1, 2, 3)


class Looking(Adaptive):
    """The policy, with all that may come next open to view."""

    def ahead(self) -> Node:
        return Node(self, list(self.history), State(self.state.cursor, list(self.state.breaks)))

    def look(self, state: State, tokens: list[int]) -> Step:
        step = self._collect(state, tokens)
        self._choose(step)
        return step


class Node:
    """A position, as if the drafts up to it had been accepted. Good until the policy observes a token."""

    def __init__(self, policy: Looking, tokens: list[int], state: State) -> None:
        self._policy, self._tokens, self._state = policy, tokens, state
        self._step = policy.look(state, tokens)
        self._behind: dict[int, Node] = {}
        self.likeliest = self._step.best.token if self._step.best else None
        self.chances = self._step.chances

    def behind(self, token: int) -> Node:
        """The position behind a token that may stand at this one."""
        if token not in self._behind:
            state = State(self._state.cursor, list(self._state.breaks))
            advance(state, self._step, token)
            self._behind[token] = Node(self._policy, [*self._tokens, token], state)
        return self._behind[token]

    def ways(self, branches: bool) -> Iterator[tuple[int, float]]:
        """Tokens and their chances: the likeliest alone, or all. They are judged one by one, so where they add up to
        more than one each gets its part."""
        likeliest = self.likeliest
        if likeliest is None:
            return
        total = max(1.0, sum(self.chances.values())) if branches else 1.0
        for token in self.chances if branches else [likeliest]:
            yield token, self.chances[token] / total

    def told(self, branches: bool) -> float:
        """How well the text here is told: the chance of the likeliest token."""
        return max((chance for _, chance in self.ways(branches)), default=0.0)


class Price:
    """A curve, as one sequence's rows are divided under it (``adaptive.divide_rows``)."""

    def __init__(self, cost: Callable[[int, int], float], most: int) -> None:
        self.costs = [cost(1, rows) for rows in range(most + 1)]
        self._worth = worths(1, cost)

    def worth(self, chance: float) -> float:
        return self._worth[int(chance * CHANCES + 0.5)]


def drafted(root: Node, price: Price, rows: int, depth: int, *, branches: bool) -> set[Tokens]:
    """The paths to verify, each draft's with those before it. Each next row goes to the draft that saves most, and as
    many are kept as save most over what they cost."""
    heap: list[tuple[float, Tokens, Node, float]] = []

    def reach(node: Node, path: Tokens, reached: float) -> None:
        ways = [(t, c) for t, c in node.ways(branches) if c * reached >= LEAST] if len(path) < depth else []
        for token, chance in ways:
            # At the limit the policy does not search what is behind a draft, and takes its own position for that.
            behind = node if len(path) + 1 == depth else node.behind(token)
            worth = price.worth(behind.told(branches))
            heapq.heappush(heap, (-chance * reached * worth, (*path, token), node, chance * reached))

    reach(root, (), 1.0)
    taken: list[Tokens] = []
    saving, best, kept = 0.0, EDGE, 0
    while heap and len(taken) < rows:
        negative, path, node, reached = heapq.heappop(heap)
        saving -= negative
        taken.append(path)
        gain = saving - (price.costs[len(taken)] - 1.0)
        if gain > best:
            best, kept = gain, len(taken)
        if len(taken) < rows:
            reach(node.behind(path[-1]), path, reached)
    return set(taken[:kept])


@dataclass
class Walk:
    """The rounds of one output under one curve. ``time`` in steps."""

    price: Price
    rows: int
    branches: bool
    due: int = 0
    time: float = 0.0

    def round(self, root: Node, future: Tokens) -> None:
        """One verify. ``future``: what is still to come, of which the last token is never a draft."""
        drafts = drafted(root, self.price, self.rows, min(self.rows, len(future) - 1), branches=self.branches)
        accepted = 0
        while future[: accepted + 1] in drafts:
            accepted += 1
        self.time += self.price.costs[len(drafts)]
        self.due += accepted + 1


def right(root: Node, future: Tokens) -> tuple[int, int]:
    """How many of ``future``'s first tokens the policy would draft, if it never stopped too soon, and how many are
    named by any candidate."""
    cut, named, chance = 0, 0, 1.0
    for token in future:
        if token not in root.chances:
            break
        chance *= root.chances[token]
        if cut == named and token == root.likeliest and chance >= LEAST:
            cut += 1
        named += 1
        if named < len(future):
            root = root.behind(token)
    return cut, named


def joined_copies(trace: Trace, match: int, most: int) -> list[int]:
    """For each position of the output, how many tokens from it on were each seen behind the ``match`` before them."""
    text = (*trace.prompt, *trace.output)
    seen: set[Tokens] = set()
    known = []
    for position in range(match, len(text)):
        gram = text[position - match : position + 1]
        known.append(gram in seen)
        seen.add(gram)
    known = [False] * (len(text) - len(known)) + known
    lengths = [0] * (len(text) + 1)
    for position in reversed(range(len(trace.prompt), len(text))):
        lengths[position] = min(lengths[position + 1] + 1, most) if known[position] else 0
    return lengths[len(trace.prompt) : -1]


def times(trace: Trace, priors: Sequence[int], prices: dict[str, Price]) -> dict[str, dict[str, float]]:
    """Steps that decoding the trace takes, by curve and bound."""
    output = trace.output
    walks = {
        (curve, f"{'tree' if branches else 'as it is'} {rows}"): Walk(price, rows, branches)
        for curve, price in prices.items()
        for rows in ROWS
        for branches in (False, True)
    }
    policy = Looking(list(trace.prompt), priors, prediction=list(trace.prediction) or None)
    copies: dict[str, list[int]] = {"perfect cut": [], "perfect choice": []}
    for position, token in enumerate(output):
        root = policy.ahead()
        cut, choice = right(root, output[position : position + DRAFTS])
        copies["perfect cut"].append(cut)
        copies["perfect choice"].append(choice)
        for walk in walks.values():
            if walk.due == position:
                walk.round(root, output[position:])
        policy.propose(1)
        policy.observe([token])
    for match in MATCHES:
        copies[f"oracle, match {match}"] = longest_copies(trace, (), DRAFTS, match=match)
        copies[f"joined, match {match}"] = joined_copies(trace, match, DRAFTS)
    out: dict[str, dict[str, float]] = {curve: {} for curve in prices}
    for (curve, name), walk in walks.items():
        out[curve][name] = walk.time
    for curve, price in prices.items():
        for name, lengths in copies.items():
            out[curve][name] = least_time(lengths, price.costs)
    return out


def least_time(copies: Sequence[int], costs: Sequence[float]) -> float:
    """Steps, where at each position up to so many right tokens may be drafted."""
    chosen = best_lengths(copies, costs.__getitem__)
    time, position = 0.0, 0
    while position < len(copies):
        time += costs[chosen[position]]
        position += chosen[position] + 1
    return time


def speedups(traces: Sequence[Trace], priors: Sequence[list[int]]) -> dict[str, dict[str, float]]:
    """By curve and bound. ``priors``: of each half of the groups, to be used on the other."""
    prices = {name: Price(CostModel(load_curve(name)).relative, max(ROWS)) for name in shipped_curves()}
    spent: dict[str, defaultdict[str, float]] = {curve: defaultdict(float) for curve in prices}
    for trace in traces:
        for curve, by_bound in times(trace, priors[1 - half(trace)], prices).items():
            for bound, time in by_bound.items():
                spent[curve][bound] += time
    tokens = sum(len(t.output) for t in traces)
    return {curve: {bound: tokens / time for bound, time in of.items()} for curve, of in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="What the adaptive policy could gain, and by what.")
    parser.add_argument("--out", type=Path, default=OUT, help="JSON to write")
    arguments = parser.parse_args()
    traces = shipped()
    priors = [fit([t for t in traces if half(t) == side]) for side in (0, 1)]
    results = {
        "drafts": DRAFTS,
        "speedups": {workload: speedups(of, priors) for workload, of in workloads(traces).items()},
    }
    arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
