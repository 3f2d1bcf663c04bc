"""Code edits in ten languages: renames, insertions, deletions, reordering, translation, indentation, several places.

The file stands bare, with line numbers, under a review comment or beside a patch; the answer is always the whole file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from benchmarks.workloads.case import Case, ask, first_lines, replaced
from benchmarks.workloads.code_edit import prefix_lines

LIMITER = """export interface Clock {
  now(): number;
}

interface Bucket {
  level: number;
  updated: number;
}

export class LeakyLimiter {
  private buckets = new Map<string, Bucket>();

  constructor(
    private readonly clock: Clock,
    private readonly size: number,
    private readonly drainPerSecond: number,
  ) {}

  allow(key: string, cost = 1): boolean {
    const bucket = this.bucketFor(key);
    this.drain(bucket);
    if (bucket.level + cost > this.size) {
      return false;
    }
    bucket.level += cost;
    return true;
  }

  forget(key: string): void {
    this.buckets.delete(key);
  }

  private bucketFor(key: string): Bucket {
    let bucket = this.buckets.get(key);
    if (bucket === undefined) {
      bucket = { level: 0, updated: this.clock.now() };
      this.buckets.set(key, bucket);
    }
    return bucket;
  }

  private drain(bucket: Bucket): void {
    const elapsed = (this.clock.now() - bucket.updated) / 1000;
    bucket.level = Math.max(0, bucket.level - elapsed * this.drainPerSecond);
    bucket.updated = this.clock.now();
  }
}
"""

RING = """use std::collections::VecDeque;

pub struct Samples {
    values: VecDeque<u32>,
    most: usize,
    sum: u64,
}

impl Samples {
    pub fn new(most: usize) -> Self {
        Samples { values: VecDeque::with_capacity(most), most, sum: 0 }
    }

    pub fn push(&mut self, value: u32) -> Option<u32> {
        let mut dropped = None;
        if self.values.len() == self.most {
            dropped = self.values.pop_front();
        }
        if let Some(old) = dropped {
            self.sum -= old as u64;
        }
        self.sum += value as u64;
        self.values.push_back(value);
        dropped
    }

    pub fn mean(&self) -> f64 {
        if self.values.is_empty() {
            return 0.0;
        }
        self.sum as f64 / self.values.len() as f64
    }

    pub fn largest(&self) -> Option<u32> {
        self.values.iter().copied().max()
    }

    pub fn clear(&mut self) {
        self.values.clear();
        self.sum = 0;
    }
}
"""

STATION = """package weather;

import java.util.ArrayList;
import java.util.List;

public final class Station {
    private final String name;
    private final double altitude;
    private final List<Double> readings = new ArrayList<>();
    private int rejected = 0;

    public Station(String name, double altitude) {
        this.name = name;
        this.altitude = altitude;
    }

    public void record(double celsius) {
        if (celsius < -90 || celsius > 60) {
            rejected++;
            return;
        }
        readings.add(celsius);
    }

    public double mean() {
        if (readings.isEmpty()) {
            throw new IllegalStateException("no readings");
        }
        double sum = 0;
        for (double reading : readings) {
            sum += reading;
        }
        return sum / readings.size();
    }

    public double atSeaLevel() {
        return mean() + altitude * 0.0065;
    }

    public int rejected() {
        return rejected;
    }

    @Override
    public String toString() {
        return name + " (" + readings.size() + " readings)";
    }
}
"""

STRINGS = """#include <stdlib.h>
#include <string.h>

struct sb {
    char *data;
    size_t length;
    size_t room;
};

int sb_init(struct sb *s)
{
    s->data = malloc(16);
    if (!s->data)
        return -1;
    s->data[0] = 0;
    s->length = 0;
    s->room = 16;
    return 0;
}

static int sb_grow(struct sb *s, size_t need)
{
    size_t room = s->room;
    while (room < need)
        room *= 2;
    char *data = realloc(s->data, room);
    if (!data)
        return -1;
    s->data = data;
    s->room = room;
    return 0;
}

