"""The design's drafting rules, written down literally and slowly: what the native code must agree with.

Every class takes ``fault``, the name of one deliberate mistake. The tests that compare the native code with these
models must fail for every mistake, which shows that they would notice it in the native code too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

MATCH_LIMIT = 64
KNOWN_RUN = 32


def match_length(before: Sequence[int], tail: Sequence[int]) -> int:
    """How many tokens, counted back from both ends, are equal; counted to 64."""
    count = 0
    while count < min(len(before), len(tail), MATCH_LIMIT) and before[-1 - count] == tail[-1 - count]:
        count += 1
    return count


@dataclass
class History:
    ngram: int
    min_match: int
    fault: str = ""
    tokens: list[int] = field(default_factory=list)
    forgotten: set[tuple[int, ...]] = field(default_factory=set)

    def append(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens

    def truncate(self, length: int) -> None:
        if self.fault == "rewind forgets":
            gone = range(max(length, self.ngram), len(self.tokens))
            self.forgotten |= {tuple(self.tokens[at - self.ngram : at]) for at in gone}
        del self.tokens[length:]

    def occurrences(self, tail: Sequence[int] | None = None) -> list[int]:
        """Positions after earlier occurrences of the last n-gram of ``tail``, latest first; each has a token there."""
        h, n = self.tokens, self.ngram
        tail = h if tail is None else tail
        if len(tail) < n:
            return []
        key = list(tail[-n:])
        last = len(h) if self.fault == "final n-gram indexed" else len(h) - 1
        first = n + 1 if self.fault == "position 0 never matches" else n
        found = [start for start in range(last, first - 1, -1) if h[start - n : start] == key]
        if self.fault == "earliest":
            found.reverse()
        return [] if tuple(key) in self.forgotten else found

    def propose(self, limit: int, tail: Sequence[int] | None = None) -> tuple[list[int], int] | None:
        """(drafts, match) or None."""
        tail = self.tokens if tail is None else tail
        for start in self.occurrences(tail):
            match = match_length(self.tokens[:start], tail)
            if match >= self.min_match or self.fault == "min_match ignored":
                drafts = self.tokens[start : start + limit]
                if self.fault == "runs past the end":
                    drafts += self.tokens[: limit - len(drafts)]
                return (drafts, match) if drafts else None
            if self.fault != "tries older occurrences":
                return None
        return None


HISTORY_FAULTS = (
    "earliest",
    "final n-gram indexed",
    "position 0 never matches",
    "min_match ignored",
    "tries older occurrences",
    "runs past the end",
    "rewind forgets",
)


@dataclass
class Window:
    max_drafts: int
    miss_backoff: int
    fault: str = ""
    size: int = 0
    misses: int = 0
    to_skip: int = 0
    rounds_skipped: int = 0

    def __post_init__(self) -> None:
        self.size = 1 if self.fault == "starts at 1" else min(2, self.max_drafts)

    def skip_round(self) -> bool:
        if self.to_skip == 0:
            return False
        self.to_skip -= 1
        self.rounds_skipped += 1
        return True

    def settle(self, proposed: int, accepted: int) -> None:
        if accepted == proposed:
            self.size = self.size * 2 if self.fault == "no ceiling" else min(self.size * 2, self.max_drafts)
        elif self.fault == "restarts at 2":
            self.size = min(2, self.max_drafts)
        else:
            self.size = self.size // 2 if self.fault == "halves to 0" else max(self.size // 2, 1)
        if accepted:
            if self.fault != "misses never cleared":
                self.misses = self.to_skip = 0
        else:
            self.misses += 1
            exponent = self.misses if self.fault == "skips twice as many" else self.misses - 1
            self.to_skip = 2**exponent if self.fault == "backoff without limit" else min(2**exponent, self.miss_backoff)


WINDOW_FAULTS = (
    "starts at 1",
    "no ceiling",
    "restarts at 2",
    "halves to 0",
    "misses never cleared",
    "skips twice as many",
    "backoff without limit",
)


@lru_cache(maxsize=1 << 18)
def hashed(key: tuple[int, ...]) -> int:
    """A polynomial and SplitMix64's finaliser, of which the upper half."""
    state = 0
    for token in key:
        state = (state * 0x9E3779B97F4A7C15 + token + 1) % 2**64
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
    return (state ^ state >> 31) >> 32


