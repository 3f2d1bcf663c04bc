"""Prose: other open questions, some of them for longer or more formal texts, a few in other languages."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.workloads.case import Case, ask

_PROMPTS = [
    "Write a review of a concert that was played in the dark.",
    "Explain to a new colleague how a disagreement in a team can be useful.",
    "How does a canal lock work? Describe it step by step, without numbers.",
    "Write the first page of a detective story set in a greenhouse.",
    "What does a referee need besides knowing the rules?",
    "Compare learning an instrument with learning a language.",
    "Describe the last day of a shop that sold typewriters.",
    "Why is sea water salty and rain not?",
    "Write an obituary for a famous oak tree.",
    "Argue for and against a four-day week in a hospital.",
    "Write six lines of verse about a broken lift.",
    "Explain what inflation is with the example of a school canteen.",
    "Raconte en quelques phrases une promenade sous la pluie.",
    "Describe en un párrafo la cocina de tu abuela.",
    "Erkläre, warum der Mond nicht auf die Erde fällt.",
]


def cases() -> Iterator[Case]:
    for number, prompt in enumerate(_PROMPTS):
        yield ask("prose", f"open-{number}", prompt)
