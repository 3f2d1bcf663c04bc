"""Multi-turn chat: short conversations whose last turn refers to what was said before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.workloads.case import Case
from benchmarks.workloads.chat_again import AGAIN

_TALKS = [
    (
        (
            "What should I pack for a week of hiking?",
            "Pack boots, two pairs of wool socks, a rain jacket, a warm layer, a map, a torch, and food for each day.",
        ),
        ("And for the evenings?", "Bring a light pair of shoes, a warm hat, a book, and a small stove for tea."),
    ),
    (
        (
            "How do I make a simple tomato soup?",
            "Soften an onion in butter, add a kilo of ripe tomatoes and a little stock, simmer for twenty minutes, and blend.",
        ),
        (
            "Can I freeze it?",
            "Yes. Let it cool, leave some room in the box for it to expand, and eat it within three months.",
        ),
    ),
    (
        (
            "What is a variable in a program?",
            "A variable is a name for a value. The program can read the value by its name and give the name a new value.",
        ),
        (
            "And what is a function?",
            "A function is a named piece of work. It takes values in, does its work, and gives a value back.",
        ),
    ),
    (
        (
            "How do I start a small vegetable garden?",
            "Choose a sunny spot, loosen the soil, mix in compost, and begin with beans, lettuce and radishes.",
        ),
        (
            "When do I water it?",
            "Water early in the morning, deeply, two or three times a week rather than a little every day.",
        ),
    ),
    (
        (
            "My bicycle squeaks. What can it be?",
            "The most common causes are a dry chain, a loose saddle, and brake pads that touch the rim.",
        ),
        (
            "It only squeaks when I pedal.",
            "Then begin with the chain: clean it, oil it, and wipe it. If it still squeaks, look at the pedals.",
        ),
    ),
    (
        (
            "How can I sleep better?",
            "Go to bed at the same time each night, keep the room cool and dark, and leave screens outside the door.",
        ),
        ("What about coffee?", "Have the last cup before two in the afternoon; it stays in the body for many hours."),
    ),
]
_LAST = [
    "Please repeat your first answer as a numbered list.",
    "Summarise this conversation in three sentences.",
    "Say your last answer again, word for word.",
    "Write your first answer again, but more politely.",
    "Which of your two answers is more useful, and why?",
]
#: The first reply of each talk as a numbered list.
_LISTS = [
    "1. Boots\n2. Two pairs of wool socks\n3. A rain jacket\n4. A warm layer\n5. A map\n6. A torch\n7. Food for each day",
    "1. Soften an onion in butter.\n2. Add a kilo of ripe tomatoes and a little stock.\n3. Simmer for twenty minutes.\n"
    "4. Blend.",
    "1. A variable is a name for a value.\n2. The program can read the value by its name.\n"
    "3. It can give the name a new value.",
    "1. Choose a sunny spot.\n2. Loosen the soil.\n3. Mix in compost.\n4. Begin with beans, lettuce and radishes.",
    "The most common causes are:\n\n1. A dry chain\n2. A loose saddle\n3. Brake pads that touch the rim",
    "1. Go to bed at the same time each night.\n2. Keep the room cool and dark.\n3. Leave screens outside the door.",
]


def talk(
    name: str, turns: Sequence[tuple[str, str]], last: str, answer: str, *, group: str, written_only: bool = False
) -> Case:
    """A case that ends a talk of (question, reply) turns with the user's ``last`` words."""
    messages = []
    for question, reply in turns:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
    chat = (*messages, {"role": "user", "content": last})
    return Case("chat", name, chat, answer=answer, group=group, written_only=written_only)


def cases() -> Iterator[Case]:
    for number, turns in enumerate(_TALKS):
        for last, text in enumerate(_LAST):
            answer = {0: _LISTS[number], 2: turns[-1][1]}.get(last, "")
            yield talk(f"talk-{number}-{last}", turns, text, answer, group=f"talk-{number}")
    for again in AGAIN:
        yield talk(again.name, again.turns, again.last, again.answer, group=again.name, written_only=True)
