"""The adaptive policy in plain Python, decision by decision as in ``runtime/trtserve/lookup/csrc``.

Slow and plain on purpose: the native policy is tested to give the same drafts, and priors are fitted with it.
It goes on drafting where no further row could pay and the native one stops: what is verified is the same.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from trtserve.lookup.shared import SharedWay

OCCURRENCES, BREAKS, LOST, FOUND, BEHIND, AHEAD = 8, 2, 16, 8, 16, 64
SOLID_MATCH, SOLID_RUN, LONG_RUN = 16, 8, 8
BROKE, BROKE_RUN = 4, 2
LEAST, CERTAIN = 0.03, 0.9999
MOST_MATCH = 64
PRIOR, MOST_COUNT = 8, 64
EDGE, FLOOR, CHANCES, LONGEST, LONGEST_BESIDE = 0.01, 0.05, 256, 32, 3
ACCURACY, FORGET = 0.75, 0.02
SHARED_AHEAD, SHARED_WAYS = 128, 4
BORDER = -1  # equals no token

# Cells: what is told apart (csrc/odds.h).
MATCHES, RUNS, VOTES, DISTANCES, LOSTS, ALIGNED, AMENDS = 13, 8, 16, 4, 8, 4, 4
SHARED_VOTE = 8
SHARED_CURSOR = 2 * MATCHES * RUNS
PLACE = 3 * MATCHES * RUNS
NEAR = PLACE + 2 * MATCHES * VOTES
SKIP = NEAR + MATCHES * DISTANCES
AMEND = SKIP + 2 * LOSTS * ALIGNED
CELLS = AMEND + AMENDS * AMENDS

# Features of a token, weighed by what names it (csrc/judge.h).
FEATURES = (
    "bias",
    "share",
    "likeliest",
    "accuracy",
    "match",
    "amended",
    "kept",
    "output",
    "context3",
    "context2",
    "context1",
)
KINDS = ("cursor", "place", "near", "skip", "amend")
SETS = 2 * (len(KINDS) + 1)
WEIGHTS = SETS * len(FEATURES)


def match_class(match: int) -> int:
    return next((i for i, most in enumerate((0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)) if match <= most), 12)


def run_class(run: int) -> int:
    return next((i for i, most in enumerate((0, 1, 2, 4, 8, 16, 32)) if run <= most), 7)


def cursor_cell(match: int, run: int, resumed: bool, shared: bool) -> int:
    return (MATCHES * (2 if shared else resumed) + match_class(match)) * RUNS + run_class(run)


def place_cell(match: int, vote: int, broken: bool) -> int:
    return PLACE + (MATCHES * broken + match_class(match)) * VOTES + vote


def near_cell(match: int, distance: int) -> int:
    return NEAR + match_class(match) * DISTANCES + next((i for i, m in enumerate((4, 12, 24)) if distance <= m), 3)


def skip_cell(lost: int, aligned: int, long_run: bool) -> int:
    return SKIP + (LOSTS * long_run + min(lost, LOSTS - 1)) * ALIGNED + min(aligned, ALIGNED - 1)


def amend_cell(hits: int, misses: int) -> int:
    return AMEND + hits * AMENDS + misses


def _thousandths(value: float) -> int:
    return math.floor(value * 1000 + 0.5)


_STRETCHED = [0] + [_thousandths(math.log(i / (4096 - i))) for i in range(1, 4096)]
_SQUASHED = [math.floor(1e6 / (1.0 + math.exp(8 - i / 64)) + 0.5) / 1e6 for i in range(1025)]
_LOGS = [_thousandths(math.log(1.0 + i)) for i in range(MOST_MATCH + 1)]


def stretch(p: float) -> int:
    """ln(p / (1 - p)) in thousandths, between those of 2 and 4094 of 4096."""
    return _STRETCHED[min(max(int(p * 4096 + 0.5), 2), 4094)]


def squash(millionths: int) -> float:
    """The inverse."""
    return _SQUASHED[(min(max(millionths + 8_000_000, 0), 16_000_000) * 64 + 500_000) // 1_000_000]


class Odds:
    """A share per cell: a prior in thousandths, and one sequence's counts."""

    def __init__(self, priors: Sequence[int]) -> None:
        self.priors = priors
        self.hits = [0] * CELLS
        self.total = [0] * CELLS

    def chance(self, cell: int) -> float:
        return (self.priors[cell] / 1000.0 * PRIOR + self.hits[cell]) / (PRIOR + float(self.total[cell]))

    def count(self, cell: int, hit: bool) -> None:
        if self.total[cell] == MOST_COUNT:
            self.total[cell] //= 2
            self.hits[cell] //= 2
        self.total[cell] += 1
        self.hits[cell] += hit