int sb_append(struct sb *s, const char *text, size_t n)
{
    if (s->length + n > s->room && sb_grow(s, s->length + n) < 0)
        return -1;
    memcpy(s->data + s->length, text, n);
    s->length += n;
    return 0;
}

void sb_free(struct sb *s)
{
    free(s->data);
    s->length = 0;
}
"""

SCHEMA = """create table vessel (
    id integer primary key,
    name text not null,
    flag text not null,
    built integer
);

create table berth (
    id integer primary key,
    quay text not null,
    depth_cm integer not null
);

create table call (
    id integer primary key,
    vessel_id integer not null references vessel (id),
    berth_id integer references berth (id),
    arrived text,
    left_at text
);

create index call_by_vessel on call (vessel_id);

create view in_port as
select vessel.name, berth.quay, call.arrived
from call
join vessel on vessel.id = call.vessel_id
join berth on berth.id = call.berth_id
where call.arrived is not null and call.left_at is null
order by call.arrived;
"""

BACKUP = """#!/bin/sh
# Sichert ein Verzeichnis in ein Archiv mit Datum.
set -eu

quelle=$1
ziel=$2
behalten=${3:-7}

# Das Ziel anlegen, falls es fehlt.
mkdir -p "$ziel"

name=$(basename "$quelle")
archiv="$ziel/$name-$(date +%Y%m%d).tar.gz"

# Ein Archiv von heute wird nicht ersetzt.
if [ -e "$archiv" ]; then
    echo "$archiv gibt es schon" >&2
    exit 1
fi

tar -czf "$archiv.teil" -C "$(dirname "$quelle")" "$name"
mv "$archiv.teil" "$archiv"

# Alte Archive loeschen, die neuesten bleiben.
ls -1t "$ziel/$name"-*.tar.gz | tail -n "+$((behalten + 1))" | while read -r alt; do
    rm -- "$alt"
done
"""

CARDS = """:root {
  --ink: #22313f;
  --paper: #fdfbf7;
  --accent: #c0392b;
}

.cards {
  display: grid;
  grid-template-columns: repeat(3, 1fr);
  gap: 16px;
  padding: 24px;
}

.card {
  background: var(--paper);
  color: var(--ink);
  border-radius: 8px;
  padding: 16px;
}

.card h2 {
  font-size: 20px;
  margin: 0 0 8px;
}

.card .price {
  color: var(--accent);
  font-size: 24px;
}

.card button {
  border: 0;
  border-radius: 4px;
  padding: 8px 16px;
}

@media (max-width: 640px) {
  .cards {
    grid-template-columns: 1fr;
    padding: 8px;
  }
}
"""

LEDGER = """# Points that members of a club earn and spend.
class Points
  Entry = Struct.new(:member, :amount, :reason, :at)

  def initialize(clock = Time)
    @clock = clock
    @entries = []
  end

  def earn(member, amount, reason)
    raise ArgumentError, "amount must be positive" unless amount > 0

    @entries << Entry.new(member, amount, reason, @clock.now)
  end

  def spend(member, amount, reason)
    raise ArgumentError, "amount must be positive" unless amount > 0
    raise ArgumentError, "#{member} has only #{balance(member)} points" if balance(member) < amount

    @entries << Entry.new(member, -amount, reason, @clock.now)
  end

  def balance(member)
    @entries.select { |entry| entry.member == member }.sum(&:amount)
  end

  def history(member)
    @entries.select { |entry| entry.member == member }.map do |entry|
      format("%s %+5d %s", entry.at.strftime("%F"), entry.amount, entry.reason)
    end
  end

  def leaders(count = 3)
    @entries.map(&:member).uniq.max_by(count) { |member| balance(member) }
  end
end
"""

ROUTES = """from heapq import heappop, heappush


