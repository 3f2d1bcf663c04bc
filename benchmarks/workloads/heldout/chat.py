"""Multi-turn chat with longer turns: texts to send again with a change, lists to reorder, and questions about what was said."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.workloads.case import Case, replaced
from benchmarks.workloads.chat import talk

_CURRY = (
    "Chickpea curry for two:\n\n- 1 onion, chopped\n- 2 cloves of garlic\n- 1 tin of chickpeas\n- 200 ml coconut milk\n"
    "- 150 g spinach\n- 2 teaspoons curry powder\n\n1. Fry the onion and the garlic until they are golden.\n"
    "2. Stir in the curry powder and let it toast for a minute.\n3. Add the chickpeas and the coconut milk and simmer for "
    "ten minutes.\n4. Fold in the spinach and salt to taste."
)
_MAIL = (
    "Subject: Heating in the east wing\n\nDear Ms Lindqvist,\n\nthe radiators on the second floor of the east wing have been "
    "cold since Tuesday. Our caretaker has bled them and checked the valves, without success. Could you send a technician "
    "this week? We are in the building every day from eight to five, and the boiler room can be opened at any time.\n\n"
    "Kind regards,\nR. Adeyemi"
)
_PLAN = (
    "Monday: 5 km easy run\nTuesday: strength, 30 minutes\nWednesday: rest\nThursday: 6 x 400 m fast, 200 m walk between\n"
    "Friday: rest\nSaturday: 12 km slow run\nSunday: cycling, one hour"
)
_SQL = (
    "```sql\nselect c.name, count(*) as visits, max(v.day) as latest\nfrom client c\njoin visit v on v.client_id = c.id\n"
    "where v.day >= date '2026-01-01'\ngroup by c.name\nhaving count(*) > 3\norder by visits desc;\n```\n\nIt joins every "
    "visit of this year to its client, counts them, and keeps clients with more than three visits."
)
_POEM = (
    "The ferry leaves at ten to nine,\nthe gulls already stand in line;\nthe captain counts the cars aboard\nand drops the "
    "chain, and cuts the cord.\n\nA child waves to the empty pier,\nthe far shore is a pencil smear;\nthe engine hums its "
    "single word,\nand not another thing is heard."
)
_MINUTES = (
    "Minutes of the parents' evening\n\nPresent: 14 parents, Mr Osei, Ms Falk\n\n1. The class trip goes to the mill museum on "
    "the 9th of May. Costs: 12 euros, to be paid by the end of March.\n2. Reading mornings begin again after the holidays. "
    "Ms Falk looks for four parents.\n3. The bicycle shed will be locked between eight and one.\n4. The next meeting is on "
    "the 3rd of June at seven."
)
_FRENCH = (
    "Bonjour,\n\nje voudrais réserver une chambre double pour trois nuits, du 4 au 7 août. Nous arriverons en train vers dix-neuf "
    "heures. Le petit déjeuner est-il compris dans le prix ? Peut-on laisser des vélos dans la cour ?\n\nMerci d'avance et "
    "bonne journée"
)
_FORMULA = (
    "The payment of a loan is P * r / (1 - (1 + r) ** -n), where P is the sum borrowed, r the interest per month and n the "
    "number of months. For 12,000 at 0.5 percent a month over 48 months that is 12,000 * 0.005 / (1 - 1.005 ** -48), about "
    "281.82 a month."
)

_Turns = list[tuple[str, str]]
#: name, the turns so far, and each last question with its right answer ("" where there are many)
_TALKS: list[tuple[str, _Turns, list[tuple[str, str]]]] = [
    (
        "curry",
        [
            ("Give me a quick curry for two people.", _CURRY),
            ("What goes with it?", "Rice or flatbread, and a spoonful of yoghurt with mint."),
        ],
        [
            (
                "Please write the recipe again for four people.",
                replaced(
                    _CURRY,
                    [("for two", "for four"), ("- 2 cl", "- 4 cl"), ("1 onion", "2 onions"), ("1 tin of", "2 tins of"),
                     ("200 ml", "400 ml"), ("150 g", "300 g"), ("- 2 tea", "- 4 tea")],
                    "curry",
                ),
            ),
            ("Only the shopping list, please, sorted by name.",
             "- chickpeas, 1 tin\n- coconut milk, 200 ml\n- curry powder, 2 teaspoons\n- garlic, 2 cloves\n- onion, 1\n- spinach, 150 g"),
        ],
    ),
    (
        "mail",
        [("Write to our landlord, Ms Lindqvist: the heating in the east wing is out. Sign as R. Adeyemi.", _MAIL)],
        [
            (
                "It is the third floor, since Monday, and the landlord is a Mr Lindqvist. Send the whole mail again.",
                replaced(_MAIL, [("Ms L", "Mr L"), ("second", "third"), ("Tuesday", "Monday")], "mail"),
            ),
            ("Which sentence should I leave out if I want it shorter? Quote it.",
             '"Our caretaker has bled them and checked the valves, without success."'),
        ],
    ),
    (
        "plan",
        [
            ("Make me a week of training for a 10 km race.", _PLAN),
            ("Is Thursday not too hard?", "It is the one hard day of the week. If your legs are heavy, run four of the six."),
        ],
        [
            (
                "Then swap Thursday and Tuesday and make Saturday 10 km. The full plan again, please.",
                replaced(
                    _PLAN,
                    [("Tuesday: strength, 30 minutes", "Tuesday: 6 x 400 m fast, 200 m walk between"),
                     ("Thursday: 6 x 400 m fast, 200 m walk between", "Thursday: strength, 30 minutes"), ("12 km", "10 km")],
                    "plan",
                ),
            ),
            ("Turn the plan into a table with the columns day and training.",
             "| day | training |\n|---|---|\n" + "\n".join("| " + line.replace(": ", " | ") + " |" for line in _PLAN.split("\n"))),
        ],
    ),
    (
        "query",
        [("I have the tables client and visit. Which clients came more than three times this year?", _SQL)],
        [
            (
                "The column is called visited_on, not day, and I need at least five visits.",
                replaced(
                    _SQL,
                    [("v.day", "v.visited_on"), ("> 3", ">= 5"), ("more than three", "at least five")],
                    "query",
                ),
            ),
            ("Explain the having clause to a beginner.", ""),
        ],
    ),
    (
        "ferry",
        [("Write a short poem about a ferry.", _POEM), ("I like it! Who is the child?", "Whoever reads it, I think.")],
        [
            ("Say the second verse again.", _POEM.split("\n\n")[1]),
            (
                "Give me the poem with the verses the other way round, and with a title.",
                "Crossing\n\n" + "\n\n".join(reversed(_POEM.split("\n\n"))),
            ),
        ],
    ),
    (
        "minutes",
        [
            ("Here are my notes, write minutes: 14 parents; trip 9 May mill museum 12 euros; reading mornings 4 parents "
             "wanted; bike shed locked 8 to 1; next 3 June 7 pm.", _MINUTES),
        ],
        [
            (
                "The trip is on the 16th and costs 15 euros. And put the point about the bicycle shed first.",
                "\n".join(
                    [
                        *_MINUTES.split("\n")[:4],
                        "1. " + _MINUTES.split("\n")[6][3:],
                        "2. " + replaced(_MINUTES.split("\n")[4][3:], [("9th", "16th"), ("12 euros", "15 euros")], "minutes"),
                        "3. " + _MINUTES.split("\n")[5][3:],
                        _MINUTES.split("\n")[7],
                    ]
                ),
            ),
            ("What do parents have to do, and by when?", ""),
        ],
    ),
    (
        "booking",
        [("Schreib mir bitte eine Anfrage auf Französisch an ein Hotel: Doppelzimmer, drei Nächte ab 4. August, Zug, "
          "Frühstück, Fahrräder.", _FRENCH)],
        [
            (
                "Fünf Nächte, vom 2. bis zum 7., und wir kommen mit dem Auto. Bitte den ganzen Text noch einmal.",
                replaced(_FRENCH, [("trois nuits, du 4", "cinq nuits, du 2"), ("en train", "en voiture")], "booking"),
            ),
        ],
    ),
    (
        "loan",
        [("How do I work out the monthly payment of a loan?", _FORMULA)],
        [("Write this as a function in Python, with the same names.",
          "```python\ndef payment(P, r, n):\n    return P * r / (1 - (1 + r) ** -n)\n```")],
    ),
]  # fmt: skip


def cases() -> Iterator[Case]:
    for name, turns, endings in _TALKS:
        for nth, (last, answer) in enumerate(endings):
            yield talk(f"{name}-{nth}", turns, last, answer, group=name)
