"""Code edits: a file and a change to make; the answer is the whole changed file."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.workloads.case import Case, ask, first_lines, replaced

INVENTORY = '''class Inventory:
    """Stock of a small shop, by item name."""

    def __init__(self):
        self.items = {}
        self.history = []

    def add(self, name, count):
        if count <= 0:
            raise ValueError("count must be positive")
        self.items[name] = self.items.get(name, 0) + count
        self.history.append(("add", name, count))

    def remove(self, name, count):
        stock = self.items.get(name, 0)
        if count > stock:
            raise ValueError("not enough stock")
        self.items[name] = stock - count
        self.history.append(("remove", name, count))

    def total(self):
        return sum(self.items.values())

    def report(self):
        for name, count in sorted(self.items.items()):
            print(f"{name}: {count}")
'''

PARSER = """import re

TOKEN = re.compile(r"\\s*(?:(\\d+)|(.))")


def tokenize(text):
    for number, operator in TOKEN.findall(text):
        if number:
            yield ("number", int(number))
        elif operator.strip():
            yield ("operator", operator)
    yield ("end", None)


class Parser:
    def __init__(self, text):
        self.tokens = list(tokenize(text))
        self.index = 0

    def next(self):
        token = self.tokens[self.index]
        self.index += 1
        return token

    def expression(self):
        kind, value = self.next()
        if kind != "number":
            raise SyntaxError("expected a number")
        while self.tokens[self.index] == ("operator", "+"):
            self.next()
            value += self.next()[1]
        return value
"""

CLIENT = """import json
import time
import urllib.request


class Client:
    def __init__(self, base_url, token=None, timeout=10):
        self.base_url = base_url.rstrip("/")
        self.token = token
        self.timeout = timeout

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, body):
        return self.request("POST", path, body)

    def request(self, method, path, body=None):
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.base_url + path, data=data, method=method)
        request.add_header("Content-Type", "application/json")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        for attempt in range(3):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as response:
                    return json.load(response)
            except TimeoutError:
                time.sleep(2 ** attempt)
        raise TimeoutError(path)
