"""Retrieval answers: passages and a question whose answer quotes one of them word for word."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.workloads.case import Case, ask

_PASSAGES = [
    (
        "The harbour bridge",
        "The harbour bridge was opened in the spring of 1931 after six years of work. Its two towers stand 64 metres above "
        "the water, and the deck can be raised in four minutes to let tall ships pass. Until the tunnel was finished, it "
        "carried every tram, cart and lorry that crossed the bay.",
        "How long does it take to raise the deck?",
        1,
    ),
    (
        "The salt marsh",
        "The salt marsh floods twice a day and drains through a net of narrow creeks. Glasswort grows on the lowest ground, "
        "and sea lavender on the banks that only the spring tides reach. Every autumn about nine thousand geese rest here "
        "on their way south.",
        "What happens at the marsh every autumn?",
        2,
    ),
    (
        "The printing house",
        "The printing house kept three presses on its ground floor and a bindery above them. Apprentices began by sorting "
        "type for a full year before they were allowed to set a line. The last book left the house in 1962, a field guide "
        "to mosses with two hundred plates.",
        "What was the last book printed by the house?",
        2,
    ),
    (
        "Returning goods",
        "Goods can be returned within thirty days of delivery, unused and in their packing. The refund is paid to the card "
        "or account that was used for the order within five working days. Made-to-measure curtains and opened bedding "
        "cannot be returned.",
        "When is the refund paid?",
        1,
    ),
    (
        "The night train",
        "The night train leaves at 22:40 from platform seven and reaches the coast shortly after six. Sleeping cars are at "
        "the front, seats at the rear, and the dining car stays open until one. Bicycles are carried free of charge when "
        "they are reserved a day before.",
        "Are bicycles carried on the night train?",
        2,
    ),
    (
        "The battery pack",
        "The battery pack holds forty-eight cells in three rows and weighs just under nine kilograms. It charges from empty "
        "to full in five hours and must not be charged below zero degrees. A pack that has been dropped should be taken to "
        "a service point before it is used again.",
        "How long does the battery pack take to charge?",
        1,
    ),
    (
        "The observatory",
        "The observatory stands on a basalt ridge above the clouds on three nights out of four. Its mirror was cast in two "
        "halves and polished for eleven months before the first light was seen. Visitors may look through the small "
        "refractor on the first Friday of the month.",
        "When may visitors use the refractor?",
        2,
    ),
    (
        "The bakery rules",
        "The ovens are lit at two in the morning and reach their heat by half past three. Rye loaves go in first because they "
        "need the falling heat of the second hour. Any loaf that is left at noon is given to the kitchen on Mill Street.",
        "What happens to loaves that are left at noon?",
        2,
    ),
    (
        "The river survey",
        "The survey counted fish at twelve stations between the weir and the mouth. Trout were found at nine of them, most "
        "of all below the old mill where the water is cold and quick. Eels have returned to the upper river for the first "
        "time since the dam was removed.",
        "Where were most trout found?",
        1,
    ),
    (
        "The museum loan",
        "The museum lends its smaller instruments to schools for up to six weeks. Each instrument travels in a case with its "
        "own hygrometer, and the reading must be noted every morning. Damage is to be reported the same day, whether or not "
        "anyone is to blame.",
        "How long may a school keep an instrument?",
        0,
    ),
]


def _sentences(text: str) -> list[str]:
    return [sentence.strip() + "." for sentence in text.rstrip(".").split(". ")]


def cases() -> Iterator[Case]:
    for number, (title, text, question, sentence) in enumerate(_PASSAGES):
        others = [_PASSAGES[(number + step) % len(_PASSAGES)] for step in (3, 7)]
        passages = "\n\n".join(
            f"[{i}] {t}: {x}" for i, (t, x, _, _) in enumerate([others[0], (title, text, "", 0), others[1]], 1)
        )
        quote = _sentences(text)[sentence]
        forms = [
            (
                f"Question: {question} Quote the sentence that answers it.",
                f'The answer is in passage 2: "{quote}"',
                "The answer is in passage 2:",
            ),
            (f"Repeat passage 2, the one about {title.lower()}, word for word.", f"{title}: {text}", f"{title}:"),
            (
                f"Question: {question} First quote the whole passage that holds the answer, then answer in one sentence.",
                f'"{text}" So the answer is: {quote}',
                '"' + text[:40].rsplit(" ", 1)[0],
            ),
        ]
        for form, (task, answer, prefix) in enumerate(forms):
            yield ask(
                "retrieval",
                f"passage-{number}-{form}",
                f"{passages}\n\n{task}",
                prefix=prefix,
                answer=answer,
                group=f"passage-{number}",
            )
