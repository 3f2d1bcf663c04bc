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
def set_of(key: tuple[int, ...], sets: int) -> int:
    """The set of table entries where a key may lie: a polynomial and SplitMix64's finaliser."""
    state = 0
    for token in key:
        state = (state * 0x9E3779B97F4A7C15 + token + 1) % 2**64
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
    return (state ^ state >> 31) // 2**16 % sets


def divide_share(share: int) -> tuple[int, int]:
    """(table entries, ring tokens) of one scope's bytes."""
    slots = 1
    while 2 * slots * 8 <= share // 2:
        slots *= 2
    return slots, (share - slots * 8) // 4


@dataclass
class ScopeText:
    """One scope. Nothing is ever overwritten here: the ring is a rule about how far back may be read."""

    key_length: int
    slots: int
    ring: int
    fault: str = ""
    text: list[int] = field(default_factory=list)
    starts: set[int] = field(default_factory=set)  # places where a stretch begins
    table: dict[int, list[tuple[int, tuple[int, ...]]]] = field(default_factory=dict)  # set -> [(place, key before it)]

    def entries(self, key: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
        ways = min(8, self.slots)
        return self.table.setdefault(set_of(key, self.slots // ways), [])

    def find(self, key: tuple[int, ...]) -> int | None:
        """The place after the key, while all of the key is still in the ring."""
        for place, other in self.entries(key):
            alive = place - self.key_length >= len(self.text) - self.ring or self.fault == "overwritten text used"
            if alive and (key == other or self.fault == "keys not compared"):
                return place
        return None

    def store(self, key: tuple[int, ...]) -> None:
        """The key is followed by the next token written."""
        entries, place = self.entries(key), self.find(key)
        if place is not None:
            entries[:] = [entry for entry in entries if entry[0] != place]
        elif len(entries) == min(8, self.slots):
            entries.remove(max(entries) if self.fault == "replaces the newest" else min(entries))
        entries.append((len(self.text), key))

    def insert(self, document: Sequence[int]) -> None:
        k, run_limit = (
            self.key_length,
            KNOWN_RUN + (self.fault == "skips one later") - (self.fault == "skips one earlier"),
        )
        stretch_open, known = False, 0
        for i in range(k, len(document)):
            key = tuple(document[i - k : i])
            place = self.find(key)
            if place is not None and self.text[place] == document[i] and self.fault != "known text stored again":
                known += 1
                if known == run_limit:
                    stretch_open = False
                continue
            if not stretch_open:
                if self.fault != "documents run together":
                    self.starts.add(len(self.text))
                self.text += document[i - k : i]
            else:
                self.text += document[i - known : i]
            stretch_open, known = True, 0
            self.store(key)
            self.text.append(document[i])

    def propose(self, tail: Sequence[int], limit: int) -> tuple[list[int], int] | None:
        if len(tail) < self.key_length:
            return None
        place = self.find(tuple(tail[-self.key_length :]))
        if place is None or limit == 0:
            return None
        end = place + 1
        while end < min(place + limit, len(self.text)) and end not in self.starts:
            end += 1
        oldest = max(0, len(self.text) - self.ring)
        begin = place - self.key_length
        while begin > oldest and begin not in self.starts:
            begin -= 1
        return self.text[place:end], match_length(self.text[begin:place], tail)


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

    def propose(self, scope: str, tail: Sequence[int], limit: int) -> tuple[list[int], int] | None:
        if self.fault == "scopes ignored" and self.scopes:
            scope = next(iter(self.scopes))
        if scope not in self.scopes:
            return None
        if self.fault != "proposing is no use":
            self.scopes[scope] = self.scopes.pop(scope)
        return self.scopes[scope].propose(tail, limit)


SHARED_FAULTS = (
    "keys not compared",
    "overwritten text used",
    "replaces the newest",
    "skips one later",
    "skips one earlier",
    "known text stored again",
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
