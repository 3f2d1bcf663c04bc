"""JSON rewrites of other shapes: maps, trees, tables, minified text; the layout of input and answer may differ."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.workloads.case import Case, ask

_SPECIES = ["otter", "heron", "lynx", "marten", "osprey", "beaver", "stoat", "bittern"]
_STARS = ["Vega", "Altair", "Deneb", "Rigel", "Mira", "Spica", "Castor", "Pollux"]
_INSTRUMENTS = ["viola", "oboe", "harp", "celesta", "timpani", "bassoon"]
_BASINS = ["upper", "middle", "lower", "east arm"]

_pretty = partial(json.dumps, indent=2)
_wide = partial(json.dumps, indent=4)
_tabs = partial(json.dumps, indent="\t")
_minified = partial(json.dumps, separators=(",", ":"))
Layout = Callable[[Any], str]


def _sightings(rng: random.Random) -> Any:
    return {
        "type": "FeatureCollection",
        "features": [
            {
                "type": "Feature",
                "geometry": {
                    "type": "Point",
                    "coordinates": [round(rng.uniform(5, 15), 4), round(rng.uniform(45, 55), 4)],
                },
                "properties": {"species": species, "count": rng.randrange(1, 9), "observer": rng.choice("ABCDE") * 2},
            }
            for species in rng.sample(_SPECIES, 4)
        ],
    }


def _menu(rng: random.Random) -> Any:
    words = {
        "title": "Your observing list",
        "empty": "Nothing planned for tonight.",
        "add": "Add a star",
        "remove": "Remove",
        "moon": "The moon is {percent} % lit.",
        "set": "{star} sets at {time}.",
        "rise": "{star} rises at {time}.",
        "cloud": "Clouds are forecast until {time}.",
        "save": "Save the list",
        "share": "Share with {name}",
    }
    return {"locale": "en", "revision": rng.randrange(20, 90), "messages": words}


def _tree(rng: random.Random) -> Any:
    def folder(name: str, depth: int) -> dict[str, Any]:
        if not depth:
            return {"name": f"{name}.{rng.choice(['txt', 'csv', 'md'])}", "size": rng.randrange(100, 99999)}
        return {"name": name, "children": [folder(f"{name}-{i}", depth - 1) for i in range(1, 4)]}

    return folder("survey", 2)


def _readings(rng: random.Random) -> Any:
    return {
        "station": f"weir-{rng.randrange(10, 99)}",
        "units": {"level": "cm", "flow": "m3/s"},
        "columns": ["minute", "level", "flow", "basin"],
        "rows": [
            [15 * i, rng.randrange(80, 240), round(rng.uniform(2, 60), 1), rng.choice(_BASINS)] for i in range(10)
        ],
    }


def _schema(rng: random.Random) -> Any:
    fields: dict[str, Any] = {
        "instrument": {"type": "string", "enum": rng.sample(_INSTRUMENTS, 4)},
        "deposit": {"type": "integer", "minimum": 0, "maximum": rng.randrange(200, 900)},
        "from": {"type": "string", "format": "date"},
        "until": {"type": "string", "format": "date"},
        "insured": {"type": "boolean", "default": False},
        "note": {"type": "string", "maxLength": 200},
    }
    return {"title": "Loan", "type": "object", "required": ["instrument", "from"], "properties": fields}


def _events(rng: random.Random) -> Any:
    return [
        {
            "t": 1_760_000_000 + rng.randrange(100_000),
            "lvl": rng.choice(["info", "warn", "error"]),
            "src": f"pump/{rng.randrange(1, 5)}",
            "msg": rng.choice(["valve opened", "valve closed", "pressure low", "pressure back to normal"]),
            "ctx": {"bar": round(rng.uniform(0.5, 6), 2), "rpm": rng.randrange(600, 2900)},
        }
        for _ in range(6)
    ]


def _stars(rng: random.Random) -> Any:
    return {
        star: {
            "magnitude": round(rng.uniform(-1, 3), 2),
            "distance": {"value": rng.randrange(8, 900), "unit": "ly"},
            "visible": {"spring": rng.random() < 0.5, "autumn": rng.random() < 0.5},
        }
        for star in rng.sample(_STARS, 5)
    }


def _first(properties: str, value: Any) -> Callable[[Any], Any]:
    """Sets a property of the second feature and drops the third feature."""

    def change(document: Any) -> Any:
        document["features"][1]["properties"][properties] = value
        del document["features"][2]
        return document

    return change


def _swap_coordinates(document: Any) -> Any:
    for feature in document["features"]:
        feature["geometry"]["coordinates"].reverse()
    return document


def _german(document: Any) -> Any:
    document["locale"] = "de"
    document["messages"].update(
        title="Deine Beobachtungsliste", empty="Heute Nacht ist nichts geplant.", add="Stern hinzufügen"
    )
    return document


def _nest(document: Any) -> Any:
    messages = document["messages"]
    sky = {key: messages.pop(key) for key in ("moon", "set", "rise", "cloud")}
    messages["sky"] = sky
    return document


def _grow(document: Any) -> Any:
    document["children"][1]["children"].insert(1, {"name": "survey-2-notes.md", "size": 0})
    return document


def _sizes(node: Any) -> Any:
    if "size" in node:
        node["bytes"] = node.pop("size")
    for child in node.get("children", []):
        _sizes(child)
    return node


def _objects(document: Any) -> Any:
    rows = [dict(zip(document["columns"], row, strict=True)) for row in document["rows"][:6]]
    return {"station": document["station"], "units": document["units"], "rows": rows}


def _metres(document: Any) -> Any:
    document["units"]["level"] = "m"
    for row in document["rows"]:
        row[1] = row[1] / 100
    return document


def _all_required(document: Any) -> Any:
    document["required"] = list(document["properties"])
    document["additionalProperties"] = False
    return document


def _described(document: Any) -> Any:
    texts = {
        "instrument": "What is lent.",
        "deposit": "In whole euros.",
        "from": "The first day.",
        "until": "The last day.",
        "insured": "Whether our insurance covers it.",
        "note": "Anything else.",
    }
    for name, text in texts.items():
        document["properties"][name] = {"description": text, **document["properties"][name]}
    return document


def _quiet(document: Any) -> Any:
    return [event for event in document if event["lvl"] != "info"]


def _named(document: Any) -> Any:
    names = {"t": "time", "lvl": "level", "src": "source", "msg": "message", "ctx": "context"}
    return [{names[key]: value for key, value in event.items()} for event in document]


def _by_name(document: Any) -> Any:
    return dict(sorted(document.items()))


def _parsecs(document: Any) -> Any:
    for star in document.values():
        star["distance"] = {"value": round(star["distance"]["value"] / 3.2616, 1), "unit": "pc"}
    return document


def _same(document: Any) -> Any:
    return document


#: name, document, how it is laid out, what to do, the change, how the answer is laid out
_EDITS: list[tuple[str, Callable[[random.Random], Any], Layout, str, Callable[[Any], Any], Layout]] = [
    ("sightings", _sightings, _pretty, "Swap longitude and latitude in every point.", _swap_coordinates, _pretty),
    (
        "sightings",
        _sightings,
        _minified,
        "Set the count of the second sighting to 12 and delete the third one.",
        _first("count", 12),
        _minified,
    ),
    (
        "menu",
        _menu,
        _pretty,
        "Translate the first three messages to German and set the locale to de; leave the others.",
        _german,
        _pretty,
    ),
    (
        "menu",
        _menu,
        _wide,
        "Move the messages about moon, stars and clouds into an object `sky` at the end.",
        _nest,
        _wide,
    ),
    ("tree", _tree, _minified, "Pretty-print this with two spaces and change nothing.", _same, _pretty),
    ("tree", _tree, _pretty, "Put an empty file survey-2-notes.md after the first file of survey-2.", _grow, _pretty),
    ("tree", _tree, _tabs, "Call the key `size` `bytes` in every file.", _sizes, _tabs),
    ("readings", _readings, _minified, "Give the level in metres instead of centimetres.", _metres, _minified),
    (
        "readings",
        _readings,
        _pretty,
        "Turn the first six rows into objects, and leave out the columns.",
        _objects,
        _pretty,
    ),
    ("schema", _schema, _wide, "Make every property required and allow no others.", _all_required, _pretty),
    ("schema", _schema, _pretty, "Describe every property in a few words, in front of its type.", _described, _pretty),
    ("events", _events, _minified, "Leave out the events of level info.", _quiet, _minified),
    ("events", _events, _pretty, "Write the short keys out: time, level, source, message, context.", _named, _pretty),
    ("stars", _stars, _pretty, "Sort the stars by name.", _by_name, _pretty),
    ("stars", _stars, _wide, "Convert distances to parsecs, with one decimal.", _parsecs, _wide),
    ("stars", _stars, _tabs, "Minify this document.", _same, _minified),
]


def cases() -> Iterator[Case]:
    for number, (name, make, shown, task, change, answered) in enumerate(_EDITS):
        document = make(random.Random(7000 + number))
        answer = answered(change(copy.deepcopy(document)))
        prefix = "\n".join(answer.split("\n")[:4]) if "\n" in answer else answer[:60]
        prompt = f"{shown(document)}\n\n{task} Reply with JSON only."
        yield ask("json_rewrite", f"{name}-{number}", prompt, prefix=prefix, answer=answer, group=name)