class RecentGrams:
    """A direct-mapped table from the last tokens to (position after their latest occurrence, same, other)."""

    MULTIPLIER = 0x9E3779B97F4A7C15
    REACH = 4 << 13
    BEFORE = 4

    def __init__(self, order: int) -> None:
        self.order, self.next, self.bits = order, self.BEFORE, 0
        self.places: list[tuple[int, int, int]] = []

    def extend(self, tokens: list[int]) -> None:
        if len(tokens) > len(self.places) and len(self.places) < 1 << 13:
            count = 64
            while count < len(tokens) and count < 1 << 13:
                count *= 2
            self.places, self.bits, self.next = [(0, 0, 0)] * count, count.bit_length() - 1, self.BEFORE
        for position in range(max(self.next, len(tokens) - self.REACH), len(tokens)):
            self._enter(tokens, position)
        self.next = max(self.next, len(tokens))

    def _enter(self, tokens: list[int], position: int) -> None:
        at = self._place(tokens, position)
        before, same, other = self.places[at]
        order = self.order
        if not 0 < before < position or tokens[before - order : before] != tokens[position - order : position]:
            same = other = 0
        elif tokens[before] == tokens[position]:
            same, other = self._count(same, other)
        else:
            other, same = self._count(other, same)
        self.places[at] = (position, same, other)

    @staticmethod
    def _count(seen: int, unseen: int) -> tuple[int, int]:
        return min(seen + 1, 15), (unseen + 2) // 2 if unseen > 2 else unseen

    def truncate(self, size: int) -> None:
        self.next = max(self.BEFORE, min(self.next, size))

    def latest(self, history: list[int], tokens: list[int]) -> tuple[int, int, int]:
        """Of the last tokens of ``tokens`` in ``history``: (position, same, other), or (0, 0, 0)."""
        order = self.order
        if not self.places or len(tokens) < self.BEFORE:
            return 0, 0, 0
        position, same, other = self.places[self._place(tokens, len(tokens))]
        if not 0 < position < len(history) or history[position - order : position] != tokens[-order:]:
            return 0, 0, 0
        return position, same, other

    def _place(self, tokens: list[int], end: int) -> int:
        value = 0
        for token in tokens[end - self.order : end]:
            value = (value + token + 1) * self.MULTIPLIER % (1 << 64)
        return value >> (64 - self.bits)


@dataclass
class Amendment:
    """What stood last in place of a token that a copy named."""

    named: int = -1
    actual: int = -1
    hits: int = 0
    misses: int = 0


class Amendments:
    """A direct-mapped table of them by the named token."""

    def __init__(self) -> None:
        self.table = [Amendment() for _ in range(512)]

    def of(self, named: int) -> Amendment:
        known = self.table[self._place(named)]
        return known if known.named == named else Amendment()

    def count(self, named: int, target: int) -> None:
        known = self.of(named)
        if known.named != named:
            known = self.table[self._place(named)] = Amendment(named)
        if target == named:
            known.misses = min(known.misses + 1, 3)
            if known.hits > 0 and known.misses >= 2:
                known.hits -= 1
        elif target == known.actual:
            known.hits = min(known.hits + 1, 3)
            known.misses = max(known.misses - 1, 0)
        else:
            known.actual, known.hits, known.misses = target, 0, 0

    @staticmethod
    def _place(named: int) -> int:
        return (named * 0x9E3779B1 & 0xFFFFFFFF) >> 23


@dataclass(frozen=True)
class Candidate:
    source: str
    text: list[int]
    kind: str
    position: int
    token: int
    match: int
    run: int
    resumed: bool
    cell: int
    share: float


@dataclass(frozen=True)
class Cursor:
    source: str = ""
    text: list[int] = field(default_factory=list)
    position: int = 0
    match: int = 0
    run: int = 0
    resumed: bool = False


@dataclass(frozen=True)
class Break:
    source: str
    text: list[int]
    position: int
    run: int
    lost: int = 1


