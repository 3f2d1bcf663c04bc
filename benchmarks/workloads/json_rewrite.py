"""JSON rewrites: a document and a change; the answer is the whole changed document."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.workloads.case import Case, ask, first_lines

_FIRST = ["Ada", "Bruno", "Chiara", "David", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Karin", "Luca"]
_LAST = ["Alvarez", "Brandt", "Costa", "Dubois", "Eriksen", "Fischer", "Garcia", "Hansen", "Ito", "Jensen"]
_CITIES = ["Lisbon", "Oslo", "Porto", "Turin", "Ghent", "Graz", "Lyon", "Malmo", "Bergen", "Krakow"]
_GOODS = ["lamp", "desk", "chair", "shelf", "kettle", "mirror", "carpet", "bench", "clock", "basket"]


def _person(rng: random.Random) -> dict[str, Any]:
    first, last = rng.choice(_FIRST), rng.choice(_LAST)
    return {
        "name": f"{first} {last}",
        "email": f"{first.lower()}.{last.lower()}@example.com",
        "city": rng.choice(_CITIES),
        "age": rng.randrange(20, 70),
    }


def _customers(rng: random.Random) -> dict[str, Any]:
    return {"customers": [{"id": 1000 + i, **_person(rng), "active": rng.random() < 0.7} for i in range(4)]}


def _order(rng: random.Random) -> dict[str, Any]:
    return {
        "order": rng.randrange(10000, 99999),
        "customer": _person(rng),
        "lines": [
            {"item": rng.choice(_GOODS), "quantity": rng.randrange(1, 6), "price": rng.randrange(500, 9000) / 100}
            for _ in range(4)
        ],
        "shipping": {"method": "standard", "city": rng.choice(_CITIES), "express": False},
    }


def _service(rng: random.Random) -> dict[str, Any]:
    return {
        "service": rng.choice(["billing", "search", "accounts", "reports"]),
        "version": f"{rng.randrange(1, 4)}.{rng.randrange(0, 10)}.{rng.randrange(0, 20)}",
        "replicas": rng.randrange(1, 5),
        "ports": [{"name": name, "port": rng.randrange(3000, 9000)} for name in ("http", "metrics", "admin")],
        "env": {"LOG_LEVEL": "info", "REGION": rng.choice(["north", "south", "west"]), "TIMEOUT_SECONDS": "30"},
        "limits": {"cpu": "500m", "memory": "256Mi"},
    }


def _catalogue(rng: random.Random) -> dict[str, Any]:
    return {
        "catalogue": rng.choice(["spring", "summer", "autumn", "winter"]),
        "currency": "EUR",
        "products": [
            {
                "sku": f"{good[:2].upper()}-{rng.randrange(100, 999)}",
                "title": f"Small {good}",
                "stock": rng.randrange(0, 90),
            }
            for good in rng.sample(_GOODS, 5)
        ],
    }


def _set(path: tuple[Any, ...], value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


def _each(key: str, edit: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        for entry in document[key]:
            edit(entry)

    return change


def _rename(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def edit(entry: dict[str, Any]) -> None:
        items = [(new if key == old else key, value) for key, value in entry.items()]
        entry.clear()
        entry.update(items)

    return edit


_EDITS: list[tuple[str, Callable[[random.Random], dict[str, Any]], str, Callable[[dict[str, Any]], None]]] = [
    (
        "customers",
        _customers,
        "Change the city of the second customer to Vienna.",
        _set(("customers", 1, "city"), "Vienna"),
    ),
    ("customers", _customers, "Set every customer to active.", _each("customers", lambda c: c.update(active=True))),
    ("customers", _customers, 'Rename the key "email" to "mail".', _each("customers", _rename("email", "mail"))),
    ("order", _order, "Change the shipping method to express.", _set(("shipping", "method"), "express")),
    ("order", _order, 'Add "currency": "EUR" to every line.', _each("lines", lambda c: c.update(currency="EUR"))),
    ("order", _order, "Remove the age of the customer.", lambda d: d["customer"].pop("age")),
    ("service", _service, "Set the number of replicas to 6.", _set(("replicas",), 6)),
    ("service", _service, "Change LOG_LEVEL to debug.", _set(("env", "LOG_LEVEL"), "debug")),
    ("catalogue", _catalogue, "Change the currency to CHF.", _set(("currency",), "CHF")),
    ("catalogue", _catalogue, 'Rename the key "title" to "name".', _each("products", _rename("title", "name"))),
]


def cases() -> Iterator[Case]:
    for round_number in range(3):
        for number, (name, make, task, change) in enumerate(_EDITS):
            document = make(random.Random(100 * round_number + number))
            changed = copy.deepcopy(document)
            change(changed)
            text, answer = json.dumps(document, indent=2), json.dumps(changed, indent=2)
            prompt = f"{task} Answer with the whole JSON document and nothing else.\n\n```json\n{text}\n```"
            yield ask(
                "json_rewrite",
                f"{name}-{number}-{round_number}",
                prompt,
                prefix="```json\n" + first_lines(answer, 3),
                answer=f"```json\n{answer}\n```",
                group=name,
            )
