"""Retrieval over long contexts: eight passages of a collection, and answers that quote one or several, with their source.

Two collections of some 1,200 tokens; a question sees all of its collection, every second one the other collection too,
and the passages stand in an order of the question's own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.workloads.case import Case, ask

#: Title and text of each passage: the handbook of an invented allotment society.
_SOCIETY = [
    (
        "Plots and fees",
        "The society lets one hundred and eighty plots in three sizes. A full plot measures two hundred and fifty square "
        "metres, a half plot one hundred and twenty, and a starter bed twenty. The fee for the year falls due on the first "
        "of February and covers water, insurance of the paths and the use of the shop. Members who have turned seventy pay "
        "two thirds. A plot that is given up before the end of June is refunded in quarters, counted from the day on which "
        "the key comes back. Nobody may hold more than one full plot, or two halves that touch. Fees are set at the autumn "
        "meeting and may not rise by more than a tenth in a year. Whoever cannot pay at once may ask the treasurer for four "
        "instalments without giving reasons.",
    ),
    (
        "Waiting list",
        "Names are put on the waiting list in the order in which letters arrive, and the list hangs in the window of the "
        "shop. When a plot falls free the secretary writes to the first three names, and the first of them to view the plot "
        "may take it. Who declines twice goes to the end of the list. Children of a member do not jump the queue, but a "
        "plot may pass to a partner who has worked on it for two seasons. The list is closed when it holds one hundred and "
        "twenty names and opened again at sixty. In the dry years it was open all summer; in the year after the article in "
        "the evening paper it filled within nine days.",
    ),
    (
        "Water",
        "Water comes from two boreholes by the railway and is pumped to eleven standpipes. The pump runs from six to nine in "
        "the morning and from five to eight in the evening between April and October. Hoses may be used for filling butts "
        "and for nothing else; a hose left running on a bed is turned off and coiled up on the owner's gate. Every shed with "
        "a roof of more than six square metres must have a gutter and a butt. In a drought the committee may close the upper "
        "standpipes, beginning with the one nearest to the road. Leaks are reported on the slate beside the pump house, and "
        "whoever mends one writes the date behind it. The boreholes are tested for nitrate every second spring.",
    ),
    (
        "Sheds and glass",
        "A shed may be at most two metres forty high and stand no closer than one metre to a path. It needs no permission if "
        "it is made of wood and rests on slabs; anything with a poured footing does. Greenhouses are allowed on full plots "
        "only, with panes of polycarbonate below the height of a child. Old window frames may be used for cold frames if "
        "their paint has been tested. Stoves are forbidden in sheds since the fire of the hot spring, when four of them "
        "burned in one afternoon. A shed that leans by more than a hand is measured by the site steward, and its owner has "
        "until the next work day to set it straight. Nothing may be stored on a roof.",
    ),
    (
        "Bees and hens",
        "Bees may be kept on the strip behind the willows, in no more than twelve hives in all. A keeper must have passed the "
        "beginners' course of a beekeepers' association and carry its insurance. Hives are opened after four in the "
        "afternoon or on days of rain, so that neighbours can work in peace. Hens are allowed on full plots, six at most and "
        "no cock, in a run with a roof that a fox cannot enter. They must be fed every day by somebody whose name is on the "
        "gate. Eggs may be given away but not sold on the site. Rabbits, pigeons and bees in any other place need the vote "
        "of the general meeting, which has said no three times.",
    ),
    (
        "Compost and fire",
        "Green waste is composted on the plot where it grew. Branches thicker than a thumb go to the pile by the gate, which "
        "is chipped on the last Saturday of each month. Bonfires may be lit between the first of November and the middle of "
        "March, after three in the afternoon, if the wind blows away from the houses. Blighted potatoes and tomatoes are "
        "neither composted nor burned but put into the red bin, which the council empties free of charge. Horse manure is "
        "delivered in October and may be fetched by the barrow for two coins in the box. Anyone who tips rubbish behind the "
        "willows is given notice, as happened twice in the past ten years.",
    ),
    (
        "Work days",
        "Every member works for the society on two Saturdays a year or pays a fine of a fifth of the fee. Work days begin at "
        "nine with tea and end at one with soup. Hedges are cut after the birds have flown, paths are filled with the chips "
        "of the year, and the ditch is cleared from the culvert upwards. Tools belong to the society and are counted out and "
        "in by the steward. Those who cannot dig may cook, paint signs or keep the list. A member who comes to four work days "
        "in one year has the next two behind him. In the wet autumn the ditch was cleared by forty people in a single "
        "morning, and it has not flooded since.",
    ),
    (
        "The shop",
        "The shop opens on Sundays from ten to twelve and sells seed, twine, netting and canes at cost. Seed potatoes must be "
        "ordered by the tenth of December and are given out in the first week of March. The seed library in the blue drawers "
        "is free: take a packet, grow it, and bring two back. Its oldest bean came from a member's grandmother and is called "
        "the Stationmaster. Two scales, a soil auger and a hedge trimmer can be lent for a week against a deposit. The till "
        "is counted by two people who are not related. Profits, which there should not be, go to the fund for the new pump.",
    ),
]

#: The field notes of an invented expedition.
_ISLAND = [
    (
        "Landing",
        "We landed on the shingle below the old flagstaff at twenty past five, two hours after high water. The boat could not "
        "be drawn up by six people, so we unloaded it where it lay and let it go back half empty. Forty-one boxes were "
        "carried to the hut before dark; the box with the spare lamp glass had been left on the quay. The roof of the hut had "
        "lost nine slates on its western side but the bunks were dry. We found the tide gauge where the last party had "
        "left it, filled with sand to the second mark. There was fresh water in the tank, brown but sweet. Nobody slept "
        "much, because of the shearwaters, which came in from the sea at eleven and screamed until two.",
    ),
    (
        "The map",
        "The printed map is wrong by almost a hundred metres on the north side. We measured a base of three hundred and "
        "twelve metres along the beach with the steel tape, twice in each direction, and hung the rest of the triangles on "
        "it. The highest point is not the Cairn but a nameless shoulder to the east of it, which is higher by four metres. "
        "Two of the stacks that are drawn as one are divided by a channel that a seal can swim through and a boat cannot. We "
        "named nothing. In the hut there is a tracing from the time of the lighthouse builders that agrees with ours better "
        "than the printed map does, and we have copied its soundings in red.",
    ),
    (
        "Counting burrows",
        "Burrows were counted in squares of ten metres, laid out by lot from the grid. In each square two people listened at "
        "every hole while the third played the call of a male for half a minute. An answer came from one hole in three. From "
        "rings we know that females do not answer, and that males answer two times out of three in June but less in July. "
        "Corrected for this, the slope below the hut holds between eleven and thirteen hundred pairs. The eastern slope "
        "could not be counted, since the turf breaks under a person's weight. Rabbits have taken over the old burrows on "
        "the ridge, and where they graze the birds do not dig.",
    ),
    (
        "Weather",
        "It blew from the south-west on nineteen days out of thirty, and above thirty knots on six of them. Fog came in three "
        "times, always after two calm days, and lasted until the wind turned to the north. The lowest pressure was nine "
        "hundred and seventy-eight on the night of the fourteenth, when the mast of the anemometer broke at its lower joint. "
        "We tied it to the chimney, so the speeds after that date are those of the roof and not comparable. Rain fell on "
        "eleven days, one hundred and four millimetres in all, a third of it in a single night. The tank ran over for the "
        "first time on the sixteenth, and from then on we washed every day.",
    ),
    (
        "Seals",
        "The seals lie on the skerries from two hours before low water until the rocks are covered. The greatest number was "
        "two hundred and six on the twenty-second, of which thirty-one were this year's pups. One cow carried a strap of blue "
        "netting around her neck; she was seen on nine days and looked well. When the helicopter passed, all of them went "
        "into the sea within a minute, and half of them came back after forty. We heard them singing in fog. A bull with a "
        "white scar on his left shoulder, who is in the notes of the party of eleven years ago, lay on the same rock as "
        "then, alone.",
    ),
    (
        "Plants",
        "Ninety-three species of flowering plants were found, five of them new to the list and two of those surely brought by "
        "us or by our boots. Scurvy grass grows wherever the gulls rest and nowhere else. The single willow, which was knee "
        "high in the first notes, has reached the height of a man's chest on the side away from the wind. Sheep were taken "
        "off twenty-six years ago, and thrift has come back on the cliffs but not on the plateau, where moss lies a hand "
        "deep. Lichens on the flagstaff grew by one millimetre a year, if the date cut into it is right. We burned no turf "
        "and took no more than one flower of each kind.",
    ),
    (
        "Supplies",
        "Flour and oats lasted to the end; coffee was gone on the eighteenth and onions on the twentieth. Each person ate "
        "about four thousand kilocalories on days of counting and three thousand on days of fog. The stove burns two and a "
        "half litres of paraffin a day if bread is baked and one and a half if not. Of sixty eggs that were packed in salt "
        "two were bad. The second radio worked only with the battery of the first, and the first only in the morning. A "
        "future party should bring more string, a second kettle, boots a size larger than they think, and no tinned peaches. "
        "We left eleven tins of peaches in the hut.",
    ),
    (
        "The gauge",
        "The tide gauge was dug out, greased and set against the brass mark on the fourth day. It agrees with the pole to one "
        "centimetre in calm weather and to four in a swell. The mean of twenty-six days lies seven centimetres above the "
        "mean of the last party and nineteen above that of the builders. We do not think that the mark has moved, because "
        "the bolt beside it is still level with it. The clock of the gauge loses two minutes a week and was set by the radio "
        "every Sunday. Paper for one more year is in the blue chest; the pen should be cleaned with spirit and not with "
        "water. The door must be shut with the hook, or the spray comes in.",
    ),
]

#: (question, passages quoted from as (title, sentence numbers from 0), the sentence that ends the answer)
_Question = tuple[str, list[tuple[str, list[int]]], str]
_ABOUT_SOCIETY: list[_Question] = [
    ("What happens to a hose that is left running?", [("Water", [2])], "It is turned off and coiled up on the gate."),
    (
        "May I light a bonfire in April, and what do I do with blighted tomatoes?",
        [("Compost and fire", [2, 3])],
        "So April is too late for a fire, and the tomatoes go into the red bin.",
    ),
    (
        "Which rules are different for full plots?",
        [("Plots and fees", [5]), ("Sheds and glass", [2]), ("Bees and hens", [3])],
        "Greenhouses and hens are for full plots alone, and nobody holds two.",
    ),
    (
        "How can I get a plot that my partner has worked on?",
        [("Waiting list", [3])],
        "After two seasons of work on it.",
    ),
    (
        "What can I have without paying?",
        [("The shop", [2]), ("Compost and fire", [3])],
        "Seed from the library, and the emptying of the red bin.",
    ),
    (
        "What happened in years of extreme weather?",
        [("Waiting list", [5]), ("Work days", [6])],
        "The list stayed open in the dry years; the ditch was cleared in the wet autumn.",
    ),
    ("Who may miss the next work days?", [("Work days", [5])], "Whoever came to four in one year."),
    (
        "List the rules about sheds.",
        [("Sheds and glass", [0, 1, 4, 5, 6])],
        "The rule about gutters stands in another passage.",
    ),
]
_ABOUT_ISLAND: list[_Question] = [
    ("Where is the highest point?", [("The map", [2])], "On a shoulder to the east of the Cairn."),
    (
        "How many pairs breed below the hut, and how was that worked out?",
        [("Counting burrows", [0, 1, 2, 3, 4])],
        "Eleven to thirteen hundred pairs, corrected for birds that do not answer.",
    ),
    (
        "What did earlier parties leave or write that is compared with now?",
        [("Landing", [4]), ("Seals", [5]), ("The gauge", [2])],
        "The gauge, the bull with the scar and the mean level of the sea.",
    ),
    (
        "What should a future party bring?",
        [("Supplies", [5])],
        "String, a kettle and larger boots, but no peaches.",
    ),
    ("Which measurements cannot be compared?", [("Weather", [3])], "Wind speeds after the mast broke."),
    (
        "What is known about rabbits and sheep?",
        [("Counting burrows", [6]), ("Plants", [3])],
        "Rabbits keep the birds away; sheep have been gone for twenty-six years.",
    ),
    (
        "How is the tide gauge looked after?",
        [("The gauge", [0, 4, 5, 6])],
        "Grease it, set its clock, clean its pen and hook its door.",
    ),
    ("When did the water run over?", [("Weather", [5])], "On the sixteenth."),
]


def _sentences(text: str) -> list[str]:
    return [sentence.rstrip(".") + "." for sentence in text.split(". ")]


def _case(name: str, nth: int, passages: list[tuple[str, str]], question: _Question) -> Case:
    """Forms take turns: quotations with their document, a list of bullets, or marked text before the answer."""
    task, quoted, conclusion = question
    order = random.Random(f"{name} {nth}").sample(passages, len(passages))
    number = {title: i for i, (title, _) in enumerate(order, 1)}
    text = dict(passages)
    quotes = [(title, [_sentences(text[title])[i] for i in places]) for title, places in quoted]
    if nth % 3 == 0:
        shown = "\n\n".join(f'<document id="{number[t]}" title="{t}">\n{x}\n</document>' for t, x in order)
        asked = "Quote every sentence that bears on the question, with the id of its document, then conclude in one sentence."
        lines = [f'<quote document="{number[title]}">{" ".join(found)}</quote>' for title, found in quotes]
        prefix = f'<quote document="{number[quotes[0][0]]}">'
    elif nth % 3 == 1:
        shown = "\n\n".join(f"## {t}\n\n{x}" for t, x in order)
        asked = "Answer with a list of literal quotations under the titles of their sections, and a conclusion."
        lines = [f"**{title}**\n" + "\n".join(f"- {sentence}" for sentence in found) for title, found in quotes]
        prefix = f"**{quotes[0][0]}**\n-"
    else:
        shown = "\n\n".join(f"({number[t]}) {x}" for t, x in order)
        asked = "Answer from the text alone. Put what you quote between quotation marks and its number behind it."
        lines = ["\n".join(f'"{sentence}" ({number[title]})' for sentence in found) for title, found in quotes]
        prefix = '"' + " ".join(quotes[0][1][0].split()[:4])
    answer = "\n".join([*lines, conclusion])
    return ask("retrieval", f"{name}-{nth}", f"{shown}\n\n{task} {asked}", prefix=prefix, answer=answer, group=name)


def cases() -> Iterator[Case]:
    for name, passages, others, questions in (
        ("allotments", _SOCIETY, _ISLAND, _ABOUT_SOCIETY),
        ("island", _ISLAND, _SOCIETY, _ABOUT_ISLAND),
    ):
        for nth, question in enumerate(questions):
            yield _case(name, nth, passages + others if nth % 2 else passages, question)
