"""Tool-call echoes in other forms: tags, functions' syntax, nested arguments, and results of which one is to be chosen."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from typing import Any

from benchmarks.workloads.case import Case

_SYSTEM = (
    "You may call functions. To call one, write a line <tool_call>, one JSON object with the keys name and arguments, "
    "and a line </tool_call>. Copy identifiers exactly as you were given them."
)
_STREETS = ["Quarry Lane", "Mill Row", "Orchard Close", "Station Approach", "Weaver Street", "Chapel Hill"]
_PARTS = ["gasket", "bearing", "drive belt", "pressure sensor", "fuse holder", "relay", "filter mat"]
_PLAYERS = ["Ines Brandt", "Yusuf Demir", "Clara Holm", "Mateo Ruiz", "Anouk Visser", "Jiro Tanaka"]


def _id(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _hash(rng: random.Random, size: int = 40) -> str:
    return f"{rng.getrandbits(4 * size):0{size}x}"


def _address(rng: random.Random) -> dict[str, Any]:
    return {
        "street": f"{rng.randrange(1, 200)} {rng.choice(_STREETS)}",
        "postcode": f"{rng.choice('ABEGLMN')}{rng.randrange(10, 99)} {rng.randrange(1, 9)}{rng.choice('DFHJ')}Q",
        "position": {"lat": round(rng.uniform(50, 56), 6), "lon": round(rng.uniform(-5, 1), 6)},
    }


def _tagged(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _case(name: str, turns: list[tuple[str, str]], answer: str, prefix: str, *, system: str = _SYSTEM) -> Case:
    messages = [{"role": "system", "content": system}]
    messages += [{"role": role, "content": content} for role, content in turns]
    return Case("tool_echo", name, tuple(messages), prefix, answer, group=name.rsplit("-", 1)[0])


def _dispatch(rng: random.Random, nth: int) -> Case:
    """One call's nested result goes into the next call's arguments, the order of the keys as it was."""
    found = {"parcel": _id(rng), "from": _address(rng), "to": _address(rng), "grams": rng.randrange(200, 20000)}
    look = _tagged("find_parcel", {"reference": f"PX-{rng.randrange(10**6):06}"})
    answer = _tagged("dispatch_courier", {"parcel": found["parcel"], "pickup": found["from"], "drop": found["to"]})
    turns = [
        ("user", "Send a courier for my parcel."),
        ("assistant", look),
        ("user", f"<tool_response>\n{json.dumps(found)}\n</tool_response>"),
    ]
    return _case(
        f"dispatch-{nth}", turns, answer, '<tool_call>\n{"name": "dispatch_courier", "arguments": {"parcel": "'
    )


def _order(rng: random.Random, nth: int) -> Case:
    """A table of parts, of which those that run low are ordered."""
    rows = [
        {"part": part, "number": f"{rng.randrange(1000, 9999)}-{rng.randrange(100, 999)}-{rng.choice('ABC')}",
         "left": rng.randrange(0, 20), "supplier": f"sup_{_hash(rng, 12)}"}
        for part in rng.sample(_PARTS, 6)
    ]  # fmt: skip
    table = "\n".join(" | ".join(str(value) for value in row.values()) for row in rows)
    low = [{"number": row["number"], "supplier": row["supplier"], "quantity": 25} for row in rows if row["left"] < 8]
    turns = [
        ("user", "Order 25 of every part of which fewer than 8 are left."),
        ("assistant", _tagged("list_stock", {})),
        ("user", f"<tool_response>\npart | number | left | supplier\n{table}\n</tool_response>"),
    ]
    return _case(f"order-{nth}", turns, _tagged("place_order", {"lines": low}), '<tool_call>\n{"name": "place_order",')


def _python(rng: random.Random, nth: int) -> Case:
    """A call in the form of a function of Python, with the values of a JSON result."""
    commit, parent = _hash(rng), _hash(rng)
    result = {"head": commit, "parent": parent, "artifact": f"s3://builds/{_hash(rng, 16)}/bundle.tar.zst",
              "digest": f"sha256:{_hash(rng, 64)}"}  # fmt: skip
    arguments = ", ".join(f"{key}={json.dumps(value)}" for key, value in result.items())
    system = "You call functions by writing one line of Python: name(key=value, ...). Write nothing else."
    turns = [
        ("user", "Build the branch and release what comes out, every field of it."),
        ("assistant", f'build(branch="feature/{rng.choice(_PARTS).replace(" ", "-")}")'),
        ("user", f"build returned:\n{json.dumps(result, indent=2)}"),
    ]
    return _case(f"release-{nth}", turns, f"release({arguments})", 'release(head="', system=system)


def _pick(rng: random.Random, nth: int) -> Case:
    """Many results of a search; the call quotes one of them, and two calls follow each other."""
    games = [
        {"game": _id(rng), "white": white, "black": black, "eco": f"{rng.choice('ABCDE')}{rng.randrange(100):02}",
         "moves": rng.randrange(18, 90)}
        for white, black in (rng.sample(_PLAYERS, 2) for _ in range(5))
    ]  # fmt: skip
    chosen = max(games, key=lambda game: game["moves"])
    answer = "\n".join(
        [_tagged("open_game", {"game": chosen["game"]}), _tagged("annotate", {**chosen, "depth": 24})]
    )  # fmt: skip
    turns = [
        ("user", "Open the longest of the games, then annotate it at depth 24: pass all of its fields."),
        ("assistant", _tagged("search_games", {"limit": 5})),
        ("user", f"<tool_response>\n{json.dumps(games, indent=1)}\n</tool_response>"),
    ]
    return _case(f"games-{nth}", turns, answer, '<tool_call>\n{"name": "open_game", "arguments": {"game": "')


def cases() -> Iterator[Case]:
    for make in (_dispatch, _order, _python, _pick):
        for nth in range(4):
            yield make(random.Random(f"{make.__name__} {nth}"), nth)