class Timetable:
    def __init__(self):
        self.departures = {}

    def add(self, line, origin, target, leaves, arrives):
        if arrives <= leaves:
            raise ValueError("a train arrives after it leaves")
        self.departures.setdefault(origin, []).append((leaves, arrives, target, line))

    def stations(self):
        names = set(self.departures)
        for trains in self.departures.values():
            names.update(target for _, _, target, _ in trains)
        return sorted(names)

    def earliest(self, origin, target, start, change=5):
        best = {origin: start}
        came_from = {}
        queue = [(start, origin)]
        while queue:
            time, station = heappop(queue)
            if station == target:
                return time, self.path(came_from, target)
            if time > best[station]:
                continue
            ready = time if station == origin else time + change
            for leaves, arrives, stop, line in self.departures.get(station, []):
                if leaves < ready:
                    continue
                if arrives < best.get(stop, 24 * 60):
                    best[stop] = arrives
                    came_from[stop] = (station, line, leaves, arrives)
                    heappush(queue, (arrives, stop))
        return None

    def path(self, came_from, target):
        legs = []
        while target in came_from:
            station, line, leaves, arrives = came_from[target]
            legs.append((line, station, target, leaves, arrives))
            target = station
        legs.reverse()
        return legs


def clock(minutes):
    return f"{minutes // 60:02}:{minutes % 60:02}"


def describe(legs):
    for line, station, target, leaves, arrives in legs:
        yield f"{line}: {station} {clock(leaves)} to {target} {clock(arrives)}"
"""

COMPOSE = """services:
  proxy:
    image: example/proxy:1.9
    ports: ["443:8443"]
    depends_on: [shop, blog]
    restart: unless-stopped

  shop:
    image: example/shop:5.2
    environment:
      DATABASE: postgres://shop@store/shop
      MAIL_FROM: shop@example.org
    mem_limit: 512m
    restart: unless-stopped

  blog:
    image: example/blog:3.0
    environment:
      DATABASE: postgres://blog@store/blog
      MAIL_FROM: blog@example.org
    mem_limit: 256m
    restart: unless-stopped

  store:
    image: postgres:16
    volumes: ["store:/var/lib/postgresql/data"]
    environment:
      POSTGRES_PASSWORD_FILE: /run/secrets/store
    secrets: [store]
    restart: unless-stopped

volumes:
  store: {}

secrets:
  store:
    file: ./store.secret
"""

INVOICE = """data class Position(val text: String, val quantity: Int, val cents: Long)

class Invoice(private val number: Int, private val customer: String) {
    private val positions = mutableListOf<Position>()
    private var discount = 0

    fun add(text: String, quantity: Int, cents: Long) {
        require(quantity > 0) { "quantity must be positive" }
        positions += Position(text, quantity, cents)
    }

    fun discount(percent: Int) {
        require(percent in 0..50) { "discount must be 0 to 50 percent" }
        discount = percent
    }

    fun total(): Long {
        val sum = positions.sumOf { it.quantity * it.cents }
        return sum - sum * discount / 100
    }

    fun render(): String = buildString {
        appendLine("Invoice $number for $customer")
        for (position in positions) {
            appendLine("${position.quantity} x ${position.text} at ${money(position.cents)}")
        }
        if (discount > 0) {
            appendLine("Discount: $discount %")
        }
        append("Total: ${money(total())}")
    }

