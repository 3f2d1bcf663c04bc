"""Templated outputs across requests: code, mark-up and letters with parts that vary, come and go, or change their order."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.workloads.case import Case, ask

_TABLES = ["shipment", "vaccine_lot", "tram_stop", "choir_member", "glacier_core", "repair_order"]
_COLUMNS = {
    "colour": "text",
    "opened_on": "date",
    "weight_grams": "integer",
    "verified": "boolean",
    "remarks": "text",
    "price": "numeric(10, 2)",
}
_ANIMALS = [
    ("Biscuit", "dog", "vaccination"),
    ("Mokka", "cat", "dental check"),
    ("Pim", "rabbit", "claw trim"),
    ("Juno", "dog", "blood test"),
    ("Fussel", "guinea pig", "weight check"),
    ("Otto", "cat", "operation"),
]
_COASTS = ["North Foreland", "Selwick Head", "the Skerries", "Gannet Sound", "Cape Marrow", "the Long Sand"]
_WINDS = ["north-westerly", "southerly", "easterly", "south-westerly", "variable"]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]


def _migration(nth: int, rng: random.Random) -> tuple[str, str]:
    table, (column, kind) = _TABLES[nth], list(_COLUMNS.items())[(nth * 5 + 1) % len(_COLUMNS)]
    index = nth % 2 == 0
    number = 40 + nth
    make = f'    op.create_index("ix_{table}_{column}", "{table}", ["{column}"])\n' if index else ""
    drop = f'    op.drop_index("ix_{table}_{column}", table_name="{table}")\n' if index else ""
    answer = (
        f'"""Add {column} to {table}."""\n\nimport sqlalchemy as sa\nfrom alembic import op\n\nrevision = "{number:04}"\n'
        f'down_revision = "{number - 1:04}"\nbranch_labels = None\ndepends_on = None\n\n\ndef upgrade() -> None:\n'
        f'    op.add_column("{table}", sa.Column("{column}", sa.Text(), nullable=True, comment="{kind}"))\n{make}\n\n'
        f'def downgrade() -> None:\n{drop}    op.drop_column("{table}", "{column}")\n'
    )
    wish = " with an index" if index else ""
    return f"Migration {number:04}: add the column {column} ({kind}){wish} to the table {table}.", answer


def _visit(nth: int, rng: random.Random) -> tuple[str, str]:
    pet, kind, visit = _ANIMALS[nth]
    day, hour = _DAYS[nth % 5], 8 + rng.randrange(9)
    fasting = (
        f"Please give {pet} nothing to eat after eight in the evening before; water is fine.\n\n"
        if visit in ("blood test", "operation", "dental check")
        else ""
    )
    carrier = (
        "Cats and small animals come in a carrier, best with a towel that smells of home. "
        if kind != "dog"
        else "Dogs stay on the lead in the waiting room. "
    )
    answer = (
        f"Reminder: {visit} for {pet}\n\nHello,\n\nwe look forward to seeing {pet} on {day} at {hour}:{rng.choice(['00', '20', '40'])}. "
        f"The {visit} takes about {rng.choice([15, 20, 30])} minutes.\n\n{fasting}{carrier}Bring the vaccination book if you "
        "have it to hand.\n\nIf you cannot come, call us by noon of the day before, so that another animal can have the "
        "appointment.\n\nYour veterinary practice at the weir"
    )
    return f"Reminder text: {pet}, {kind}, {visit}, {day} {hour} o'clock.", answer


def _forecast(nth: int, rng: random.Random) -> tuple[str, str]:
    coast, wind = _COASTS[nth], _WINDS[nth % len(_WINDS)]
    force, sea = rng.randrange(3, 9), rng.choice(["slight", "moderate", "rough"])
    warning = f'<warning level="{force}">Gale warning in force for {coast}.</warning>\n' if force > 6 else ""
    answer = (
        f'<bulletin area="{coast}" issued="0{rng.randrange(3, 9)}:00">\n{warning}<wind>Wind {wind} {force}, backing later and '
        f"decreasing one force towards evening.</wind>\n<sea>Sea {sea}, with a swell from the {rng.choice(['west', 'north'])} of "
        f"{rng.randrange(1, 5)} metres.</sea>\n<weather>Showers at first, then fair. Visibility good, in showers "
        "moderate.</weather>\n<outlook>Little change until tomorrow noon. The next bulletin will be issued in six "
        "hours.</outlook>\n</bulletin>"
    )
    return f"Bulletin for {coast}: wind {wind} {force}, sea {sea}.", answer


def cases() -> Iterator[Case]:
    for kind, write in (("migration", _migration), ("visit", _visit), ("forecast", _forecast)):
        for nth in range(6):
            task, answer = write(nth, random.Random(f"{kind} {nth}"))
            system = f"You write texts in the form that the house always uses for a {kind}."
            prefix = "\n".join(answer.split("\n")[:2])[:40]
            yield ask("template", f"{kind}-{nth}", f"{system}\n\n{task}", prefix=prefix, answer=answer, group=kind)