@dataclass
class State:
    cursor: Cursor = field(default_factory=Cursor)
    breaks: list[Break] = field(default_factory=list)  # the latest first


@dataclass
class Step:
    """One position: what could stand there, and what was chosen."""

    candidates: list[Candidate] = field(default_factory=list)
    best: Candidate | None = None
    chance: float = 0.0
    named: int = -1
    #: The chance of every token named, as judged.
    chances: dict[int, float] = field(default_factory=dict)
    #: (set, features in thousandths, token) of every token that was judged.
    judged: list[tuple[int, list[int], int]] = field(default_factory=list)


def matching(text: list[int], position: int, tokens: list[int], most: int) -> int:
    """Tokens before ``position`` of ``text`` that equal the last ones of ``tokens``."""
    count = 0
    while count < min(position, len(tokens), most) and text[position - 1 - count] == tokens[-1 - count]:
        count += 1
    return count


#: (tail, limit, most) to what may follow by the cross-request cache: at most ``most`` ways of at most ``limit`` tokens.
SharedLookup = Callable[[list[int], int, int], list[SharedWay]]


@dataclass
class Adaptive:
    """One sequence. ``shared`` asks the cross-request cache."""

    prompt: list[int]
    priors: Sequence[int]
    ngram: int = 4
    prediction: list[int] | None = None
    shared: SharedLookup | None = None
    #: Called with (cell, hit) for every observation, and with (set, features, hit) for every token judged: for fitting.
    witness: Callable[[int, bool], None] | None = None
    judgement: Callable[[int, list[int], bool], None] | None = None

    def __post_init__(self) -> None:
        #: The prediction and a border, where there is one, the prompt, the output.
        self.history = [*self.prediction, BORDER, *self.prompt] if self.prediction else list(self.prompt)
        self.prompt_start = len(self.history) - len(self.prompt)
        self.prompt_length = len(self.prompt)
        self.agreed = 0
        self.odds = Odds(self.priors)
        self.weights = [self.priors[i : i + len(FEATURES)] for i in range(CELLS, CELLS + WEIGHTS, len(FEATURES))]
        self.recent = [RecentGrams(3), RecentGrams(2), RecentGrams(1)]
        self.amendments = Amendments()
        self.accuracy = ACCURACY
        self.state = State()
        self.held: list[int] = []
        self.steps: list[Step] = []
        self._index()

    def _index(self) -> None:
        self.places: dict[tuple[int, ...], list[int]] = {}
        self.indexed = self.ngram
        self._extend()

    def _extend(self) -> None:
        """Enters what the history has grown by."""
        for position in range(self.indexed, len(self.history)):
            self.places.setdefault(tuple(self.history[position - self.ngram : position]), []).append(position)
        self.indexed = max(self.indexed, len(self.history))
        for grams in self.recent:
            if grams.order < self.ngram:
                grams.extend(self.history)

    # ---- a round ----

    def propose(self, limit: int) -> tuple[list[int], list[float]]:
        """Drafts, and the chance of each and all before it, then that of the token behind them all and those before it:
        0 where nothing names one. At the limit nothing is searched there: it is as likely as the last draft is."""
        self.steps = []
        if limit <= 0 or not self.history:
            return [], []
        tokens = list(self.history)
        ahead = State(self.state.cursor, list(self.state.breaks))
        chance = 1.0
        chances: list[float] = []
        while True:
            step = self._collect(ahead, tokens)
            self._choose(step)
            self.steps.append(step)
            chance *= step.chance
            chances.append(chance)
            if step.best is None or chance < LEAST:
                break
            tokens.append(step.best.token)
            if len(chances) == limit:
                chances.append(chance * step.chance)
                break
            advance(ahead, step, step.best.token)
        drafts = tokens[len(self.history) :]
        return drafts, chances if drafts else []

    def observe(self, tokens: list[int]) -> None:
        start = len(self.history)
        self.history += tokens
        output = self.prompt_start + self.prompt_length
        if self.agreed == start - output:
            while (
                self.agreed < min(len(self.history) - output, self.prompt_start - 1)
                and self.history[self.agreed] == self.history[output + self.agreed]
            ):
                self.agreed += 1
        for i, target in enumerate(tokens):
            if i < len(self.steps):
                step = self.steps[i]
                self._count(step, target)
                advance(self.state, step, target)
                if step.best is None or step.best.token != target:
                    self.steps = []
            else:
                self._follow(target)
        self.steps = []
        self._hold()
        self._extend()

    def rewind(self, length: int) -> None:
        del self.history[self.prompt_start + length :]
        self.prompt_length = min(self.prompt_length, length)
        self.agreed = min(self.agreed, length - self.prompt_length)
        self.steps, self.state = [], State()
        for grams in self.recent:
            grams.truncate(len(self.history))
        self._index()

    # ---- candidates ----

    def _candidate(
        self, kind: str, source: str, text: list[int], position: int, match: int, run: int, resumed: bool, cell: int
    ) -> list[Candidate]:
        if position >= len(text) or text[position] == BORDER:
            return []
        share = self.odds.chance(cell)
        return [Candidate(source, text, kind, position, text[position], match, run, resumed, cell, share)]

    def _collect(self, ahead: State, tokens: list[int]) -> Step:
        """For the position after ``tokens``, the history and what was drafted."""
        cursor, first = ahead.cursor, len(tokens) == len(self.history)
        grams = [g.latest(self.history, tokens) for g in self.recent]
        self.grams = grams
        step = Step()
        if cursor.source:
            text = tokens if cursor.source == "history" else cursor.text
            cell = cursor_cell(cursor.match, cursor.run, cursor.resumed, cursor.source == "shared")
            step.candidates += self._candidate(
                "cursor", cursor.source, text, cursor.position, cursor.match, cursor.run, cursor.resumed, cell
            )
        if not (step.candidates and cursor.match >= SOLID_MATCH and cursor.run >= SOLID_RUN):
            for broken in ahead.breaks:
                step.candidates += self._resume(broken, tokens)
            step.candidates += self._occurrences(ahead, tokens, grams)
            if first:
                step.candidates += self._anchored(ahead)
                step.candidates += self._shared(ahead)
        self._amend(step)
        return step

    def _resume(self, broken: Break, tokens: list[int]) -> list[Candidate]:
        text = self.history if broken.source == "history" else broken.text
        at, lost, across = broken.position, broken.lost, broken.position + broken.lost
        found = []
        if across < len(text):
            aligned = matching(text, across, tokens, lost)
            cell = skip_cell(lost, aligned, broken.run >= LONG_RUN)
            found += self._candidate("skip", broken.source, text, across, aligned, 0, True, cell)
        longest = distance = where = 0
        for position in range(max(at - BEHIND, 1), min(at + AHEAD + 1, len(text))):
            match = matching(text, position, tokens, lost)
            if match and (match > longest or (match == longest and abs(position - at) < distance)):
                longest, distance, where = match, abs(position - at), position
        if longest:
            cell = near_cell(longest, distance)
            found += self._candidate("near", broken.source, text, where, longest, 0, True, cell)
        return found

    def _occurrences(self, ahead: State, tokens: list[int], grams: list[tuple[int, int, int]]) -> list[Candidate]:
        history = self.history
        latest = reversed(self.places.get(tuple(tokens[-self.ngram :]), [])[-OCCURRENCES:])
        places = [(p, matching(history, p, tokens, MOST_MATCH)) for p in latest]
        for position, _, _ in grams:
            if position and position not in [p for p, _ in places]:
                places.append((position, matching(history, position, tokens, MOST_MATCH)))
        found = []
        for token in dict.fromkeys(history[p] for p, _ in places):
            match, position = max((m, p) for p, m in places if history[p] == token)
            voting = [(p, m) for p, m in places if m >= min(match, self.ngram)]
            same = sum(history[p] == token for p, _ in voting)
            others = [m for p, m in voting if history[p] != token]
            vote = _vote(same, len(others), any(m > match for m in others))
            found += self._place(ahead, "history", history, position, match, vote)
        return found

    def _place(
        self, ahead: State, source: str, text: list[int], position: int, match: int, vote: int
    ) -> list[Candidate]:
        cursor = ahead.cursor
        goes_on = (cursor.source, cursor.position) == (source, position)
        run, resumed = (cursor.run, cursor.resumed) if goes_on else (0, False)
        cell = place_cell(match, vote, bool(ahead.breaks))
        return self._candidate("place", source, text, position, match, run, resumed, cell)

    def _anchored(self, ahead: State) -> list[Candidate]:
        output = len(self.history) - self.prompt_start - self.prompt_length
        under_way = (ahead.cursor.source, ahead.cursor.position) == ("history", output)
        if self.agreed != output or output >= self.prompt_start - 1 or under_way:
            return []
        agreed = min(self.agreed, MOST_MATCH)
        match, run = min(MOST_MATCH, agreed + SOLID_MATCH), agreed + SOLID_RUN
        cell = cursor_cell(match, run, False, False)
        return self._candidate("cursor", "history", self.history, output, match, run, False, cell)

    def _shared(self, ahead: State) -> list[Candidate]:
        cursor = ahead.cursor
        found: list[Candidate] = []
        if self.shared is None:
            return found
        under_way = cursor.source == "shared" and cursor.position < len(cursor.text)
        tail = self.history[self.prompt_start :]
        for text, match, same, other, longer in self.shared(tail, SHARED_AHEAD, SHARED_WAYS):
            if under_way and text[0] == cursor.text[cursor.position] and match <= cursor.match:
                continue
            cell = place_cell(match, SHARED_VOTE + _vote(same, other, longer), bool(ahead.breaks))
            found += self._candidate("place", "shared", text, 0, match, 0, False, cell)
        return found

    def _amend(self, step: Step) -> None:
        if not step.candidates or step.candidates[0].kind not in ("cursor", "skip"):
            return
        first = step.candidates[0]
        step.named = first.token
        known = self.amendments.of(first.token)
        if known.actual >= 0:
            cell = amend_cell(known.hits, known.misses)
            amended = replace(first, kind="amend", token=known.actual, cell=cell, share=self.odds.chance(cell))
            step.candidates.append(amended)

    # ---- the choice ----

    def _choose(self, step: Step) -> None:
        candidates = step.candidates
        odds = [c.share / (1.0 - min(c.share, CERTAIN)) for c in candidates]
        total = 1.0
        for o in odds:
            total += o
        for token in dict.fromkeys(c.token for c in candidates):
            naming = [(c, o) for c, o in zip(candidates, odds, strict=True) if c.token == token]
            best, share = naming[0][0], 0.0
            for candidate, o in naming:
                share += o
                if _better(candidate, best):
                    best = candidate
            chance = self._judge(step, best, share / total, max(c.match for c, _ in naming))
            step.chances[token] = chance
            if step.best is None or chance > step.chance:
                step.best, step.chance = best, chance

    def _judge(self, step: Step, best: Candidate, share: float, longest: int) -> float:
        alone = len(step.candidates) == 1 and best.kind == "cursor" and best.match >= SOLID_MATCH
        which = (len(KINDS) if alone else KINDS.index(best.kind)) * 2 + best.resumed
        known = self.amendments.of(step.named) if step.named == best.token else Amendment()
        contexts = [
            stretch((same + 0.5) / (same + other + 1.0)) if p and self.history[p] == best.token else 0
            for p, same, other in self.grams
        ]
        features = [
            1000,
            stretch(share),
            stretch(best.share),
            stretch(self.accuracy),
            _LOGS[longest],
            1000 * known.hits,
            1000 * known.misses,
            1000 if best.position >= self.prompt_start + self.prompt_length else 0,
            *contexts,
        ]
        step.judged.append((which, features, best.token))
        return squash(sum(w * v for w, v in zip(self.weights[which], features, strict=True)))

    # ---- what the round showed ----

    def _count(self, step: Step, target: int) -> None:
        for candidate in step.candidates:
            self.odds.count(candidate.cell, candidate.token == target)
            if self.witness:
                self.witness(candidate.cell, candidate.token == target)
        if self.judgement:
            for which, features, token in step.judged:
                self.judgement(which, features, token == target)
        if step.named >= 0:
            self.amendments.count(step.named, target)
        if step.best is not None:
            self.accuracy += ((step.best.token == target) - self.accuracy) * FORGET

    def _follow(self, token: int) -> None:
        """A token came that nothing was collected for: only the copy under way is looked at."""
        cursor, step = self.state.cursor, Step()
        if cursor.source:
            text = self.history if cursor.source == "history" else cursor.text
            step.candidates = self._candidate(
                "cursor", cursor.source, text, cursor.position, cursor.match, cursor.run, cursor.resumed, 0
            )
            step.best = step.candidates[0] if step.candidates else None
        advance(self.state, step, token)

    def _hold(self) -> None:
        """Of texts that the shared cache gave, one is kept."""
        state = self.state
        places: list[Cursor | Break] = [state.cursor, *state.breaks]
        texts = [p.text for p in places if p.source == "shared" and p.text is not self.held]
        if not texts:
            return
        self.held = texts[0]
        if state.cursor.source == "shared" and state.cursor.text is not self.held:
            state.cursor = Cursor()
        state.breaks = [b for b in state.breaks if b.source != "shared" or b.text is self.held]


