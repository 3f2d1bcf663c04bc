"""Prose: open questions whose answers repeat nothing. Lookup must not slow these down."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.workloads.case import Case, ask

_PROMPTS = [
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Explain to a ten-year-old why the sky is blue.",
    "Describe a morning in a small mountain village.",
    "What makes a good teacher? Give your own view.",
    "Tell the story of a lost umbrella from the umbrella's point of view.",
    "Explain how bread rises.",
    "Write a letter from a gardener to the first snow of the year.",
    "What would change if people could breathe under water?",
    "Describe the sound of a busy train station.",
    "Explain what a budget is and why a family might keep one.",
    "Write a short speech for a friend's wedding.",
    "How do birds find their way over long distances?",
    "Describe your ideal library.",
    "Write a story that begins with a door left open.",
    "Explain the difference between weather and climate.",
    "What can a city do to be kinder to cyclists?",
    "Describe a storm at sea to someone who has never seen the ocean.",
    "Write a short dialogue between the sun and the moon.",
    "Why do people keep diaries?",
    "Explain how a bicycle stays upright.",
    "Tell a story about two neighbours who share a wall but never meet.",
    "What is patience, and how does one learn it?",
    "Describe the smell of a bakery early in the morning.",
    "Explain what an engine does inside a car.",
    "Write about a chess game that lasted forty years.",
    "How would you spend a day without electricity?",
    "Describe an old clockmaker's workshop.",
    "Explain why leaves change colour in autumn.",
    "Write a bedtime story about a very small dragon.",
    "What advice would you give to someone moving to a new country?",
    "Describe a painting that does not exist.",
    "Explain how a rumour spreads through a school.",
]


def cases() -> Iterator[Case]:
    for number, prompt in enumerate(_PROMPTS):
        yield ask("prose", f"prose-{number}", prompt)