"""

CACHE = '''from collections import OrderedDict


class LruCache:
    """Keeps the most recently used entries."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.entries = OrderedDict()
        self.hits = 0
        self.misses = 0

    def get(self, key, default=None):
        if key not in self.entries:
            self.misses += 1
            return default
        self.hits += 1
        self.entries.move_to_end(key)
        return self.entries[key]

    def put(self, key, value):
        if key in self.entries:
            self.entries.move_to_end(key)
        self.entries[key] = value
        while len(self.entries) > self.capacity:
            self.entries.popitem(last=False)

    def hit_rate(self):
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else 0.0
'''

GRAPH = """from collections import deque


def neighbours(graph, node):
    return graph.get(node, [])


def shortest_path(graph, start, goal):
    queue = deque([start])
    parents = {start: None}
    while queue:
        node = queue.popleft()
        if node == goal:
            path = []
            while node is not None:
                path.append(node)
                node = parents[node]
            return list(reversed(path))
        for neighbour in neighbours(graph, node):
            if neighbour not in parents:
                parents[neighbour] = node
                queue.append(neighbour)
    return None


def reachable(graph, start):
    seen = set()
    stack = [start]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack.extend(neighbours(graph, node))
    return seen
"""

BANK = """from dataclasses import dataclass, field
from datetime import datetime


@dataclass
class Account:
    owner: str
    balance: int = 0
    log: list = field(default_factory=list)

    def deposit(self, amount):
        self.balance += amount
        self.log.append((datetime.now(), "deposit", amount))

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("insufficient funds")
        self.balance -= amount
        self.log.append((datetime.now(), "withdraw", amount))


def transfer(source, target, amount):
    source.withdraw(amount)
    target.deposit(amount)


def statement(account):
    lines = [f"Statement for {account.owner}"]
    for when, kind, amount in account.log:
        lines.append(f"{when:%Y-%m-%d} {kind:10} {amount:8}")
    lines.append(f"Balance: {account.balance}")
    return "\\n".join(lines)
"""

STATS = """import math


def mean(values):
    return sum(values) / len(values)


def variance(values):
    centre = mean(values)
    return sum((value - centre) ** 2 for value in values) / len(values)


def deviation(values):
    return math.sqrt(variance(values))


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def summary(values):
    return {
        "count": len(values),
        "mean": mean(values),
        "median": median(values),
        "deviation": deviation(values),
        "minimum": min(values),
        "maximum": max(values),
    }
"""

TODO = """const tasks = [];

function addTask(title, priority) {
  const task = { id: tasks.length + 1, title, priority, done: false };
  tasks.push(task);
  return task;
}

function completeTask(id) {
  const task = tasks.find((item) => item.id === id);
  if (!task) {
    throw new Error(`no task with id ${id}`);
  }
  task.done = true;
  return task;
}

function openTasks() {
  return tasks.filter((item) => !item.done).sort((a, b) => b.priority - a.priority);
}

function render(list) {
  for (const item of list) {
    const mark = item.done ? "x" : " ";
    console.log(`[${mark}] ${item.title} (${item.priority})`);
  }
}

module.exports = { addTask, completeTask, openTasks, render };
"""

CONFIG = """import os
from pathlib import Path

DEFAULTS = {
    "host": "127.0.0.1",
    "port": "8080",
    "workers": "4",
    "log_level": "info",
}


def read_file(path):
    settings = {}
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise ValueError(f"{path}:{number}: expected key=value")
        settings[key.strip()] = value.strip()
    return settings


def load(path=None):
    settings = dict(DEFAULTS)
    if path:
        settings.update(read_file(path))
    for key in DEFAULTS:
        name = "APP_" + key.upper()
        if name in os.environ:
            settings[key] = os.environ[name]
    return settings
"""

QUEUE = """package queue

import (
\t"errors"
\t"sync"
)

var ErrEmpty = errors.New("queue is empty")

type Queue struct {
\tmu    sync.Mutex
\titems []string
\tlimit int
}

func New(limit int) *Queue {
\treturn &Queue{limit: limit}
}

func (q *Queue) Push(item string) error {
\tq.mu.Lock()
\tdefer q.mu.Unlock()
\tif len(q.items) >= q.limit {
\t\treturn errors.New("queue is full")
\t}
\tq.items = append(q.items, item)
\treturn nil
}

func (q *Queue) Pop() (string, error) {
\tq.mu.Lock()
\tdefer q.mu.Unlock()
\tif len(q.items) == 0 {
\t\treturn "", ErrEmpty
\t}
\titem := q.items[0]
\tq.items = q.items[1:]
\treturn item, nil
}
"""

#: name, file, and its edits: (what to do, [(old, new), ...])
_FILES: list[tuple[str, str, list[tuple[str, list[tuple[str, str]]]]]] = [
    (
        "inventory",
        INVENTORY,
        [
            ("Rename the attribute `history` to `events`.", [("history", "events")]),
            (
                "Make `total` count only items with stock above zero.",
                [("sum(self.items.values())", "sum(count for count in self.items.values() if count > 0)")],
            ),
            (
                'Change the error "not enough stock" to also name the item.',
                [('"not enough stock"', 'f"not enough {name}"')],
            ),
        ],
    ),
    (
        "parser",
        PARSER,
        [
            ("Rename the method `next` to `advance`.", [("def next", "def advance"), ("self.next", "self.advance")]),
            (
                "Support subtraction as well as addition.",
                [
                    (
                        'while self.tokens[self.index] == ("operator", "+"):\n            self.next()\n            value += self.next()[1]',
                        'while self.tokens[self.index] in (("operator", "+"), ("operator", "-")):\n            sign = 1 if self.next()[1] == "+" else -1\n            value += sign * self.next()[1]',
                    )
                ],
            ),
            ('Use the word "symbol" instead of "operator" everywhere.', [("operator", "symbol")]),
        ],
    ),
    (
        "client",
        CLIENT,
        [
            (
                "Add a `delete` method after `post`.",
                [
                    (
                        'return self.request("POST", path, body)\n',
                        'return self.request("POST", path, body)\n\n    def delete(self, path):\n        return self.request("DELETE", path)\n',
                    )
                ],
            ),
            ("Retry five times instead of three.", [("range(3)", "range(5)")]),
            ("Rename `token` to `api_key`.", [("token", "api_key")]),
        ],
    ),
    (
        "cache",
        CACHE,
        [
            ("Rename `capacity` to `max_entries`.", [("capacity", "max_entries")]),
            (
                "Count evictions in a new attribute `evictions`.",
                [
                    ("self.misses = 0\n", "self.misses = 0\n        self.evictions = 0\n"),
                    ("popitem(last=False)\n", "popitem(last=False)\n            self.evictions += 1\n"),
                ],
            ),
            ("Return 1.0 from `hit_rate` when there were no lookups.", [("else 0.0", "else 1.0")]),
        ],
    ),
    (
        "graph",
        GRAPH,
        [
            ("Rename `neighbours` to `successors`.", [("neighbours", "successors")]),
            ("Return an empty list instead of None when there is no path.", [("return None", "return []")]),
            (
                "Add a docstring to `reachable`.",
                [
                    (
                        "def reachable(graph, start):\n",
                        'def reachable(graph, start):\n    """All nodes that can be reached from start."""\n',
                    )
                ],
            ),
        ],
    ),
    (
        "bank",
        BANK,
        [
            ("Rename `log` to `entries`.", [("log:", "entries:"), (".log", ".entries")]),
            (
                "Refuse deposits that are not positive.",
                [
                    (
                        "def deposit(self, amount):\n",
                        'def deposit(self, amount):\n        if amount <= 0:\n            raise ValueError("amount must be positive")\n',
                    )
                ],
            ),
            ("Change the date format to day.month.year.", [("%Y-%m-%d", "%d.%m.%Y")]),
        ],
    ),
    (
        "stats",
        STATS,
        [
            ("Rename `deviation` to `standard_deviation`.", [("deviation", "standard_deviation")]),
            (
                "Use the sample variance, dividing by n - 1.",
                [("for value in values) / len(values)", "for value in values) / (len(values) - 1)")],
            ),
            (
                "Add the range (maximum minus minimum) to the summary.",
                [
                    (
                        '"maximum": max(values),\n',
                        '"maximum": max(values),\n        "range": max(values) - min(values),\n',
                    )
                ],
            ),
        ],
    ),
    (
        "todo",
        TODO,
        [
            ("Rename `priority` to `urgency`.", [("priority", "urgency")]),
            (
                "Sort open tasks from lowest to highest priority.",
                [("b.priority - a.priority", "a.priority - b.priority")],
            ),
            ("Give every task a `created` date.", [("done: false }", "done: false, created: new Date() }")]),
        ],
    ),
    (
        "config",
        CONFIG,
        [
            ("Change the default port to 9000.", [('"8080"', '"9000"')]),
            ('Use the prefix "SERVICE_" instead of "APP_".', [("APP_", "SERVICE_")]),
            (
                "Treat lines that start with a semicolon as comments too.",
                [('startswith("#")', 'startswith(("#", ";"))')],
            ),
        ],
    ),
    (
        "queue",
        QUEUE,
        [
            ("Rename the field `limit` to `capacity`.", [("limit", "capacity")]),
            (
                "Add a Len method at the end.",
                [
                    (
                        "\treturn item, nil\n}\n",
                        "\treturn item, nil\n}\n\nfunc (q *Queue) Len() int {\n\tq.mu.Lock()\n\tdefer q.mu.Unlock()\n\treturn len(q.items)\n}\n",
                    )
                ],
            ),
            (
                'Turn the error "queue is full" into a variable ErrFull.',
                [
                    (
                        'var ErrEmpty = errors.New("queue is empty")',
                        'var ErrEmpty = errors.New("queue is empty")\nvar ErrFull = errors.New("queue is full")',
                    ),
                    ('return errors.New("queue is full")', "return ErrFull"),
                ],
            ),
        ],
    ),
]


def prefix_lines(text: str, least: int = 12) -> int:
    """Twelve lines, past the imports, and more until the cut is inside a block: at a blank line a small model stops."""
    lines = text.split("\n")
    count = least
    while not lines[count - 1].strip() or not lines[count].strip():
        count += 1
    return count


def cases() -> Iterator[Case]:
    for name, text, edits in _FILES:
        for number, (task, changes) in enumerate(edits):
            answer = replaced(text, changes, f"{name} edit {number}")
            prompt = f"{task} Answer with the whole file and nothing else.\n\n```\n{text}```"
            prefix = "```\n" + first_lines(answer, prefix_lines(answer))
            yield ask("code_edit", f"{name}-{number}", prompt, prefix=prefix, answer=f"```\n{answer}```", group=name)