    private fun money(cents: Long) = "%d.%02d".format(cents / 100, cents % 100)
}
"""


def _swap(first: str, second: str) -> Callable[[str], str]:
    """Two parts of a file change places."""

    def change(text: str) -> str:
        if first not in text or second not in text:
            raise ValueError(f"{first!r} or {second!r} is not in the text")
        return text.replace(first, "\0").replace(second, first).replace("\0", second)

    return change


def _indent(old: int, new: int) -> Callable[[str], str]:
    return lambda text: re.sub(r"(?m)^ +", lambda m: " " * (len(m.group()) // old * new), text)


def _upper_keywords(text: str) -> str:
    words = "create table integer primary key text not null references index view as select from join on where and is order by"
    return re.sub(rf"\b({'|'.join(words.split())})\b", lambda m: m.group().upper(), text)


def _rem(text: str) -> str:
    return re.sub(r"(\d+)px", lambda m: f"{int(m.group(1)) / 16:g}rem", text)


Change = list[tuple[str, str]] | Callable[[str], str]
_PLAIN, _NUMBERED, _REVIEW, _PATCH = "plain", "numbered", "review", "patch"

_EARN = LEDGER[LEDGER.index("  def earn") : LEDGER.index("  def spend")]
_SPEND = LEDGER[LEDGER.index("  def spend") : LEDGER.index("  def balance")]
_BALANCE = LEDGER[LEDGER.index("  def balance") : LEDGER.index("  def history")]
_HISTORY = LEDGER[LEDGER.index("  def history") : LEDGER.index("  def leaders")]
_SHOP = COMPOSE[COMPOSE.index("  shop:") : COMPOSE.index("  blog:")]

#: name, language, file, and its edits: (how the file is shown, what to do, the change)
_FILES: list[tuple[str, str, str, list[tuple[str, str, Change]]]] = [
    (
        "limiter",
        "typescript",
        LIMITER,
        [
            (
                _REVIEW,
                "`drainPerSecond` says how, not what: call it `ratePerSecond`. And please read the clock only once in `drain`.",
                [
                    ("drainPerSecond", "ratePerSecond"),
                    (
                        "    const elapsed = (this.clock.now()",
                        "    const now = this.clock.now();\n    const elapsed = (now",
                    ),
                    ("bucket.updated = this.clock.now();", "bucket.updated = now;"),
                ],
            ),
            (
                _PLAIN,
                "Remove the method `forget`, and make `Bucket` an exported interface with a readonly field `key` in front.",
                [
                    ("  forget(key: string): void {\n    this.buckets.delete(key);\n  }\n\n", ""),
                    ("\ninterface Bucket {\n", "\nexport interface Bucket {\n  readonly key: string;\n"),
                    ("{ level: 0,", "{ key, level: 0,"),
                ],
            ),
        ],
    ),
    (
        "samples",
        "rust",
        RING,
        [
            (
                _PLAIN,
                "Store 64-bit values, and sum them in 128 bits.",
                [("u64", "u128"), ("u32", "u64")],
            ),
            (
                _PLAIN,
                "Put a doc comment of one line on every public item.",
                [
                    ("pub struct", "/// The latest values, and their sum.\npub struct"),
                    ("    pub fn new", "    /// No values yet, and room for `most`.\n    pub fn new"),
                    ("    pub fn push", "    /// Adds a value and gives back the one it pushed out.\n    pub fn push"),
                    ("    pub fn mean", "    /// The mean of what is kept; zero of nothing.\n    pub fn mean"),
                    ("    pub fn largest", "    /// The largest value that is kept.\n    pub fn largest"),
                    ("    pub fn clear", "    /// Forgets all values.\n    pub fn clear"),
                ],
            ),
        ],
    ),
    (
        "station",
        "java",
        STATION,
        [
            (_PLAIN, "Indent with two spaces instead of four. Change nothing else.", _indent(4, 2)),
            (
                _NUMBERED,
                "Delete the counter of rejected readings: throw an IllegalArgumentException in `record` instead.",
                [
                    ("    private int rejected = 0;\n", ""),
                    (
                        "            rejected++;\n            return;\n",
                        '            throw new IllegalArgumentException("not a temperature: " + celsius);\n',
                    ),
                    ("    public int rejected() {\n        return rejected;\n    }\n\n", ""),
                ],
            ),
        ],
    ),
    (
        "strings",
        "c",
        STRINGS,
        [
            (
                _REVIEW,
                "Three faults: `sb_append` writes no terminating zero, it asks for one byte too few because of that, and "
                "`sb_free` leaves a dangling pointer and the old room behind. Please mend them all.",
                [
                    (
                        "if (s->length + n > s->room && sb_grow(s, s->length + n) < 0)",
                        "if (s->length + n + 1 > s->room && sb_grow(s, s->length + n + 1) < 0)",
                    ),
                    ("    s->length += n;\n", "    s->length += n;\n    s->data[s->length] = 0;\n"),
                    ("    free(s->data);\n", "    free(s->data);\n    s->data = NULL;\n    s->room = 0;\n"),
                ],
            ),
            (
                _NUMBERED,
                "Rename the prefix `sb` to `strbuf` and the parameter `s` to `b`, everywhere.",
                [("sb_", "strbuf_"), ("struct sb", "struct strbuf"), ("*s", "*b"), ("s->", "b->"), ("(s,", "(b,")],
            ),
        ],
    ),
    (
        "schema",
        "sql",
        SCHEMA,
        [
            (_PLAIN, "Write all SQL keywords and types in capitals.", _upper_keywords),
            (
                _PATCH,
                "--- a/schema.sql\n+++ b/schema.sql\n@@ create table berth @@\n     quay text not null,\n"
                "-    depth_cm integer not null\n+    depth_cm integer not null,\n+    crane integer not null default 0\n );\n"
                "@@ create view in_port @@\n-select vessel.name, berth.quay, call.arrived\n"
                "+select vessel.name, vessel.flag, berth.quay, call.arrived\n from call",
                [
                    (
                        "    depth_cm integer not null\n",
                        "    depth_cm integer not null,\n    crane integer not null default 0\n",
                    ),
                    ("select vessel.name, berth", "select vessel.name, vessel.flag, berth"),
                ],
            ),
        ],
    ),
    (
        "backup",
        "sh",
        BACKUP,
        [
            (
                _PLAIN,
                "Translate the comments and the message from German to English; leave the names of the variables.",
                [
                    (
                        "Sichert ein Verzeichnis in ein Archiv mit Datum.",
                        "Saves a directory to an archive with a date.",
                    ),
                    ("Das Ziel anlegen, falls es fehlt.", "Make the target where it is missing."),
                    ("Ein Archiv von heute wird nicht ersetzt.", "An archive of today is not replaced."),
                    ("gibt es schon", "already exists"),
                    ("Alte Archive loeschen, die neuesten bleiben.", "Delete old archives, keep the newest."),
                ],
            ),
            (
                _REVIEW,
                "Give the variables English names: source, target, keep, archive, old. The half-written file should end in "
                ".part.",
                [
                    ("quelle", "source"),
                    ("ziel", "target"),
                    ("behalten", "keep"),
                    ("archiv=", "archive="),
                    ("$archiv", "$archive"),
                    (".teil", ".part"),
                    ("read -r alt", "read -r old"),
                    ("$alt", "$old"),
                ],
            ),
        ],
    ),
    (
        "cards",
        "css",
        CARDS,
        [
            (
                _PLAIN,
                "Convert every px length to rem, with 16px to the rem. Leave the media query's width in px.",
                lambda text: _rem(text).replace("40rem", "640px"),
            ),
            (
                _PLAIN,
                "Rename the class `card` to `tile` and the class `cards` to `tiles`, and put the accent colour first.",
                [
                    (".card", ".tile"),
                    (
                        "  --ink: #22313f;\n  --paper: #fdfbf7;\n  --accent: #c0392b;\n",
                        "  --accent: #c0392b;\n  --ink: #22313f;\n  --paper: #fdfbf7;\n",
                    ),
                ],
            ),
        ],
    ),
    (
        "points",
        "ruby",
        LEDGER,
        [
            (
                _PLAIN,
                "Move the methods `balance` and `history` in front of `earn` and `spend`.",
                _swap(_EARN + _SPEND, _BALANCE + _HISTORY),
            ),
            (
                _PLAIN,
                "The check for a positive amount stands twice: move it to a private method `check` at the end.",
                [
                    ('    raise ArgumentError, "amount must be positive" unless amount > 0\n', "    check(amount)\n"),
                    (
                        "{ |member| balance(member) }\n  end\n",
                        "{ |member| balance(member) }\n  end\n\n  private\n\n  def check(amount)\n"
                        '    raise ArgumentError, "amount must be positive" unless amount > 0\n  end\n',
                    ),
                ],
            ),
        ],
    ),
    (
        "timetable",
        "python",
        ROUTES,
        [
            (
                _PLAIN,
                "Add type annotations to all functions and methods. Times are int, names are str.",
                [
                    ("def __init__(self):", "def __init__(self) -> None:"),
                    (
                        "def add(self, line, origin, target, leaves, arrives):",
                        "def add(self, line: str, origin: str, target: str, leaves: int, arrives: int) -> None:",
                    ),
                    ("def stations(self):", "def stations(self) -> list[str]:"),
                    (
                        "def earliest(self, origin, target, start, change=5):",
                        "def earliest(self, origin: str, target: str, start: int, change: int = 5) -> tuple[int, list[Leg]] | None:",
                    ),
                    (
                        "def path(self, came_from, target):",
                        "def path(self, came_from: dict[str, tuple[str, str, int, int]], target: str) -> list[Leg]:",
                    ),
                    ("def clock(minutes):", "def clock(minutes: int) -> str:"),
                    ("def describe(legs):", "def describe(legs: list[Leg]) -> Iterator[str]:"),
                    (
                        "from heapq import heappop, heappush\n",
                        "from collections.abc import Iterator\nfrom heapq import heappop, heappush\n\n"
                        "Leg = tuple[str, str, str, int, int]\n",
                    ),
                ],
            ),
            (
                _NUMBERED,
                "Say `stop` instead of `station` for every local variable and method, and `halt` where `stop` is used now.",
                [("stop", "halt"), ("station", "stop")],
            ),
        ],
    ),
    (
        "compose",
        "yaml",
        COMPOSE,
        [
            (
                _PLAIN,
                "Add a service `forum` after `blog`, set up just like `shop`, with the image example/forum:2.4, and let the "
                "proxy wait for it too.",
                [
                    (
                        "  store:\n    image",
                        _SHOP.replace("shop:5.2", "forum:2.4").replace("shop", "forum") + "  store:\n    image",
                    ),
                    ("[shop, blog]", "[shop, blog, forum]"),
                ],
            ),
            (
                _PLAIN,
                "Raise both memory limits to twice their value, and set restart to always in every service.",
                [("512m", "1024m"), ("256m", "512m"), ("unless-stopped", "always")],
            ),
        ],
    ),
    (
        "invoice",
        "kotlin",
        INVOICE,
        [
            (
                _PLAIN,
                "Add a tax in percent: a property with a setter like the discount's (0 to 30), in the total, and in the text.",
                [
                    ("    private var discount = 0\n", "    private var discount = 0\n    private var tax = 0\n"),
                    (
                        "    fun total(): Long {\n",
                        "    fun tax(percent: Int) {\n        require(percent in 0..30) "
                        '{ "tax must be 0 to 30 percent" }\n        tax = percent\n    }\n\n    fun total(): Long {\n',
                    ),
                    (
                        "        return sum - sum * discount / 100\n",
                        "        val reduced = sum - sum * discount / 100\n        return reduced + reduced * tax / 100\n",
                    ),
                    (
                        '            appendLine("Discount: $discount %")\n        }\n',
                        '            appendLine("Discount: $discount %")\n        }\n        if (tax > 0) {\n'
                        '            appendLine("Tax: $tax %")\n        }\n',
                    ),
                ],
            ),
        ],
    ),
]


def _shown(form: str, language: str, text: str, task: str) -> str:
    if form == _NUMBERED:
        lines = text.rstrip("\n").split("\n")
        numbered = "\n".join(f"{number:3} | {line}".rstrip() for number, line in enumerate(lines, 1))
        return f"This is the file, with line numbers:\n\n{numbered}\n\n{task} Give back the whole file, without the numbers."
    if form == _REVIEW:
        return f'```{language}\n{text}```\n\nA reviewer writes: "{task}"\n\nAnswer with the complete new file in a code block.'
    if form == _PATCH:
        return f"File:\n```{language}\n{text}```\nPatch:\n```diff\n{task}\n```\nApply the patch and print the resulting file."
    return f"Here is a file.\n\n```{language}\n{text}```\n\n{task} Print the file after the change, all of it."


def cases() -> Iterator[Case]:
    for name, language, text, edits in _FILES:
        for number, (form, task, change) in enumerate(edits):
            answer = replaced(text, change, f"{name} edit {number}") if isinstance(change, list) else change(text)
            prefix = f"```{language}\n" + first_lines(answer, prefix_lines(answer, least=9))
            yield ask(
                "code_edit",
                f"{name}-{number}",
                _shown(form, language, text, task),
                prefix=prefix,
                answer=f"```{language}\n{answer}```",
                group=name,
            )
