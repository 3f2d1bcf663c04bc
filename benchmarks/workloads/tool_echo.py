"""Tool-call echoes: a tool's result must be carried, to the letter, into the arguments of the next call."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from benchmarks.workloads.case import Case, ask

_TOOLS = {
    "create_ticket": ["reference", "title", "assignee", "labels", "due"],
    "send_invoice": ["invoice_id", "recipient", "amount", "currency", "lines"],
    "book_room": ["room_id", "start", "end", "attendees", "equipment"],
    "deploy_service": ["deployment_id", "image", "region", "replicas", "checks"],
    "schedule_transfer": ["transfer_id", "source", "target", "amount", "steps"],
}
_WORDS = [
    "amber",
    "birch",
    "cobalt",
    "delta",
    "ember",
    "fjord",
    "garnet",
    "harbor",
    "indigo",
    "juniper",
    "kelp",
    "lumen",
]


def _value(name: str, rng: random.Random) -> Any:
    if name.endswith("id") or name == "reference":
        return f"{rng.choice(_WORDS)}-{rng.randrange(16**8):08x}"
    if name in ("amount", "replicas"):
        return rng.randrange(2, 5000)
    if name in ("start", "end", "due"):
        return f"2027-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}T{rng.randrange(8, 18):02}:00:00Z"
    if name in ("labels", "attendees", "equipment", "checks", "lines", "steps"):
        return [f"{rng.choice(_WORDS)}-{rng.randrange(100, 1000)}" for _ in range(4)]
    if name == "image":
        return (
            f"registry.example/{rng.choice(_WORDS)}/{rng.choice(_WORDS)}:{rng.randrange(1, 9)}.{rng.randrange(0, 30)}"
        )
    return f"{rng.choice(_WORDS)} {rng.choice(_WORDS)} {rng.randrange(10, 99)}"


def cases() -> Iterator[Case]:
    for number in range(30):
        rng = random.Random(number)
        tool = list(_TOOLS)[number % len(_TOOLS)]
        arguments = {name: _value(name, rng) for name in _TOOLS[tool]}
        result = json.dumps(arguments)
        call = json.dumps({"name": tool, "arguments": arguments})
        prompt = (
            "You can call tools. A call is one JSON object with the keys name and arguments.\n\n"
            f"The tool prepare_{tool} returned:\n{result}\n\n"
            f"Now call the tool {tool} with exactly these values as its arguments. Answer with the call and nothing else."
        )
        prefix = f'{{"name": "{tool}", "arguments": {{"{_TOOLS[tool][0]}":'
        yield ask("tool_echo", f"{tool}-{number}", prompt, prefix=prefix, answer=call, group=tool)