def advance(state: State, step: Step, token: int) -> None:
    """``token`` came where ``step`` was."""
    best = step.best
    right = best if best and best.token == token else None
    if right is None:
        for candidate in step.candidates:
            if candidate.token == token and (right is None or candidate.share > right.share):
                right = candidate
    state.breaks = [replace(b, lost=b.lost + 1) for b in state.breaks if b.lost < LOST]
    broke = _broken_by(step, token)
    if broke:
        _remember(state, broke)
    if right and right.kind != "amend":
        match = min(MOST_MATCH, right.match + 1)
        state.cursor = Cursor(right.source, right.text, right.position + 1, match, right.run + 1, right.resumed)
        if not broke and state.cursor.run >= FOUND:
            state.breaks = []
        return
    state.cursor = Cursor()
    if right and not (broke and broke.position == right.position):
        _remember(state, right)


def _broken_by(step: Step, token: int) -> Candidate | None:
    def ended(candidate: Candidate) -> bool:
        return candidate.token != token and (candidate.run >= BROKE_RUN or candidate.match >= BROKE)

    if step.best and step.best.kind != "amend" and ended(step.best):
        return step.best
    first = step.candidates[0] if step.candidates else None
    return first if first and first.kind == "cursor" and ended(first) else None


def _remember(state: State, broke: Candidate) -> None:
    state.breaks = [Break(broke.source, broke.text, broke.position, broke.run), *state.breaks][:BREAKS]