def divide_share(share: int) -> tuple[int, int]:
    """(table entries, ring tokens) of one scope's bytes."""
    slots = 1
    while 2 * slots * 8 <= share // 2:
        slots *= 2
    return slots, (share - slots * 8) // 4


@dataclass(frozen=True)
class Entry:
    """The key before a place was followed by the token there, ``seen`` times. Ordered by age."""

    place: int
    seen: int
    kind: int  # which of the lengths the key has
    key: tuple[int, ...]


@dataclass
class Way:
    token: int
    place: int
    match: int
    seen: dict[int, int] = field(default_factory=dict)  # by length of key


@dataclass
class ScopeText:
    """One scope. Nothing is ever overwritten here: the ring is a rule about how far back may be read."""

    key_length: int
    slots: int
    ring: int
    fault: str = ""
    text: list[int] = field(default_factory=list)
    starts: set[int] = field(default_factory=set)  # places where a stretch begins
    table: dict[int, list[Entry]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        k = self.key_length
        self.longer = [min(2 * k, 64)] if min(2 * k, 64) > k else []
        self.shorter = [n for n in (2, 1) if n < k]
        self.lengths = [*self.longer, k, *self.shorter]
        self.ways_of_set = 8
        sets = self.slots // self.ways_of_set
        self.short_sets = max(sets // 8, 1) if self.shorter and sets > 1 else 0
        self.other_sets = sets - self.short_sets
        self.fresh = min(self.ring, self.other_sets * self.ways_of_set) // 2

    @property
    def oldest(self) -> int:
        return max(0, len(self.text) - self.ring)

    def set_number(self, key: tuple[int, ...]) -> int:
        if len(key) < self.key_length and self.short_sets:
            return hashed(key) * self.short_sets >> 32
        return self.short_sets + (hashed(key) * self.other_sets >> 32)

    def alive(self, entry: Entry) -> bool:
        return entry.place - len(entry.key) >= self.oldest or self.fault == "overwritten text used"

    def entries(self, key: tuple[int, ...]) -> list[Entry]:
        """What is known to follow the key, while all of the key is still in the ring."""
        of_set = self.table.get(self.set_number(key), ())
        if self.fault == "keys not compared":
            return [e for e in of_set if self.alive(e) and len(e.key) == len(key)]
        return [e for e in of_set if self.alive(e) and e.key == key]

    def enter(self, key: tuple[int, ...], place: int, seen: int) -> bool:
        """Whether another token follows the key too, or this one did before."""
        number = self.set_number(key)
        of_set = self.table.setdefault(number, [])
        known = self.entries(key)
        for entry in known:
            if self.text[entry.place] == self.text[place]:
                times = entry.seen if self.fault == "not counted" else min(entry.seen + seen, 15)
                of_set[of_set.index(entry)] = Entry(max(place, entry.place), times, entry.kind, key)
                return True
        of_short = number < self.short_sets
        if of_short:  # elsewhere what was overwritten is the oldest anyway
            of_set[:] = [e for e in of_set if e.place > self.oldest]
        if len(of_set) == self.ways_of_set:
            rarest_first = of_short and self.fault != "short keys replaced by age"
            worth = sorted(of_set, key=lambda e: (e.seen if rarest_first else 0, e.place, e.kind))
            of_set.remove(worth[-1 if self.fault == "replaces the newest" else 0])
        of_set.append(Entry(place, 1, self.lengths.index(len(key)), key))
        return bool(known)

    def goes_on(self, place: int, tokens: Sequence[int]) -> int:
        """How many of the tokens stand from the place on, within its stretch."""
        count = 0
        while (
            count < len(tokens)
            and place + count < len(self.text)
            and place + count not in self.starts
            and self.text[place + count] == tokens[count]
        ):
            count += 1
        return count

    def insert(self, document: Sequence[int]) -> None:
        k = self.key_length
        known_run = KNOWN_RUN + (self.fault == "skips one later") - (self.fault == "skips one earlier")
        stretch_open, begin, i = False, 0, k
        while i < len(document):
            rest = document[i:]
            key = tuple(document[i - k : i])
            repeats = [e.place for e in self.entries(key) if self.goes_on(e.place, rest) >= min(known_run, len(rest))]
            if self.fault != "old text not written again":
                repeats = [place for place in repeats if place > len(self.text) - self.fresh]
            if repeats and self.fault != "known text stored again":
                place = max(repeats)
                length = self.goes_on(place, rest)
                for j in range(length):
                    self.enter(tuple(document[i + j - k : i + j]), place + j, 0)
                i, stretch_open = i + length, False
                continue
            if not stretch_open:
                if self.fault != "documents run together":
                    self.starts.add(len(self.text))
                begin = i - k
                self.text += document[begin:i]
            stretch_open = True
            place = len(self.text)
            self.text.append(document[i])
            ambiguous = self.enter(key, place, 1)
            for length in [*(self.longer if ambiguous or self.fault == "long keys always" else []), *self.shorter]:
                if i - begin >= length:
                    self.enter(tuple(document[i - length : i]), place, 1)
            i += 1

    def match(self, place: int, tail: Sequence[int], length: int) -> int:
        begin = place - length
        while begin > self.oldest and begin not in self.starts:
            begin -= 1
        return match_length(self.text[begin:place], tail)

    def ways(self, tail: Sequence[int], limit: int, most: int) -> list[tuple[list[int], int, int, int, bool]]:
        found: dict[int, Way] = {}
        for kind, length in enumerate(self.lengths):
            if len(tail) < length:
                continue
            for entry in self.entries(tuple(tail[-length:])):
                token, match = self.text[entry.place], self.match(entry.place, tail, length)
                way = found.setdefault(token, Way(token, entry.place, match))
                if (match, entry.place) > (way.match, way.place):
                    way.match, way.place = match, entry.place
                way.seen[kind] = entry.seen
        if self.fault == "short matches not found":
            found = {token: way for token, way in found.items() if way.match >= self.key_length}
        result = []
        for way in found.values():
            kind = min(way.seen)
            same = way.seen[kind]
            other = sum(w.seen.get(kind, 0) for w in found.values()) - same
            longer = any(w.match > way.match for w in found.values())
            result.append((way, same, other, longer))
        if self.fault == "latest first":
            result.sort(key=lambda r: -r[0].place)
        else:
            result.sort(key=lambda r: (-r[0].match, -r[1], -r[0].place))
        return [(self.read(way.place, limit), way.match, *votes) for way, *votes in result[:most]]

    def read(self, place: int, limit: int) -> list[int]:
        end = place + 1
        while end < min(place + limit, len(self.text)) and end not in self.starts:
            end += 1
        return self.text[place:end]

    def propose(self, tail: Sequence[int], limit: int) -> tuple[list[int], int] | None:
        ways = self.ways(tail, limit, 1)
        if not ways or limit == 0 or ways[0][1] < self.key_length:
            return None
        return ways[0][0], ways[0][1]


@dataclass
class SharedCache:
    budget: int
    max_scopes: int
    key_length: int
    fault: str = ""
    scopes: dict[str, ScopeText] = field(default_factory=dict)  # least recently used first
    evictions: int = 0
    documents: int = 0
    dropped_tokens: int = 0

    @property
    def share(self) -> int:
        return self.budget // self.max_scopes

    @property
    def tokens(self) -> int:
        return self.dropped_tokens + sum(len(s.text) for s in self.scopes.values())

    @property
    def bytes(self) -> int:
        slots, ring = divide_share(self.share)
        return len(self.scopes) * (slots * 8 + ring * 4)

    def insert(self, scope: str, document: Sequence[int]) -> None:
        if len(document) <= self.key_length:
            return
        if scope in self.scopes:
            self.scopes[scope] = self.scopes.pop(scope)
        else:
            if len(self.scopes) == self.max_scopes:
                victim = next(reversed(self.scopes)) if self.fault == "drops the newest" else next(iter(self.scopes))
                self.dropped_tokens += len(self.scopes.pop(victim).text)
                self.evictions += 1
            slots, ring = divide_share(self.share)
            self.scopes[scope] = ScopeText(self.key_length, slots, ring, self.fault)
        self.documents += 1
        self.scopes[scope].insert(document)

    def use(self, scope: str) -> ScopeText | None:
        if self.fault == "scopes ignored" and self.scopes:
            scope = next(iter(self.scopes))
        if scope in self.scopes and self.fault != "proposing is no use":
            self.scopes[scope] = self.scopes.pop(scope)
        return self.scopes.get(scope)

    def propose(self, scope: str, tail: Sequence[int], limit: int) -> tuple[list[int], int] | None:
        text = self.use(scope)
        return text.propose(tail, limit) if text else None

    def ways(
        self, scope: str, tail: Sequence[int], limit: int, most: int
    ) -> list[tuple[list[int], int, int, int, bool]]:
        text = self.use(scope)
        return text.ways(tail, limit, most) if text else []


SHARED_FAULTS = (
    "not counted",
    "short keys replaced by age",
    "long keys always",
    "short matches not found",
    "latest first",
    "keys not compared",
    "overwritten text used",
    "replaces the newest",
    "skips one later",
    "skips one earlier",
    "known text stored again",
    "old text not written again",
    "documents run together",
    "drops the newest",
    "scopes ignored",
    "proposing is no use",
)


@dataclass
class SequenceDrafter:
    drafter: Drafter
    history: History
    prediction: History
    prompt_length: int
    scope: str | None
    window: Window
    waiting: int = 0

    @property
    def output(self) -> list[int]:
        return self.history.tokens[self.prompt_length :]

    def observe(self, tokens: Sequence[int]) -> None:
        self.history.append(tokens)

    def settle(self, accepted: int, verified: int | None = None) -> None:
        self.window.settle(verified or self.waiting, accepted)
        self.waiting = 0

    def abandon(self) -> None:
        if self.drafter.fault == "abandoned counts as a miss" and self.waiting:
            self.window.settle(self.waiting, 0)
        self.waiting = 0

    def rewind(self, length: int) -> None:
        self.history.truncate(length)
        self.prompt_length = min(self.prompt_length, length)


@dataclass
class Drafter:
    ngram: int
    max_drafts: int
    min_match: int
    miss_backoff: int
    shared: SharedCache | None = None
    fault: str = ""

    def start(self, prompt: Sequence[int], prediction: Sequence[int], scope: str | None) -> SequenceDrafter:
        history, expected = History(self.ngram, self.min_match), History(self.ngram, self.min_match)
        history.append(prompt)
        expected.append(prediction)
        return SequenceDrafter(self, history, expected, len(prompt), scope, Window(self.max_drafts, self.miss_backoff))

    def from_prediction(self, sequence: SequenceDrafter, limit: int) -> tuple[list[int], int] | None:
        output, expected = sequence.output, sequence.prediction.tokens
        anchored = len(output) < len(expected) and expected[: len(output)] == output
        if self.fault == "anchor at the first token only":
            anchored = anchored and not output
        if anchored and self.fault != "no anchor":
            return expected[len(output) : len(output) + limit], min(len(output), MATCH_LIMIT)
        return sequence.prediction.propose(limit, sequence.history.tokens)

    def propose(self, sequence: SequenceDrafter, limit: int) -> tuple[list[int], str | None, int]:
        nothing: tuple[list[int], str | None, int] = ([], None, 0)
        if limit == 0 and self.fault == "limit 0 is no round":
            return nothing
        if sequence.window.skip_round():
            return nothing
        limit = min(limit, sequence.window.size)
        if limit == 0:
            return nothing
        order = ["history", "prediction", "shared"]
        if self.fault == "prediction first":
            order = ["prediction", "history", "shared"]
        if self.fault == "shared before prediction":
            order = ["history", "shared", "prediction"]
        for source in order:
            found: tuple[list[int], int] | None = None
            if source == "history":
                found = sequence.history.propose(limit)
            elif source == "prediction":
                found = self.from_prediction(sequence, limit)
            elif self.shared is not None and sequence.scope is not None:
                found = self.shared.propose(sequence.scope, sequence.history.tokens, limit)
            if found:
                sequence.waiting = len(found[0])
                return found[0], source, found[1]
        return nothing

    def finish(self, sequence: SequenceDrafter, store: bool) -> None:
        if store and self.shared is not None and sequence.scope is not None:
            self.shared.insert(sequence.scope, sequence.history.tokens)


DRAFTER_FAULTS = (
    "abandoned counts as a miss",
    "anchor at the first token only",
    "no anchor",
    "limit 0 is no round",
    "prediction first",
    "shared before prediction",
)
