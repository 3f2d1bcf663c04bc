"""The adaptive policy in plain Python, decision by decision as in ``runtime/trtserve/lookup/csrc``.

Slow and plain on purpose: the native policy is tested to give the same drafts, and priors are fitted with it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trtserve.lookup.shared import SharedWay

OCCURRENCES, LOST, BEHIND, AHEAD = 8, 16, 16, 64
SOLID_MATCH, SOLID_RUN = 16, 8
LEAST, CERTAIN = 0.03, 0.9999
MOST_MATCH = 64
PRIOR, MOST_COUNT = 8, 64
EDGE = 1.02
TRUST, FIRST_TRUST, PROVEN, FADE = 4.0, 0.75, 6, 0.95
SHARED_AHEAD, SHARED_WAYS = 128, 4

# Cells: what is told apart (csrc/odds.h).
MATCHES, RUNS, VOTES, DISTANCES = 13, 8, 16, 4
SHARED_VOTE = 8
SHARED_CURSOR = 2 * MATCHES * RUNS
PLACE = 3 * MATCHES * RUNS
NEAR = PLACE + MATCHES * VOTES
SKIP = NEAR + MATCHES * DISTANCES
CELLS = SKIP + MATCHES


def match_class(match: int) -> int:
    return next((i for i, most in enumerate((0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)) if match <= most), 12)


def run_class(run: int) -> int:
    return next((i for i, most in enumerate((0, 1, 2, 4, 8, 16, 32)) if run <= most), 7)


def cursor_cell(match: int, run: int, resumed: bool, shared: bool) -> int:
    return (MATCHES * (2 if shared else resumed) + match_class(match)) * RUNS + run_class(run)


def place_cell(match: int, vote: int) -> int:
    return PLACE + match_class(match) * VOTES + vote


def near_cell(match: int, distance: int) -> int:
    return NEAR + match_class(match) * DISTANCES + next((i for i, m in enumerate((4, 12, 24)) if distance <= m), 3)


def skip_cell(distance: int) -> int:
    return SKIP + min(distance, MATCHES - 1)


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
    """A direct-mapped table from the last tokens to the position after their latest occurrence."""

    MULTIPLIER = 0x9E3779B97F4A7C15

    def __init__(self, order: int) -> None:
        self.order, self.next, self.bits = order, 0, 0
        self.places: list[int] = []

    def extend(self, tokens: list[int]) -> None:
        if len(tokens) > len(self.places) and len(self.places) < 1 << 13:
            count = 64
            while count < len(tokens) and count < 1 << 13:
                count *= 2
            self.places, self.bits, self.next = [0] * count, count.bit_length() - 1, self.order
        for position in range(self.next, len(tokens)):
            self.places[self._place(tokens, position)] = position
        self.next = max(self.next, len(tokens))

    def truncate(self, size: int) -> None:
        self.next = max(self.order, min(self.next, size))

    def latest(self, tokens: list[int]) -> int:
        return self.places[self._place(tokens, len(tokens))] if self.places else 0

    def _place(self, tokens: list[int], end: int) -> int:
        value = 0
        for token in tokens[end - self.order : end]:
            value = (value + token + 1) * self.MULTIPLIER % (1 << 64)
        return value >> (64 - self.bits)


@dataclass
class Candidate:
    source: str
    text: list[int]
    kind: str
    position: int
    match: int
    run: int
    resumed: bool
    cell: int
    chance: float
    found: bool = False

    @property
    def token(self) -> int:
        return self.text[self.position]


@dataclass
class Cursor:
    source: str = ""
    position: int = 0
    match: int = 0
    run: int = 0
    resumed: bool = False
    broken: bool = False
    lost: int = 0


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
    #: Called with (cell, hit) for every observation, for fitting.
    witness: Callable[[int, bool], None] | None = None

    candidates: list[Candidate] = field(default_factory=list)
    best: Candidate | None = None
    share: float = 0.0

    def __post_init__(self) -> None:
        self.history = list(self.prompt)
        self.prompt_length = len(self.prompt)
        self.agreed = 0
        self.odds = Odds(self.priors)
        self.recent = [RecentGrams(3), RecentGrams(2), RecentGrams(1)]
        self.expected = self.right = 0.0
        self.cursor = Cursor()
        self.held: list[int] = []
        self.pending = False
        self.kept = self.accepted = 0
        self._extend_recent()

    # ---- a round ----

    def propose(self, limit: int) -> tuple[list[int], list[float]]:
        """Drafts and the chance of each and all before it."""
        self.pending = False
        if limit <= 0 or not self.history:
            return [], []
        self._collect()
        self._choose()
        self.pending, self.kept, self.accepted = True, 0, 0
        if self.best is None:
            return [], []
        best, chance, trusted = self.best, 1.0, self._trust()
        drafts: list[int] = []
        chances: list[float] = []
        while len(drafts) < limit:
            position = best.position + len(drafts)
            if position >= len(best.text) and best.source != "history":
                break
            chance *= self.share if not drafts else self.odds.chance(self._cell_after(len(drafts)))
            if best.match + len(drafts) < PROVEN:
                chance *= trusted
            if chance < LEAST:
                break
            drafts.append(best.text[position] if position < len(best.text) else drafts[position - len(best.text)])
            chances.append(chance)
        return drafts, chances

    def settle(self, proposed: int, accepted: int) -> None:
        self.kept, self.accepted = proposed, accepted

    def observe(self, tokens: list[int]) -> None:
        start = len(self.history)
        self.history += tokens
        prediction = self.prediction or []
        if self.agreed == start - self.prompt_length:
            while (
                self.agreed < min(len(self.history) - self.prompt_length, len(prediction))
                and prediction[self.agreed] == self.history[self.prompt_length + self.agreed]
            ):
                self.agreed += 1
        if tokens:
            if self.pending:
                self._learn(tokens[0])
                self._advance(tokens)
            else:
                self._follow(tokens)
        self.pending = False
        self._extend_recent()

    def rewind(self, length: int) -> None:
        del self.history[length:]
        self.prompt_length = min(self.prompt_length, length)
        self.agreed = min(self.agreed, length - self.prompt_length)
        self.pending, self.cursor = False, Cursor()
        for grams in self.recent:
            grams.truncate(length)

    def _extend_recent(self) -> None:
        for grams in self.recent:
            if grams.order < self.ngram:
                grams.extend(self.history)

    # ---- candidates ----

    def _text(self, source: str) -> list[int]:
        return {"history": self.history, "prediction": self.prediction or [], "shared": self.held}[source]

    def _add(
        self, source: str, text: list[int], kind: str, position: int, match: int, run: int, resumed: bool, cell: int
    ) -> None:
        if position < len(text):
            chance = self.odds.chance(cell)
            self.candidates.append(Candidate(source, text, kind, position, match, run, resumed, cell, chance))

    def _collect(self) -> None:
        self.candidates = []
        cursor = self.cursor
        if cursor.source:
            text = self._text(cursor.source)
            if cursor.broken:
                self._resume(text)
            else:
                cell = cursor_cell(cursor.match, cursor.run, cursor.resumed, cursor.source == "shared")
                self._add(
                    cursor.source, text, "cursor", cursor.position, cursor.match, cursor.run, cursor.resumed, cell
                )
                if self.candidates and cursor.match >= SOLID_MATCH and cursor.run >= SOLID_RUN:
                    return
        self._occurrences()
        self._predicted()
        self._shared()

    def _resume(self, text: list[int]) -> None:
        cursor = self.cursor
        at, lost = cursor.position, cursor.lost
        self._add(cursor.source, text, "skip", at + lost, 0, 0, True, skip_cell(lost))
        longest = distance = where = 0
        for position in range(max(at - BEHIND, 1), min(at + AHEAD + 1, len(text))):
            match = matching(text, position, self.history, lost)
            if match and (match > longest or (match == longest and abs(position - at) < distance)):
                longest, distance, where = match, abs(position - at), position
        if longest:
            self._add(cursor.source, text, "near", where, longest, 0, True, near_cell(longest, distance))

    def _occurrences(self) -> None:
        tokens, places = self.history, []
        key = tokens[-self.ngram :]
        if len(tokens) >= self.ngram:
            position = len(tokens) - 1
            while position >= self.ngram and len(places) < OCCURRENCES:
                if tokens[position - self.ngram : position] == key:
                    places.append((position, matching(tokens, position, tokens, MOST_MATCH)))
                position -= 1
        for grams in self.recent:
            if grams.order >= self.ngram or len(tokens) < grams.order:
                continue
            latest = grams.latest(tokens)
            if latest == 0 or latest >= len(tokens) or latest in [p for p, _ in places]:
                continue
            match = matching(tokens, latest, tokens, MOST_MATCH)
            if match >= grams.order:
                places.append((latest, match))
        for token in dict.fromkeys(tokens[p] for p, _ in places):
            match, position = max((m, p) for p, m in places if tokens[p] == token)
            voting = [(p, m) for p, m in places if m >= min(match, self.ngram)]
            same = sum(tokens[p] == token for p, _ in voting)
            others = [m for p, m in voting if tokens[p] != token]
            vote = _vote(same, len(others), any(m > match for m in others))
            self._add_place("history", tokens, position, match, vote)

    def _add_place(self, source: str, text: list[int], position: int, match: int, vote: int) -> None:
        cursor = self.cursor
        goes_on = not cursor.broken and (cursor.source, cursor.position) == (source, position)
        run, resumed = (cursor.run, cursor.resumed) if goes_on else (0, False)
        self._add(source, text, "place", position, match, run, resumed, place_cell(match, vote))

    def _predicted(self) -> None:
        text, tokens = self.prediction, self.history
        if not text:
            return
        output = len(tokens) - self.prompt_length
        followed = self.cursor.source == "prediction" and not self.cursor.broken
        if self.agreed == output and output < len(text) and not (followed and self.cursor.position == output):
            agreed = min(self.agreed, MOST_MATCH)
            match, run = min(MOST_MATCH, agreed + SOLID_MATCH), agreed + SOLID_RUN
            self._add("prediction", text, "cursor", output, match, run, False, cursor_cell(match, run, False, False))
        if len(tokens) >= self.ngram:
            for position in range(len(text) - 1, self.ngram - 1, -1):
                if text[position - self.ngram : position] == tokens[-self.ngram :]:
                    match = matching(text, position, tokens, MOST_MATCH)
                    self._add_place("prediction", text, position, match, 0)
                    break

    def _shared(self) -> None:
        cursor = self.cursor
        if self.shared is None:
            return
        under_way = cursor.source == "shared" and not cursor.broken and cursor.position < len(self.held)
        for text, match, same, other, longer in self.shared(self.history, SHARED_AHEAD, SHARED_WAYS):
            if under_way and text[0] == self.held[cursor.position] and match <= cursor.match:
                continue
            vote = SHARED_VOTE + _vote(same, other, longer)
            self._add("shared", text, "place", 0, match, 0, False, place_cell(match, vote))
            self.candidates[-1].found = True

    def _choose(self) -> None:
        self.best, self.share = None, 0.0
        odds = [c.chance / (1.0 - min(c.chance, CERTAIN)) for c in self.candidates]
        total = 1.0
        for o in odds:
            total += o
        for candidate in self.candidates:
            share = 0.0
            for other, o in zip(self.candidates, odds, strict=True):
                if other.token == candidate.token:
                    share += o
            share /= total
            best = self.best
            if best is None or share > self.share or (candidate.token == best.token and _better(candidate, best)):
                self.best, self.share = candidate, share

    def _trust(self) -> float:
        return min(1.0, (TRUST * FIRST_TRUST + self.right) / (TRUST + self.expected))

    def _cell_after(self, drafts: int) -> int:
        assert self.best is not None
        return cursor_cell(
            min(MOST_MATCH, self.best.match + drafts),
            self.best.run + drafts,
            self.best.resumed,
            self.best.source == "shared",
        )

    # ---- what the round showed ----

    def _count(self, cell: int, hit: bool) -> None:
        self.odds.count(cell, hit)
        if self.witness:
            self.witness(cell, hit)

    def _learn(self, target: int) -> None:
        for candidate in self.candidates:
            self._count(candidate.cell, candidate.token == target)
        if self.best is not None:
            self.expected = self.expected * FADE + self.share
            self.right = self.right * FADE + (self.best.token == target)
        for draft in range(1, min(self.kept, self.accepted + 1)):
            self._count(self._cell_after(draft), draft < self.accepted)

    @staticmethod
    def _agreed(text: list[int], position: int, tokens: list[int]) -> int:
        got = 0
        while got < len(tokens) and position + got < len(text) and text[position + got] == tokens[got]:
            got += 1
        return got

    def _advance(self, tokens: list[int]) -> None:
        cursor, best, count = self.cursor, self.best, len(tokens)
        if best is None:
            if cursor.broken:
                self._lose(count)
            else:
                self.cursor = Cursor()
            return
        got = self._agreed(best.text, best.position, tokens)
        run = best.run + got
        if got == count:
            if cursor.broken and best.kind == "place" and best.match + got < 4:
                self._lose(count)
            else:
                self._hold(best)
                match = min(MOST_MATCH, best.match + got)
                self.cursor = Cursor(best.source, best.position + got, match, run, best.resumed)
        elif run >= 2 or ((got > 0 or not cursor.broken) and best.match + got >= 4):
            self._hold(best)
            self.cursor = Cursor(best.source, best.position + got, broken=True)
            self._lose(count - got)
        elif cursor.broken:
            self._lose(count)
        else:
            self.cursor = Cursor()

    def _follow(self, tokens: list[int]) -> None:
        cursor, count = self.cursor, len(tokens)
        if not cursor.source:
            return
        if cursor.broken:
            self._lose(count)
            return
        got = self._agreed(self._text(cursor.source), cursor.position, tokens)
        position, run = cursor.position + got, cursor.run + got
        if got == count:
            match = min(MOST_MATCH, cursor.match + got)
            self.cursor = Cursor(cursor.source, position, match, run, cursor.resumed)
        elif run < 2:
            self.cursor = Cursor()
        else:
            self.cursor = Cursor(cursor.source, position, broken=True)
            self._lose(count - got)

    def _lose(self, tokens: int) -> None:
        self.cursor.lost += tokens
        if self.cursor.lost > LOST:
            self.cursor = Cursor()

    def _hold(self, best: Candidate) -> None:
        if best.found:
            self.held = best.text


def _better(one: Candidate, other: Candidate) -> bool:
    """Of two that name the same token."""
    shared = one.source == "shared"
    if shared == (other.source == "shared"):
        return one.chance > other.chance
    return one.match > other.match if shared else one.match >= other.match


def _vote(same: int, other: int, longer: bool) -> int:
    if other == 0:
        return 2 if same >= 4 else 1 if same >= 2 else 0
    if longer:
        return 6 if same > other else 7
    return 3 if same > other else 4 if same == other else 5


def divide_rows(chances: Sequence[Sequence[float]], cost: Callable[[int, int], float], others: int = 0) -> list[int]:
    """Drafts of each sequence to verify: rows go to the likeliest drafts while expected tokens per time grow.

    ``cost(batch, extra)`` is a verify's time with ``extra`` draft rows, over that of one without.
    """
    batch = len(chances) + others
    heads = [(-of[0], i, 0) for i, of in enumerate(chances) if of]
    heapq.heapify(heads)
    expected, best, kept = float(batch), batch * EDGE, 0
    order: list[int] = []
    while heads:
        negative, sequence, draft = heapq.heappop(heads)
        expected += -negative
        order.append(sequence)
        rate = expected / cost(batch, len(order))
        if rate > best:
            best, kept = rate, len(order)
        if draft + 1 < len(chances[sequence]):
            heapq.heappush(heads, (-chances[sequence][draft + 1], sequence, draft + 1))
    return [order[:kept].count(i) for i in range(len(chances))]