def _better(one: Candidate, other: Candidate) -> bool:
    """Of two that name the same token."""
    shared = one.source == "shared"
    if shared == (other.source == "shared"):
        return one.share > other.share
    return one.match > other.match if shared else one.match >= other.match


def _vote(same: int, other: int, longer: bool) -> int:
    if other == 0:
        return 2 if same >= 4 else 1 if same >= 2 else 0
    if longer:
        return 6 if same > other else 7
    return 3 if same > other else 4 if same == other else 5


def worths(batch: int, cost: Callable[[int, int], float]) -> list[float]:
    """What a draft that is right saves in steps of its sequence, by the chance of the token behind it."""
    out = []
    for i in range(CHANCES + 1):
        chance = i / CHANCES
        expected, power, least = 1.0, 1.0, 1.0
        for drafts in range(1, (LONGEST if batch == 1 else LONGEST_BESIDE) + 1):
            power *= chance
            expected += power
            least = min(least, cost(batch, batch * drafts) / expected)
        out.append(FLOOR + (1.0 - FLOOR) * least)
    return out


def divide_rows(chances: Sequence[Sequence[float]], cost: Callable[[int, int], float], others: int = 0) -> list[int]:
    """Drafts of each sequence to verify: rows go to those that save most time, while they save more than they cost.

    ``chances`` of each sequence are those of its drafts and of the token behind them, each with all before it; none
    where it has no drafts. ``cost(batch, extra)`` is a verify's time with ``extra`` draft rows, over that of one
    without.
    """
    batch = len(chances) + others
    worth = worths(batch, cost)

    def saved(sequence: int, draft: int) -> float:
        chance, behind = chances[sequence][draft : draft + 2]
        return chance * worth[int(min(behind / chance, 1.0) * CHANCES + 0.5)]

    heads = [(-saved(i, 0), i, 0) for i, of in enumerate(chances) if len(of) > 1]
    heapq.heapify(heads)
    saving, best, kept = 0.0, EDGE, 0
    order: list[int] = []
    while heads:
        negative, sequence, draft = heapq.heappop(heads)
        saving += -negative / batch
        order.append(sequence)
        gain = saving - (cost(batch, len(order)) - 1.0)
        if gain > best:
            best, kept = gain, len(order)
        if draft + 2 < len(chances[sequence]):
            heapq.heappush(heads, (-saved(sequence, draft + 1), sequence, draft + 1))
    return [order[:kept].count(i) for i in range(len(chances))]
