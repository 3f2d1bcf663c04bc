"""Templated outputs across requests: each answer repeats its template, which only earlier answers have shown."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.workloads.case import Case, ask

_PEOPLE = [
    "Mira Olsen",
    "Tomas Vega",
    "Lea Novak",
    "Omar Haddad",
    "Nina Keller",
    "Paul Okafor",
    "Rosa Lind",
    "Ivan Petrov",
    "Sara Moretti",
    "Kofi Mensah",
]
_PLACES = ["the north branch", "the harbour office", "the central store", "the lake house", "the airport desk"]


def _delay(name: str, place: str, number: int) -> str:
    return (
        f"Dear {name},\n\nThank you for your order {number}. We are sorry to tell you that it will reach {place} later than "
        "planned. Our carrier has lost two days to the weather, and your parcel is on the next truck. You do not need to do "
        "anything. If you would rather cancel, answer this message before Friday and we will return the full amount to your "
        "account within five working days.\n\nWith kind regards,\nYour service team"
    )


def _report(name: str, place: str, number: int) -> str:
    return (
        f"# Incident report {number}\n\n- Reported by: {name}\n- Place: {place}\n- Severity: medium\n\n## What happened\n\nA "
        "visitor slipped on the wet floor beside the entrance and hurt a wrist.\n\n## What was done\n\nFirst aid was given at "
        "once, the floor was dried, and a warning sign was put up. The visitor was offered a doctor and declined.\n\n## What "
        "will change\n\nThe mat at the entrance will be changed twice a day while it rains."
    )


def _invitation(name: str, place: str, number: int) -> str:
    return (
        f"Invitation number {number}\n\nHello {name},\n\nyou are invited to the open evening at {place}. Doors open at six, the "
        "tour begins at half past six, and there will be soup and bread for everyone at eight. Please bring this invitation "
        "with you and tell us by Monday whether you will come and how many friends you bring along.\n\nWe look forward to "
        "seeing you,\nThe organisers"
    )


_TEMPLATES = {"delay": _delay, "report": _report, "invitation": _invitation}


def cases() -> Iterator[Case]:
    for kind, write in _TEMPLATES.items():
        for number in range(10):
            rng = random.Random(number)
            name, place, serial = _PEOPLE[number], rng.choice(_PLACES), 4000 + rng.randrange(1000)
            prompt = f"Write our standard {kind} text for {name}, {place}, number {serial}."
            answer = write(name, place, serial)
            yield ask("template", f"{kind}-{number}", prompt, prefix=answer[:24], answer=answer, group=kind)
